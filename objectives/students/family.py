"""The protocol of a kind of student; `families` lists those that there are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig


class Architecture(Protocol):
    """The discrete answer of a search; `bert.architecture.BertArchitecture` is BERT's."""

    def to_json(self) -> str:
        """Write one line of JSON, which a trial keeps as architecture.json."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read `to_json`. Raises UserError for anything else."""

    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        """Units left of each kind, one number a layer: what reports draw."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A configuration, a model and an architecture of one kind; a family that knows more is a
    subclass."""

    config: type[PreTrainedConfig]
    """Has `vocab_size`, `type_vocab_size` and `max_position_embeddings`, as BERT's."""
    model: type[PreTrainedModel]
    """A classifier that takes what BERT's does. The file that defines it imports torch,
    transformers and, relatively, files that do the same: an exported model carries copies."""
    architecture: type[Architecture]
    """Architecture of its searches."""
    noun: str
    """Noun of a model card: "BERT classifier"."""
    origin: str = "the classifier whose answers it learnt"
    """Model that a model card compares the cost with."""
    tags: tuple[str, ...] = ("distillation",)
    """Tags of a model card."""

    @property
    def model_types(self) -> tuple[str, ...]:
        """The kinds of transformers' configurations that are taken for this family."""
        return (self.config.model_type,)

    def register(self) -> None:
        """Let `AutoModelForSequenceClassification` load its models without custom code."""
        AutoConfig.register(self.config.model_type, self.config)
        AutoModelForSequenceClassification.register(self.config, self.model)

    def adapted(self, model: PreTrainedModel) -> PreTrainedModel:
        """A model of one of `model_types` as this family has it."""
        return model

    def predicted(self, architecture: Any, costs: Sequence[Any]) -> dict[str, float]:
        """Costs that follow from the architecture, by the units of these `measures.cost.Cost`."""
        return {}

    def vocabulary(self, architecture: Any) -> int | None:
        """How many of the teacher's word pieces its model reads; None: all."""
        return None

    def exported(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model as transformers' own class, where there is one; else the model itself."""
        return model

    def unpruned(
        self, models: Sequence[PreTrainedModel], layers: int | None
    ) -> PreTrainedModel | None:
        """A model of this many layers, random weights, that the first was cut from; None if nothing
        was cut."""
        # `layers` None: as many as that model. It has all word pieces of any model.
        return None

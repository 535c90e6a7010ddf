"""Protocol of a family of students; `families` lists them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig


class Architecture(Protocol):
    """Architecture that a search finds; `bert.architecture.BertArchitecture` is BERT's."""

    def to_json(self) -> str:
        """Write one line of JSON, which a trial stores as architecture.json."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read `to_json`. Raises UserError for anything else."""

    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        """Remaining units of each kind, one number a layer, for reports."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Family of students: configuration, model, architecture; a subclass if it can do more."""

    config: type[PreTrainedConfig]
    """Configuration with BERT's `vocab_size`, `type_vocab_size`, `max_position_embeddings`."""
    model: type[PreTrainedModel]
    """Classifier with BERT's inputs. Its file imports torch, transformers and, relatively, files
    that do the same, as an exported model carries copies."""
    architecture: type[Architecture]
    noun: str
    """Noun of a model card: "BERT classifier"."""
    origin: str = "the classifier whose answers it learnt"
    """Model that a model card compares the cost with."""
    tags: tuple[str, ...] = ("distillation",)

    @property
    def model_types(self) -> tuple[str, ...]:
        """Model types of transformers that belong to this family."""
        return (self.config.model_type,)

    def register(self) -> None:
        """Let `AutoModelForSequenceClassification` load its models without custom code."""
        AutoConfig.register(self.config.model_type, self.config)
        AutoModelForSequenceClassification.register(self.config, self.model)

    def adapted(self, model: PreTrainedModel) -> PreTrainedModel:
        """Convert a model of one of `model_types` to this family."""
        return model

    def predicted(self, architecture: Any, costs: Sequence[Any]) -> dict[str, float]:
        """Costs that follow from the architecture, by the unit of these `measures.cost.Cost`."""
        return {}

    def vocabulary(self, architecture: Any) -> int | None:
        """Number of the teacher's word pieces that its model reads; None: all."""
        return None

    def exported(self, model: PreTrainedModel) -> PreTrainedModel:
        """Convert to transformers' own class, if there is one; else return the model."""
        return model

    def unpruned(
        self, models: Sequence[PreTrainedModel], layers: int | None
    ) -> PreTrainedModel | None:
        """Unpruned random model, from which the first was cut; None if nothing was cut."""
        # `layers` None: as many as that model. It has all word pieces of any model.
        return None

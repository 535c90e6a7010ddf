"""Problem that all trials of a study share: data, teacher, student, cost."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from transformers import BertForSequenceClassification, PreTrainedModel

from objectives.cache import atomic_write, content_key, kernel_lock
from objectives.engines.names import Engine
from objectives.errors import UserError
from objectives.measures.budget import Budget
from objectives.measures.number_scale import NumberScale
from objectives.students.bert import pretrained
from objectives.students.bert.architecture import BertShape
from objectives.text.data import Split
from objectives.text.vocabulary import Vocabulary

Made = TypeVar("Made")


class NeedsBertError(UserError):
    """Raised when a method needs a BERT where there is none."""


class NoBert:
    """Placeholder for a missing BERT: every attribute raises a `NeedsBertError` that says why."""

    def __init__(self, why: str):
        self._why = why

    def __getattr__(self, name: str) -> Any:
        if name == "config":  # each of its entries is missing, too
            return self
        if name.startswith("__"):  # what Python itself looks for, such as __deepcopy__
            raise AttributeError(name)
        raise NeedsBertError(self._why)


@dataclass(frozen=True, eq=False)
class Words:
    """Parts of a model that cells use: token embeddings and their configuration."""

    embeddings: Tensor
    """(V, E)"""
    settings: Mapping[str, Any]
    """Entries of the configuration about tokens and labels."""

    @classmethod
    def of(cls, model: PreTrainedModel, **settings: Any) -> Self:
        """Take a model's embeddings and configuration, with these entries replaced."""
        names = ("type_vocab_size", "max_position_embeddings", "pad_token_id")
        config = {
            name: settings[name] if name in settings else getattr(model.config, name)
            for name in (*names, "id2label", "label2id", "problem_type")
        }
        embeddings: Any = model.get_input_embeddings()
        return cls(embeddings.weight.detach(), config)


@dataclass(frozen=True, eq=False)
class Problem:
    """Inputs of a search method: it learns from `train` and `alpha` alone."""

    teacher: BertForSequenceClassification
    """Fine-tuned teacher, frozen, in evaluation mode, on the device. A `NoBert` if it is no BERT
    that reads the students' tokens, so that only its answers are known."""
    student: BertForSequenceClassification
    """Model from which every student starts: the teacher, some layers of it, or another checkpoint.
    A `NoBert` if there is nothing to cut."""
    train: Split
    """Train rows, then augmented copies and unlabelled rows, if any. Without labels the teacher's
    answers are the labels."""
    teacher_logits: Tensor
    """Logits (rows of train, C) of the teacher on `train`, on the device."""
    alpha: Split
    """Rows on which units are chosen."""
    alpha_logits: Tensor
    """Logits (rows of alpha, C) of the teacher on `alpha`, on the device."""
    words: Words
    """Initial embeddings of cells."""
    flops_full: float
    """FLOPs of the model of ratio 1."""
    budget: Budget
    """Budget of target ratios: in the study's cost; in FLOPs if the cost depends on bits, as units
    are chosen before anything is quantised."""
    counted: Budget
    """Budget in the study's cost."""
    teacher_engine: Engine
    """Engine in which the teacher answers rows of `train`."""
    seq_len: int
    """Tokens at which FLOPs are counted."""
    student_is_new: bool
    """Whether the student is another checkpoint, which does not know the task yet."""
    select_score: Callable[[PreTrainedModel], float]
    """Objective of the study for a cut model on the selection split, higher is better: the metric,
    or minus the divergence. It may choose among checkpoints of one architecture, never give a
    gradient."""
    vocabulary: Vocabulary
    """Word pieces, by how much the task needs them."""
    device: str
    """Device of teacher, student and tensors, such as "cpu" or "cuda:0"."""
    cache: Path
    """Cache folder: see `objectives.cache`."""
    student_layers: tuple[int, ...] | None = None
    """Layers of the teacher that form the student, if it is some of them."""
    scale: NumberScale = field(default_factory=NumberScale)
    """Scale of a regression: models, answers and labels here are of standard numbers."""
    beside: tuple["Problem", ...] = ()
    """Extra tasks of the study, each with a teacher of its own that reads the same tokens."""
    _made: dict[object, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def shape(self) -> BertShape:
        """The sizes of the unpruned student."""
        return self.budget.cost.shape

    def once(self, key: object, make: Callable[[], Made]) -> Made:
        """Make a value once a launch and keep it in memory for all populations.

        Args:
            key: What it is, and all that decides it beside this problem.
            make: Makes it; called where no earlier call had this key.

        Returns:
            The thing.
        """
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def cached(
        self, name: str, ingredients: Mapping[str, object], make: Callable[[Path, Path], object]
    ) -> Path:
        """Folder of data that is made once a run, by the first worker that needs it.

        The others wait for it; if its maker is killed, the next one makes it. It lies in `cache`,
        called `name` and a key of all that decides it: this problem, and `ingredients`.

        Args:
            name: What it is, for people.
            ingredients: What decides it beside this problem, as JSON.
            make: Writes it into the empty folder that it is given first. The second, which it
                may make, outlives a kill, so that the next maker can go on; it goes in the end.

        Returns:
            The folder, whole.
        """
        key = content_key({**ingredients, "problem": self.fingerprint})
        folder = self.cache / f"{name}-{key}"
        self.cache.mkdir(parents=True, exist_ok=True)
        begun = self.cache / f".{folder.name}.begun"
        with kernel_lock(self.cache / f"{folder.name}.lock"):
            if not folder.is_dir():
                with atomic_write(folder) as unfinished:
                    unfinished.mkdir()
                    make(unfinished, begun)
            shutil.rmtree(begun, ignore_errors=True)
        return folder

    @cached_property
    def fingerprint(self) -> str:
        """Digest, 16 hexadecimal digits, of all that a search learns from: models, rows, costs."""
        budget = self.budget
        alpha = hashlib.sha256(self.alpha.labels.tobytes()).hexdigest()
        models = {"teacher": self.teacher, "student": self.student}
        answers = hashlib.sha256(self.teacher_logits.cpu().numpy().tobytes()).hexdigest()
        return content_key(
            {
                **{
                    name: answers if isinstance(model, NoBert) else pretrained.fingerprint_of(model)
                    for name, model in models.items()
                },
                "rows": [self.train.fingerprint, self.alpha.fingerprint, alpha],
                "cost": [budget.cost.unit, budget.cost.full, budget.full, self.seq_len],
                "device": torch.device(self.device).type,
                **({"scale": astuple(self.scale)} if self.scale != NumberScale() else {}),
                **({"engine": self.teacher_engine} if self.teacher_engine != "eager" else {}),
                **({"beside": [task.fingerprint for task in self.beside]} if self.beside else {}),
            }
        )

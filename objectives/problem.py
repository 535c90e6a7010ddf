"""What every trial of a study shares: data, teacher, student, cost. Prepared once a launch."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import BertForSequenceClassification, PreTrainedModel

from objectives.cache import atomic_write, content_key, kernel_lock
from objectives.measures.budget import Budget
from objectives.students.bert import pretrained
from objectives.students.bert.architecture import BertShape
from objectives.text.data import Split
from objectives.text.vocabulary import Vocabulary

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Problem:
    """What a search method works on: it learns from `train` and `alpha` alone."""

    teacher: BertForSequenceClassification
    """Fine-tuned, frozen, in evaluation mode, on the device."""
    student: BertForSequenceClassification
    """Where every student starts: the teacher, some layers of it, or a checkpoint of its own."""
    train: Split
    """The train rows, then their augmented copies and the unlabelled rows, if the study has any.
    Labels are the teacher's answers where there are none."""
    teacher_logits: Tensor
    """(rows of train, C): what the teacher says of each row of `train`, on the device."""
    alpha: Split
    """The rows to choose units by."""
    budget: Budget
    """What target ratios are shares of: what the study counts, or FLOPs where bits decide that,
    since units are chosen before anything is rounded."""
    counted: Budget
    """What the study counts."""
    seq_len: int
    """Tokens at which FLOPs are taken, whatever the study counts."""
    student_is_new: bool
    """The student is a checkpoint of its own, which does not know the task yet."""
    select_score: Callable[[PreTrainedModel], float]
    """What the study compares, of a cut model on the selection split, the higher the better: the
    metric, or minus the divergence. For the choice among checkpoints of one architecture, never for
    a gradient."""
    vocabulary: Vocabulary
    """The word pieces, by how much the task needs them."""
    device: str
    """Of teacher, student and tensors, such as "cpu" or "cuda:0"."""
    cache: Path
    """Folder for what is made once: see `cache`."""
    student_layers: tuple[int, ...] | None = None
    """The layers of the teacher that the student is, where it is some of them."""
    beside: tuple[Problem, ...] = ()
    """The other tasks of the study, each with a teacher of its own that reads the same tokens."""
    _made: dict[object, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def shape(self) -> BertShape:
        """The sizes of the unpruned student."""
        return self.budget.cost.shape

    def once(self, key: object, make: Callable[[], Made]) -> Made:
        """A thing that is made once a launch and stays in memory, for all populations.

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
        """The folder of a thing that is made once for a run, by whichever worker comes first.

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
        """Of all that a search learns from: models, rows, costs; 16 hexadecimal digits."""
        budget = self.budget
        alpha = hashlib.sha256(self.alpha.labels.tobytes()).hexdigest()
        models = {"teacher": self.teacher, "student": self.student}
        return content_key(
            {
                **{name: pretrained.fingerprint_of(model) for name, model in models.items()},
                "rows": [self.train.fingerprint, self.alpha.fingerprint, alpha],
                "cost": [budget.cost.unit, budget.cost.full, budget.full, self.seq_len],
                "device": torch.device(self.device).type,
                **({"beside": [task.fingerprint for task in self.beside]} if self.beside else {}),
            }
        )

"""A family of students as ARCHITECTURE.md says to add one, and a method that trains it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Self

import torch

from objectives.problem import Problem
from objectives.progress import Progress
from objectives.search_method import Outcome, SearchMethod, SearchResult
from objectives.students.family import Family
from objectives.training.losses import prediction_loss
from tests.bag_of_words.bag_classifier import BagConfig, BagForSequenceClassification


@dataclass(frozen=True)
class Bag:
    """The architecture of a bag of words."""

    width: int
    """Dimensions of the embeddings."""

    def to_json(self) -> str:
        return json.dumps({"width": self.width})

    @classmethod
    def from_json(cls, text: str) -> Bag:
        return cls(**json.loads(text))

    def sizes(self) -> dict[str, tuple[int, ...]]:
        return {"width": (self.width,)}


BAG_OF_WORDS = Family(
    config=BagConfig, model=BagForSequenceClassification, architecture=Bag, noun="bag of words"
)


@dataclass(frozen=True, kw_only=True)
class BagOfWords(SearchMethod):
    """Bags of words that learn what the teacher says."""

    per_slot: ClassVar[frozenset[str]] = frozenset({"width"})

    width: int = 16
    steps: int = 20

    @classmethod
    def search(
        cls, members: Sequence[Self], problem: Problem, *, seed: int, progress: Progress
    ) -> Iterator[Outcome]:
        for slot, member in enumerate(members):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                teacher = problem.teacher.config
                config = BagConfig(hidden_size=member.width, id2label=teacher.id2label)
                config.vocab_size, config.label2id = teacher.vocab_size, teacher.label2id
                model = BagForSequenceClassification(config)
            adam = torch.optim.Adam(model.parameters(), 0.01)
            for batch in islice(problem.train.shuffled(32, seed, problem.device), member.steps):
                logits = model(batch.input_ids, batch.attention_mask).logits
                prediction_loss(logits[None], problem.teacher_logits[batch.rows]).sum().backward()
                adam.step()
                adam.zero_grad()
            model.train(False)
            yield SearchResult(slot, Bag(member.width), model, curve=())

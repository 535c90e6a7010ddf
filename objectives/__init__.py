"""What one trial is: task, student, masks, cost, stages, the cut model. Knows torch, never optuna.

What loads torch is imported when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from objectives.delivery.bench import bench
    from objectives.errors import MaskfrontError, UserError
    from objectives.methods.baselines.head_importance import HeadImportance
    from objectives.methods.baselines.magnitude_pruning import MagnitudePruning
    from objectives.methods.baselines.random_pruning import RandomPruning
    from objectives.methods.binary_bert import BinaryBert
    from objectives.methods.cell_search import CellSearch
    from objectives.methods.cross_distillation import CrossDistillation
    from objectives.methods.elastic_search import ElasticSearch
    from objectives.methods.fisher_pruning import FisherPruning
    from objectives.methods.fisher_search import FisherSearch
    from objectives.methods.mask_search import MaskSearch
    from objectives.methods.mrem import Mrem
    from objectives.methods.polish import Polish
    from objectives.methods.ternary_bert import TernaryBert
    from objectives.methods.width_search import WidthSearch
    from objectives.problem import Problem
    from objectives.progress import Progress
    from objectives.search_method import SearchFailure, SearchMethod, SearchResult
    from objectives.staged_method import StagedMethod
    from objectives.strategies.one_shot import OneShot, ScopedOneShot
    from objectives.text.augmentation import Augmentation
    from objectives.text.glue import glue
    from objectives.text.task import Task
    from objectives.training.stages import FOUR_STEPS, Stage
    from objectives.weights.alpha import Alpha
    from objectives.weights.independent import staged_search
    from objectives.workbench.fidelity import Fidelity
    from objectives.workbench.teacher import Teacher

__all__ = [
    "FOUR_STEPS",
    "Alpha",
    "Augmentation",
    "BinaryBert",
    "CellSearch",
    "CrossDistillation",
    "ElasticSearch",
    "Fidelity",
    "FisherPruning",
    "FisherSearch",
    "HeadImportance",
    "MagnitudePruning",
    "MaskSearch",
    "MaskfrontError",
    "Mrem",
    "OneShot",
    "Polish",
    "Problem",
    "Progress",
    "RandomPruning",
    "ScopedOneShot",
    "SearchFailure",
    "SearchMethod",
    "SearchResult",
    "Stage",
    "StagedMethod",
    "Task",
    "Teacher",
    "TernaryBert",
    "UserError",
    "WidthSearch",
    "bench",
    "glue",
    "staged_search",
]

_HOMES = {
    "bench": "objectives.delivery.bench",
    "MaskfrontError": "objectives.errors",
    "UserError": "objectives.errors",
    "BinaryBert": "objectives.methods.binary_bert",
    "CellSearch": "objectives.methods.cell_search",
    "CrossDistillation": "objectives.methods.cross_distillation",
    "ElasticSearch": "objectives.methods.elastic_search",
    "FisherPruning": "objectives.methods.fisher_pruning",
    "FisherSearch": "objectives.methods.fisher_search",
    "HeadImportance": "objectives.methods.baselines.head_importance",
    "MagnitudePruning": "objectives.methods.baselines.magnitude_pruning",
    "MaskSearch": "objectives.methods.mask_search",
    "Mrem": "objectives.methods.mrem",
    "Polish": "objectives.methods.polish",
    "RandomPruning": "objectives.methods.baselines.random_pruning",
    "TernaryBert": "objectives.methods.ternary_bert",
    "WidthSearch": "objectives.methods.width_search",
    "Problem": "objectives.problem",
    "Progress": "objectives.progress",
    "OneShot": "objectives.strategies.one_shot",
    "ScopedOneShot": "objectives.strategies.one_shot",
    "StagedMethod": "objectives.staged_method",
    "Alpha": "objectives.weights.alpha",
    "staged_search": "objectives.weights.independent",
    "SearchFailure": "objectives.search_method",
    "SearchMethod": "objectives.search_method",
    "SearchResult": "objectives.search_method",
    "Augmentation": "objectives.text.augmentation",
    "glue": "objectives.text.glue",
    "Task": "objectives.text.task",
    "FOUR_STEPS": "objectives.training.stages",
    "Stage": "objectives.training.stages",
    "Fidelity": "objectives.workbench.fidelity",
    "Teacher": "objectives.workbench.teacher",
}
"""Where each of them is, imported when it is asked for."""


if not TYPE_CHECKING:  # else mypy would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""What a user imports: `from maskfront import FisherSearch, Study, Task, Teacher, launch`.

Each name is loaded when it is asked for: a front or a report reads a run without torch.
"""

from __future__ import annotations

import ast
import gc
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

__version__: str

if TYPE_CHECKING:  # the one list of the names: type checkers and `_listed` read it
    from objectives.combining.cascade import Cascade as Cascade
    from objectives.delivery.bench import bench as bench
    from objectives.delivery.checking import Holding as Holding
    from objectives.delivery.checking import check as check
    from objectives.errors import MaskfrontError as MaskfrontError
    from objectives.errors import UserError as UserError
    from objectives.methods.aps_t import ApsT as ApsT
    from objectives.methods.baselines.group_lasso import GroupLasso as GroupLasso
    from objectives.methods.baselines.head_importance import HeadImportance as HeadImportance
    from objectives.methods.baselines.low_rank import LowRank as LowRank
    from objectives.methods.baselines.magnitude_pruning import MagnitudePruning as MagnitudePruning
    from objectives.methods.baselines.random_pruning import RandomPruning as RandomPruning
    from objectives.methods.binary_bert import BinaryBert as BinaryBert
    from objectives.methods.cells.ada_bert import AdaBert as AdaBert
    from objectives.methods.cells.auto_bert_zero import AutoBertZero as AutoBertZero
    from objectives.methods.cells.auto_keras import AutoKeras as AutoKeras
    from objectives.methods.cells.base.shared_cells import SharedCells as SharedCells
    from objectives.methods.cells.cas import Cas as Cas
    from objectives.methods.cells.cell_search import CellSearch as CellSearch
    from objectives.methods.cells.darts import Darts as Darts
    from objectives.methods.cells.enas import Enas as Enas
    from objectives.methods.cells.ess import Ess as Ess
    from objectives.methods.cells.evolved_transformer import (
        EvolvedTransformer as EvolvedTransformer,
    )
    from objectives.methods.cells.i_darts import IDarts as IDarts
    from objectives.methods.cells.mas import Mas as Mas
    from objectives.methods.cells.single_path import SinglePath as SinglePath
    from objectives.methods.cross_distillation import CrossDistillation as CrossDistillation
    from objectives.methods.elastic.elastic_search import ElasticSearch as ElasticSearch
    from objectives.methods.fisher_pruning import FisherPruning as FisherPruning
    from objectives.methods.fisher_search import FisherSearch as FisherSearch
    from objectives.methods.mask_search import MaskSearch as MaskSearch
    from objectives.methods.mrem import Mrem as Mrem
    from objectives.methods.polish import Polish as Polish
    from objectives.methods.sandwich import Sandwich as Sandwich
    from objectives.methods.ternary_bert import TernaryBert as TernaryBert
    from objectives.methods.width_search import WidthSearch as WidthSearch
    from objectives.problem import Problem as Problem
    from objectives.progress import Progress as Progress
    from objectives.pruning.one_shot import OneShot as OneShot
    from objectives.pruning.one_shot import ScopedOneShot as ScopedOneShot
    from objectives.pruning.staged_method import StagedMethod as StagedMethod
    from objectives.pruning.staged_search import Alpha as Alpha
    from objectives.pruning.staged_search import staged_search as staged_search
    from objectives.search_method import SearchFailure as SearchFailure
    from objectives.search_method import SearchMethod as SearchMethod
    from objectives.search_method import SearchResult as SearchResult
    from objectives.strategies.controller import Controller as Controller
    from objectives.strategies.controller import ControllerSettings as ControllerSettings
    from objectives.strategies.edit_distance import DistanceSettings as DistanceSettings
    from objectives.strategies.edit_distance import EditDistance as EditDistance
    from objectives.strategies.evolution import Evolution as Evolution
    from objectives.strategies.evolution import EvolutionSettings as EvolutionSettings
    from objectives.strategies.operation_priority import OperationPriority as OperationPriority
    from objectives.strategies.operation_priority import PrioritySettings as PrioritySettings
    from objectives.students.cells.graph import Node as Node
    from objectives.students.cells.graph_space import GraphSpace as GraphSpace
    from objectives.text.augmentation import Augmentation as Augmentation
    from objectives.text.glue import glue as glue
    from objectives.text.task import Task as Task
    from objectives.training.stages import FOUR_STEPS as FOUR_STEPS
    from objectives.training.stages import Stage as Stage
    from objectives.workbench.fidelity import Fidelity as Fidelity
    from objectives.workbench.inputs import Beside as Beside
    from objectives.workbench.teacher import Teacher as Teacher
    from objectives.workbench.teacher_trials import AtLength as AtLength
    from objectives.workbench.teacher_trials import lengths as lengths
    from orchestrator.command.compressing import Compressed as Compressed
    from orchestrator.command.compressing import compress as compress
    from orchestrator.command.distilling import distil as distil
    from orchestrator.command.launching import launch as launch
    from orchestrator.command.polishing import polish as polish
    from orchestrator.command.run import Run as Run
    from orchestrator.command.run import load_run as load_run
    from orchestrator.dashboard.server import serve as serve
    from orchestrator.errors import RunError as RunError
    from orchestrator.strategy_sampler import StrategySampler as StrategySampler
    from orchestrator.study import Study as Study
    from orchestrator.study_file import load_study as load_study
    from orchestrator.workers.loop import work as work
    from reports.choice import choose as choose
    from reports.exporting.deployed_card import Deployed as Deployed
    from reports.exporting.export import Exported as Exported
    from reports.exporting.export import export as export
    from reports.exporting.export import push as push
    from reports.page.page import write_report as write_report
    from reports.page.picture import front_image as front_image
    from reports.speed import bench_front as bench_front
    from reports.speed import keep_speeds as keep_speeds


_ROOT = Path(__file__).resolve().parent.parent
# Where the user's own script lies beside a folder of one of our names. Workers inherit the path.
for _name in ("objectives", "orchestrator", "reports"):
    _file = getattr(find_spec(_name), "origin", None) or ""
    if Path(_file).resolve() != _ROOT / _name / "__init__.py":
        sys.path.insert(0, str(_ROOT))


def _listed() -> dict[str, str]:
    """The names at the top of this file, each with the module that has it."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    lines = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in lines for alias in line.names}


if not TYPE_CHECKING:  # else a type checker would take any name for one of these
    _MODULES = _listed()
    __all__ = sorted(_MODULES)

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return version("maskfront")
        if name in _MODULES:
            collects = gc.isenabled()
            gc.disable()  # torch and transformers load in three quarters of the time
            try:
                return getattr(import_module(_MODULES[name]), name)
            finally:
                if collects:
                    gc.enable()
        raise AttributeError(f"module 'maskfront' has no attribute '{name}'")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

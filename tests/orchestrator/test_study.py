"""What a Study refuses when it is defined."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler

from maskfront import Study
from objectives.errors import UserError
from objectives.measures.budget import TargetSchedule
from objectives.methods.cells.cell_search import CellSearch
from objectives.methods.cross_distillation import CrossDistillation
from objectives.methods.fisher_search import FisherSearch
from objectives.methods.mask_search import MaskSearch
from objectives.search_method import SearchMethod
from objectives.students.bert.architecture import BertShape
from objectives.students.cells.graph import Node
from objectives.text.task import Task
from objectives.training.stages import Stage
from objectives.workbench.fidelity import Fidelity
from orchestrator.identity import definition_of, sources_of
from orchestrator.workers.loop import read_study
from tests.conftest import config_of

Knob = FloatDistribution | IntDistribution | CategoricalDistribution
RATIOS = FloatDistribution(0.3, 1, log=True)
WEIGHTS = FloatDistribution(0, 1)


@pytest.mark.parametrize(
    ("name", "knob", "value"),
    [
        ("target_ratio", RATIOS, 0.2),
        ("target_ratio", RATIOS, -1.0),
        ("flops_weight", WEIGHTS, float("nan")),
        ("flops_weight", WEIGHTS, "large"),
        ("flops_weight", WEIGHTS, None),
        ("flops_weight", FloatDistribution(0, 1, step=0.25), 0.3),
        ("batch_size", IntDistribution(1, 8), 1.5),
        ("hinge_on", CategoricalDistribution(["discrete", "expected"]), "discreet"),
    ],
)
def test_first_knobs_lie_in_the_space(study: Study, name: str, knob: Knob, value: object) -> None:
    with pytest.raises(UserError, match=rf"Study\.first has {name} = .* is outside .*; change"):
        replace(study, space={name: knob}, first=({name: value},))


@pytest.mark.parametrize(
    ("name", "knob", "value"),
    [
        ("flops_weight", WEIGHTS, 1),
        ("batch_size", IntDistribution(1, 8), 8),
        ("one_sided", CategoricalDistribution([False, True]), True),
    ],
)
def test_the_ends_of_a_space_lie_in_it(study: Study, name: str, knob: Knob, value: object) -> None:
    assert replace(study, space={name: knob}, first=({name: value},)).first[0][name] == value


@pytest.mark.parametrize(
    ("name", "knob", "message"),
    [
        (
            "target_ratio",
            FloatDistribution(0.1, 2),
            r"MaskSearch\.target_ratio is 2\.0; it must be",
        ),
        ("target_ratio", FloatDistribution(0, 1), r"MaskSearch\.target_ratio is 0\.0; it must be"),
        ("batch_size", IntDistribution(0, 8), r"MaskSearch\.batch_size is 0; it must be >= 1"),
        (
            "batch_size",
            FloatDistribution(16, 64),
            r"MaskSearch\.batch_size is 16\.0; it must be a whole number$",
        ),
        (
            "precision",
            CategoricalDistribution(["auto", "float16"]),
            r"MaskSearch\.precision is 'float16'; it must be one of auto, ",
        ),
        ("target_ratio", (0.1, 1), r"\(0\.1, 1\); give an Optuna distribution"),
        (
            "target_ratio",
            CategoricalDistribution(["0.5", "0.8"]),
            r"MaskSearch\.target_ratio is '0\.5'; it must be a number",
        ),
    ],
)
def test_a_space_holds_no_refused_value(study: Study, name: str, knob: Knob, message: str) -> None:
    with pytest.raises(UserError, match=rf"Study\.space has {name} = .*{message}"):
        replace(study, space={name: knob}, first=())


def test_sources_name_files_and_both_texts_of_a_pair(study: Study, tmp_path: Path) -> None:
    pair = Task.from_files(
        tmp_path / "train.csv",
        heldout_file=tmp_path / "test.csv",
        unlabelled_file=tmp_path / "more.tsv",
        name="pairs",
        text=("first", "second"),
    )
    named = sources_of(replace(study, task=pair))
    assert (named["data"], named["held-out data"]) == ("train.csv", "test.csv")
    assert named["unlabelled data"] == "more.tsv"
    assert (named["text"], named["text pair"]) == ("first", "second")
    assert not {"held-out data", "text pair"} & set(sources_of(study))
    alone = replace(pair, heldout_split=None)
    assert sources_of(replace(study, task=alone))["data"] == "train.csv"


def test_choices_that_no_storage_keeps_as_they_are_are_refused(study: Study) -> None:
    with pytest.warns(UserWarning, match="should be a tuple of None, bool, int, float and str"):
        start = CategoricalDistribution([("heads", "ffn"), ("ffn",)])  # type: ignore[list-item]
    with pytest.raises(UserError, match=r"Study\.space has start = .*storage cannot keep others"):
        replace(study, space={"start": start}, first=())


def test_one_stage_is_no_tuple_of_stages() -> None:
    with pytest.raises(UserError, match=r"FisherSearch\.stages is Stage\(.*mind the comma in \(x"):
        FisherSearch(stages=Stage(name="recover", epochs=1))  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"is \('recover',\); it must be .* each is Stage\(\.\.\.\)$"
    ):
        FisherSearch(stages=("recover",))  # type: ignore[arg-type]


def test_a_value_that_goes_with_some_of_another_knob_is_held(study: Study) -> None:
    search = Stage(name="search", epochs=1, searches=True)
    method = MaskSearch(stages=(replace(search, name="first"), search))
    keep = {"stages.search.keep": CategoricalDistribution(["best", "last"])}
    with pytest.raises(UserError, match=r"stages\.search\.keep = .*is only for stages after"):
        replace(study, method=method, space=keep, first=())
    both = {**keep, "stages.search.searches": CategoricalDistribution([True, False])}
    assert replace(study, method=method, space=both, first=()).space == both


def searching(schedule: TargetSchedule) -> MaskSearch:
    stages = (Stage(name="search", epochs=1, searches=True),)
    return MaskSearch(stages=stages, target_schedule=schedule)


BY_SIGN = MaskSearch(alpha_optimizer="sign")
OF_NEURONS = MaskSearch(spaces=("ffn",), heads_by="softmax", heads_kept=2)
OF_NO_FLOPS = MaskSearch(flops_weight=0.0, target_schedule="constant")
SHARE = {"update_share": FloatDistribution(0.1, 1)}
HEADS = {"heads_by": CategoricalDistribution(["sigmoid", "softmax"])}
RAMP = {"ramp": FloatDistribution(0.1, 1)}
SIDES = {"hinge_on": CategoricalDistribution(["discrete", "expected"])}
BAND = {"tolerance": FloatDistribution(0.01, 0.1)}
OF_HEADS = "it only acts on searched heads"


@pytest.mark.parametrize(
    ("method", "space", "why"),
    [
        (MaskSearch(), SHARE, "='sign'"),
        (BY_SIGN, SHARE, None),
        (
            MaskSearch(),
            {**SHARE, "alpha_optimizer": CategoricalDistribution(["adam", "sign"])},
            None,
        ),
        (BY_SIGN, {"flops_weight": CategoricalDistribution([0.0, 1.0])}, None),
        (OF_NEURONS, HEADS, OF_HEADS),
        (OF_NEURONS, {"heads_kept": IntDistribution(1, 4)}, OF_HEADS),
        (MaskSearch(), HEADS, None),
        (searching("constant"), RAMP, "falling target"),
        (searching("cubic"), RAMP, None),
        (OF_NO_FLOPS, SIDES, "it acts through the FLOPs loss, whose weight is 0"),
        (OF_NO_FLOPS, {**SIDES, "flops_weight": WEIGHTS}, None),
        (
            MaskSearch(spaces=("heads",), heads_by="softmax"),
            SIDES,
            "heads_by='softmax' has no gates",
        ),
        (MaskSearch(), SIDES, None),
        (
            MaskSearch(),
            {"stages.recover.hidden_weight": FloatDistribution(1, 100)},
            "the loss of the stage is 'prediction'",
        ),
        (OF_NO_FLOPS, RAMP, ""),
        (  # it acts where two others change
            OF_NO_FLOPS,
            {
                **{**RAMP, "flops_weight": WEIGHTS},
                "target_schedule": CategoricalDistribution(["constant", "linear"]),
            },
            None,
        ),
        (FisherSearch(), BAND, "fills the budget"),
        (
            CellSearch(nodes=(Node((0,), ("conv3",)),)),
            {"operations[0]": CategoricalDistribution(("conv3", "none"))},
            "nodes are given",
        ),
        (searching("cubic"), BAND, None),
    ],
)
def test_a_knob_that_does_nothing_is_not_tuned(
    study: Study, method: SearchMethod, space: dict[str, Knob], why: str | None
) -> None:
    if why is None:
        assert replace(study, method=method, space=space, first=()).space == space
        return
    (knob,) = space
    said = rf"has {re.escape(knob)}, which would do nothing: .*{why}"
    with pytest.raises(UserError, match=said):
        replace(study, method=method, space=space, first=())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"teacher": "bert-base-uncased"},
            r"Study\.teacher is 'bert-base-uncased'; give a Teacher",
        ),
        ({"method": FisherSearch}, r"Study\.method is <class .*FisherSearch'>; give one method"),
        (
            {"first": {"target_ratio": 0.5}},
            r"Study\.first is \{'target_ratio': 0\.5\}; it must be a tuple: mind the comma",
        ),
        (
            {"first": ("target_ratio",)},
            r"Study\.first is \('target_ratio',\); it must be a tuple of which each is a mapping",
        ),
        ({"warm_start": "runs/a"}, r"Study\.warm_start is 'runs/a'; it must be a tuple"),
        ({"student_layers": 3}, r"Study\.student_layers is 3; it must be a tuple"),
        ({"student_layers": (0, "1")}, r"is \(0, '1'\); .* tuple of which each is a whole number"),
        ({"task": "cola"}, r"Study\.task is 'cola'; it must be Task\(\.\.\.\)$"),
        ({"space": {"targt_ratio": FloatDistribution(0.1, 1)}}, r"; did you mean 'target_ratio'\?"),
        ({"seq_len": "48"}, r"Study\.seq_len is '48'; it must be a whole number"),
        (
            {"population": "Auto"},
            r"Study\.population is 'Auto'; it must be a whole number or 'auto'",
        ),
        ({"warm_start": (3,)}, r"it must be a tuple of which each is a string or a path$"),
        ({"student": 4}, r"Study\.student is 4; it must be a string or None$"),
        (
            {
                **{"fidelity": Fidelity(epochs=0.5), "method": CrossDistillation()},
                **{"space": {}, "first": ()},
            },
            r"CrossDistillation trains nothing, so Fidelity\.epochs cannot be 0\.5; leave it at 1",
        ),
        (
            {
                **{"cost": "latency", "method": FisherSearch(), "first": ()},
                "space": {"spaces[0]": CategoricalDistribution(("heads", "qk"))},
            },
            r"Study\.cost 'latency' .*qk",
        ),
        (
            {"sampler": None, "trials": 1, "space": {}, "first": ({},), "warm_start": ("a",)},
            r"trials are those of Study\.first; leave warm_start out",
        ),
        (
            {"cost": "latency", "method": MaskSearch(spaces=("heads", "qk", "v"))},
            r"'latency' has no cost for units of qk, v, only",
        ),
        *(
            (
                {"cost": cost, "method": CellSearch(), "space": {}, "first": ()},
                f"cost is '{cost}', which CellSearch cannot count",
            )
            for cost in ("bitops", "units")
        ),
        ({"objective": "loss"}, r"Study\.objective is 'loss'; it must be .*divergence"),
        ({"at_least": {"bytes": 1}}, "names 'bytes', which is not among metric"),
        ({"at_most": {"speed": 1}}, "names 'speed', which is not among divergence, ratio"),
        ({"at_most": {"ms": 3}}, "which only cost='latency' measures"),
        ({"at_most": {"bytes": "4 MB"}}, "it must be a mapping of which each is a number"),
        ({"patience": 0}, r"Study\.patience is 0; it must be >= 1 or None"),
        ({"trial_timeout": 0.0}, r"Study\.trial_timeout is 0\.0; it must be > 0 or None"),
        ({"fidelity": 0.5}, r"Study\.fidelity is 0\.5; it must be Fidelity\(\.\.\.\)$"),
        ({"augmentation": True}, r"is True; it must be Augmentation\(\.\.\.\) or None$"),
        ({"name": None}, r"Study\.name is None; it must be a string$"),
        ({"space": None}, r"Study\.space is None; it must be a dict of knobs"),
        ({"seq_len": -1}, r"Study\.seq_len is -1; it must be >= 1 or None"),
        ({"first": ({"target_ratio": np.zeros(2)},)}, r"target_ratio"),
        ({"cost": np.zeros(2)}, r"Study\.cost is .*; it must be one of flops"),
        ({"seed": 2**32}, r"Study\.seed is 4294967296; it must be below 2\*\*32"),
        (
            {"space": {"method": IntDistribution(1, 2)}, "first": ()},
            r"names 'method', which chooses among several methods; rename the field",
        ),
        ({"sampler": "cma"}, r"Study\.sampler is 'cma'; it must be one of tpe, gp"),
        ({"sampler": RandomSampler()}, r"sampler is <.*; it must be .*function from a seed to a s"),
    ],
)
def test_what_a_study_refuses(study: Study, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(study, **changes)


def test_a_space_of_very_many_corners_is_judged_by_some_of_all_its_knobs(study: Study) -> None:
    kinds = CategoricalDistribution(("conv5", "gated", "feed_forward"))
    cells = CellSearch(operations=("gated",) * 9)
    space = {f"operations[{place}]": kinds for place in range(9)}
    space["recurrent"] = CategoricalDistribution((False, True))
    assert replace(study, method=cells, space=space, first=()).space == space


def test_only_what_a_trial_may_get_has_to_go_with_the_sizes(study: Study) -> None:
    small = config_of(BertShape(layers=1, hidden=8, heads=2, head_dim=4, ffn=8, labels=2))
    of_eight = MaskSearch(heads_by="softmax", heads_kept=8)
    tuned = replace(study, method=of_eight, space={"heads_kept": IntDistribution(1, 2)}, first=())
    tuned.check_shapes(small, small)
    with pytest.raises(UserError, match=r"heads_kept is 8; the student has 2 a layer"):
        replace(tuned, space={}).check_shapes(small, small)


def test_an_engine_goes_with_the_cost_of_milliseconds(study: Study) -> None:
    for settings, message in (
        ({"engine": "onnxruntime"}, r"Study\.engine is 'onnxruntime', which only matters"),
        ({"latency_batch": 8}, r"Study\.latency_batch is 8, .* Study\.cost is 'flops'; leave late"),
        ({"cost": "latency", "latency_batch": 0}, r"Study\.latency_batch is 0; it must be >= 1"),
        ({"cost": "latency", "engine": "tpu"}, r"Study\.engine is 'tpu'; it must be one of eag"),
    ):
        with pytest.raises(UserError, match=message):
            replace(study, **settings)
    plain = replace(study, cost="latency")
    known = definition_of(plain, "data", "checkpoint")
    assert known.keys().isdisjoint({"engine", "latency_batch"})
    served = replace(plain, engine="onnxruntime-int8", latency_batch=8)
    assert definition_of(served, "data", "checkpoint") == known | {
        "engine": "onnxruntime-int8",
        "latency_batch": "8",
    }


def test_the_engine_of_the_teacher_decides_results_where_it_is_set(study: Study) -> None:
    known = definition_of(study, "data", "checkpoint")
    faster = replace(study, teacher=replace(study.teacher, engine="bfloat16"))
    both = definition_of(faster, "data", "checkpoint")
    assert both == known | {"teacher.engine": "bfloat16"}
    with pytest.raises(UserError, match=r"-int8' only runs on the CPU, not on 'cuda:0'"):
        read_study(
            replace(study, teacher=replace(study.teacher, engine="onnxruntime-int8")), "cuda:0"
        )


def test_where_nothing_is_drawn_the_first_trials_are_all(study: Study) -> None:
    knobs = {name: knob.low for name, knob in study.space.items()}
    assert replace(study, sampler=None, first=(knobs,), trials=1).sampler is None
    for first, trials in (((knobs,), 2), (({"target_ratio": 0.5},), 1)):
        with pytest.raises(UserError, match=r"sampler is None.*all knobs of all \d trials"):
            replace(study, sampler=None, first=first, trials=trials)

"""Settings that no search could work with, each refused in one line that names it.

Numbers out of their range are refused in test_methods.py.
"""

import math
from dataclasses import replace
from typing import Any

import pytest

from maskfront import (
    AdaBert,
    ApsT,
    AutoKeras,
    BinaryBert,
    CellSearch,
    Darts,
    ElasticSearch,
    Ess,
    EvolvedTransformer,
    FisherPruning,
    GroupLasso,
    HeadImportance,
    IDarts,
    MagnitudePruning,
    MaskSearch,
    Mrem,
    Polish,
    RandomPruning,
    Sandwich,
    SearchMethod,
    SharedCells,
    Stage,
    TernaryBert,
    UserError,
    WidthSearch,
)
from objectives.students.cells.graph import IDENTITY, NONE, Node
from objectives.students.cells.graph_space import GraphSpace
from tests.conftest import TINY, config_of

SEARCH = Stage(name="search", epochs=1, searches=True)
RECOVER = Stage(name="recover", epochs=1)
INSIDE = replace(SEARCH, loss="intermediate")
TERNARY, BINARY = (Stage(name=name, epochs=1, quantised=True) for name in ("ternary", "binary"))
SPACE = GraphSpace(nodes=2, operations=("conv3", "gated", "identity", "none"))
SHARED = SharedCells(space=SPACE)
RECURRENT = SharedCells(space=GraphSpace(operations=("tanh", IDENTITY, NONE, "max3")))
ELASTIC = ElasticSearch().elastic

Case = tuple[dict[str, Any], str]
REFUSED: dict[type[SearchMethod], list[Case]] = {
    AdaBert: [({"most_cells": 3}, "most_cells is 3; the teacher has 3 layers, so give 2 or")],
    ApsT: [
        ({"sharing": "all"}, "sharing is 'all'; it must be one of ordinal, independent, transi"),
        ({"shares": ()}, "must be one or more, rising"),
        ({"shares": (0.5, 0.25)}, "must be one or more, rising"),
        ({"shares": (0.5, 1.5)}, "must be one or more, rising"),
        ({"projection_rate": 0.0}, "projection_rate is 0.0"),
        ({"spaces": ("qk",)}, "must name some of heads, ffn"),
        ({"stages": (RECOVER,)}, "stages is .* it must be one that searches"),
        ({"stages": (INSIDE,)}, "its loss not 'intermediate'"),
        ({"stages": (SEARCH, replace(SEARCH, name="again"))}, "one that searches"),
    ],
    AutoKeras: [
        ({"operations": ()}, "operations is"),
        ({"operations": ("sigmoid",)}, "operations is"),
        ({"widest": 15}, "widest is 15"),
        ({"operations": ("conv3",), "recurrent": True}, "'conv3' reads other tokens"),
        ({"width": 17}, "width is 17"),
    ],
    BinaryBert: [
        (
            {"stages": (TERNARY, BINARY), "first_binary": "later"},
            r"'later', which is not one of its stages \(ternary, binary\)",
        ),
        *(
            ({"stages": (TERNARY, replace(BINARY, **wrong))}, "'binary': it comes after the weigh")
            for wrong in ({"start": "student"}, {"quantised": False})
        ),
    ],
    CellSearch: [
        ({"width": 24}, "multiple of 16"),
        ({"operations": ("conv_5",)}, "did you mean 'conv5'"),
        ({"nodes": (Node((1,), ("conv5",)),)}, r"nodes\[0\] reads 1"),
        (
            {"operations": ("tanh",), "recurrent": True, "hidden_weight": 1},
            "hidden_weight is 1; it must be 0 where the cell is recu",
        ),
        ({"operations": ("conv3",), "recurrent": True}, "'conv3' reads other tokens"),
        (
            {"operations": ("tanh",), "recurrent": True, "shared": RECURRENT},
            "'max3' reads other tokens",
        ),
        (
            {"operations": ("conv5",), "shared": SHARED},
            r"not in the space .*nodes\[0\].operations\[0\] is 'conv5'",
        ),
        ({"operations": ("conv3",) * 3, "shared": SHARED}, "not in the space"),
        ({"epochs": -1, "shared": SHARED}, "> 0, or 0 if shared"),
        ({"epochs": 0}, "> 0, or 0 if shared"),
        *(
            ({"shared": replace(SHARED, space=replace(SPACE, **wrong))}, "one cell with one input")
            for wrong in ({"inputs": 2}, {"edges": 0})
        ),
    ],
    Darts: [
        ({"operations": (NONE,)}, r"Darts\.operations leaves nothing to choose"),
        ({"operations": ("conv3",)}, r"Darts\.operations leaves nothing to choose"),
        ({"operations": ("konv3", NONE)}, "there is no operation 'konv3'"),
        ({"width": 17}, "width is 17"),
        ({"cells": 0}, r"cells is \(0,\)|inputs is 0"),
        ({"recurrent": True, "cells": 2}, "cells is 2; it must be 1 where"),
        ({"operations": ("conv3", NONE), "recurrent": True}, "'conv3' reads other tokens"),
    ],
    ElasticSearch: [
        ({"flops_weight": math.nan}, "flops_weight is nan"),
        ({"spaces": ("qk",)}, "must name some of heads, ffn"),
        ({"shares": (0.5, 0.25)}, r"must be shares in \(0, 1\], rising"),
        ({"shares": (0.5, 1.5)}, "must be shares in"),
        ({"trained_bits": (32, 3)}, r"trained_bits is \(32, 3\); it must be one of 32, 8, 4, 2, 1"),
        ({"heads": (3, -1, 2)}, r"heads is \(3, -1, 2\); it must be >= 0 in each layer"),
        ({"spaces": ("ffn",), "heads": (3, 3, 2)}, "heads is set, but spaces is"),
        ({"elastic": replace(ELASTIC, quantised=True)}, "cannot search or be quantised"),
        ({"elastic": replace(ELASTIC, searches=True)}, "cannot search"),
        ({"elastic": replace(ELASTIC, loss="intermediate")}, "its loss must be 'prediction'"),
        ({"elastic": replace(ELASTIC, keep="best")}, "keep is 'best'; .* leave it out"),
        ({"elastic": replace(ELASTIC, start="student")}, "start is 'student'; .* leave it out"),
        ({"deepen": replace(ELASTIC, keep="best")}, "deepen.keep is 'best'; .* leave it out"),
        ({"depths": (0.5,)}, r"depths is \(0.5,\); it must be .* none without `shares`"),
        ({"shares": (1.0,), "depths": (0.5, 1.0)}, r"must be shares in \(0, 1\), rising"),
        ({"depth": 0.5}, "depth is 0.5; it must be 1 or one of `depths`"),
        ({"heads": (4, 4)}, r"heads is \(4, 4\); the student has 3 layers of 4 heads"),
        ({"ffn": (48, 49, 0)}, "give one number from 0 to 48 per layer"),
        ({"shares": (1.0,), "depths": (0.1, 0.5)}, "0.1 of 3 layers is none; leave it out"),
    ],
    Ess: [({"operations": ("tanh", "conv3")}, "'conv3' reads other tokens")],
    EvolvedTransformer: [
        (
            {"operations": (IDENTITY, "positions", "feed_forward")},
            r"not in its space.*'attention'.*among the operations",
        ),
        ({"nodes": 2}, r"not in its space.*give 3 nodes or more"),
        ({"increments": (1, 0)}, r"increments is \(1, 0\)"),
    ],
    FisherPruning: [
        ({"spaces": ("heads", "qk")}, r"FisherPruning\.spaces .*must name some of heads, ffn$")
    ],
    GroupLasso: [
        ({"weight_bits": (4, 1, 4)}, "weight_bits is 1, but binary weights have no 0"),
        ({"stages": (RECOVER,)}, r"GroupLasso\.stages"),
    ],
    HeadImportance: [({"spaces": ("layers",)}, r"spaces is \('layers',\); it must name some of")],
    IDarts: [
        ({"operations": ("conv3", "max3", NONE), "pairs": 3}, "pairs is 3; it must be 1 to 2")
    ],
    MagnitudePruning: [
        ({"spaces": ("layers",)}, r"spaces is \('layers',\); it must name some of heads"),
        (
            {"sparsity": 0.5, "weight_bits": (8, 1)},
            "sparsity is 0.5, but binary weights have no 0",
        ),
    ],
    MaskSearch: [
        *(
            ({"temperature": wrong}, r"MaskSearch\.temperature is .*; it must be")
            for wrong in ((1.0, 0.0), (1.0, 0.5, 0.1), ())
        ),
        ({"stages": ()}, "none of them searches"),
        ({"stages": (RECOVER,)}, "none of them searches"),
        ({"stages": (SEARCH, RECOVER, RECOVER)}, "two are called .recover."),
        (
            {"stages": (SEARCH, RECOVER, replace(SEARCH, name="late"))},
            "'late' searches after a stage",
        ),
        (
            {"heads_by": "softmax", "heads_kept": 5},
            "heads_kept is 5; the student has 4 a layer",
        ),
    ],
    Mrem: [({"spaces": ("layers",)}, r"spaces is \('layers',\); it must name some of heads")],
    Polish: [
        (
            {"trials": "", "stages": (SEARCH,)},
            "'search' searches, but Polish chooses its units before",
        )
    ],
    RandomPruning: [
        ({"stages": (SEARCH,)}, "'search' searches, but RandomPruning chooses its units"),
        (
            {"spaces": ("layers",), "scope": "layer"},
            "scope is 'layer'; it must be 'global' if spaces has 'la",
        ),
        ({"weight_bits": 3}, "weight_bits is 3; it must be one of 32, 8, 4, 2, 1"),
        ({"weight_bits": (8, 5, 8)}, r"weight_bits is \(8, 5, 8\); it must be one of 32"),
        ({"input_bits": 2}, "input_bits is 2; it must be one of 32, 8, 4"),
        ({"embedding_bits": 16}, "embedding_bits is 16; it must be one of 32"),
        ({"weight_bits": (8, 4)}, "weight_bits has 2 entries, but the student has 3 layers"),
    ],
    Sandwich: [({"k": 3}, r"k is 3; the student has 3 layers, .* in \[0, 2\]")],
    TernaryBert: [({"attention_bits": 2}, "attention_bits is 2; it must be one of 32, 8, 4")],
    WidthSearch: [
        *(
            ({name: wrong}, rf"WidthSearch\.{name} is .*; it must be")
            for name, values in {
                "temperature": ((1.0, 0.0), (1.0, 0.5, 0.1), ()),
                "shares": ((1.0,), (0.5, 0.25, 1.0), (0.5, 0.9), (-0.1, 1.0)),
            }.items()
            for wrong in values
        ),
        (
            {"spaces": ("heads", "qk")},
            "WidthSearch.spaces is .*; it must name some of heads, ffn, ",
        ),
        ({"stages": (RECOVER,)}, "none of them searches"),
        ({"shares": (0.9, 1)}, "all of them keep the same number of the 4 heads"),
    ],
}


CASES = [
    pytest.param(method, settings, said, id=f"{method.__name__}-{'+'.join(settings)}")
    for method, refused in REFUSED.items()
    for settings, said in refused
]


@pytest.mark.parametrize(("method", "settings", "said"), CASES)
def test_settings_that_cannot_work_are_refused(
    method: type[SearchMethod], settings: dict[str, Any], said: str
) -> None:
    """As they are given, or where student and teacher are known, both of shape TINY."""
    tiny = config_of(TINY)
    with pytest.raises(UserError, match=said) as refusal:
        method(**settings).check_shapes(tiny, tiny)
    assert "\n" not in str(refusal.value)

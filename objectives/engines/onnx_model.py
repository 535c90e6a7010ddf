"""Export a classifier to ONNX, checked against torch, and its copies in int8 and 4 bits.

Needs the extra "onnx". The exporter is torch's own (dynamo), the runtime onnxruntime on the CPU.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from objectives.errors import UserError
from objectives.students.bert.quantising import dense, rounds_inputs
from objectives.text.data import INPUTS

if TYPE_CHECKING:
    import onnxruntime

# onnxruntime reads it once, when it is loaded: no device id is written, nothing is sent.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_TOLERANCE = 1e-4
"""Largest difference of logits from torch's, times the largest logit where that is above 1."""
_LARGEST = 2**31 - 2**20
"""Bytes of weights that one file holds: protobuf's limit, less a graph."""


def check_installed(*packages: str) -> None:
    """Raise UserError, which names what to install, unless these packages are there."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UserError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; install "
            f"the extra: pip install -c constraints.txt -e '.[onnx]'"
        )


def write_onnx(model: PreTrainedModel, file: Path) -> float:
    """Write the model with batch and length open; returns its largest difference from torch, where
    inputs are rounded (`rounds_inputs`) and here are not.

    Inputs are input_ids, attention_mask and token_type_ids, each (batch, length) int64; the output
    is logits, (batch, C) float32. Raises UserError, and leaves no file, where onnxruntime does not
    give torch's logits.
    """
    check_installed("onnx", "onnxscript", "onnxruntime")
    import onnx

    asked, model = model, dense(model)
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > _LARGEST:
        raise UserError(
            f"the model has {size / 1e9:.1f} GB of weights, and a file of ONNX holds "
            f"{_LARGEST / 1e9:.1f}; export it without ONNX, or begin with a smaller checkpoint"
        )
    longest = model.config.max_position_embeddings
    _read_operators_once()
    with _silent_exporter(), torch.no_grad():  # a loop with gradients fixes the batch
        program = torch.onnx.export(
            _with_plain_attention(model),
            kwargs=_random_inputs(model, 2, min(16, longest)),
            dynamo=True,
            dynamic_shapes={name: {0: "batch", 1: "length"} for name in INPUTS},
            output_names=["logits"],
            verbose=False,
        )
    assert program is not None
    _keep_norms_apart(program)
    program.save(file)
    # Without the shapes between the operations: readers of the file infer them, and onnxruntime's
    # quantiser, which turns weights around, stumbles over those that they had.
    graph = onnx.load(file)
    del graph.graph.value_info[:]
    onnx.save(graph, file)
    try:
        shapes = [(1, 2), (1, min(33, longest)), (5, min(128, longest))]
        difference = _check(model, file, shapes, _TOLERANCE)
        return _check(asked, file, shapes) if rounds_inputs(asked) else difference
    except UserError:
        file.unlink()
        raise


def write_int8(file: Path, quantised: Path) -> None:
    """Write an ONNX file's twin whose weights are int8; activations are quantised as they come. A
    scale for each output of a layer, and 7 bits: the products of 8 saturate on a CPU without VNNI,
    and what was measured would hold on the CPU that measured it."""
    check_installed("onnx", "onnxruntime")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _silent_exporter():
        quantize_dynamic(
            file, quantised, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
        )


def write_int4(file: Path, quantised: Path) -> None:
    """Write an ONNX file's twin in 4 bits, blocks of 32 with a scale and a zero; int8 is faster."""
    check_installed("onnx", "onnxruntime")
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    with _silent_exporter():
        quantiser = MatMulNBitsQuantizer(
            onnx.load(file),
            block_size=32,
            accuracy_level=4,  # the kernel that multiplies in int8
            op_types_to_quantize=("MatMul", "Gather"),
            quant_axes=(("MatMul", 0), ("Gather", 1)),
        )
        quantiser.process()
        quantiser.model.save_model_to_file(str(quantised))


def open_session(file: Path, threads: int | None = None) -> onnxruntime.InferenceSession:
    """Open an ONNX file on the CPU; `threads` of one operation, None for all cores."""
    check_installed("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    # Threads that wait for the next call must not take the time of what is measured beside it.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def run_session(session: onnxruntime.InferenceSession, inputs: Mapping[str, Tensor]) -> Tensor:
    """Logits (batch, C) float32 of inputs as `write_onnx` names them."""
    feeds = {name: inputs[name].long().numpy() for name in INPUTS}
    return torch.from_numpy(session.run(["logits"], feeds)[0])


@torch.no_grad()
def _check(
    model: PreTrainedModel,
    file: Path,
    shapes: Sequence[tuple[int, int]],
    tolerance: float = math.inf,
) -> float:
    session, worst = open_session(file), 0.0
    for batch, length in shapes:
        inputs = _random_inputs(model, batch, length)
        expected: Tensor = model(**inputs, return_dict=True).logits
        difference = (run_session(session, inputs) - expected).abs().max().item()
        if not difference <= tolerance * max(1.0, expected.abs().max().item()):
            raise UserError(
                f"onnxruntime and torch give different logits: they differ by {difference:.1e} at "
                f"batch {batch}, length {length}; the model is not exported to ONNX"
            )
        worst = max(worst, difference)
    return worst


def _random_inputs(model: PreTrainedModel, batch: int, length: int) -> dict[str, Tensor]:
    """Random tokens of the model's vocabulary; every row but the first is padded somewhere."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (batch, length), generator=generator)
    types = torch.randint(model.config.type_vocab_size, (batch, length), generator=generator)
    ends = torch.randint(1, length + 1, (batch, 1), generator=generator)
    ends[0] = length
    mask = (torch.arange(length) < ends).long()
    return dict(zip(INPUTS, (tokens, mask, types), strict=True))


def _with_plain_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Copy with attention as two matmuls around a softmax. The graph of torch's fused attention
    also guards rows without any token, which no text is: a third more nodes, 3 to 9% of the time of
    a forward pass of a MiniLM."""
    with no_init_weights():  # they are loaded below
        plain: PreTrainedModel = type(model)._from_config(
            copy.deepcopy(model.config), attn_implementation="eager"
        )
    plain.load_state_dict(model.state_dict())
    plain.train(False)
    return plain


def _keep_norms_apart(program: torch.onnx.ONNXProgram) -> None:
    """Write the residual sum before each LayerNorm as Sum instead of Add, which is the same.

    onnxruntime makes one node of Add and LayerNormalization, and on a CPU that node takes several
    times as long as the two: in version 1.31 it is a tenth of the time of a whole MiniLM and half
    of that of one cut to a tenth of its FLOPs.
    """
    for node in program.model.graph:
        if node.op_type == "LayerNormalization":
            assert node.inputs[0] is not None
            added = node.inputs[0].producer()
            if added is not None and added.op_type == "Add":
                added.op_type = "Sum"


def _read_operators_once() -> None:
    """Make torch keep the table of how operators are written in ONNX.

    Its exporter reads the sources of some 500 functions for this at each export, a third of the
    time that a small model takes. The table is private: where torch has moved it, all stays slow.
    """
    with suppress(ImportError, AttributeError):
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        read = ONNXRegistry.from_torchlib
        if not hasattr(read, "cache_info"):
            ONNXRegistry.from_torchlib = staticmethod(cache(read))  # type: ignore[method-assign]


@contextmanager
def _silent_exporter() -> Iterator[None]:
    """Silence the exporter's warnings of operators that no BERT has, and of deprecations."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)

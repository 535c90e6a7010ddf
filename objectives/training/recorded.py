"""Record a function's GPU work as a CUDA graph, and replay it: launching a step of a small model
takes the host longer than the device takes to run it."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from objectives.device import free_memory, out_of_memory
from objectives.errors import first_line

Tensors = Mapping[str, Tensor]
_Shapes = tuple[tuple[str, torch.Size, torch.dtype], ...]


@dataclass(eq=False)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]
    results: Tensors


class Recordings:
    """CUDA recordings of a function of tensors, one for each set of shapes that occurs twice."""

    # The first call of each set of shapes is plain: it loads kernels, and makes what lasts, such as
    # the averages of an optimiser. All calls are on one stream, as autograd runs on the stream that
    # it first saw. The recordings share their memory, as one runs after the other. The function is
    # given with each call: kept here, a method would keep its object, and all the memory of a
    # training, until Python looks for cycles.

    def __init__(self, device: str, undo: Callable[[], None] = lambda: None):
        """`undo` drops what a recording that failed left behind."""
        self._undo = undo
        self._recordings: dict[_Shapes, _Recording | None] = {}
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        # Of a stand-in for a GPU, for which torch was not built, nothing can be recorded.
        if torch.device(device).type == "cuda" and torch.backends.cuda.is_built():
            self._stream = torch.cuda.Stream(device)

    def __len__(self) -> int:
        return len([*filter(None, self._recordings.values())])

    def call(self, function: Callable[[Tensors], Tensors], inputs: Tensors) -> Tensors:
        """Call the function or replay it; the result belongs to the caller. The function may read
        nothing of the host but its inputs, nor wait for the device."""
        if self._stream is None:
            return function(inputs)
        shapes = tuple((name, value.shape, value.dtype) for name, value in inputs.items())
        stream, usual = self._stream, torch.cuda.current_stream(self._stream.device)
        stream.wait_stream(usual)
        with torch.cuda.stream(stream):
            if shapes not in self._recordings:
                self._recordings[shapes] = None
                results = function(inputs)
            else:
                results = self._replayed(function, shapes, inputs)
        usual.wait_stream(stream)
        return results

    def _replayed(
        self, function: Callable[[Tensors], Tensors], shapes: _Shapes, inputs: Tensors
    ) -> Tensors:
        recording = self._recordings[shapes]
        if recording is None:
            try:
                recording = self._recordings[shapes] = self._record(function, inputs)
            except Exception as error:  # of a model that asks what a recording cannot know
                if not out_of_memory(error):
                    why = first_line(error)
                    warnings.warn(f"steps go on without a recording: {why}", stacklevel=2)
                # A recording holds its memory for good: what has none to spare goes on without.
                self._undo()
                self._recordings, self._stream = {}, None
                free_memory()
                return function(inputs)
        torch._foreach_copy_([*recording.inputs.values()], [*inputs.values()])
        recording.graph.replay()
        return {name: value.clone() for name, value in recording.results.items()}

    def _record(self, function: Callable[[Tensors], Tensors], inputs: Tensors) -> _Recording:
        if self._pool is None:
            torch.cuda.empty_cache()  # torch keeps the memory of recordings that are gone till then
        fixed = {name: value.clone() for name, value in inputs.items()}
        graph = torch.cuda.CUDAGraph()
        # `torch.cuda.graph` would empty the cache before each of them.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            results = function(fixed)
        finally:
            graph.capture_end()
        self._pool = self._pool or graph.pool()
        return _Recording(graph, fixed, results)

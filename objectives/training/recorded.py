"""Record what a function asks of a GPU as a CUDA graph, and replay it: a step of a small model
takes the host longer than the device, and a replay asks for the whole step at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from objectives.device import free_memory

Tensors = Mapping[str, Tensor]
_Shapes = tuple[tuple[str, torch.Size, torch.dtype], ...]


def is_recording() -> bool:
    """Whether what is asked of the GPU now is recorded, and not done."""
    return torch.backends.cuda.is_built() and torch.cuda.is_current_stream_capturing()


@dataclass(eq=False)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]
    results: Tensors


class Recorded:
    """A function of tensors; on a GPU it is recorded for each set of their shapes that comes
    twice."""

    # The first call of each set of shapes is plain: it loads kernels, and makes what lasts, such as
    # the averages of an optimiser. All calls are on one stream, as autograd runs on the stream that
    # it first saw. The recordings share their memory, as one runs after the other.

    def __init__(
        self,
        function: Callable[[Tensors], Tensors],
        device: str,
        undo: Callable[[], None] = lambda: None,
    ):
        """The `function` may read nothing of the host but these tensors, nor wait for the device;
        `undo` drops what a recording that found no memory left behind."""
        self._function, self._undo = function, undo
        self._recordings: dict[_Shapes, _Recording | None] = {}
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        # Of a stand-in for a GPU, for which torch was not built, nothing can be recorded.
        if torch.device(device).type == "cuda" and torch.backends.cuda.is_built():
            self._stream = torch.cuda.Stream(device)

    def __call__(self, inputs: Tensors) -> Tensors:
        """Call the function or replay it; what it returns is the caller's."""
        if self._stream is None:
            return self._function(inputs)
        shapes = tuple((name, value.shape, value.dtype) for name, value in inputs.items())
        around = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(around)
        with torch.cuda.stream(self._stream):
            if shapes not in self._recordings:
                self._recordings[shapes] = None
                results = self._function(inputs)
            else:
                results = self._replayed(shapes, inputs)
        around.wait_stream(self._stream)
        return results

    def _replayed(self, shapes: _Shapes, inputs: Tensors) -> Tensors:
        recording = self._recordings[shapes]
        if recording is None:
            try:
                recording = self._recordings[shapes] = self._record(inputs)
            except torch.OutOfMemoryError:
                # A recording holds its memory for good: what has none to spare goes on without.
                self._undo()
                self._recordings, self._stream = {}, None
                free_memory()
                return self._function(inputs)
        torch._foreach_copy_([*recording.inputs.values()], [*inputs.values()])
        recording.graph.replay()
        return {name: value.clone() for name, value in recording.results.items()}

    def _record(self, inputs: Tensors) -> _Recording:
        fixed = {name: value.clone() for name, value in inputs.items()}
        graph = torch.cuda.CUDAGraph()
        # `torch.cuda.graph` would empty torch's cache of memory before each of them.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            results = self._function(fixed)
        finally:
            graph.capture_end()
        self._pool = self._pool or graph.pool()
        return _Recording(graph, fixed, results)

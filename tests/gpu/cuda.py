"""A real GPU as the driver wants it: where the host waits, by torch's own word; what it asks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.gpu.stand_in import PRODUCTS, Wait, Watched, line_of_ours

_WAITS = "called a synchronizing CUDA operation"


class Cuda(Watched):
    """The device that torch calls "cuda", and what was asked of it.

    Its waits are those of torch's sync debug mode, of a backward pass at the line that began it.
    """

    @contextmanager
    def plugged_in(self) -> Iterator[Cuda]:
        """Where it is watched."""
        answers: dict[str, Callable[..., Any]] = {
            "is_bf16_supported": lambda including_emulation=True: self.bfloat16
        }
        with mock.patch.multiple(torch.cuda, **answers), warnings.catch_warnings(), self:
            warnings.simplefilter("always")
            warnings.showwarning = self._warned
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield self
            finally:
                torch.cuda.set_sync_debug_mode("default")

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(one, Tensor) and one.is_cuda for one in tree_leaves((result, args))):
            self.operations += not func.is_view
            if func in PRODUCTS:
                self.products[args[-1].dtype] += 1
        return result

    def _warned(self, message: Warning | str, *where: Any, **more: Any) -> None:
        if _WAITS in str(message):
            self.waits.append(Wait(_WAITS, line_of_ours(sys._getframe())))

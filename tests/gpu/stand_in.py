"""A stand-in for a GPU: tensors that say they are on "cuda" and are computed on the CPU.

What it shows: that nothing mixes devices, which a GPU refuses; where the host waits for the device;
how many operations it asks of the device; in what type CUDA's autocast multiplies; and that all
this gives what a CPU gives. What it cannot show: how fast anything is, how kernels round, which of
them attention takes (here always the plain one), what memory holds, and whatever else only a driver
knows.

The process needs `library` in LD_PRELOAD, and a torch without CUDA; `StandIn` is the device while
it is entered.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

aten = torch.ops.aten
_ROOT = f"{Path(__file__).parents[2]}/"
_OURS = tuple(f"{_ROOT}{package}/" for package in ("objectives", "orchestrator", "reports"))
_READS = {
    aten._local_scalar_dense.default,
    aten.allclose.default,
    aten.bincount.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
}
"""What gives the host a value of the device, or needs one to know a shape."""
_COPIES = {aten._to_copy.default, aten.copy_.default}
_INDEXES = {aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default}
"""What also takes places that lie on the host, by a copy."""
PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}


def library(folder: Path) -> Path:
    """Build stand_in.cpp with g++ against this torch."""
    torch_folder = Path(torch.__file__).parent
    built, source = folder / "stand_in.so", Path(__file__).with_suffix(".cpp")
    lib = torch_folder / "lib"
    flags = ["-std=c++20", "-shared", "-fPIC", f"-I{torch_folder / 'include'}"]
    links = [f"-L{lib}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{lib}"]
    subprocess.run(["g++", *flags, str(source), "-o", str(built), *links], check=True)
    return built


class Wait(NamedTuple):
    """The host waited for the device."""

    why: str
    where: str
    """The line of this project that led there."""


def line_of_ours(frame: FrameType | None) -> str:
    """The line of this project that led to a frame; "tests" if none but theirs did."""
    while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    where = "tests" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return where.removeprefix(_ROOT)


class OnDevice(Tensor):
    """A tensor of the device: `held` has its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        wrapper: OnDevice = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device="cuda:0",
        )
        return wrapper

    def __init__(self, held: Tensor):
        self.held = held

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.held!r})"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """What torch does to a tensor without any operation of it."""
        if func in (Tensor.untyped_storage, Tensor.data_ptr):  # told apart when they are saved
            return func(args[0].held)
        if func is Tensor.tolist:
            return args[0].cpu().tolist()
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            args[0].held = args[1].held
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # The modes of the thread are off in here: what is run below runs on the CPU.
        assert StandIn.entered is not None, f"{func} of a tensor of the device after the device"
        return StandIn.entered.run(func, args, dict(kwargs or {}))


class Watched(TorchDispatchMode):
    """What is asked of a device: the base of the real one and of its stand-in."""

    def __init__(self, *, bfloat16: bool) -> None:
        """`bfloat16` says whether it multiplies in that."""
        super().__init__()
        self.bfloat16 = bfloat16
        self.waits: list[Wait] = []
        self.operations = 0
        """Views left out, which ask nothing of the device."""
        self.products: Counter[torch.dtype] = Counter()
        """Matrix products by their type."""


class StandIn(Watched):
    """The device, and what was asked of it."""

    entered: StandIn | None = None

    @contextmanager
    def plugged_in(self) -> Iterator[StandIn]:
        """Where torch itself would ask CUDA, which is not there."""
        answers: dict[str, Callable[..., Any]] = {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "is_bf16_supported": lambda including_emulation=True: self.bfloat16,
            "empty_cache": lambda: None,
            "mem_get_info": lambda device=None: (2**33, 2**33),
            "manual_seed_all": lambda seed: None,
            "get_rng_state": lambda device=None: torch.zeros(1),
            "set_rng_state": lambda state, device=None: None,
        }
        torch._C._set_only_lift_cpu_tensors(True)  # type: ignore[attr-defined]
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        StandIn.entered = self
        try:
            with mock.patch.multiple(torch.cuda, **answers), self:
                yield self
        finally:
            StandIn.entered = None
            torch.__future__.set_overwrite_module_params_on_conversion(False)
            torch._C._set_only_lift_cpu_tensors(False)  # type: ignore[attr-defined]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.run(func, args, dict(kwargs or {}))

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operation, on the values, where the device would do it."""
        tensors: list[Tensor] = []

        def held(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor.held if isinstance(tensor, OnDevice) else tensor

        held_args = _mapped(args, held)
        held_kwargs = {name: _mapped(value, held) for name, value in kwargs.items()}
        ours = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
        wanted = kwargs.get("device")
        to_device = bool(ours) if wanted is None else torch.device(wanted).type == "cuda"
        if func is aten._pin_memory.default:
            _refuse(bool(ours), func, "only what lies on the host can be pinned")
            pinned = args[0].clone()
            pinned.page_locked = True
            return pinned
        if ours or to_device:
            self._watch(func, args, kwargs, tensors, to_device)
        if wanted is not None:
            held_kwargs["device"] = torch.device("cpu")
        result = func(*held_args, **held_kwargs)
        if not to_device:
            return result
        self.operations += not func.is_view
        if func in PRODUCTS:
            self.products[tensors[-1].dtype] += 1
        result = _mapped(result, OnDevice)
        return return_and_correct_aliasing(func, args, kwargs, result) if ours else result

    def _watch(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        tensors: list[Tensor],
        to_device: bool,
    ) -> None:
        """Raise as CUDA does where devices are mixed; note where the host waits."""
        of_host = [tensor for tensor in tensors if not isinstance(tensor, OnDevice)]
        if func in _COPIES:
            # Pinned memory is read while the host goes on; the way back always waits.
            crosses = bool(of_host) or not to_device
            locked = all(getattr(tensor, "page_locked", False) for tensor in of_host)
            if crosses and not (to_device and locked and kwargs.get("non_blocking")):
                self._wait(func)
            return
        generator = kwargs.get("generator")
        of_cpu = generator is not None and generator.device.type == "cpu"
        _refuse(of_cpu, func, "a generator of the host")
        _refuse(
            bool(of_host) and func._schema.is_mutable and not isinstance(args[0], OnDevice),
            func,
            "a result on the device into a tensor of the host",
        )
        if func in _READS:
            self._wait(func)
        elif func in _INDEXES:
            values = [value for value in args[2:3] if isinstance(value, Tensor) and value.ndim]
            for tensor in (args[0], *values):
                _refuse(not isinstance(tensor, OnDevice), func, "places on the device of the host")
            places = [place for place in args[1] if place is not None]
            if any(p.dtype == torch.bool or not isinstance(p, OnDevice) for p in places):
                self._wait(func)
        else:
            mixed = any(tensor.ndim for tensor in of_host) and len(of_host) < len(tensors)
            _refuse(mixed, func, "tensors on cuda:0 and on cpu")

    def _wait(self, func: Any) -> None:
        self.waits.append(Wait(str(func), line_of_ours(sys._getframe())))


def _refuse(refused: bool, func: Any, why: str) -> None:
    if refused:
        raise RuntimeError(f"{func}: {why}")


def _mapped(value: Any, what: Callable[[Tensor], Tensor]) -> Any:
    """Arguments or results of an operation, their tensors replaced (torch's own takes longer)."""
    if isinstance(value, Tensor):
        return what(value)
    if isinstance(value, list | tuple):
        return type(value)(_mapped(one, what) for one in value)
    return value

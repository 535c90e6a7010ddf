"""Time forward passes. Models take turns, so that slow moments of the machine affect all alike."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from objectives.engines.names import Engine
from objectives.engines.serving import Feeds, ForwardPass

WARM_UPS = 3
"""Number of rounds whose times do not count."""


def tokens(vocabulary: int, batch: int, length: int) -> Feeds:
    """Random tokens of a vocabulary, without padding: each (batch, length)."""
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.randint(vocabulary, (batch, length), generator=generator),
        "attention_mask": torch.ones(batch, length, dtype=torch.long),
        "token_type_ids": torch.zeros(batch, length, dtype=torch.long),
    }


def in_turns(
    engine: Engine,
    runs: Sequence[ForwardPass],
    inputs: Feeds,
    rounds: int,
    device: str,
    advance: Callable[[], object] = lambda: None,
) -> NDArray[np.float64]:
    """Milliseconds (rounds, runs); `advance` is called after each round, also of the warm-ups."""
    times = np.empty((WARM_UPS + rounds, len(runs)))
    with _compiling(len(runs)) if engine == "compile" else nullcontext():
        for number, row in enumerate(times):
            for index in range(len(runs))[:: 1 if number % 2 else -1]:
                row[index] = milliseconds(partial(runs[index], inputs), device)
            advance()
    return times[WARM_UPS:]


def milliseconds(run: Callable[[], object], device: str) -> float:
    """Milliseconds of a call until the device has finished."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if cuda:
        torch.cuda.synchronize(device)
    return 1000 * (time.perf_counter() - start)


@contextmanager
def _compiling(models: int) -> Iterator[None]:
    """Let torch compile this many models of one code object: beyond 8 it would run them eagerly."""
    import torch._dynamo

    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=models, fail_on_recompile_limit_hit=True):
        yield

"""The teacher's logits and hidden states on the train rows, computed once: running the teacher
costs more than a step of a student cut to a third. A CPU keeps the states on disk for a run, a GPU
in its memory for a launch."""

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import BertForSequenceClassification

from objectives.cache import atomic_write, cached_array, kernel_lock, read_array
from objectives.engines.names import BITS, FULL_BITS, Engine
from objectives.engines.serving import ForwardPass, make_runnable
from objectives.measures.evaluate import predict, predict_with, sequences_a_pass
from objectives.problem import Problem
from objectives.progress import Progress
from objectives.session import Session
from objectives.students.bert.cutting import count_labels
from objectives.students.bert.pretrained import Classifier, fingerprint_of
from objectives.text.data import Batch, Split
from objectives.training.population import Population, Trace

_LIMIT = 4 * 2**30
"""Most bytes of kept states: 800,000 tokens of MiniLM-L6, 215,000 of BERT-base."""


def kept_logits(
    teacher: Classifier,
    split: Split,
    *,
    session: Session,
    role: str | None = None,
    engine: Engine = "eager",
) -> Tensor:
    """Logits (rows, C) of the split on the CPU, cached; the caller holds a lock."""
    device, progress = session.device, session.progress
    how = torch.device(device).type if engine == "eager" else engine
    key = {"train": split.fingerprint, "how": how}
    file = session.cache / f"teacher-logits-{fingerprint_of(teacher, key)}.npy"

    def answer() -> NDArray[np.float32]:
        passes = math.ceil(len(split) / sequences_a_pass(split, device))
        progress.begin(f"let the teacher answer {role or split.role}", passes)
        if engine == "eager":
            return predict(teacher, split, device, progress).numpy()
        run = _run_in(engine, teacher, session)
        return predict_with(run, split, device, progress).numpy()

    shape = (len(split), count_labels(teacher.config))
    return torch.from_numpy(cached_array(file, shape, np.float32, progress.note, answer))


def _run_in(engine: Engine, teacher: Classifier, session: Session) -> ForwardPass:
    """Forward pass in an engine, whose file the cache keeps."""
    folder = session.cache / f"teacher-{engine}-{fingerprint_of(teacher, {})}"

    def opened(scratch: Path) -> ForwardPass:
        threads = torch.get_num_threads()
        [served] = make_runnable(engine, {str(scratch): teacher}, scratch, threads, session.device)
        return served.run

    if not folder.is_dir():
        session.progress.note(f"writing the teacher for {engine}")
        with atomic_write(folder) as unfinished:
            unfinished.mkdir()
            opened(unfinished)
            if BITS[engine] != FULL_BITS:  # the float32 file is four times as large
                for file in unfinished.rglob("model.onnx"):
                    file.unlink()
    return opened(folder)


def keep_states(problem: Problem, dtype: torch.dtype, progress: Progress) -> None:
    """Compute the teacher's states, if they fit, so that `teacher_trace` need not run it."""
    teacher = _teacher_of(problem, dtype)
    if teacher.stored is None:
        teacher.stored = _stored(problem, dtype, progress)


def _stored(problem: Problem, dtype: torch.dtype, progress: Progress) -> "_KeptStates | None":
    """States of train; None if they do not fit."""
    order, lengths, device = problem.train.longest_first(), problem.train.lengths, problem.device
    config = problem.teacher.config
    shape = (int(lengths.sum()), config.num_hidden_layers + 1, config.hidden_size)
    size = 2 * int(np.prod(shape))
    if size > _LIMIT:
        return None
    # Another teacher, which is let go with its copy of the weights.
    run, states = RunTeacher(problem.teacher, dtype), None
    if device == "cpu":
        states = _read_or_written(run, problem, shape, progress)
    elif size < torch.cuda.mem_get_info(device)[0] // 4:
        states = torch.cat([*run.states_of(problem.train, device, progress)])
    if states is None:
        return None
    starts = np.empty_like(lengths)
    starts[order] = np.cumsum(lengths[order]) - lengths[order]
    first, last = (torch.from_numpy(at).to(device) for at in (starts, starts + lengths - 1))
    return _KeptStates(states, first, last)


def _read_or_written(
    run: "RunTeacher", problem: Problem, shape: tuple[int, ...], progress: Progress
) -> Tensor | None:
    """Mapped file of the states, which all workers read; None if the disk is full."""
    key = {"train": problem.train.fingerprint, "how": str(run.dtype)}
    file = problem.cache / f"teacher-states-{fingerprint_of(problem.teacher, key)}.npy"
    problem.cache.mkdir(parents=True, exist_ok=True)
    with kernel_lock(file.with_suffix(".lock")):  # one worker writes, the others wait and read
        states = read_array(file, shape, np.float16, progress.note, mapped=True)
        if states is None:
            if 2 * int(np.prod(shape)) > shutil.disk_usage(problem.cache).free // 2:
                return None
            header = {"descr": "<f2", "fortran_order": False, "shape": shape}
            with atomic_write(file) as unfinished, unfinished.open("wb") as stream:
                np.lib.format.write_array_header_2_0(stream, header)
                for rows in run.states_of(problem.train, "cpu", progress):
                    stream.write(rows.numpy().tobytes())
            states = read_array(file, shape, np.float16, progress.note, mapped=True)
            assert states is not None, f"{file} was written and is not there"
    return torch.from_numpy(states)


def teacher_trace(
    problem: Problem, batch: Batch, dtype: torch.dtype, *, with_scores: bool
) -> Trace:
    """Trace of the teacher on a batch of train; without scores in half precision, as it is kept."""
    # States on padding mean nothing.
    teacher = _teacher_of(problem, dtype)
    if teacher.stored is not None and not with_scores:
        return teacher.stored.trace(batch)
    return teacher.run(batch, with_scores=with_scores)


def _teacher_of(problem: Problem, dtype: torch.dtype) -> "RunTeacher":
    return problem.once(("teacher", dtype), lambda: RunTeacher(problem.teacher, dtype))


@dataclass(eq=False)
class RunTeacher:
    """Teacher whose states students learn."""

    model: BertForSequenceClassification
    dtype: torch.dtype
    """Type of its matmuls."""
    stored: "_KeptStates | None" = None
    """Cached states of train, in a file or on the GPU."""

    @cached_property
    def population(self) -> Population:
        """Teacher as a population without gradients, whose matrices are cast once."""
        population = Population.of([self.model], self.dtype)
        weights = {
            name: weight.detach().to(torch.float32 if "LayerNorm" in name else self.dtype)
            for name, weight in population.weights.items()
        }
        return replace(population, weights=weights)

    @torch.no_grad()
    def run(self, batch: Batch, *, with_scores: bool) -> Trace:
        """Run the teacher; hidden states alone are rounded to half precision, as they are kept."""
        trace = Trace(with_scores=with_scores)
        self.population.logits(batch, trace=trace)
        if not with_scores:
            trace.hidden = [hidden.half().float() for hidden in trace.hidden]
        return trace

    def states_of(self, train: Split, device: str, progress: Progress) -> Iterator[Tensor]:
        """Hidden states of the rows, longest first: batches (tokens, layers + 1, E) float16."""
        size = sequences_a_pass(train, device)
        progress.begin("keep the teacher's hidden states", math.ceil(len(train) / size))
        for batch in train.in_order(size, device):
            trace = self.run(batch, with_scores=False)
            states = torch.stack([hidden[0] for hidden in trace.hidden], dim=2)
            yield states[batch.attention_mask].half()
            progress.advance()


@dataclass(frozen=True, eq=False)
class _KeptStates:
    """States of all tokens of the train rows."""

    states: Tensor
    """(tokens, layers + 1, E) float16: a mapped file, or on the GPU."""
    first: Tensor
    """First token of each row, (rows,) int64."""
    last: Tensor
    """Last token of each row, (rows,) int64."""

    def trace(self, batch: Batch) -> Trace:
        B, S = batch.input_ids.shape
        places_BS = self.first[batch.rows][:, None] + torch.arange(S, device=self.first.device)
        places_BS = torch.minimum(places_BS, self.last[batch.rows][:, None])
        states = self.states.index_select(0, places_BS.flatten()).float()
        return Trace(hidden=[h[None] for h in states.unflatten(0, (B, S)).unbind(2)])

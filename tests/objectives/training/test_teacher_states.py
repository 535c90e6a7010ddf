"""What is looked up is what the teacher says, and no student notices the difference."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from objectives.methods.fisher_search import FisherSearch
from objectives.problem import Problem
from objectives.training import teacher_states
from objectives.training.population import Trace
from objectives.training.stages import Stage
from objectives.training.teacher_states import keep_states, teacher_trace
from tests.objectives.conformance import RecordingProgress, assert_same, search_alone

METHOD = FisherSearch(
    target_ratio=0.5,
    stages=(Stage(name="recover", epochs=1, learning_rate=1e-3, loss="prediction+hidden"),),
    batch_size=16,
)


@pytest.fixture
def fresh(problem: Problem, tmp_path: Path) -> Problem:
    """The tiny problem with nothing kept yet."""
    return replace(problem, cache=tmp_path)


def hidden(problem: Problem, rows: list[int]) -> list[torch.Tensor]:
    """Of each layer, (tokens of these rows, D)."""
    batch = problem.train.batch(np.array(rows), "cpu")
    trace: Trace = teacher_trace(problem, batch, torch.float32, with_scores=False)
    return [layer[0][batch.attention_mask] for layer in trace.hidden]


def test_looked_up_is_computed(fresh: Problem) -> None:
    rows = [5, 0, len(fresh.train) - 1, 17]
    computed = hidden(fresh, rows)
    progress = RecordingProgress()
    keep_states(fresh, torch.float32, progress)
    assert progress.steps == progress.wanted[0] > 1
    looked_up = hidden(fresh, rows)
    assert len(looked_up) == fresh.teacher.config.num_hidden_layers + 1
    for one, other in zip(computed, looked_up, strict=True):
        torch.testing.assert_close(one, other, atol=2e-3, rtol=1e-3)  # of half precision
        assert (one == other).float().mean() > 0.99, "the rounding is the same in all but ties"


def test_a_student_learns_the_same(fresh: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = search_alone(METHOD, fresh)
    assert list(fresh.cache.glob("teacher-states-*.npy"))
    monkeypatch.setattr(teacher_states, "_LIMIT", 1000)
    without = replace(fresh, cache=fresh.cache / "none")
    computed = search_alone(METHOD, without)
    assert not list(without.cache.glob("*.npy")), "what does not fit is not kept"
    assert_same(looked_up, computed, fresh)


def test_the_next_process_reads_the_file(fresh: Problem) -> None:
    keep_states(fresh, torch.float32, RecordingProgress())
    progress = RecordingProgress()
    keep_states(replace(fresh), torch.float32, progress)
    assert not progress.wanted
    [file] = fresh.cache.glob("*.npy")
    content = file.read_bytes()
    for damaged in (content[:-100], content[:60], content[:7], b"", bytes(len(content))):
        file.write_bytes(damaged)
        progress = RecordingProgress()
        keep_states(replace(fresh), torch.float32, progress)
        assert progress.wanted, "a file that was cut short is written anew"
        [note] = progress.notes
        assert note.startswith(f"'{file}' is damaged (")
        assert note.endswith("), and is made anew")
        assert file.read_bytes() == content


def test_another_teacher_other_rows_and_another_precision_have_their_own(fresh: Problem) -> None:
    keep_states(fresh, torch.float32, RecordingProgress())
    types = fresh.train.token_type_ids[::-1]
    reversed_rows = replace(
        fresh.train, input_ids=fresh.train.input_ids[::-1], token_type_ids=types
    )
    keep_states(replace(fresh, train=reversed_rows), torch.float32, RecordingProgress())
    teacher = copy.deepcopy(fresh.teacher)
    with torch.no_grad():
        teacher.bert.encoder.layer[0].output.dense.bias[0] += 1
    keep_states(other := replace(fresh, teacher=teacher), torch.float32, RecordingProgress())
    keep_states(fresh, torch.bfloat16, RecordingProgress())
    assert len(list(fresh.cache.glob("*.npy"))) == 4
    assert not torch.equal(hidden(fresh, [0])[1], hidden(other, [0])[1])

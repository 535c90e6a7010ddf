"""Texts in, labels out: each text has its own answer, or one line says which is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.combining.cascade import confidence_of
from objectives.delivery.deployed import stage_of, write_classifier
from objectives.students.bert.pretrained import Checkpoint
from tests.conftest import planted_rows

pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")

if TYPE_CHECKING:
    from objectives.delivery.classify import Answer, Classifier

TEXTS = [str(text) for text in planted_rows()["text"][:20]]


ROOT = Path(__file__).resolve().parents[3]
LABELS = ["happy", "neutral", "sad"]


def write_model(file: Path, seed: int = 0) -> None:
    """Write a model that adds up numbers of its tokens and of their segments."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(seed).normal(size=(100, len(LABELS))).astype(np.float32)
    names = ("input_ids", "attention_mask", "token_type_ids")
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["input_ids", "token_type_ids"], ["rows"]),
            helper.make_node("Gather", ["weights", "rows"], ["each"]),
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Einsum", ["each", "mask"], ["logits"], equation="bsc,bs->bc"),
        ],
        "sums",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "s"]) for name in names],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "c"])],
        [numpy_helper.from_array(weights, "weights")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, file)


@pytest.fixture(scope="module")
def alone(tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one model."""
    folder = tmp_path_factory.mktemp("classify")
    write_model(folder / "model.onnx")
    stage = stage_of(folder, "model.onnx", Checkpoint(tiny_bert).tokenizer, 24)
    write_classifier(folder, [stage], LABELS)
    return folder


@pytest.fixture(scope="module")
def both(alone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two models, each with a tokenizer; the first is unsure of half the texts."""
    folder = tmp_path_factory.mktemp("classify") / "both"
    shutil.copytree(alone, folder)
    settings = json.loads((folder / "classifier.json").read_text())
    shutil.copyfile(folder / "tokenizer.json", folder / "large.json")
    [stage] = settings["stages"]
    shares = np.exp(opened(alone).logits(TEXTS))
    sure = float(np.median(shares.max(-1) / shares.sum(-1)))
    gate = {"confidence": "probability", "temperature": 1, "threshold": sure}
    settings["stages"] = [stage | gate, stage | {"tokenizer": "large.json"}]
    (folder / "classifier.json").write_text(json.dumps(settings))
    return folder


def opened(folder: Path) -> Classifier:
    from objectives.delivery.classify import Classifier

    return Classifier(folder)


def labels(answers: list[Answer]) -> list[Any]:
    return [answer.label for answer in answers]


KINDS: dict[str, Callable[[list[str]], Any]] = {
    "a tuple": tuple,
    "an array": np.array,
    "a generator": lambda texts: (text for text in texts),
    "a shuffled Series": lambda texts: pandas.Series(texts, np.arange(len(texts))[::-1]),
    "a Series of names": lambda texts: pandas.Series(
        texts, [f"row {n}" for n, _ in enumerate(texts)]
    ),
    "keys": lambda texts: dict.fromkeys(texts).keys(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_gives_texts_is_answered_as_their_list(kind: str, alone: Path, both: Path) -> None:
    for folder in (alone, both):
        classifier = opened(folder)
        wanted = classifier(TEXTS)
        assert len(set(labels(wanted))) > 1
        assert classifier(KINDS[kind](TEXTS)) == wanted
        given = KINDS[kind](TEXTS[:8])
        np.testing.assert_array_equal(classifier.logits(given), classifier.logits(TEXTS[:8]))
        assert bool(classifier.deferred) == (folder == both)


def test_a_string_is_one_text_and_a_pair_may_be_a_list(alone: Path) -> None:
    classifier = opened(alone)
    assert classifier(TEXTS[0]) == classifier(TEXTS[:1])
    pair = (TEXTS[0], TEXTS[1])
    [wanted] = classifier([pair])
    assert [wanted] == classifier([[*pair]]) == classifier(np.array([pair]))  # type: ignore[list-item]
    assert wanted != classifier(TEXTS[:1])[0]


def test_a_model_without_segments_reads_none_of_a_pair(alone: Path, tmp_path: Path) -> None:
    """As DistilBERT, whose tokenizer numbers the second text's."""
    folder = Path(shutil.copytree(alone, tmp_path / "without"))
    settings = json.loads((folder / "classifier.json").read_text())
    settings["stages"][0]["segments"] = False
    (folder / "classifier.json").write_text(json.dumps(settings))
    for path, some in ((alone, True), (folder, False)):
        (stage,) = opened(path).stages
        [(ids, segments)] = stage.read([(TEXTS[0], TEXTS[1])])
        assert any(segments) == some
        assert len(ids) == len(segments)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], r"texts\[1\] is None; give a string"),
        (pandas.Series(["a", "b", float("nan")]), r"texts\[2\] is nan"),
        ([["a", "b"], ("a", 2)], r"texts\[1\] is \('a', 2\); .*of a pair a tuple"),
        ([("a", "b", "c")], r"texts\[0\] is \('a', 'b', 'c'\)"),
        (["a", {"b", "c"}], r"texts\[1\] is "),
        (["a", b"b"], r"texts\[1\] is b'b'"),
        (b"ab", r"texts\[0\] is 97"),
        ({"text": "a", "text_pair": "b"}, "a mapping gives the names of its columns"),
        (pandas.DataFrame({"text": ["a"]}), "a table or a mapping gives the names"),
    ],
)
def test_what_is_no_text_is_named_with_its_place(alone: Path, texts: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        opened(alone)(texts)


def test_half_a_character_costs_its_text_alone(alone: Path, both: Path) -> None:
    for folder in (alone, both):
        classifier = opened(folder)
        torn = [*TEXTS[:3], TEXTS[3] + " \ud83d", *TEXTS[4:]]
        answers = classifier(torn)
        assert answers[:3] + answers[4:] == (wanted := classifier(TEXTS))[:3] + wanted[4:]
        assert answers[3] == classifier([TEXTS[3] + " \ufffd"])[0]


def test_texts_of_the_other_kind_are_refused(alone: Path, tmp_path: Path) -> None:
    texts: dict[str, list[Any]] = {"pairs": [("lab kab", "joy")], "singles": ["lab kab joy"]}
    classifiers = {}
    for name, examples in texts.items():
        shutil.copytree(alone, tmp_path / name)
        stages = json.loads((alone / "classifier.json").read_text())["stages"]
        write_classifier(tmp_path / name, stages, LABELS, pairs=name == "pairs")
        classifiers[name] = opened(tmp_path / name)
        assert len(classifiers[name](examples)) == 1
    with pytest.raises(TypeError, match=r"texts\[0\] is \('lab kab', 'joy'\); .* reads strings"):
        classifiers["singles"](texts["pairs"])
    shell = subprocess.run(
        [sys.executable, tmp_path / "pairs" / "classify.py"],
        input="lab\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert shell.returncode == 1
    assert shell.stderr.startswith("this model reads pairs of texts, not lines")


def test_two_labels_of_one_name_are_refused(alone: Path, tmp_path: Path) -> None:
    shutil.copytree(alone, tmp_path / "own")
    file = tmp_path / "own" / "classifier.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "labels": ["happy", "happy", "sad"]}))
    with pytest.raises(ValueError, match=r"classifier\.json: two labels have one name: \['happy'"):
        opened(tmp_path / "own")


def test_a_shell_has_the_label_of_each_line_as_it_comes(alone: Path) -> None:
    texts = [TEXTS[0], "caf\xe9 \r joy", "", "joy \u65e5\u672c"]
    wanted = [*texts[:1], "caf\ufffd \r joy", *texts[2:]]
    shell = subprocess.Popen(
        [sys.executable, alone / "classify.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(b"\xef\xbb\xbf" + texts[0].encode() + b"\r\n")
    shell.stdin.flush()
    told = [shell.stdout.readline()]  # before the second line is there
    rest, err = shell.communicate(texts[1].encode("latin-1") + b"\n\n" + texts[3].encode())
    told += rest.splitlines(keepends=True)
    assert told == [f"{label}\n".encode() for label in labels(opened(alone)(wanted))]
    assert err.decode() == "lines that are not all UTF-8: 1, first line 2\n"
    assert shell.returncode == 0


def test_a_reader_that_has_enough_ends_it_quietly(alone: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"{text}\n" for text in TEXTS * 50))
    ended = subprocess.run(
        f"set -o pipefail; '{sys.executable}' '{alone}/classify.py' < '{lines}' | head -n 1",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == labels(opened(alone)(TEXTS[:1]))


@pytest.mark.slow
@pytest.mark.parametrize("loads", ["classify", "objectives.engines.onnx_model"])
def test_no_device_id_and_no_telemetry_leaves(loads: str, alone: Path, tmp_path: Path) -> None:
    """onnxruntime from 1.29 on does both where nobody opts out; a variable `CI` opts out, too."""
    script = (
        f"import {loads}, onnxruntime\nonnxruntime.InferenceSession({str(alone / 'model.onnx')!r})"
    )
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=alone, check=True)
    assert not list(tmp_path.rglob("deviceid"))


@given(order=st.permutations(range(23)), batch=st.integers(1, 25))
def test_order_and_size_of_batches_change_no_answer(
    alone: Path, both: Path, order: list[int], batch: int
) -> None:
    texts = [*TEXTS, "", " ".join(TEXTS[:5]), (TEXTS[0], TEXTS[1])]
    for folder in (alone, both):
        classifier = opened(folder)
        wanted = labels([classifier([text])[0] for text in texts])
        answers = classifier([texts[place] for place in order], batch=batch)
        assert labels(answers) == [wanted[place] for place in order]


@pytest.mark.parametrize("tokenizers", [("tokenizer",) * 3, ("tokenizer", "other", "tokenizer")])
def test_each_of_three_is_asked_where_the_one_before_it_is_unsure(
    alone: Path, tmp_path: Path, tokenizers: tuple[str, ...]
) -> None:
    folder = shutil.copytree(alone, tmp_path / "three")
    shutil.copyfile(folder / "tokenizer.json", folder / "other.json")
    settings = json.loads((folder / "classifier.json").read_text())
    logits, stages = [], []
    for seed, tokenizer in enumerate(tokenizers):
        write_model(folder / "model.onnx", seed)
        logits.append(opened(folder).logits(TEXTS))
        shutil.copyfile(folder / "model.onnx", folder / f"{seed}.onnx")
        files = {"model": f"{seed}.onnx", "tokenizer": f"{tokenizer}.json"}
        stages.append(settings["stages"][0] | files)
    margins = [confidence_of("margin", each, 1.0) for each in logits]
    asked = [np.ones(len(TEXTS), dtype=bool)]
    for stage, margin in zip(stages[:2], margins[:2], strict=True):
        threshold = float(np.median(margin[asked[-1]]))
        stage |= {"confidence": "margin", "temperature": 1, "threshold": threshold}
        asked.append(asked[-1] & (margin < threshold))
    _, first, second = asked
    assert 0 < second.sum() < first.sum() < len(TEXTS)
    (folder / "classifier.json").write_text(json.dumps(settings | {"stages": stages}))
    classifier = opened(folder)
    wanted = np.where(first[:, None], np.where(second[:, None], logits[2], logits[1]), logits[0])
    np.testing.assert_allclose(classifier.logits(TEXTS), wanted, atol=1e-5)
    assert (classifier.asked, classifier.deferred) == (len(TEXTS), first.sum())


@pytest.mark.parametrize(
    ("contents", "shared"), [("AAA", "000"), ("ABB", "011"), ("ABA", "010"), ("ABC", "012")]
)
def test_stages_share_the_file_of_one_tokenizer(tmp_path: Path, contents: str, shared: str) -> None:
    stages: list[dict[str, Any]] = [{"tokenizer": f"{place}.json"} for place in range(3)]
    for stage, content in zip(stages, contents, strict=True):
        (tmp_path / stage["tokenizer"]).write_text(content)
    write_classifier(tmp_path, stages, LABELS)
    written = json.loads((tmp_path / "classifier.json").read_text())["stages"]
    assert [stage["tokenizer"] for stage in written] == [f"{place}.json" for place in shared]
    left = {file.name for file in tmp_path.glob("?.json")}
    assert left == {f"{place}.json" for place in shared}


@given(order=st.permutations(range(20)), batch=st.integers(1, 25))
def test_order_changes_no_batch(alone: Path, order: list[int], batch: int) -> None:
    """Rounded to int8, an answer depends on the texts that share its batch."""
    classifier, batches = opened(alone), []
    logits = classifier.logits
    classifier.logits = lambda texts: batches.append(texts) or logits(texts)  # type: ignore
    classifier(TEXTS, batch=batch)
    half = len(batches)
    classifier([TEXTS[place] for place in order], batch=batch)
    assert batches[:half] == batches[half:]

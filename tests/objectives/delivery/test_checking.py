"""A folder is checked on new texts: what changed is found, and what did not raises no alarm."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
from safetensors.numpy import load_file, save_file

from maskfront import UserError, check
from objectives.delivery.deployed import deploy
from objectives.delivery.reference import read_reference, tokenizer_of, write_reference
from objectives.students.bert.pretrained import Checkpoint
from objectives.workbench.workbench import Workbench
from orchestrator.command.cli import main
from tests.conftest import FILLERS, MARKERS

pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")


@pytest.fixture(scope="module")
def written(workbench: Workbench, tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That classifier for onnxruntime, with the texts that it was made on."""
    folder = tmp_path_factory.mktemp("written") / "alone"
    tokenizer, texts = Checkpoint(tiny_bert).tokenizer, sentences(1500, seed=1)
    deploy(folder, workbench.problem.teacher, tokenizer, "onnxruntime", 24)
    write_reference(folder, texts[:500], texts[500:], agreement=0.95, deferred=0)
    return folder


@pytest.fixture(scope="module")
def cascade(written: Path) -> Path:
    """It twice, as small and as large model; at writing a tenth was deferred."""
    from objectives.delivery.classify import Classifier

    folder, texts = written.with_name("cascade"), sentences(1500, seed=1)
    shutil.copytree(written, folder)
    logits = Classifier(written).logits(texts[500:])
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    sure = float(np.quantile((shares / shares.sum(-1, keepdims=True)).max(-1), 0.1))
    settings = json.loads((folder / "classifier.json").read_text())
    [stage] = settings["stages"]
    gate = {"confidence": "probability", "temperature": 1, "threshold": sure}
    settings["stages"] = [stage | gate, stage]
    (folder / "classifier.json").write_text(json.dumps(settings))
    write_reference(folder, texts[:500], texts[500:], agreement=0.95, deferred=100)
    return folder


def sentences(rows: int, seed: int, markers: int = 1) -> list[str]:
    """Different texts of words that the classifier knows, as the planted rows are."""
    generator = np.random.default_rng(seed)
    texts: dict[str, None] = {}
    while len(texts) < rows:
        words = generator.choice(FILLERS, size=generator.integers(4, 20)).tolist()
        words += generator.choice(list(MARKERS), size=markers).tolist()
        texts[" ".join(words)] = None
    return list(texts)


def lines(folder: Path, texts: list[str]) -> Path:
    """A file with a text a line."""
    file = folder / "new.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    return file


def renamed(checkpoint: str, copy: Path, pattern: str) -> Path:
    """A copy of a classifier whose labels have other names."""
    shutil.copytree(checkpoint, copy)
    config = json.loads((copy / "config.json").read_text())
    names = [pattern.format(number) for number in range(len(config["id2label"]))]
    config["id2label"] = dict(enumerate(names))
    config["label2id"] = {name: number for number, name in enumerate(names)}
    (copy / "config.json").write_text(json.dumps(config))
    return copy


@pytest.mark.slow
def test_texts_of_the_same_source_raise_no_alarm(cascade: Path, tmp_path: Path) -> None:
    for seed in range(20):
        found = check(cascade, lines(tmp_path, sentences(150, seed=100 + seed)))
        assert not found.alarm
        assert found.deferred is not None
        assert found.sentence().startswith("holds as far as texts tell")


def test_texts_of_another_source_are_found(cascade: Path, tmp_path: Path) -> None:
    found = check(cascade, lines(tmp_path, sentences(150, seed=2, markers=8)))
    assert found.changed
    assert found.alarm
    assert found.sentence().startswith("may not hold")
    assert "changed" in found.lines()[0]


def test_few_texts_say_how_many_more_would_tell(written: Path, tmp_path: Path) -> None:
    found = check(written, lines(tmp_path, sentences(20, seed=3)))
    assert (found.deferred, found.holds) == (None, None)
    assert found.more == 96
    assert found.sentence() == "about 96 more texts would tell"
    assert len(found.lines()) == 1


def test_the_original_is_asked_until_it_is_known(
    written: Path, fine_tuned: str, tmp_path: Path
) -> None:
    new = lines(tmp_path, sentences(400, seed=4))
    found = check(written, new, model=fine_tuned)
    assert found.holds
    assert found.agreed == found.asked < 200
    assert found.sentence().startswith(f"holds: {found.asked} of {found.asked} answers")

    few = lines(tmp_path, sentences(30, seed=5))
    unknown = check(written, few, model=fine_tuned)
    assert unknown.holds is None
    assert unknown.asked == 30
    assert unknown.more is not None
    assert "more texts would tell: 30 of 30 answers" in unknown.sentence()


def test_other_answers_are_found_by_a_few(
    written: Path, fine_tuned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turned = tmp_path / "turned"
    shutil.copytree(written, turned)
    settings = json.loads((turned / "classifier.json").read_text())
    settings["labels"] = settings["labels"][1:] + settings["labels"][:1]
    (turned / "classifier.json").write_text(json.dumps(settings))
    new = lines(tmp_path, sentences(400, seed=4))
    with pytest.raises(SystemExit) as ended:
        main(["check", str(turned), "--data", str(new), "--model", fine_tuned])
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert said.startswith("does not hold: ")
    assert " of 32 answers" in said


def test_a_folder_that_few_texts_made_cannot_tell_by_texts(written: Path, tmp_path: Path) -> None:
    folder, texts = tmp_path / "few", sentences(600, seed=1)
    shutil.copytree(written, folder)
    write_reference(folder, texts[:500], texts[500:], agreement=0.95, deferred=0)
    found = check(folder, texts[:50])
    assert not found.tells
    assert found.sentence().startswith("not known: too few texts made the folder")


def test_an_original_without_names_for_its_labels_is_matched_by_index(
    written: Path, fine_tuned: str, tmp_path: Path
) -> None:
    unnamed = renamed(fine_tuned, tmp_path / "unnamed", "LABEL_{}")
    new = sentences(150, seed=4)
    assert check(written, new, model=unnamed) == check(written, new, model=fine_tuned)


def test_a_label_that_reads_like_a_number_of_an_output_is_matched_by_name(
    written: Path, fine_tuned: str, tmp_path: Path
) -> None:
    """As LABEL_10, which comes before LABEL_2 in a folder."""
    model, folder = renamed(fine_tuned, tmp_path / "model", "LABEL_{}"), tmp_path / "folder"
    weights = load_file(model / "model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = weights[name][[2, 0, 1]].copy()
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    shutil.copytree(written, folder)
    settings = json.loads((folder / "classifier.json").read_text())
    settings["labels"] = ["LABEL_1", "LABEL_2", "LABEL_0"]
    (folder / "classifier.json").write_text(json.dumps(settings))
    assert check(folder, sentences(150, seed=4), model=model).holds


def test_a_table_is_read_by_its_column(written: Path, tmp_path: Path) -> None:
    table = tmp_path / "new.csv"
    rows = sentences(50, seed=6)
    table.write_text("said\n" + "\n".join([*rows, *rows[:9], ""]) + "\n", encoding="utf-8")
    from_file = check(written, table, text="said")
    assert from_file.texts == 50
    for in_memory in (rows, pandas.DataFrame({"said": rows})):
        assert check(written, in_memory, text="said") == from_file
    with pytest.raises(UserError, match=r"no column 'text'; there are 'said'"):
        check(written, pandas.DataFrame({"said": rows}))
    with pytest.raises(UserError, match=r"row 2 has list in column 'said'; give texts"):
        check(written, pandas.DataFrame({"said": [None, ["a", "b"]]}), text="said")
    with pytest.raises(UserError, match="the list holds no text"):
        check(written, [" "])
    with pytest.raises(UserError, match=r"no column 'text'"):
        check(written, table)


def test_what_cannot_be_checked_is_one_line(
    written: Path, fine_tuned: str, tmp_path: Path, tiny_bert: str
) -> None:
    new = lines(tmp_path, sentences(5, seed=7))
    with pytest.raises(UserError, match=r"has no reference\.safetensors, which compress"):
        check(tmp_path, new)
    other = renamed(fine_tuned, tmp_path / "other", "name {}")
    with pytest.raises(UserError, match=r"its labels \('name 0'.* are not the folder's"):
        check(written, new, model=other)
    with pytest.raises(UserError, match="has no classifier yet; name the model that was fine"):
        check(written, new, model=tiny_bert)
    with pytest.raises(UserError, match=r"holds no text"):
        check(written, lines(tmp_path, ["  ", " "]))
    pairs = tmp_path / "pairs"
    shutil.copytree(written, pairs)
    write_reference(pairs, [("a", "b")], [("a", "b")], agreement=0.9, deferred=0)
    with pytest.raises(UserError, match="answers pairs of texts"):
        check(pairs, new)
    torn = tmp_path / "torn"
    shutil.copytree(written, torn)
    next(torn.glob("**/*.onnx")).write_bytes(b"torn")
    with pytest.raises(UserError, match=r"torn' cannot be opened \(.*\); copy it again, whole"):
        check(torn, ["a text"])
    (torn / "reference.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"is damaged"):
        check(torn, new)


def test_no_rare_word_can_be_read_from_the_reference(written: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(written, folder)
    absent, rare, common = FILLERS[:3]
    texts = [f"{rare} {common}"] * 4 + [common]
    write_reference(folder, texts, texts, agreement=0.9, deferred=0)
    tokenizer, rarity = tokenizer_of(folder), read_reference(folder).rarity
    rarities = [float(rarity[tokenizer.token_to_id(word)]) for word in (absent, rare, common)]
    assert rarities[0] == rarities[1] > rarities[2]
    modes = {
        (folder / name).stat().st_mode for name in ("classifier.json", "reference.safetensors")
    }
    assert len(modes) == 1, "who may read the model may read it"

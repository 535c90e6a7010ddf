"""The HTML page: what it says, that no text breaks out of it, and that it needs nothing."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.errors import RunError
from orchestrator.runs.records import RunRecord, TrialRecord, front_document
from orchestrator.runs.run_folder import RunFolder
from reports.overlay import overlay
from reports.page.page import write_report
from tests.reports.conftest import SPACE, widths_of, write_trial_files

HOSTILE = "</script><script>document.title = 'broken'</script><b>&amp; \"'` 🦊 \u202e\u05e9\u05dc"


class Page(HTMLParser):
    """The elements of a page, the text outside scripts and styles, and its JSON documents."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.documents: dict[str, Any] = {}
        self._in = ""
        self._name = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        self._in = tag
        packed = tag == "script" and attributes.get("type") == "application/gzip"
        self._name = str(attributes["id"]) if packed and attributes["id"] != "plotly" else ""

    def handle_endtag(self, tag: str) -> None:
        self._in = ""
        self.text += " "  # between the cells of a table

    def handle_data(self, data: str) -> None:
        if self._name and self._in == "script":
            self.documents[self._name] = json.loads(gzip.decompress(base64.b64decode(data)))
        elif self._in not in ("style", "script"):
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


def hostile(run: RunRecord) -> RunRecord:
    """The run with every free text trying to break out of the page."""
    trials = [
        replace(
            trial,
            knobs={HOSTILE: HOSTILE},
            failure=HOSTILE if trial.state == "failed" else None,
            attributes={HOSTILE: [HOSTILE]},
        )
        for trial in run.trials
    ]
    return replace(
        run,
        name=HOSTILE,
        folder=Path("runs") / "it's; rm -r",
        trials=tuple(trials),
        definition={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
        notes=(HOSTILE,),
    )


@pytest.mark.parametrize(
    "hostile", ["it's; touch pwned", "$(touch pwned) `touch pwned`", "a\ntouch pwned\n"]
)
def test_what_a_page_says_to_copy_runs_one_command(
    mixed_run: RunRecord, tmp_path: Path, hostile: str
) -> None:
    """Each is given to a shell, in which maskfront is no more than a name."""
    run = replace(mixed_run, folder=tmp_path / hostile)
    document = {"command": f"maskfront run {hostile}", "source": "", "study_file": hostile}
    run.folder.mkdir(parents=True)
    (run.folder / "launch.json").write_text(json.dumps(document))
    target = tmp_path / "report.html"
    write_report([run], target)
    html = target.read_text()
    launched = re.search(r"Launched by <code>(.*?)</code>", html, re.DOTALL)
    said = [*re.findall(r"<code>(maskfront .*?)</code>", html, re.DOTALL)]
    said += re.findall(r"To write one: (maskfront .*?)</caption>", html, re.DOTALL)
    assert launched is not None
    assert len(said) > 1
    for command in (launched[1], *said):
        script = f"maskfront() {{ :; }}; {unescape(command)}"
        subprocess.run(["sh", "-c", script], cwd=tmp_path, check=False, capture_output=True)
        assert "\n" not in command
    assert not (tmp_path / "pwned").exists()


UNPRUNED = "0.9000 0.880 to 0.910 0.8800 0.860 to 0.890"
"""Its metrics and their intervals, as the page shows them."""


def test_page_answers_first_and_names_every_trial(mixed_run: RunRecord, tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.html"
    assert write_report([mixed_run], target) == target
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]
    text = Page(target).words
    assert "tiny: accuracy against FLOPs Take trial 0: at 70% of the FLOPs it keeps 100.0%" in text
    assert "Trials: 7, of which 3 finished, 1 outside budget, 2 failed, 1 running." in text
    worth = "0.8900 0.870 to 0.910 0.8800 0.860 to 0.900"
    assert f"cheapest within 3% 0 70% 98.9% {worth}" in text
    assert "recommended maskfront export runs/tiny --trial 0 --out my-model" in text
    assert "failed: all units closed" in text
    assert "Rows, labels and teacher 96 rows read labels 'B' and 'b' differ in case" in text
    assert "one sequence of 16 tokens" in text
    assert "torch 2.13.0" in text


def test_page_names_the_teacher_of_another_student(mixed_run: RunRecord, tmp_path: Path) -> None:
    sizes = dict.fromkeys(("cost", "flops"), 18_000_000)
    large = replace(mixed_run.unpruned, student_is_new=True, **sizes)
    path = write_report([replace(mixed_run, unpruned=large)], tmp_path / "report.html")
    text = Page(path).words
    assert "The dashed line is the teacher model's level." in text
    assert f"teacher {UNPRUNED} 18.0000 18,000,000 100,000" in text


def test_page_shows_what_words_alone_give(
    mixed_run: RunRecord, words_run: RunRecord, tmp_path: Path
) -> None:
    path = write_report([words_run], tmp_path / "report.html")
    text = Page(path).words
    assert "model's level, the dotted one that of a linear model on words alone. Thin" in text
    assert "words alone (tf-idf) 0.8500 0.830 to 0.870 0.8400 0.820 to 0.860" in text
    cells = re.findall(r"<tr>(.*?)</tr>", path.read_text(), re.DOTALL)
    of_models = [
        len(re.findall("<t[hd]", row)) for row in cells if "unpruned" in row or "(tf" in row
    ]
    assert of_models[-2] == of_models[-1], "as many cells as the unpruned model's row"
    without = Page(write_report([mixed_run], tmp_path / "without.html")).words
    assert "model's level. Thin" in without
    assert "tf-idf" not in without


def test_page_speaks_of_what_the_study_counts(timed_run: RunRecord, tmp_path: Path) -> None:
    text = Page(write_report([timed_run], tmp_path / "report.html")).words
    assert "tiny: accuracy against latency Take trial 0: at 70% of the latency it keeps" in text
    assert "latency ratio target ratio ms@cpu-2threads-b1-s16 flops@16 params" in text
    worth = "0.8100 0.790 to 0.830 0.8000 0.780 to 0.820"
    assert f"1 {worth} 90.0% 0.4000 0.4000 5.000 400,000 40,000" in text
    assert f"unpruned {UNPRUNED} 1.0000 12.500 1,000,000 100,000" in text
    assert "The study counts in ms@cpu-2threads-b1-s16: milliseconds of one forward pass" in text
    assert "outside its budget if its latency ratio differs" in text
    assert text.count("FLOPs") == 1  # how they are counted


def test_page_has_every_number_of_the_storage(stored_run: RunRecord, tmp_path: Path) -> None:
    page = Page(write_report([stored_run], tmp_path / "report.html"))
    front = front_document(stored_run)["front"]
    (trace,) = (one for one in page.documents["figure-front"]["data"] if one["name"] == "front")
    assert [key[1] for key in trace["customdata"]] == [point["trial"] for point in front]
    assert trace["x"] == [point["ratio"] for point in front]
    assert trace["y"] == [point["metric"] for point in front]
    (run,) = page.documents["data"]["runs"]
    assert run["front"] == [point["trial"] for point in front]
    rows = {row["trial"]: row for row in run["trials"]}
    assert set(rows) == {trial.number for trial in stored_run.trials}
    for trial in stored_run.trials:
        row, result = rows[trial.number], trial.result
        assert row["knobs"] == trial.knobs
        if result is not None:
            assert (row["metric"], row["ratio"]) == (result.metric, result.ratio)
            assert row["interval"] == list(result.interval)
            assert row["sizes"] == result.sizes
            assert len(row["curve"]["loss"][0]) == 42, "20 of each stage's 40 steps, and the last"
            assert row["curve"]["open_ratio"][0][-1] == 39
            assert "architecture.json" in row["files"]
            assert (tmp_path / row["folder"] / "architecture.json").is_file()
    reached = page.documents["figure-target"]["data"][1]["y"]
    assert sorted(reached) == sorted(t.result.ratio for t in stored_run.trials if t.result)


def test_page_shows_how_the_run_was_launched(
    mixed_run: RunRecord, make_run: Any, tmp_path: Path
) -> None:
    run = replace(mixed_run, folder=tmp_path)
    RunFolder(tmp_path).write_launch("maskfront run a.py", "study = Study(name='</pre>')\n", "a.py")
    text = Page(write_report([run], tmp_path / "report.html")).words
    assert "Launched by maskfront run a.py" in text
    assert "study = Study(name='</pre>')" in text
    assert f"maskfront bench {tmp_path} --study-file a.py" in text
    RunFolder(tmp_path).write_launch(
        "maskfront compress bert --data a.txt", "study = Study()", None
    )
    text = Page(write_report([run], tmp_path / "report.html")).words
    assert "maskfront bench" not in text, "there is no study file"


def test_damaged_files_are_left_out(make_many: Callable[..., RunRecord], tmp_path: Path) -> None:
    run = make_many(12, folder=tmp_path / "run")
    assert len(run.front) > 2
    for trial in run.trials:
        if trial.result is not None:
            write_trial_files(RunFolder(run.folder).trial(trial.number), trial.result)
    whole = Page(write_report([run], tmp_path / "report.html"))
    for name in ("architecture.json", "result.json", "curve.csv"):
        file = RunFolder(run.folder).trial(run.front[1].number) / name
        file.write_text(file.read_text()[:-9])
    page = Page(write_report([run], tmp_path / "report.html"))
    assert "figure-consensus" in whole.documents
    assert "figure-consensus" not in page.documents


def test_page_of_several_runs_names_each(
    mixed_run: RunRecord, make_many: Callable[..., RunRecord], tmp_path: Path
) -> None:
    runs = [make_many(40, seed=seed, folder=Path(f"runs/{seed}")) for seed in range(3)]
    page = Page(write_report([*runs, mixed_run], tmp_path / "report.html"))
    assert "many (runs/1): Take trial" in page.words
    assert page.words.count("96 rows read") == 1, "they all say it"
    assert "maskfront export runs/2 --trial" in page.words
    names = [trace["name"] for trace in page.documents["figure-hypervolume-trials"]["data"]]
    assert "median of many (runs/0) and 2 more seeds" in names
    others = [make_many(40, name=name, folder=Path(f"runs/{name}")) for name in ("tpe", "gp")]
    apart = overlay(others).groups
    assert apart == {"tpe": [0], "gp": [1]}, "of one seed: two samplers, say"
    fronts = {
        trace["name"]: len(trace["x"])
        for trace in page.documents["figure-front"]["data"]
        if trace["name"].endswith("front")
    }
    assert fronts["many (runs/1): front"] == len(runs[1].front)
    assert fronts["tiny: front"] == 2


def test_runs_of_two_tasks_share_an_axis_of_shares(mixed_run: RunRecord, tmp_path: Path) -> None:
    other = replace(mixed_run, name="other", metric_name="mcc", definition={"task.data": "y"})
    page = Page(write_report([mixed_run, other], tmp_path / "report.html"))
    traces = [t for t in page.documents["figure-front"]["data"] if t["name"].endswith("front")]
    assert traces[0]["y"] == pytest.approx([0.81 / 0.9, 0.89 / 0.9])
    below = replace(other, unpruned=replace(other.unpruned, metric=-0.1))
    with pytest.raises(RunError, match="there are no shares"):
        write_report([mixed_run, below], tmp_path / "report.html")


def test_runs_that_count_two_things_share_no_page(
    mixed_run: RunRecord, timed_run: RunRecord, tmp_path: Path
) -> None:
    elsewhere = replace(timed_run.unpruned, unit="ms@NVIDIA-H200-b1-s16")
    with pytest.raises(RunError, match="the runs count ms@cpu-2threads-b1-s16 and ms@NVIDIA"):
        write_report([timed_run, replace(timed_run, unpruned=elsewhere)], tmp_path / "report.html")
    with pytest.raises(RunError, match="the runs count FLOPs and latency"):
        write_report([mixed_run, timed_run], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_page_is_accessible_by_structure(stored_run: RunRecord, tmp_path: Path) -> None:
    page = Page(write_report([stored_run], tmp_path / "report.html"))
    assert ("html", {"lang": "en"}) in page.elements
    assert (page.count("main"), page.count("h1")) == (1, 1)
    assert page.count("figure") == page.count("figcaption") >= 9
    assert page.count("table") == page.count("caption") == page.count("thead")
    headers = [attributes for tag, attributes in page.elements if tag == "th"]
    assert all(attributes.get("scope") in ("row", "col") for attributes in headers)
    tables = [attributes for _, attributes in page.elements if "data-figure" in attributes]
    assert len(tables) == page.count("figure"), "every figure has its numbers as a table"
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("trials", [0, 1])
def test_page_of_hardly_any_trial(
    trials: int, make_run: Any, make_trial: Any, tmp_path: Path
) -> None:
    run = make_run([make_trial(n, 400_000, 0.8) for n in range(trials)])
    page = Page(write_report([run], tmp_path / "report.html"))
    if trials:
        assert "No model loses at most 3%; trial 0, at 40% of the FLOPs, keeps 89.8%" in page.text
    else:
        assert "No trial has finished yet." in page.text
        assert "maskfront export" not in page.text
        assert page.count("figure") == 1


def test_page_of_a_run_whose_trials_all_failed(make_run: Any, tmp_path: Path) -> None:
    failed = [
        TrialRecord(number=n, state="failed", knobs={"a": 1.0}, result=None, failure="no memory")
        for n in range(3)
    ]
    page = Page(write_report([make_run(failed)], tmp_path / "report.html"))
    assert "No trial has finished yet." in page.text
    assert "Trials: 3, of which 3 failed." in page.words
    assert page.words.count("failed: no memory") == 3


def test_no_text_breaks_out_of_the_page(mixed_run: RunRecord, tmp_path: Path) -> None:
    harmless = Page(write_report([mixed_run], tmp_path / "harmless.html"))
    path = write_report([hostile(mixed_run)], tmp_path / "hostile.html")
    page = Page(path)
    for tag in ("script", "b", "title"):
        assert page.count(tag) == harmless.count(tag)
    assert "<script>document.title" not in path.read_text(encoding="utf-8")
    # It is all there: title, h1, note, a knob and its value in 7 trials, 2 failures, provenance.
    assert page.text.count(HOSTILE) == 3 + 2 * 7 + 2 + 4
    assert "'runs/it'\"'\"'s; rm -r'" in page.text
    assert page.documents["data"]["runs"][0]["trials"][0]["attributes"] == {HOSTILE: [HOSTILE]}


def test_a_hostile_knob_is_text_in_every_figure(
    make_many: Callable[..., RunRecord], tmp_path: Path
) -> None:
    run = make_many(40)
    definition = {name.replace("mode", HOSTILE): text for name, text in run.definition.items()}
    trials = [
        replace(t, knobs={HOSTILE if k == "mode" else k: v for k, v in t.knobs.items()})
        for t in run.trials
    ]
    run = replace(run, name=HOSTILE, definition=definition, trials=tuple(trials))
    assert HOSTILE in run.space
    page = Page(write_report([run], tmp_path / "report.html"))
    figures = [d for name, d in page.documents.items() if name.startswith("figure-")]
    assert len(figures) >= 7
    for figure in figures:  # Plotly would take an unescaped "<b>" for markup
        assert "<b>" not in json.dumps(figure)


def test_page_loads_nothing(stored_run: RunRecord, tmp_path: Path) -> None:
    path = write_report([stored_run], tmp_path / "report.html")
    page = Page(path)
    loading = {"src", "srcset", "data", "action", "poster", "background"}
    for tag, attributes in page.elements:
        assert not loading & attributes.keys(), f"<{tag}> loads something"
        assert str(attributes.get("href", "#")).startswith("#")
    styles = "".join(re.findall(r"<style>(.*?)</style>", path.read_text("utf-8"), re.DOTALL))
    assert "url(" not in styles
    assert "@import" not in styles
    policies = [a["content"] for _, a in page.elements if "http-equiv" in a]
    assert policies
    assert "default-src 'none'; script-src 'nonce-" in str(policies[0])
    assert "unsafe-eval" not in str(policies[0])


@pytest.mark.slow
def test_a_thousand_trials_are_less_than_three_megabytes(
    make_many: Callable[..., RunRecord], tmp_path: Path
) -> None:
    """Of a BERT-base: 12 layers of 12 heads and 3072 neurons, each model cut in its own way."""
    folder, full, dice = tmp_path / "run", {"heads": 12, "ffn": 3072}, np.random.default_rng(0)
    run = make_many(1000, folder=folder)

    def cut(heads: Sequence[int], ffn: Sequence[int]) -> dict[str, Any]:
        return {"widths": widths_of(heads, ffn)}

    def drawn() -> dict[str, Any]:
        return cut(*(dice.integers(n + 1, size=12).tolist() for n in full.values()))

    run = replace(
        run,
        unpruned=replace(run.unpruned, **cut(*((n,) * 12 for n in full.values()))),
        trials=tuple(
            replace(trial, result=replace(trial.result, **drawn())) if trial.result else trial
            for trial in run.trials
        ),
    )
    for trial in run.trials:
        path = RunFolder(folder).trial(trial.number)
        path.mkdir(parents=True)
        noise = dice.normal(1, 0.1, size=(300, 2)) * np.linspace(1, 0.2, 300)[:, None]
        rows = "\n".join(f"search,{step},{a:.6g},{b:.6g}" for step, (a, b) in enumerate(noise))
        (path / "curve.csv").write_text(f"stage,step,loss,open_ratio\n{rows}\n")
    page = write_report([run], tmp_path / "report.html")
    assert page.stat().st_size < 3_000_000
    assert len(Page(page).documents["data"]["runs"][0]["trials"]) == 1000


def test_a_page_that_cannot_be_written_leaves_the_old(mixed_run: RunRecord, tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError, match=r"report\.html"):
        write_report([mixed_run], tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_one_run_needs_no_list(mixed_run: RunRecord, tmp_path: Path) -> None:
    one = Page(write_report(mixed_run, tmp_path / "one.html"))
    assert one.words == Page(write_report([mixed_run], tmp_path / "listed.html")).words


def test_a_space_is_read_from_the_definition(make_many: Callable[..., RunRecord]) -> None:
    assert make_many(1).space == SPACE


def test_reports_open_without_torch() -> None:
    code = (
        "import sys, reports.page.page, reports.page.picture, reports.page.following\n"
        "import reports.exporting.export\n"
        "sys.exit(bool({'torch', 'transformers', 'kaleido'} & sys.modules.keys()))"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def test_a_reader_never_sees_half_a_page(
    tmp_path: Path, make_many: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is moved into the page's place is whole, and stands beside it until then."""
    target = tmp_path / "report.html"
    write_report([make_many(4)], target)
    old = target.read_text(encoding="utf-8")
    moved: list[str] = []
    replace_file = Path.replace

    def watched(self: Path, other: Path) -> Path:
        assert target.read_text(encoding="utf-8") == old
        moved.append(self.read_text(encoding="utf-8"))
        return replace_file(self, other)

    monkeypatch.setattr(Path, "replace", watched)
    write_report([make_many(8)], target)
    (new,) = moved
    assert new.rstrip().endswith("</html>")
    assert target.read_text(encoding="utf-8") == new
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]

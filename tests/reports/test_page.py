"""The HTML page: what it says, that no text breaks out of it, and that a browser draws it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records import RunRecord, TrialRecord
from reports.page import state_text, write_report

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
HOSTILE = "</script><script>document.title = 'broken'</script><b>&amp;"


class Page(HTMLParser):
    """The elements of a page and the text outside scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts = ""
        self._in = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        self._in = ""
        self.text += " "  # between the cells of a table

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts += data
        elif self._in != "style":
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


@pytest.fixture
def hostile_run(mixed_run: RunRecord) -> RunRecord:
    """A run whose every free text tries to break out of the page."""
    trials = [
        replace(
            trial,
            knobs={HOSTILE: HOSTILE},
            failure=HOSTILE if trial.state == "failed" else None,
        )
        for trial in mixed_run.trials
    ]
    return replace(
        mixed_run,
        name=HOSTILE,
        folder=Path("runs") / "it's; rm -r",
        trials=tuple(trials),
        definition={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
    )


def test_page_answers_first_and_names_every_trial(mixed_run: RunRecord, tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.html"
    assert write_report(mixed_run, target) == target
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]
    page = Page(target)
    text = " ".join(page.text.split())
    assert "tiny: accuracy against FLOPs At 40% of the FLOPs the model keeps 90.0%" in text
    assert (
        "Trials: 7, of which 3 finished, 1 outside budget, 1 failed, 1 stopped, 1 running." in text
    )
    assert "maskfront export runs/tiny --trial 1 --out my-model" in text
    assert "failed: all units closed" in text
    assert "one sequence of 16 tokens" in text
    assert "torch 2.13.0" in text


def test_page_calls_the_teacher_of_another_student_by_its_name_and_its_ratio(
    mixed_run: RunRecord, tmp_path: Path
) -> None:
    large = replace(mixed_run.unpruned, **dict.fromkeys(("cost", "flops"), 18_000_000))
    path = write_report(replace(mixed_run, unpruned=large), tmp_path / "report.html")
    text = " ".join(Page(path).text.split())
    assert "The dashed line is the teacher model's level." in text
    assert "teacher 0.9000 0.8800 18.0000 18,000,000 100,000" in text


def test_page_speaks_of_what_the_study_counts(timed_run: RunRecord, tmp_path: Path) -> None:
    page = Page(write_report(timed_run, tmp_path / "report.html"))
    text = " ".join(page.text.split())
    assert "tiny: accuracy against latency At 40% of the latency the model keeps" in text
    header = "latency ratio target ratio ms@cpu-2threads-b1-s16 flops@16 params export"
    assert header in text
    assert "1 0.8100 0.8000 0.4000 0.4000 5.000 400,000 40,000 maskfront export" in text
    assert "unpruned 0.9000 0.8800 1.0000 12.500 1,000,000 100,000" in text
    assert "The study counts in ms@cpu-2threads-b1-s16: milliseconds of one forward pass" in text
    assert "outside its budget if its latency ratio differs" in text
    assert page.text.count("FLOPs") == 1  # how they are counted


def test_page_is_accessible_by_structure(mixed_run: RunRecord, tmp_path: Path) -> None:
    page = Page(write_report(mixed_run, tmp_path / "report.html"))
    assert ("html", {"lang": "en"}) in page.elements
    assert (page.count("main"), page.count("h1")) == (1, 1)
    assert page.count("figure") == page.count("figcaption") == 2
    assert page.count("table") == page.count("caption") == page.count("thead") == 4
    headers = [attributes for tag, attributes in page.elements if tag == "th"]
    assert all(attributes.get("scope") in ("row", "col") for attributes in headers)


def test_page_of_a_run_without_a_front(make_run: Any, tmp_path: Path) -> None:
    page = Page(write_report(make_run(), tmp_path / "report.html"))
    assert "No trial has finished yet." in page.text
    assert "maskfront export" not in page.text
    assert page.count("figure") == 1


def test_no_text_breaks_out_of_the_page(
    mixed_run: RunRecord, hostile_run: RunRecord, tmp_path: Path
) -> None:
    harmless = Page(write_report(mixed_run, tmp_path / "harmless.html"))
    path = write_report(hostile_run, tmp_path / "hostile.html")
    page = Page(path)
    for tag in ("script", "b", "title"):
        assert page.count(tag) == harmless.count(tag)
    assert "<script>document.title" not in path.read_text(encoding="utf-8")
    # As text it is all there: title, h1, a knob and its value in 7 trials, a failure, provenance.
    assert page.text.count(HOSTILE) == 2 + 2 * 7 + 1 + 4
    assert "'runs/it'\"'\"'s; rm -r'" in page.text


def test_page_loads_nothing(mixed_run: RunRecord, tmp_path: Path) -> None:
    path = write_report(mixed_run, tmp_path / "report.html")
    page = Page(path)
    loading = {"src", "srcset", "href", "data", "action", "poster", "background"}
    for tag, attributes in page.elements:
        assert not loading & attributes.keys(), f"<{tag}> loads something"
    styles = "".join(re.findall(r"<style>(.*?)</style>", path.read_text("utf-8"), re.DOTALL))
    assert "url(" not in styles
    assert "@import" not in styles
    policies = [a["content"] for _, a in page.elements if "http-equiv" in a]
    assert policies
    assert "default-src 'none'" in str(policies[0])
    assert page.scripts.count("plotly.js v") == 1, "Plotly's script is there once"


def test_state_in_words(make_trial: Any) -> None:
    assert state_text(make_trial(0, 500_000, 0.8)) == "finished"
    assert state_text(make_trial(0, 500_000, 0.8, target=0.3)) == "outside budget"
    for state in ("failed", "stopped", "running", "waiting"):
        row = TrialRecord(number=0, state=state, knobs={}, result=None, failure=None)
        assert state_text(row) == state


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    mixed_run: RunRecord, tmp_path: Path
) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError, match=r"report\.html"):
        write_report(mixed_run, tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_reports_open_without_torch() -> None:
    code = (
        "import sys, reports.page, reports.picture, reports.export; "
        "sys.exit(bool({'torch', 'transformers', 'kaleido'} & sys.modules.keys()))"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def test_a_browser_draws_the_page_offline(hostile_run: RunRecord, tmp_path: Path) -> None:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="NOT TESTED: no playwright; pip install 'maskfront[test]'"
    )
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        pytest.skip(f"NOT TESTED: the page in a real browser; found none of {', '.join(BROWSERS)}")
    path = write_report(hostile_run, tmp_path / "report.html")
    seen: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        tab = browser.new_context(offline=True).new_page()
        tab.on("console", lambda message: seen.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: seen.append(f"error: {error}"))
        tab.on("request", lambda request: seen.append(request.url))
        tab.goto(path.as_uri())
        tab.wait_for_selector("#architectures .heatmaplayer image >> nth=1", state="attached")
        title = tab.title()
        drawn = {
            name: tab.locator(f"#front .scatterlayer .trace:has(.{name})").count()
            for name in ("point", "js-line")
        }
        heat_maps = tab.locator("#architectures .heatmaplayer image").count()
        share = tab.locator(".modebar-btn[data-title^='Share']").count()
        tab.locator("#front .scatterlayer .point").first.hover(force=True)
        hover = tab.locator("#front .hoverlayer .hovertext").text_content()
        browser.close()
    assert seen == [path.as_uri()]
    assert title == f"{HOSTILE}: accuracy against FLOPs"
    assert drawn == {"point": 5, "js-line": 1}
    assert heat_maps == 2
    assert share == 0
    assert HOSTILE in str(hover)

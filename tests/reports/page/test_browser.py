"""The page in a real browser, from the disk and without a network."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runs.records import RunRecord, front_document, read_run
from orchestrator.runs.run_folder import RunFolder
from reports.page.page import write_report
from tests.reports.conftest import many_run, store_run, with_result
from tests.reports.page.test_page import HOSTILE, hostile
from tests.reports.test_divergence import compared

pytestmark = pytest.mark.timeout(600)
UNRANGED = """() => [...document.querySelectorAll('.plot')].flatMap((plot) =>
    Object.entries(plot._fullLayout)
        .filter(([name]) => /^[xy]axis/.test(name))
        .filter(([, axis]) => ['-1,6', '-1,4'].includes(`${axis.range}`))
        .map(([name]) => `${plot.id} ${name}`))"""
"""Axes with the range that Plotly gives them if it finds no data."""
HELD = """
    const text = Response.prototype.text;
    const gate = new Promise((open) => { window.letPlotlyCome = open; });
    let unpacked = 0;
    Response.prototype.text = async function () {
        if (unpacked++) await gate;
        return text.call(this);
    };"""
"""Holds back all that the page unpacks but its first, the data: a slow machine's first second."""
OpenTab = Callable[..., Any]


@pytest.fixture(scope="module")
def page_path(stored_run: RunRecord, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([stored_run], tmp_path_factory.mktemp("page") / "report.html")


def drawn(page: Any) -> dict[str, list[int]]:
    """Of each figure: points, lines, bars and heat maps that stand on the screen."""
    found: dict[str, list[int]] = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.plot')].map((plot) => [plot.id,
            ['.scatterlayer .point', '.js-line', '.barlayer .point', '.heatmaplayer image'].map(
                (kind) => plot.querySelectorAll(kind).length)]))"""
    )
    return found


def test_everything_is_drawn_offline(
    page_path: Path, stored_run: RunRecord, open_tab: OpenTab, pictures: Path
) -> None:
    front = front_document(stored_run)["front"]
    for scheme in ("light", "dark"):
        tab = open_tab(scheme)
        page = tab.open_whole(page_path)
        assert tab.seen == []
        assert tab.requests == [page_path.as_uri()]
        shown = page.locator("#front .scatterlayer .trace:has(.js-line) .point").count()
        assert shown == len(front)
        figures = drawn(page)
        assert len(figures) >= 9
        assert all(sum(kinds) > 0 for kinds in figures.values()), figures
        assert not page.evaluate(UNRANGED)
        heat_maps = {name: kinds[3] for name, kinds in figures.items() if kinds[3]}
        assert heat_maps == {"architectures": 3, "consensus": 1}
        assert page.locator(".modebar-btn[data-title^='Share']").count() == 0
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 28)"}[scheme]
        picture = pictures / f"report-{scheme}.png"
        page.screenshot(path=picture, full_page=True)
        assert picture.stat().st_size > 50_000


@pytest.mark.slow
def test_it_prints_black_on_white_and_whole(
    make_many: Callable[..., RunRecord], tmp_path: Path, open_tab: OpenTab, pictures: Path
) -> None:
    """Of a reader who likes it dark; the table of 40 trials scrolls on a screen."""
    page = open_tab("dark").open_whole(write_report([make_many(40)], tmp_path / "report.html"))
    table = "document.querySelector('#trials .tall')"
    scrolled = f"{table}.scrollHeight - {table}.clientHeight"
    assert page.evaluate(scrolled) > 100
    page.emulate_media(media="print", color_scheme="dark")
    style = "([at, name]) => getComputedStyle(document.querySelector(at))[name]"
    for at, name, wanted in (
        ("body", "backgroundColor", "rgb(255, 255, 255)"),
        ("body", "color", "rgb(0, 0, 0)"),
        ("#front .xtitle", "fill", "rgb(0, 0, 0)"),
        ("nav", "display", "none"),
        ("details.data", "display", "none"),
    ):
        assert page.evaluate(style, [at, name]) == wanted, (at, name)
    assert page.evaluate(scrolled) == 0
    paper = page.pdf(path=pictures / "report.pdf", format="A4")
    assert paper.startswith(b"%PDF")


@pytest.mark.slow
def test_a_phone_scrolls_no_page(page_path: Path, open_tab: OpenTab, pictures: Path) -> None:
    page = open_tab(width=390).open_whole(page_path)
    page.screenshot(path=pictures / "report-phone.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    widths = page.evaluate(
        "['front', 'slices'].map((id) => document.getElementById(id).clientWidth)"
    )
    assert widths[0] < 390 < widths[1]
    caption = page.locator("#start caption").bounding_box()
    assert caption["x"] + caption["width"] <= 390


@pytest.mark.slow
def test_a_click_on_a_point_opens_its_card(
    page_path: Path, stored_run: RunRecord, open_tab: OpenTab
) -> None:
    tab = open_tab()
    page = tab.open_report(page_path)
    card = page.locator("#card")
    assert card.is_hidden()
    point = page.locator("#front .scatterlayer .trace:has(.js-line) .point").nth(1)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    card.wait_for(state="visible")
    best = stored_run.front[1]
    assert best.result is not None
    text = card.inner_text()
    assert card.locator("h3").inner_text() == f"trial {best.number}"
    assert f"--trial {best.number} --out my-model" in text
    assert f"{best.result.metric:.4f} (95%: " in text
    assert f"{best.result.heads_per_layer[0]} of 4" in text
    page.wait_for_selector("#curve .js-line", state="attached")
    assert page.locator("#curve .js-line").count() == 2
    link = card.locator("a", has_text="architecture.json")
    linked = page.evaluate("(a) => a.href", link.element_handle())
    with page.expect_request(linked):
        link.click()
    assert '"heads"' in page.content()
    assert tab.seen == []


@pytest.mark.slow
def test_learning_curves_tell_rows_learnt_from_others(tmp_path: Path, open_tab: OpenTab) -> None:
    run = many_run(2)
    first, second = run.finished
    learnt = with_result(first, divergence=0.028, train_divergence=0.00801)
    run = replace(run, trials=(learnt, second))
    folder = RunFolder(tmp_path / "run")
    store_run(folder, run)
    tab = open_tab()
    page = tab.open_report(write_report([read_run(folder.path)], tmp_path / "report.html"))
    page.select_option("#pick", "0 0")
    text = page.locator("#card").inner_text()
    assert "at the end: 0.008010 on rows that the student learnt from, 0.02800 on others" in text
    page.select_option("#pick", "0 1")
    text = page.locator("#card").inner_text()
    assert "Learning curves" in text
    assert "learnt from" not in text, "it learnt nothing"
    assert tab.seen == []


@pytest.mark.slow
def test_a_link_leads_to_the_file_of_any_folder(tmp_path: Path, open_tab: OpenTab) -> None:
    """A page that lies elsewhere has the run folder's name in its links."""
    folder = RunFolder(tmp_path / "a#1 50%?")
    store_run(folder, many_run(2))
    tab = open_tab()
    page = tab.open_report(write_report([read_run(folder.path)], tmp_path / "report.html"))
    page.select_option("#pick", "0 1")
    addresses = page.eval_on_selector_all("#card a", "(links) => links.map((a) => a.href)")
    files = {*folder.trial(1).iterdir(), folder.trial(1) / "model"}
    assert {address.rstrip("/") for address in addresses} == {file.as_uri() for file in files}
    assert tab.seen == []


@pytest.mark.slow
def test_the_cost_axis_switches(page_path: Path, stored_run: RunRecord, open_tab: OpenTab) -> None:
    tab = open_tab()
    page = tab.open_report(page_path)
    trials = [trial.result for trial in stored_run.front if trial.result is not None]
    shown = "() => document.getElementById('front').data.find((t) => t.name === 'front').x"
    labels = page.locator("#front .annotation-text").all_text_contents
    every = labels()
    level = [label for label in every if label.startswith("unpruned")]
    assert len(level) == 1 < len(every), "the others name models, at their ratios"
    for option, wanted in (
        ("params", [result.params for result in trials]),
        ("flops@16", [result.flops for result in trials]),
        ("", [result.ratio for result in trials]),
    ):
        page.select_option("#axis", option)
        assert page.evaluate(shown) == wanted
        assert labels() == (level if option else every)
        title = page.locator("#front .xtitle").text_content()
        assert title == (option or "FLOPs, unpruned = 100% (flops@16)")
    assert tab.seen == []


@pytest.mark.slow
def test_an_axis_has_numbers_in_each_unit_though_costs_differ_by_far(
    make_run: Any, make_trial: Any, open_tab: OpenTab, tmp_path: Path
) -> None:
    run = make_run([make_trial(0, 500_000, 0.89), make_trial(1, 40_000, 0.8)])
    tab = open_tab()
    page = tab.open_report(write_report([run], tmp_path / "report.html"))
    ticks = page.locator("#front .xtick text").all_text_contents
    shares = ticks()
    assert "50%" in shares
    page.select_option("#axis", "params")
    assert ticks()
    assert not {*ticks()} & {*shares}
    page.select_option("#axis", "")
    assert ticks() == shares
    assert tab.seen == []


@pytest.mark.slow
def test_the_axis_of_two_runs_without_words_switches(open_tab: OpenTab, tmp_path: Path) -> None:
    plain = many_run(20)
    far = {trial.number: 0.01 * (1 + trial.number) for trial in plain.finished}
    runs = [compared(plain, far), replace(compared(plain, far), name="again")]
    tab = open_tab()
    page = tab.open_report(write_report(runs, tmp_path / "report.html"))
    page.select_option("#axis", "params")
    assert page.locator("#front .xtitle").text_content() == "params"
    assert tab.seen == []


@pytest.mark.slow
def test_a_front_is_a_line_only_in_what_its_study_counts(
    mixed_run: RunRecord, tmp_path: Path, open_tab: OpenTab
) -> None:
    """In parameters, which runs of two lengths share, its models are in no order."""

    def longer(model: Any) -> Any:
        return replace(model, unit="flops@32", flops_unit="flops@32")

    finished = tuple(replace(row, result=longer(row.result)) for row in mixed_run.finished)
    other = replace(mixed_run, name="longer", unpruned=longer(mixed_run.unpruned), trials=finished)
    page = open_tab().open_report(write_report([mixed_run, other], tmp_path / "report.html"))
    modes = "() => front.data.filter((one) => one.line?.shape).map((one) => one.mode)"
    assert page.evaluate(modes) == ["lines+markers"] * 2
    page.select_option("#axis", "params")
    assert page.evaluate(modes) == ["markers"] * 2
    page.select_option("#axis", "")
    assert page.evaluate(modes) == ["lines+markers"] * 2


@pytest.mark.slow
def test_everything_goes_by_keyboard(page_path: Path, open_tab: OpenTab) -> None:
    tab = open_tab()
    page = tab.open_report(page_path)
    button = page.locator("button.trial").first
    button.focus()
    page.keyboard.press("Enter")
    page.locator("#card").wait_for(state="visible")
    assert page.evaluate("document.activeElement.id") == "card"
    assert page.evaluate("location.hash").startswith("#trial-0-")
    page.keyboard.press("Escape")
    assert page.locator("#card").is_hidden()
    assert page.evaluate("document.activeElement.className") == "trial"
    summary = page.locator("details.data summary").first
    summary.focus()
    page.keyboard.press("Enter")
    page.locator("details.data table").wait_for()
    assert page.locator("details.data table").count() == 1
    assert tab.seen == []


@pytest.mark.slow
def test_a_reader_may_be_faster_than_the_figures(
    page_path: Path, stored_run: RunRecord, open_tab: OpenTab
) -> None:
    """Cards, the switch and the tables wait for what they need, and nothing fails."""
    tab = open_tab()
    page = tab.page
    page.add_init_script(HELD)
    page.goto(f"{page_path.as_uri()}#trial-0-3")
    page.wait_for_selector("#card:not([hidden])")
    assert page.locator("#card h3").inner_text() == "trial 3"
    first, second = (trial.number for trial in stored_run.front[:2])
    page.click(f"#front-section button.trial[value='0 {first}']")
    page.focus(f"#front-section button.trial[value='0 {second}']")
    page.keyboard.press("Enter")
    assert page.locator("#card h3").inner_text() == f"trial {second}"
    page.select_option("#axis", "params")
    page.locator("details[data-figure=consensus] summary").click()
    assert page.locator("#front[data-drawn]").count() == 0
    page.evaluate("letPlotlyCome()")
    page.wait_for_selector("body[data-ready]", state="attached", timeout=180_000)
    assert page.locator("#curve .js-line").count() == 2
    assert page.locator("#front .xtitle").text_content() == "params"
    assert page.locator("details[data-figure=consensus] table").count() == 1
    assert tab.seen == []


@pytest.mark.slow
def test_a_card_has_an_address(page_path: Path, open_tab: OpenTab) -> None:
    page = open_tab().open_report(page_path, "#trial-0-7")
    assert page.locator("#card h3").inner_text() == "trial 7"
    failed = open_tab().open_report(page_path, "#trial-0-999")
    assert failed.locator("#card").is_hidden()


@pytest.mark.slow
def test_downloads_hold_the_numbers(
    page_path: Path, stored_run: RunRecord, open_tab: OpenTab, tmp_path: Path
) -> None:
    page = open_tab().open_whole(page_path)

    def download(button: Any) -> str:
        with page.expect_download() as waiting:
            button.click()
        waiting.value.save_as(tmp_path / "file")
        return (tmp_path / "file").read_text(encoding="utf-8")

    rows = list(csv.DictReader(download(page.locator("#csv")).splitlines()))
    assert [int(row["trial"]) for row in rows] == [t.number for t in stored_run.trials]
    for row, trial in zip(rows, stored_run.trials, strict=True):
        assert float(row["flops_weight"]) == trial.knobs["flops_weight"]
        assert (row["metric"] == "") == (trial.result is None)
    data = json.loads(download(page.locator("#json")))
    assert data["format"] == "maskfront-report-1"
    for name in ("front", "consensus", "slices"):
        details = page.locator(f"details[data-figure={name}]")
        details.locator("summary").click()
        table = download(details.locator(".tools button"))
        shown = details.locator("tbody tr").count()
        assert len(table.splitlines()) == shown + 1
    text = download(page.locator("details[data-figure=front] .tools button"))
    front = list(csv.DictReader(text.splitlines()))
    low = [float(row["low"]) for row in front if row["series"] == "front"]
    results = [t.result for t in stored_run.front if t.result]
    assert low == pytest.approx([r.interval[0] for r in results])


@pytest.mark.slow
def test_divergences_are_on_cards_and_in_the_csv(open_tab: OpenTab, tmp_path: Path) -> None:
    plain = many_run(20)
    far = {trial.number: 0.01 * (1 + trial.number) for trial in plain.finished}
    run = compared(plain, far)
    tab = open_tab()
    page = tab.open_report(write_report([run], tmp_path / "report.html"), "#trial-0-1")
    assert "divergence held out\t0.03000" in page.locator("#card").inner_text()
    assert page.evaluate("document.querySelector('#front')._fullLayout.yaxis.type") == "log"
    with page.expect_download() as waiting:
        page.locator("#csv").click()
    waiting.value.save_as(tmp_path / "csv")
    rows = csv.DictReader((tmp_path / "csv").read_text(encoding="utf-8").splitlines())
    shown = {int(row["trial"]): row["divergence"] for row in rows}
    assert {number: float(text) for number, text in shown.items() if text} == pytest.approx(far)
    assert tab.seen == []


def test_hostile_text_is_text(mixed_run: RunRecord, tmp_path: Path, open_tab: OpenTab) -> None:
    tab = open_tab()
    path = write_report([hostile(mixed_run)], tmp_path / "report.html")
    page = tab.open_report(path, "#trial-0-4")
    assert page.title() == f"{HOSTILE}: accuracy against FLOPs"
    assert HOSTILE in page.locator("#card").text_content()
    page.locator("#front .scatterlayer .point").first.hover(force=True)
    assert "accuracy" in page.locator("#front .hoverlayer .hovertext").text_content()
    page.locator("details.data summary").first.click()
    assert page.locator("b").count() == 0
    assert tab.seen == []


@pytest.mark.slow
def test_no_injected_script_would_run(page_path: Path, open_tab: OpenTab) -> None:
    """What the policy is for: a script or a handler without the page's nonce does nothing."""
    page = open_tab().open_report(page_path)
    page.evaluate(
        """() => {
            const image = '<img src=x onerror="window.broken = 1">';
            document.body.insertAdjacentHTML('beforeend', image);
            const script = document.createElement('script');
            script.textContent = 'window.broken = 2';
            document.body.append(script);
        }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.broken") is None


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "runs"), [("light", 2), ("dark", 1)])
def test_axe_finds_nothing_serious(
    scheme: str, runs: int, page_path: Path, mixed_run: RunRecord, tmp_path: Path, open_tab: OpenTab
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="NOT TESTED: no axe-playwright-python"
    )
    several = write_report([mixed_run] * runs, tmp_path / "several.html")
    page = open_tab(scheme).open_report(several if runs > 1 else page_path, "#trial-0-1")
    for summary in page.locator("details.data summary").all()[:3]:
        summary.click()
    violations = axe.Axe().run(page).response["violations"]
    serious = [
        (found["id"], [node["html"][:200] for node in found["nodes"][:3]])
        for found in violations
        if found["impact"] in ("serious", "critical")
    ]
    assert serious == []


@pytest.mark.slow
def test_a_thousand_trials_are_drawn(
    make_many: Callable[..., RunRecord], tmp_path: Path, open_tab: OpenTab
) -> None:
    run = make_many(1000)
    path = write_report([run], tmp_path / "report.html")
    tab = open_tab()
    page = tab.open_whole(path)
    assert tab.seen == []
    shown = page.locator("#front .scatterlayer .trace:has(.js-line) .point").count()
    assert shown == len(run.front)
    assert page.locator("#architectures .heatmaplayer image").count() == 3
    first = int(page.locator("#front").get_attribute("data-drawn"))
    print(f"first figure after {first} ms")  # noqa: T201


@pytest.mark.slow
def test_several_runs_are_drawn(
    make_many: Callable[..., RunRecord], tmp_path: Path, open_tab: OpenTab, pictures: Path
) -> None:
    runs = [make_many(40, seed=seed, folder=Path(f"runs/{seed}")) for seed in range(3)]
    tab = open_tab()
    page = tab.open_whole(write_report(runs, tmp_path / "report.html"))
    assert tab.seen == []
    figures = drawn(page)
    assert {"architectures", "architectures-1", "architectures-2"} <= set(figures)
    assert all(sum(kinds) > 0 for kinds in figures.values()), figures
    page.screenshot(path=pictures / "report-several.png", full_page=True)


@pytest.mark.slow
def test_a_live_page_reloads_when_it_is_asked_to(
    mixed_run: RunRecord, tmp_path: Path, open_tab: OpenTab
) -> None:
    path = write_report([mixed_run], tmp_path / "report.html", live=True)
    tab = open_tab()
    page = tab.open_report(path)
    page.check("#follow")
    write_report([mixed_run], path)
    page.wait_for_selector("#follow", state="detached", timeout=180_000)
    assert tab.seen == []


@pytest.mark.slow
def test_tables_are_sorted_and_commands_copied(
    page_path: Path, stored_run: RunRecord, open_tab: OpenTab
) -> None:
    tab = open_tab(width=400)
    page = tab.open_report(page_path)
    table = page.locator("#front-section table[data-sortable]").first
    heads = table.locator("th[scope=col]")
    place = heads.all_inner_texts().index("FLOPs ratio")
    ratios = [*sorted(trial.result.ratio for trial in stored_run.front if trial.result), 1.0]
    for order, wanted in (("ascending", ratios), ("descending", ratios[::-1])):
        heads.nth(place).locator("button").click()
        assert heads.nth(place).get_attribute("aria-sort") == order
        cells = table.locator(f"tbody tr > :nth-child({place + 1})").all_inner_texts()
        assert [float(cell) for cell in cells if "to" not in cell] == pytest.approx(
            wanted, abs=1e-4
        )
    command = page.locator("#start .command").first
    button = command.locator("button")
    button.click()
    page.wait_for_function("(one) => one.textContent === 'Copied'", arg=button.element_handle())
    box = command.locator("code").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 400
    assert tab.seen == []

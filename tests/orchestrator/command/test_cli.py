"""The command line as a user runs it: what it prints, and one clear line for each bad input."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from itertools import islice
from pathlib import Path

import pytest
from optuna_dashboard import get_note
from rich.console import Console
from transformers import AutoModelForSequenceClassification

from maskfront import Study, __version__
from orchestrator.command import launching
from orchestrator.command.cli import show_end
from orchestrator.errors import RunError
from orchestrator.runs.records import load_optuna_study, read_run
from orchestrator.runs.run_folder import RunFolder
from orchestrator.study_file import launched_file, load_study, load_study_of
from orchestrator.workers.heartbeat import workers_of
from orchestrator.workers.worker import Callback
from tests.any_classifiers import write_classifier
from tests.command_line import COMMAND, assert_one_clear_line, maskfront, maskfront_process
from tests.launching import run_study
from tests.orchestrator.methods import Scripted, scripted
from tests.servers import Postgres

WriteStudy = Callable[..., Path]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory, tiny_study_file: Path) -> Path:
    """A finished run of the tiny study."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    run_study(load_study(tiny_study_file), folder)
    return folder


def test_run_ends_with_the_front_the_report_and_the_next_commands(
    write_study: WriteStudy, tmp_path: Path
) -> None:
    arguments = ["run", write_study(), "--trials", 2, "--population", "auto"]
    done = maskfront(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "tiny"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "study = Study(" in page, "the study's file is in its report"
    study = load_optuna_study(folder)
    assert get_note(study).startswith("**"), "the run keeps its dashboard up to date"
    attributes = study._storage.get_study_system_attrs(study._study_id)
    assert any(name.startswith("dashboard:plot_data:front") for name in attributes)
    assert "accuracy against FLOPs" in done.stdout
    assert "texts longer than 16 tokens (max_length) are cut off: train" in done.stdout
    assert "unpruned" in done.stdout
    last = done.stdout.strip().splitlines()[-4:]
    assert last[0].split() == ["report", "runs/tiny/report.html"]
    assert last[1].split() == ["dashboard", "maskfront", "dashboard", "runs/tiny"]
    bench = ["bench", *["maskfront", "bench", "runs/tiny", "--study-file"], str(arguments[1])]
    assert last[2].split() == bench
    export = re.fullmatch(
        r"export +maskfront export runs/tiny --trial (\d+) --out my-model", last[3]
    )
    assert export is not None
    for text in (done.stdout, page, get_note(study)):
        assert re.search(r"(?:Take|3%;)\s+trial\s+(\d+)", text)[1] == export[1], "one answer"
    assert [path.name for path in tmp_path.iterdir() if path.name != "study.py"] == ["runs"]


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    done = maskfront("--version", cwd=tmp_path)
    assert done.stdout.strip() == __version__ == metadata.version("maskfront")


@pytest.mark.slow
def test_the_password_of_a_url_is_in_no_file_and_the_run_ends_well(
    write_study: WriteStudy, tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.new_user("mallory", "s3cret").format(password="s3cret")
    done = maskfront("run", write_study(), f"--storage={url}", "--trials", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "accuracy against FLOPs" in done.stdout
    folder = tmp_path / "runs" / "tiny"
    for path in folder.rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path
    launched = json.loads((folder / "launch.json").read_text())
    assert re.search(r"--storage=postgresql\S*://mallory@/\S+ --trials 1", launched["command"])


def test_another_study_of_the_file_is_run_by_name(write_study: WriteStudy, tmp_path: Path) -> None:
    second = ("study = Study(", "import dataclasses\nstudy = Study(")
    path = write_study(second)
    path.write_text(
        f"{path.read_text()}\nlarge = dataclasses.replace(study, name='large')\ntiny = study.task\n"
    )
    assert load_study(path, "tiny").name == "tiny", "a study's own name, though a task has it too"
    done = maskfront("run", path, "--study", "huge", cwd=tmp_path)
    assert_one_clear_line(done, "no name `huge`; its studies are study, large")
    done = maskfront("run", path, "--study", "large", "--trials", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["large"]


@pytest.mark.slow
def test_front_json_is_one_object_and_nothing_else(run_folder: Path) -> None:
    done = maskfront_process("front", run_folder, "--json")
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert set(document) == {*("fidelity", "objective", "unpruned", "words", "front", "expected")}
    for point in document["front"]:
        assert (run_folder / point["model"] / "model.safetensors").is_file()
        assert point["flops"] <= document["unpruned"]["flops"] == point["flops_full"]


def test_front_is_told_in_what_the_study_counts(tiny_study_file: Path, tmp_path: Path) -> None:
    study = replace(load_study(tiny_study_file), cost="params", first=({"target_ratio": 0.7},))
    run_study(study, tmp_path / "run", trials=1)
    table = maskfront("front", tmp_path / "run").stdout
    assert "accuracy against params" in table
    for column in ("params ratio", "params", "flops@16"):
        assert column in table
    assert "FLOPs" not in table
    document = json.loads(maskfront("front", tmp_path / "run", "--json").stdout)
    (point,) = document["front"]
    assert point["unit"] == document["unpruned"]["unit"] == "params"
    assert point["cost"] == point["params"]
    assert point["ratio"] == point["params"] / document["unpruned"]["params"]
    assert (point["flops_unit"], point["flops_full"]) == ("flops@16", document["unpruned"]["flops"])


def test_a_run_without_a_front_says_so_and_names_no_model(study: Study, tmp_path: Path) -> None:
    missed = replace(scripted(study, "result"), method=Scripted(target_ratio=0.5))
    run = run_study(missed, tmp_path / "run")
    console = Console()
    with console.capture() as shown:
        show_end(run, console)
    last = [line.split()[0] for line in shown.get().splitlines()[-3:]]
    assert last == ["No", "report", "dashboard"]
    done = maskfront("front", run.folder)
    assert done.stdout.endswith("No trial has met its FLOPs budget yet; 1 finished outside it.\n")


@pytest.mark.slow
def test_help_and_front_answer_without_torch(run_folder: Path) -> None:
    for arguments in (
        ["--help"],
        ["front", str(run_folder)],
        ["report", str(run_folder)],
        ["status", str(run_folder)],
    ):
        script = (
            "import sys\n"
            "from orchestrator.command.cli import main\n"
            "try: main()\n"
            "except SystemExit as end: assert not end.code, end.code\n"
            "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_polish_leaves_a_run_beside_it(
    run_folder: Path, tiny_study_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "better"
    asked = ("--study-file", tiny_study_file, "--epochs", 1, "--out", out, "--device", "cpu")
    done = maskfront("polish", run_folder, "--trial", 2, "--trial", 0, *asked)
    assert done.returncode == 0, done.stderr
    assert [trial.knobs["trial"] for trial in read_run(out).finished] == [2, 0]
    assert f"export     maskfront export {out} --trial" in done.stdout


@pytest.mark.slow
def test_dashboard_serves_the_run_on_this_machine_only(run_folder: Path) -> None:
    server = subprocess.Popen(
        [*COMMAND, "dashboard", str(run_folder), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        base = address.removesuffix("/dashboard")
        studies = json.load(urllib.request.urlopen(f"{base}/api/studies", timeout=120))
        (summary,) = studies["study_summaries"]
        detail = json.load(
            urllib.request.urlopen(f"{base}/api/studies/{summary['study_id']}", timeout=120)
        )
        assert detail["objective_names"] == ["accuracy", "flops@16"]
        trial = detail["trials"][0]
        names = {artifact["filename"] for artifact in trial["artifacts"]}
        assert names == {
            "architecture.json",
            "architecture.png",
            "config.json",
            "curve.csv",
            "model.safetensors",
            "result.json",
        }
    finally:
        server.terminate()
        server.wait(timeout=120)
        assert server.stdout is not None
        server.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_a_launch_and_its_workers_cleanly(
    write_study: WriteStudy, tmp_path: Path, workers: int
) -> None:
    asked = ["run", str(write_study(epochs=500)), "--out", str(tmp_path / "run")]
    with (tmp_path / "errors").open("w") as file:
        process = subprocess.Popen(
            [*COMMAND, *asked, "--workers", str(workers), "--device", "cpu"],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    assert process.stdout is not None
    try:
        searching = (line for line in process.stdout if "search: " in line)
        assert len(list(islice(searching, workers))) == workers
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    errors = (tmp_path / "errors").read_text()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "launch again to go on" in errors
    assert {trial.failure for trial in read_run(tmp_path / "run").trials} == {"interrupted"}
    known = workers_of(load_optuna_study(tmp_path / "run")).values()
    assert all(worker.ended for worker in known)


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (RunError("no worker is left"), 2)]
)
def test_a_launch_that_is_cut_short_leaves_a_page_that_says_so(
    run_folder: Path,
    tiny_study_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
) -> None:
    pages: list[str] = []

    def cut_short(*_: object, callbacks: Sequence[Callback], **__: object) -> None:
        callbacks[0](read_run(run_folder))
        pages.append((run_folder / "report.html").read_text(encoding="utf-8"))
        raise error

    monkeypatch.setattr(launching, "run_study", cut_short)
    asked = ["run", str(tiny_study_file), "--out", str(run_folder), "--device", "cpu"]
    assert maskfront(*asked).returncode == code
    pages.append((run_folder / "report.html").read_text(encoding="utf-8"))
    assert ["The study is running" in page for page in pages] == [True, False]


BAD_STUDIES = {
    "no study": (("study = Study(", "result = Study("), r"no name `study`; its studies are result"),
    "no study at all": (("study = Study(", "study = dict("), r"`study` is a dict; it must end in"),
    "two students": (
        ("trials=4", "trials=4, student='a', student_layers=(0,)"),
        r"Study\.student and Study\.student_layers are both set",
    ),
    "unknown student": (("trials=4", "trials=4, student='no/such'"), r"model 'no/such': no such f"),
    "unknown GLUE task": (
        ("study = Study(", "from objectives.text.glue import glue; glue('sst3'); study = Study("),
        r"no GLUE task 'sst3'; there are cola, sst2",
    ),
    "raises": (("trials=4", "trials=1 // 0"), r"line \d+ raises ZeroDivisionError"),
    "syntax": (("study = Study(", "study = Study(("), r"line \d+ raises SyntaxError"),
    "misspelt knob": (('"tolerance":', '"tolerence":'), r"Study\.space names 'tolerence'"),
    "unknown data": (("data=", "data='no/such-data' or "), r"data set 'no/such-data' could not"),
    "unknown model": (
        ("checkpoint=", "checkpoint='no/such-model' or "),
        r"model 'no/such-model': no such folder",
    ),
    "no text column": (("max_length=16", "max_length=16, text='body'"), r"no column 'body'"),
    "bad setting": (("batch_size=16", "batch_size=0"), r"MaskSearch\.batch_size is 0"),
}


@pytest.mark.parametrize("case", BAD_STUDIES)
def test_a_bad_study_is_one_clear_line(write_study: WriteStudy, tmp_path: Path, case: str) -> None:
    replacement, message = BAD_STUDIES[case]
    done = maskfront("run", write_study(replacement), cwd=tmp_path)
    assert_one_clear_line(done, message)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_process_ends_as_the_command_here_does(write_study: WriteStudy, tmp_path: Path) -> None:
    replacement, _ = BAD_STUDIES["unknown model"]
    for asked in (["run", write_study(replacement)], ["front", "nowhere"]):
        here = maskfront(*asked, cwd=tmp_path)
        process = maskfront_process(*asked, cwd=tmp_path)
        assert (process.returncode, process.stdout, process.stderr) == (2, "", here.stderr)


def test_labels_that_the_teacher_does_not_know(
    write_study: WriteStudy, tmp_path: Path, tiny_classifier: Path
) -> None:
    study = write_study(("checkpoint=", f"checkpoint={str(tiny_classifier)!r} or "))
    assert_one_clear_line(maskfront("run", study, cwd=tmp_path), "does not know the label")
    assert not (tmp_path / "runs").exists()


def test_lengths_are_told_before_anything_is_searched(
    write_study: WriteStudy, tmp_path: Path
) -> None:
    asked = ("--max-length", 8, "--max-length", 16, "--device", "cpu")
    done = maskfront("lengths", write_study(), *asked, cwd=tmp_path)
    head, *rows = (line.split() for line in done.stdout.splitlines() if "%" in line)
    assert head[:2] == ["length", "truncation"]
    assert [row[:2] for row in rows] == [
        ["16", "head"],
        ["16", "head+tail"],
        ["8", "head"],
        ["8", "head+tail"],
    ]
    assert rows[0][2] != rows[2][2] == rows[3][2]
    assert not (tmp_path / "runs").exists()


def test_another_architecture_is_named(write_study: WriteStudy, tmp_path: Path) -> None:
    folder = write_classifier("albert", tmp_path / "albert", ["happy", "neutral", "sad"])
    study = write_study(("checkpoint=", f"checkpoint={folder!r} or "))
    assert_one_clear_line(
        maskfront("run", study, cwd=tmp_path),
        r"MaskSearch: it cuts a BERT, but the teacher '.*' is no BERT \('albert'\)",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.py"], "study file 'nowhere.py' does not exist"),
        (["front", "nowhere"], "'nowhere' is not a run folder"),
        (["report", "nowhere"], "'nowhere' is not a run folder"),
        (["report", "one", "other"], "needs a file name (--out)"),
        (["serve-storage", "--storage", "grpc://a:1"], "a grpc storage cannot be served"),
        (["dashboard", "nowhere"], "'nowhere' is not a run folder"),
        (["export", "nowhere", "--trial", "0", "--out", "m"], "'nowhere' is not a run folder"),
    ],
)
def test_a_path_that_is_not_there(tmp_path: Path, arguments: list[str], message: str) -> None:
    assert_one_clear_line(maskfront(*arguments, cwd=tmp_path), re.escape(message))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", 0], "workers is 0; it must be at least 1"),
        (["--storage", "nonsense"], r"that is not the URL of a storage; .* \(--storage\)"),
        (["--storage", "postgresql://me:s3cret@127.0.0.1:1/x"], "connection failed"),
        (
            ["--storage", "journal:///{folder}/j", "--workers", 9],
            r"8 workers, .* postgresql://.* \(--storage\)",
        ),
        (["--workers", 2, "--device", "tpu9"], "device 'tpu9' cannot be used here"),
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
        (["--trials", 0], "trials is 0; it must be .*>= 1"),
        (["--population", 0], "population is 0; it must be .*>= 1"),
        (["--backend", "dask"], r"dask needs the address of its scheduler, .* \(--cluster\)"),
        (
            ["--cluster", "tcp://127.0.0.1:1"],
            r"say whether the cluster at tcp://.* is dask or ray \(--backend\)",
        ),
        pytest.param(
            ["--backend", "dask", "--cluster", "tcp://127.0.0.1:1"],
            "no Dask scheduler answers at",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_options_of_a_launch_that_cannot_be(
    write_study: WriteStudy, tmp_path: Path, arguments: list[object], message: str
) -> None:
    path = write_study()
    given = [str(argument).format(folder=tmp_path) for argument in arguments]
    done = maskfront("run", path, *given, cwd=tmp_path)
    assert_one_clear_line(done, message)
    assert "s3cret" not in done.stderr
    assert "--storage" in arguments or not (tmp_path / "runs").exists()


def test_a_place_that_cannot_be_written(write_study: WriteStudy, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = maskfront("run", write_study(), "--out", tmp_path / "file" / "run")
    assert_one_clear_line(done, "could not be written")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.slow
def test_a_disk_that_fills_up(write_study: WriteStudy, tmp_path: Path) -> None:
    """No file may grow beyond 400 kB."""
    study, folder = write_study(), tmp_path / "run"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        done = maskfront("run", study, "--out", folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_one_clear_line(done, "could not be written")
    assert not list(folder.rglob("*unfinished*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--knee", "--trial", 0], r"choose a model in one way, not in 2 \(--trial, --max-ratio"),
        (["--max-ratio", 50], r"50 is not a share .* \(--max-ratio\)"),
        (["--max-ratio", 0.01], r"ratio <= 0\.01 on its front; the nearest is trial \d with 0\."),
        (["--min-metric", 1.5], r"accuracy >= 1\.5 on its front; the nearest is trial \d with"),
        (
            ["--max-ratio", 1, "--int8"],
            r"name the file that it was launched from \(--study-file\)$",
        ),
        (
            ["--max-ratio", 1, "--int4"],
            r"name the file that it was launched from \(--study-file\)$",
        ),
        (["--study-file", "study.py"], "only int8 and int4 need a study file"),
        (["--trial", 99], "has no trial 99; finished: "),
    ],
)
def test_an_export_that_cannot_be_is_refused(
    run_folder: Path, tmp_path: Path, options: list[object], message: str
) -> None:
    done = maskfront("export", run_folder, *options, "--out", tmp_path / "model")
    assert_one_clear_line(done, message)
    assert not (tmp_path / "model").exists()


def test_who_is_not_logged_in_pushes_nothing(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    options = ["--max-ratio", 1, "--push-to-hub", "me/my-model", "--out", tmp_path / "model"]
    assert_one_clear_line(
        maskfront("export", run_folder, *options), "log in with `hf auth login`, or set HF_TOKEN"
    )
    assert not (tmp_path / "model").exists()


def test_export_gives_a_model_that_transformers_loads_and_a_card_that_says_of_what(
    run_folder: Path, tmp_path: Path
) -> None:
    done = maskfront("export", run_folder, "--max-ratio", 1, "--out", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    said = r".*/model  \(trial \d: accuracy 0\.\d{4}, held out 0\.\d{4}, FLOPs ratio 0\.\d{3}\)\n"
    assert re.fullmatch(said, done.stdout)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    best = json.loads(maskfront("front", run_folder, "--json").stdout)["front"][-1]
    assert sum(p.numel() for p in model.parameters()) == best["params"]
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "| task | tiny |" in card
    assert re.search(r"\| data \| tiny-data\d*/|\| data \| [^/|]+/tiny-data\d*", card)
    assert re.search(r"\| teacher \| checkpoint\d*/tiny-bert \|", card)


def test_bench_json_is_one_object_and_nothing_else(run_folder: Path) -> None:
    point = json.loads(maskfront("front", run_folder, "--json").stdout)["front"][0]
    model = run_folder / point["model"]
    shape = ("--engine", "eager", "--batch", 2, "--length", 16, "--rounds", 1)
    done = maskfront("bench", model, *shape, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [row["model"] for row in document["timings"]] == ["unpruned", str(model)]
    assert document["timings"][1]["flops"] == point["flops"]
    assert document["timings"][1]["flops_ratio"] == point["ratio"]
    done = maskfront("bench", model, "--engine", "tpu")
    assert_one_clear_line(done, "no engine 'tpu'; there are eager, bfloat16, compile, onnxr")
    done = maskfront("bench", model, "--study-file", "study.py")
    assert_one_clear_line(done, "a study file needs a run: name the run folder")


def test_bench_of_a_run_times_its_front_and_keeps_that(run_folder: Path) -> None:
    front = json.loads(maskfront("front", run_folder, "--json").stdout)["front"]
    done = maskfront("bench", run_folder, "--engine", "eager", "--batch", 1, "--rounds", 1)
    assert done.returncode == 0, done.stderr
    timed = json.loads((run_folder / "bench.json").read_text())["timings"]
    assert {row["length"] for row in timed} == {16}, "the study's own"
    assert "bench.json; maskfront report shows it" in done.stdout.replace("\n", "")
    kept = json.loads((run_folder / "bench.json").read_text())
    assert [row["trial"] for row in kept["timings"]] == [None, *(row["trial"] for row in front)]


def test_the_study_file_is_the_one_in_launch_json(
    run_folder: Path, tiny_study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(
        run_folder, tmp_path / "run", ignore=shutil.ignore_patterns("launch.json")
    )
    engines = ("--engine", "eager", "--engine", "bfloat16")

    def scored() -> tuple[bool, str]:
        done = maskfront(
            "bench", "run", *engines, "--batch", 1, "--rounds", 1, "--json", cwd=tmp_path
        )
        return any(row["worth"] for row in json.loads(done.stdout)["timings"]), done.stderr

    asked = ("cascade", "run", "--out", "both")
    refused = maskfront(*asked, cwd=tmp_path)
    assert_one_clear_line(refused, r"'run': its launch\.json names no study file .*-study-file\)")
    shutil.copy(tiny_study_file, tmp_path / "mine.py")
    RunFolder(run).write_launch("maskfront run mine.py", "", "mine.py")
    elsewhere = maskfront(*asked, cwd=tmp_path)
    assert_one_clear_line(elsewhere, r"file 'mine\.py' was named in another working folder; name")
    monkeypatch.chdir(tmp_path)
    RunFolder(run).write_launch("maskfront run mine.py", "", "mine.py")
    found, said = scored()
    assert found
    assert "launch.json" not in said

    (tmp_path / "mine.py").rename(tmp_path / "moved.py")
    gone = r"'mine\.py', which launch\.json names, is not there; name .* \(--study-file\)"
    assert_one_clear_line(maskfront(*asked, cwd=tmp_path), gone)
    found, said = scored()
    assert not found
    assert re.search(gone, said)
    (tmp_path / "mine.py").write_text("raise SystemExit('the code of a stranger')\n")
    shutil.copytree(run, tmp_path / "copy")
    done = maskfront("polish", "copy", cwd=tmp_path)
    assert_one_clear_line(done, r"'copy': this folder is a copy, .*is not trusted; .*-study-file\)")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(RunError, match=r"another account wrote its launch\.json, and the stud"):
        launched_file(run)


def test_the_line_of_an_error_is_told_though_the_path_is_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study.py").write_text("\n\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=r"'study\.py', line 3 raises ZeroDivisionError"):
        load_study("study.py")


def test_what_a_run_folder_does_not_take_is_shown_and_said(
    run_folder: Path, tmp_path: Path
) -> None:
    """Folders in the way, since root may write anything."""
    copy = shutil.copytree(run_folder, tmp_path / "run")
    for name in ("bench.json", "report.html"):
        (copy / name).unlink(missing_ok=True)
        (copy / name / "in the way").mkdir(parents=True)
    shape = ("--engine", "eager", "--batch", 1, "--length", 16, "--rounds", 1)
    done = maskfront("bench", copy, *shape)
    assert done.returncode == 2
    assert "speed-up" in done.stdout
    assert re.search(
        r"bench\.json' could not be written \(Is a directory\): these times are not saved",
        done.stderr,
    )
    (copy / "bench.json" / "in the way").rmdir()
    (copy / "bench.json").rmdir()
    done = maskfront("report", copy)
    assert_one_clear_line(
        done, r"report\.html' could not be written \(Is a directory\); write it elsewhere \(--out\)"
    )


def test_the_study_of_a_run_is_found_in_its_file(write_study: WriteStudy) -> None:
    path = write_study(("study = Study(", "import dataclasses\nstudy = Study("))
    path.write_text(f"{path.read_text()}\nlarge = dataclasses.replace(study, name='big')\n")
    assert load_study_of(path, "big").name == "big"
    with pytest.raises(RunError, match="no study is named 'huge'; its studies: 'tiny', 'big'"):
        load_study_of(path, "huge")

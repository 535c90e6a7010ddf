"""Artifacts in a bucket of a real S3 server on 127.0.0.1, shown where the run folder is not."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.artifacts import get_all_artifact_meta

from orchestrator.dashboard.server import application
from orchestrator.errors import RunError
from orchestrator.runs import artifacts
from orchestrator.runs.artifacts import bucket_store
from orchestrator.storage.connect import open_storage
from orchestrator.study import Study
from tests.launching import run_study
from tests.orchestrator.methods import scripted

boto3 = pytest.importorskip("boto3", reason="NOT TESTED: pip install -e '.[s3]'")
servers = pytest.importorskip("moto.server", reason="NOT TESTED: pip install -e '.[test]'")

URL = "s3://runs"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server with an empty bucket, which boto3 finds by its environment."""
    server = servers.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="runs")
    bucket_store.cache_clear()  # a client keeps the address that it was made with
    yield server
    server.stop()


def served(app: Any, path: str) -> tuple[str, bytes]:
    """Status and body of a page of a WSGI application."""
    status: list[str] = []
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": path,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "HTTP_HOST": "127.0.0.1",
        "wsgi.input": io.BytesIO(),
        "wsgi.url_scheme": "http",
    }
    parts = app(environ, lambda line, *_: status.append(line))
    body = b"".join(parts)
    if hasattr(parts, "close"):  # as servers do
        parts.close()
    return status[0], body


def test_a_dashboard_elsewhere_shows_the_bucket(study: Study, tmp_path: Path, server: Any) -> None:
    url = f"sqlite:///{tmp_path}/elsewhere.db"
    two = scripted(study, "result", "result")
    run_study(two, tmp_path / "run", trials=1, storage=url, artifacts=URL)
    run_study(two, tmp_path / "run", storage=url)  # the study remembers it
    (tmp_path / "run").rename(tmp_path / "gone")
    optuna_study = optuna.load_study(study_name="tiny", storage=open_storage(url))
    assert len(optuna_study.trials) == 2
    app = application(url)
    for trial in optuna_study.trials:
        metas = get_all_artifact_meta(trial, storage=optuna_study._storage)
        by_name = {meta.filename: meta.artifact_id for meta in metas}
        assert {"architecture.json", "model.safetensors"} <= set(by_name)
        page = (
            f"/artifacts/{optuna_study._study_id}/{trial._trial_id}/{by_name['architecture.json']}"
        )
        status, body = served(app, page)
        assert status.startswith("200")
        assert body == (tmp_path / f"gone/trials/{trial.number:05d}/architecture.json").read_bytes()
    assert not list((tmp_path / "gone" / "artifacts").iterdir())


@pytest.mark.parametrize("wrong", ["is unknown", "may not be read"])
def test_a_bucket_hides_no_artifacts_of_other_runs(
    study: Study, tmp_path: Path, server: Any, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    one = scripted(study, "result")
    for name in ("first", "second", "third"):
        run_study(one, tmp_path / name, artifacts=URL if name == "second" else None)

    def refused(*_: str) -> Any:
        raise (RunError if wrong == "is unknown" else PermissionError)(wrong)

    if wrong == "is unknown":
        monkeypatch.setattr(artifacts, "bucket_store", refused)
    else:
        monkeypatch.setattr(artifacts.Boto3ArtifactStore, "open_reader", refused)
    storage = open_storage(f"sqlite:///{tmp_path}/third/study.db")
    (trial,) = optuna.load_study(study_name="tiny", storage=storage).trials
    app, place = application(tmp_path), "/artifacts/2000000001/2000000001"  # of the third run
    for meta in get_all_artifact_meta(trial, storage=storage):
        status, _ = served(app, f"{place}/{meta.artifact_id}")
        assert status.startswith("200")
    status, _ = served(app, f"{place}/{'0' * 36}")
    assert status.startswith("404")


def test_a_bucket_that_goes_away_costs_no_trial(
    study: Study, tmp_path: Path, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    two = scripted(study, "result", "result")
    run_study(two, tmp_path / "run", trials=1, artifacts=URL)
    boto3.resource("s3").Bucket("runs").objects.all().delete()
    boto3.client("s3").delete_bucket(Bucket="runs")
    run = run_study(two, tmp_path / "run")
    assert [trial.state for trial in run.trials] == ["finished"] * 2
    assert "its files are not in s3://runs" in " ".join(capsys.readouterr().out.split())
    assert (run.folder / "trials/00001/model/model.safetensors").is_file()


def test_a_trial_that_failed_leaves_nothing_in_the_bucket(
    study: Study, tmp_path: Path, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []

    def refuse(*_: object) -> None:
        kept.append(len(list(boto3.resource("s3").Bucket("runs").objects.all())))
        raise RuntimeError("database is locked")

    monkeypatch.setattr(optuna.Trial, "set_constraint", refuse)
    with pytest.raises(RuntimeError, match="database is locked"):
        run_study(scripted(study, "result"), tmp_path / "run", artifacts=URL)
    assert kept == [6]
    assert not list(boto3.resource("s3").Bucket("runs").objects.all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://other", r"s3://other cannot be used \(.*404.*\); check AWS_ENDPOINT_URL"),
        ("s3://runs/folder", "must be s3://BUCKET, without a path"),
        ("/a/folder", "must be s3://BUCKET"),
    ],
)
def test_what_is_no_bucket_is_refused_before_anything_runs(
    study: Study, tmp_path: Path, server: Any, url: str, message: str
) -> None:
    one = scripted(study, "result")
    with pytest.raises(RunError, match=message) as refused:
        run_study(one, tmp_path / "run", artifacts=url)
    assert "s3cret" not in str(refused.value)
    run_study(one, tmp_path / "run", artifacts=URL)


def test_a_server_that_does_not_answer_is_one_line(
    study: Study, tmp_path: Path, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    bucket_store.cache_clear()
    with pytest.raises(RunError, match="Could not connect"):
        run_study(scripted(study, "result"), tmp_path / "run", artifacts=URL)


def test_what_has_begun_in_one_place_stays_there(study: Study, tmp_path: Path, server: Any) -> None:
    run_study(scripted(study, "result"), tmp_path / "run")
    more = replace(scripted(study, "result"), trials=2)
    with pytest.raises(RunError, match="are in its run folder so far"):
        run_study(more, tmp_path / "run", artifacts=URL)

"""A password goes to the server that it was given for, and to none that a run folder names."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.dashboard.server import application
from orchestrator.errors import RunError
from orchestrator.runs.records import read_run
from orchestrator.runs.run_folder import RunFolder
from orchestrator.status import run_status
from orchestrator.storage import urls
from orchestrator.storage.urls import HOST, PASSWORD, parse_url, remember_password, with_password
from orchestrator.workers.loop import address


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "s3cret")
    monkeypatch.delenv(HOST, raising=False)
    monkeypatch.setattr(urls, "_passwords", {})


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    """A server that no user has named; 127.0.0.2 stands for another machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.2", 0))
        listening.listen()
        listening.settimeout(0)
        yield listening


def password_of(text: str) -> str | None:
    return with_password(parse_url(text)).password


@pytest.mark.parametrize("look", [run_status, read_run, application])
@pytest.mark.parametrize(
    "url", ["postgresql://me@{}:{}/x", "mysql://me@127.0.0.1/x?host={}&port={}"]
)
def test_a_folder_that_somebody_sent_gets_no_password(
    tmp_path: Path, stranger: socket.socket, look: Callable[[Path], object], url: str
) -> None:
    host, port = stranger.getsockname()
    RunFolder(tmp_path).write_address(url.format(host, port), "tiny", "id")
    with pytest.raises(RunError, match=rf"set {HOST}={host} if {PASSWORD} is for this") as error:
        look(tmp_path)
    assert "s3cret" not in str(error.value)
    with pytest.raises(BlockingIOError):
        stranger.accept()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me@/x?host=/tmp/socket",
        "postgresql://me@localhost/x",
        "mysql://me@127.0.0.1:7/x",
        "postgresql://me@[::1]/x",
    ],
)
def test_a_server_of_this_machine_gets_it(url: str) -> None:
    assert password_of(url) == "s3cret"


def test_a_server_that_the_environment_names_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOST, "db.example,db2.example")
    assert password_of("postgresql://me@db.example/x") == "s3cret"
    assert password_of("postgresql://me@/x?host=db.example&host=db2.example") == "s3cret"
    for stranger in ("me@db3.example/x", "me@db.example/x?host=db3.example", "me@db/x"):
        with pytest.raises(RunError, match=f"set {HOST}="):
            password_of(f"postgresql://{stranger}")
    assert password_of("postgresql://db3.example/x") is None, "nobody asks for one"


def test_a_launch_that_names_its_server_gives_it_the_password(tmp_path: Path) -> None:
    """And so a look at its run by the same process."""
    folder, url = RunFolder(tmp_path), "postgresql+psycopg://typed@db.example/x"
    folder.write_address(url, "tiny", "id")
    with pytest.raises(RunError, match="comes from a run folder"):
        password_of(address(folder, None))
    assert password_of(address(folder, url)) == "s3cret"
    assert password_of(address(folder, None)) == "s3cret"


@pytest.mark.parametrize("user", ["inside", ""])
def test_a_password_of_a_url_is_for_that_server_alone(
    monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    bare = remember_password(f"mysql://{user}:s3%40ret@db.example/x")
    assert bare == f"mysql+pymysql://{user}@db.example/x"
    assert password_of(bare) == "s3@ret"
    assert password_of(f"mysql://{user}@db.example/y") == "s3@ret"
    monkeypatch.delenv(PASSWORD)
    for other in (f"{user}@db2.example", f"{user}@db.example:7", "other@db.example"):
        assert password_of(f"mysql://{other}/x") is None
    assert remember_password("sqlite:///here.db") == "sqlite:///here.db"

"""A password goes to the server that it was given for, and to none that a run folder names."""

from __future__ import annotations

import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from orchestrator.dashboard.server import application
from orchestrator.errors import RunError
from orchestrator.runs.records import read_run
from orchestrator.runs.run_folder import RunFolder
from orchestrator.status import run_status
from orchestrator.storage import urls
from orchestrator.storage.connect import open_storage
from orchestrator.storage.urls import HOST, PASSWORD, as_named, hidden, parse_url, remember_server
from orchestrator.workers.loop import address


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "s3cret")
    monkeypatch.delenv(HOST, raising=False)
    monkeypatch.setattr(urls, "_named", {})


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    """A server that no user has named; 127.0.0.2 stands for another machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.2", 0))
        listening.listen()
        listening.settimeout(0)
        yield listening


def password_of(text: str) -> str | None:
    return as_named(parse_url(text)).password


@pytest.mark.parametrize("look", [run_status, read_run, application])
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me@{}:{}/x",
        "postgresql://{}:{}/x",
        "postgresql://me@127.0.0.1/x?host={}&port={}",
        "mysql://me@127.0.0.1/x?host={}&port={}",
        "grpc://{}:{}",
    ],
)
@pytest.mark.parametrize("secret", [PASSWORD, "PGPASSWORD", None])
def test_a_server_that_nobody_has_named_is_not_asked(
    tmp_path: Path,
    stranger: socket.socket,
    look: Callable[[Path], object],
    url: str,
    secret: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever password there is: libpq looks for its own in several places."""
    monkeypatch.delenv(PASSWORD)
    if secret is not None:
        monkeypatch.setenv(secret, "s3cret")
    host, port = stranger.getsockname()
    RunFolder(tmp_path).write_address(url.format(host, port), "tiny", "id")
    with pytest.raises(
        RunError, match=rf"set {HOST}={host} if you know it, or name its whole URL"
    ) as e:
        look(tmp_path)
    assert "s3cret" not in str(e.value)
    with pytest.raises(BlockingIOError):
        stranger.accept()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me@localhost/x",
        "mysql://me@127.0.0.1:7/x",
        "postgresql://me@[::1]/x",
        "postgresql://me@/x",
    ],
)
def test_a_server_of_this_machine_gets_it(url: str) -> None:
    assert password_of(url) == "s3cret"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me@localhost/x?sslmode=verify-full&sslrootcert=ca.pem",
        "postgresql://me@localhost/x?sslmode=disable",
        "mysql://me@localhost/x?ssl_ca=ca.pem",
        "mysql://me@localhost/x?charset=gbk",
    ],
)
def test_a_folder_may_not_say_what_to_trust(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ", ".join(parse_url(url).query)
    with pytest.raises(RunError, match=rf"a run folder, which may not set {settings}; set it"):
        password_of(url)
    monkeypatch.setenv(HOST, f"other,localhost?{url.partition('?')[2]}")
    assert password_of(url) == "s3cret", "the user says the same"


@pytest.mark.parametrize("url", ["postgresql://me@/x?host=/tmp/s", "mysql://me@/x?unix_socket=/s"])
def test_a_socket_is_named_as_a_host_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    socket_ = url.partition("=")[2]
    with pytest.raises(RunError, match=f"set {HOST}={socket_} if"):
        password_of(url)
    monkeypatch.setenv(HOST, socket_)
    assert password_of(url) == "s3cret"


def test_a_server_that_the_environment_names_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOST, "db.example?sslmode=verify-full&sslrootcert=ca.pem,db2.example")
    named = as_named(parse_url("postgresql://me@db.example/x"))
    assert named.query == {"sslmode": "verify-full", "sslrootcert": "ca.pem"}
    assert named.password == "s3cret"
    assert hidden(named) == "postgresql+psycopg://me@db.example/x"
    assert password_of("postgresql://me@/x?host=db.example&host=db2.example") == "s3cret"
    for stranger in ("me@db3.example/x", "me@db.example/x?host=db3.example", "me@db/x"):
        with pytest.raises(RunError, match=f"set {HOST}="):
            password_of(f"postgresql://{stranger}")
    assert password_of("postgresql://db2.example/x") is None, "nobody asks for one"
    monkeypatch.setenv(HOST, "db?sslkeylog=1")
    with pytest.raises(RunError, match="the URL sets sslkeylog"):
        password_of("postgresql://me@db/x")


def test_what_is_to_be_copied_runs_no_command() -> None:
    with pytest.raises(RunError, match=rf"set '{HOST}=\$\(id\)' if you know it"):
        password_of("postgresql://me@$(id)/x")


def test_a_launch_that_names_its_server_gives_it_the_password(tmp_path: Path) -> None:
    """And so a look at its run by the same process."""
    folder, url = RunFolder(tmp_path), "postgresql+psycopg://typed@db.example/x"
    folder.write_address(url, "tiny", "id")
    with pytest.raises(RunError, match="you have not named its server"):
        password_of(address(folder, None))
    typed = f"{url}?sslmode=verify-full&sslrootcert=ca.pem"
    assert password_of(address(folder, typed)) == "s3cret"
    known = as_named(parse_url(address(folder, None)))
    assert known.render_as_string(hide_password=False) == typed.replace("typed@", "typed:s3cret@")


@pytest.mark.parametrize("user", ["inside", ""])
def test_a_urls_password_is_for_that_server(monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    bare = remember_server(f"mysql://{user}:s3%40ret@db.example/x")
    assert bare == f"mysql+pymysql://{user}@db.example/x"
    assert password_of(bare) == "s3@ret"
    assert password_of(f"mysql://{user}@db.example/y") == "s3@ret"
    monkeypatch.delenv(PASSWORD)
    for other in (f"{user}@db2.example", f"{user}@db.example:7", "other@db.example"):
        with pytest.raises(RunError, match="you have not named its server"):
            password_of(f"mysql://{other}/x")
    assert remember_server("sqlite:////tmp/here.db") == "sqlite:////tmp/here.db"


_CAN = 0x08 | 0x200 | 0x8000 | 0x80000  # a database in the login, protocol 4.1, plugins
_TLS, _SALT = 0x800, b"0123456789abcdefghij"
_WAYS = {
    "mysql_clear_password": b"\xfemysql_clear_password\0",
    "dialog": b"\xfedialog\0\2Password: ",
    "sha256_password": b"\xfesha256_password\0" + _SALT + b"\0",
    "caching_sha2_password": b"\1\4",  # "I do not know you: say it in full"
}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for 127.0.0.1 that an impostor has made, its key, and its key for RSA."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    made = ("-newkey", "rsa:2048", "-nodes", "-x509", "-keyout", file, "-out", file)
    named = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(["openssl", "req", *made, *named], check=True, capture_output=True)
    public = ["openssl", "x509", "-in", file, "-pubkey", "-noout", "-out", file.with_name("public")]
    subprocess.run(public, check=True)
    return file


@contextmanager
def impostor(way: str, certificate: Path, tls: bool) -> Iterator[tuple[int, bytearray]]:
    """A MySQL server that asks in one way: its port, and all that clients have sent."""
    got = bytearray()

    def serve() -> None:
        with suppress(OSError):
            while True:
                talk(listening.accept()[0])

    def talk(client: socket.socket) -> None:
        client.settimeout(5)
        can = _CAN | _TLS if tls else _CAN
        greeting = b"\n8.0.0\0" + bytes(4) + _SALT[:8] + b"\0" + struct.pack("<H", can & 0xFFFF)
        greeting += struct.pack("<BHHB10x", 45, 2, can >> 16, 21) + _SALT[8:] + b"\0"
        send(client, 0, greeting + way.encode() + b"\0")
        if tls:
            client.recv(36)  # that it wants TLS
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            client = context.wrap_socket(client, server_side=True)
        with client:
            number = read(client)
            send(client, number + 1, _WAYS[way])
            number = read(client)
            if number and not tls and "sha" in way:  # it asks for the key
                send(client, number + 1, b"\1" + certificate.with_name("public").read_bytes())
                read(client)

    def send(client: socket.socket, number: int, payload: bytes) -> None:
        client.sendall(struct.pack("<I", len(payload))[:3] + bytes([number]) + payload)

    def read(client: socket.socket) -> int:
        packet = client.recv(4096)
        got.extend(packet)
        return packet[3] if packet else 0

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1], got
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("way", _WAYS)
def test_no_password_goes_to_a_mysql_server_whose_certificate_nobody_checks(
    way: str, tls: bool, certificate: Path
) -> None:
    with impostor(way, certificate, tls) as (port, got):
        url = remember_server(f"mysql://me:s3cret@127.0.0.1:{port}/x")
        with pytest.raises(RunError, match=r"asks for the password itself, .*ssl_ca|cryptography"):
            open_storage(url)
    assert got or (way, tls) == ("sha256_password", True)
    assert b"s3cret" not in got
    assert len(got) < 256, "nor one that only the impostor can read"


def test_it_goes_to_one_whose_certificate_the_user_has_named(certificate: Path) -> None:
    way = "caching_sha2_password"
    with impostor(way, certificate, tls=True) as (port, got):
        url = f"mysql://me:s3cret@127.0.0.1:{port}/x?ssl_ca={certificate}"
        with pytest.raises(RunError, match="Lost connection"):
            open_storage(remember_server(url))
    assert b"s3cret\0" in got

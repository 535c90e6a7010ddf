"""The upload of a folder, to a hub that runs here and speaks its protocol."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from orchestrator.errors import RunError
from reports.exporting.export import check_push


@pytest.fixture
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.mark.usefixtures("no_token")
def test_nothing_is_sent_without_a_token() -> None:
    with pytest.raises(RunError, match=r"no token .*`hf auth login`, or set HF_TOKEN$"):
        check_push("me/my-model")


def test_a_bad_name_is_refused() -> None:
    with pytest.raises(RunError, match="'a/b/c' is not the name of a repository: "):
        check_push("a/b/c")


class _Hub(BaseHTTPRequestHandler):
    """Makes repositories and takes commits; `server.seen` is what it was sent."""

    server: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, self.headers["Authorization"], body))
        if self.path.startswith(self.server.refuses):
            self._answer({"error": "not yours"}, 403)
        elif self.path == "/api/repos/create":
            self._answer({"url": f"http://{self.headers['Host']}/me/my-model"})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular"} for f in files]
            self._answer({"files": [{**mode, "shouldIgnore": False} for mode in modes]})
        elif "/commit/" in self.path:
            url = f"http://{self.headers['Host']}/me/my-model/commit/1"
            self._answer({"commitUrl": url, "commitOid": "1", "success": True})
        else:
            self._answer({})

    def do_GET(self) -> None:
        self._answer({"error": "nothing here"}, 404)

    def _answer(self, document: dict[str, Any], status: int = 200) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Any]:
    """A hub on a port of 127.0.0.1."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.seen, server.refuses = [], "/nothing"
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def _push(hub: Any, folder: Path, repo: str = "me/my-model") -> subprocess.CompletedProcess[str]:
    """In a process of its own: huggingface_hub reads its address once."""
    environment = {name: text for name, text in os.environ.items() if name != "HF_HUB_OFFLINE"}
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from reports.exporting.export import push; "
            "print(push(Path(sys.argv[1]), sys.argv[2]))",
            str(folder),
            repo,
        ],
        env={
            **environment,
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
            "HF_TOKEN": "hf_secret",
            "HF_HOME": str(folder.parent / "hf"),
        },
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_folder_arrives_in_a_private_repository(hub: Any, tmp_path: Path) -> None:
    (tmp_path / "model" / "onnx").mkdir(parents=True)
    files = {"config.json": b"{}", "onnx/model.onnx": bytes(range(256))}
    for name, content in files.items():
        (tmp_path / "model" / name).write_bytes(content)
    done = _push(hub, tmp_path / "model")
    assert done.returncode == 0, done.stderr
    address = f"http://127.0.0.1:{hub.server_port}/me/my-model/commit/1"
    assert done.stdout.strip() == address
    sent = {path.split("?")[0]: (token, body) for path, token, body in hub.seen}
    assert {token for token, _ in sent.values()} == {"Bearer hf_secret"}
    made = json.loads(sent["/api/repos/create"][1])
    assert (made["name"], made["organization"], made["visibility"]) == ("my-model", "me", "private")
    lines = sent["/api/models/me/my-model/commit/main"][1].splitlines()
    values = [json.loads(line)["value"] for line in lines if json.loads(line)["key"] == "file"]
    assert {v["path"]: base64.b64decode(v["content"]) for v in values} == files


def test_a_name_alone_is_a_repository_of_the_user(hub: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    done = _push(hub, tmp_path / "model", "my-model")
    assert done.returncode == 0, done.stderr
    assert "/api/models/me/my-model/commit/main" in [path.split("?")[0] for path, *_ in hub.seen]


def test_a_refusal_says_that_the_folder_is_kept(hub: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    hub.refuses = "/api/repos/create"
    done = _push(hub, tmp_path / "model")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "RunError" in last
    assert "is written, but not pushed to 'me/my-model' (" in last

"""A user of the command line, root or not, with a real Codex and a model of the test's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import MakeWorkspace
from tests.needs import ROOT, require
from tests.responses_server import Item, Request, ResponsesServer
from tests.unprivileged import Unprivileged

KEY: Final = "the-real-key-of-the-provider"
MODEL: Final = "gpt-5.5"
"""Has the tools exec_command and apply_patch; the others have JavaScript alone."""

PATIENCE_S: Final = 90


class AppServer:
    """A client of `codex app-server` over its standard streams."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._last = 0
        self.call("initialize", {"clientInfo": {"name": "test", "version": "1"}})

    def ask(self, method: str, params: Mapping[str, object]) -> dict[str, Any]:
        """The whole answer, with a `result` or an `error`."""
        assert self._process.stdin is not None
        self._last += 1
        line = json.dumps({"id": self._last, "method": method, "params": params})
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        return next(m for m in self._messages() if m.get("id") == self._last and "method" not in m)

    def call(self, method: str, params: Mapping[str, object]) -> dict[str, Any]:
        answer = self.ask(method, params)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def turn(self, thread: Mapping[str, Any], text: str = "go on", **params: object) -> None:
        """One whole turn in a thread that `thread/start` gave."""
        asked: Item = {"threadId": thread["thread"]["id"], "input": [{"type": "text", "text": text}], **params}
        self.call("turn/start", asked)
        ended = next(m for m in self._messages() if m.get("method") == "turn/completed")
        assert ended["params"]["turn"]["status"] == "completed", ended

    def _messages(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)


@dataclass(frozen=True, slots=True)
class CodexUser:
    """Somebody who launches the real Codex in one Session, whose home later launches find again."""

    codex: Path
    workspace: Path
    state: Path
    model: ResponsesServer
    unprivileged: Unprivileged | None

    @property
    def session(self) -> Path:
        return self.state / "sessions" / "s"

    @property
    def home(self) -> Path:
        return self.session / "home"

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.session / "events.jsonl").read_text().splitlines()]

    def requests(self, since: int = 0) -> list[Request]:
        return self.model.requests[since:]

    def command(self, *args: str, options: Sequence[str] = ()) -> list[str]:
        codex = () if "--harness-dir" in options else ("--codex", str(self.codex), "--model", MODEL)
        provider = ("--provider-url", f"{self.model.url}/v1", "--api-key-env", "TEST_KEY")
        where = ("--state-dir", str(self.state), "--session", "s", "--workspace", str(self.workspace))
        arguments = ["launch", *where, *codex, *provider, *options, "--", *args]
        if self.unprivileged is not None:
            return self.unprivileged.agenthost(*arguments)
        return [sys.executable, "-m", "agenthost", *arguments]

    def launch(self, *args: str, options: Sequence[str] = (), status: int = 0) -> subprocess.CompletedProcess[bytes]:
        command = self.command(*args, options=options)
        if self.unprivileged is not None:
            done = self.unprivileged.run(command, env={"TEST_KEY": KEY}, timeout_s=PATIENCE_S)
        else:
            done = subprocess.run(
                command, env=self._environment(), input=b"", capture_output=True, timeout=PATIENCE_S, check=False
            )
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        return done

    def exec(self, *args: str, options: Sequence[str] = ()) -> list[dict[str, Any]]:
        """One turn of `codex exec`; the items that it completed."""
        done = self.launch("exec", "--json", "--skip-git-repo-check", *args, options=options)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return [line["item"] for line in lines if line["type"] == "item.completed"]

    @contextmanager
    def app_server(self, *args: str) -> Iterator[AppServer]:
        with self.start(self.command(*args, "app-server")) as process:
            yield AppServer(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(PATIENCE_S) == 0

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        if self.unprivileged is not None:
            return self.unprivileged.start(command, env={"TEST_KEY": KEY})
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self._environment(), stdin=pipe, stdout=pipe, stderr=pipe)

    def plant(self, files: Mapping[str, str]) -> None:
        """Files in the workspace, the workspace owner's."""
        for name, text in files.items():
            path = self.workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if self.unprivileged is not None:
            self.unprivileged.own(self.workspace)

    def _environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.state), "PYTHONPATH": str(ROOT), "TEST_KEY": KEY}


BOTH: Final = ("root-163", "root-171")
EVERY: Final = (*BOTH, "rootless-163", "rootless-171")


@pytest.fixture
def codex_user(request: pytest.FixtureRequest, make_workspace: MakeWorkspace, state_dir: Path) -> Iterator[CodexUser]:
    """Its parameter says who and which release: `root-163`."""
    who, _, release = request.param.partition("-")
    codex: Path = request.getfixturevalue(f"codex_{release}")
    if who == "root":
        require("root")
        unprivileged, workspace = None, make_workspace(owner=1000)
    else:
        unprivileged = request.getfixturevalue("unprivileged")
        workspace, state_dir = unprivileged.own(make_workspace()), unprivileged.home / "state"
    with ResponsesServer() as model:
        yield CodexUser(codex, workspace, state_dir, model, unprivileged)


def effort(request: Request) -> str:
    reasoning = request.json["reasoning"]
    assert isinstance(reasoning, dict)
    return str(reasoning.get("effort"))


def output(item: Mapping[str, Any]) -> str:
    return str(item["aggregated_output"])


def only_the_gateway_was_asked(user: CodexUser) -> None:
    """No request to the proxy, no model request but those for responses, each with the real key in place of ours."""
    events = user.events()
    assert [event for event in events if event["type"] == "proxy.connect"] == []
    asked = {(event["method"], event["path"], event["status"]) for event in events if event["type"] == "model.request"}
    assert asked == {("POST", "/responses", 200)}
    for request in user.requests():
        assert (request.method, request.path) == ("POST", "/v1/responses")
        assert request.headers["authorization"] == f"Bearer {KEY}"


def no_trust_was_written(user: CodexUser) -> None:
    config = (user.home / "codex" / "config.toml").read_text()
    assert "projects" not in config
    assert "trust" not in config
    assert re.findall(r'"(http[^"]*)"', config) == ["http://127.0.0.1:17101"]
    assert (user.home / "codex" / "auth.json").stat().st_size == 0

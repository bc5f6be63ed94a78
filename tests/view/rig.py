"""The tests' side of tests/view/driver.py: daemons as root and as an unprivileged user, and what a probe told."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tests.needs import ROOT, UNPRIVILEGED_UID, as_unprivileged

BETWEEN: Final = "++"
PATIENCE_S: Final = 10.0
ENV: Final = "/usr/bin/env"
"""A shim path of every Session here: `probe exec /usr/bin/env X` runs X as a command, with nothing added."""


class Refused(Exception):
    """An error of agenthost, as the daemon told it."""

    def __init__(self, error: dict[str, str]) -> None:
        super().__init__(f"{error['type']}: {error['what']}; {error['remedy']}")
        self.type = error["type"]
        self.kind = error["kind"]
        self.what = error["what"]
        self.remedy = error["remedy"]


@dataclass(frozen=True, slots=True)
class Result:
    """How a probe ended, and the facts it told."""

    status: int
    stdout: str
    stderr: str

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Each `NAME=VALUE` line, in order; a NAME may come again."""
        pairs = (line.partition("=") for line in self.stdout.splitlines())
        return [(_plain(name), _plain(value)) for name, _, value in pairs]

    def __getitem__(self, name: str) -> str:
        found = self.all(name)
        assert len(found) == 1, f"{name}: {found} in {self}"
        return found[0]

    def all(self, name: str) -> list[str]:
        return [value for known, value in self.facts if known == name]

    def tried(self) -> dict[str, str]:
        """What came of each `try`, by its name."""
        return {name.removeprefix("try "): value for name, value in self.facts if name.startswith("try ")}

    def mounts(self) -> dict[str, tuple[set[str], str]]:
        """The options and the propagation of what is mounted at each place."""
        split = [(name.removeprefix("mount "), value) for name, value in self.facts if name.startswith("mount ")]
        return {name: (set(value.split()[0].split(",")), value.split()[1]) for name, value in split}


def _plain(text: str) -> str:
    unescaped = re.sub(r"\\(\\|x([0-9a-f]{2}))", lambda m: chr(int(m[2], 16)) if m[2] else "\\", text)
    return os.fsdecode(unescaped.encode("latin-1"))


@dataclass(frozen=True, slots=True)
class Mode:
    """Who the daemon is."""

    name: str
    uid: int
    owner: int
    """Whose the workspaces are, on disk."""
    python: Path
    driver: Path
    environment: dict[str, str] = field(repr=False)

    @property
    def root(self) -> bool:
        return self.name == "root"

    def command(self, state: Path) -> list[str]:
        command = [str(self.python), "-u", str(self.driver), str(state)]
        return command if self.root else as_unprivileged(command)


class Daemon:
    """A running driver."""

    def __init__(
        self,
        mode: Mode,
        state: Path,
        *,
        before: Sequence[str] = (),
        stderr: int | None = None,
        shared: bool = False,
    ) -> None:
        self.mode = mode
        self.state = state
        self._process = subprocess.Popen(
            [*before, *mode.command(state), *(["shared"] if shared else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=mode.environment,
            cwd="/",
        )
        self._next = 0
        self._answers: dict[int, dict[str, Any]] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, do: str, **arguments: object) -> int:
        """Sends a request and does not wait; `finish` takes what this returns."""
        assert self._process.stdin is not None
        self._next += 1
        line = json.dumps({"id": self._next, "do": do, **arguments}).encode("ascii") + b"\n"
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return self._next

    def finish(self, number: int) -> Any:
        assert self._process.stdout is not None
        while number not in self._answers:
            line = self._process.stdout.readline()
            if not line:
                raise EOFError(f"the daemon ended: {self._process.wait()}")
            answer = json.loads(line)
            self._answers[answer["id"]] = answer
        answer = self._answers.pop(number)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["ok"]

    def call(self, do: str, **arguments: object) -> Any:
        return self.finish(self.begin(do, **arguments))

    def open(self, workspace: Path | None, *, as_codex: Path | None = None, **request: Any) -> Session:
        request.setdefault("shim_paths", [ENV])
        codex = None if as_codex is None else str(as_codex)
        values = {"workspace": None if workspace is None else str(workspace), **request}
        opened = self.call("open", request=values, as_codex=codex)
        return Session(self, opened["session"], Path(opened["workspace"]))

    def children(self) -> dict[int, str]:
        """Its descendants by pid: their command lines."""
        found = {}
        for process in psutil.Process(self.pid).children(recursive=True):
            try:
                if process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = " ".join(process.cmdline())
            except psutil.NoSuchProcess:
                continue
        return found

    def builder(self) -> int:
        return next(pid for pid, command in self.children().items() if "launcher.builder" in command)

    def inits(self) -> list[int]:
        """The first process of each environment and view, the oldest first."""
        found = [pid for pid, command in self.children().items() if command == "oac-init tree"]
        return sorted(found, key=lambda pid: psutil.Process(pid).create_time())

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def kill(self) -> None:
        self._process.kill()
        self._drop()

    def close(self) -> int:
        """Its exit status, once it has closed all that it opened."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(PATIENCE_S)
        finally:
            self.kill()

    def _drop(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Session:
    """An open Session of a daemon."""

    daemon: Daemon
    id: str
    workspace: Path

    @property
    def directory(self) -> Path:
        return self.daemon.state / "sessions" / self.id

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.directory / "session.json").read_text())
        return record

    @property
    def uid(self) -> int:
        uid: int = self.record["uid"]
        return uid

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "events.jsonl").read_text().splitlines()]

    def run(self, *actions: Sequence[str], stdin: str = "") -> Result:
        """The Harness does these actions, one after the other."""
        return self.start(*actions, stdin=stdin).wait()

    def command(self, *actions: Sequence[str], before: Sequence[Sequence[str]] = ()) -> Result:
        """A command of the environment, a copy of the probe in the workspace, does these actions."""
        return self.run(*before, ["exec", ENV, str(self.workspace / "probe"), *_joined(actions)])

    def shell(self, script: str) -> Result:
        return self.run(["exec", "/bin/bash", "-c", script])

    def start(self, *actions: Sequence[str], stdin: str | None = None) -> Running:
        args = _joined(actions)
        return Running(self.daemon, self.daemon.call("start", session=self.id, args=args, stdin=stdin)["process"])

    def close(self) -> None:
        self.daemon.call("close", session=self.id)


def _joined(actions: Sequence[Sequence[str]]) -> list[str]:
    """Escaped so that JSON carries what is not UTF-8."""
    joined: list[str] = []
    for action in actions:
        joined += [BETWEEN, *action] if joined else action
    return joined


@dataclass(frozen=True, slots=True)
class Running:
    """A live Harness."""

    daemon: Daemon
    number: int

    def until(self, text: str) -> None:
        """Waits until it has written `text`."""
        self.daemon.call("until", process=self.number, text=text)

    def signal(self, number: int) -> None:
        self.daemon.call("signal", process=self.number, number=number)

    def stop(self) -> float:
        """Seconds that it took."""
        seconds: float = self.daemon.call("stop", process=self.number)["seconds"]
        return seconds

    def wait(self) -> Result:
        return Result(**self.daemon.call("wait", process=self.number))


@dataclass(frozen=True, slots=True)
class Bench:
    """A place for one module's tests in one mode: directories that the mode's user can reach, and the probe."""

    mode: Mode
    base: Path
    probe: Path

    def directory(self, name: str, *, owner: int | None = None, parent: Path | None = None) -> Path:
        """A new directory, the workspaces' owner's unless another is named."""
        if parent is None:
            parent = Path(tempfile.mkdtemp(dir=self.base))
            parent.chmod(0o755)
        directory = parent / name
        directory.mkdir()
        directory.chmod(0o755)  # whatever the umask
        self.give(directory, owner)
        return directory

    def workspace(self, name: str = "workspace", *, owner: int | None = None, parent: Path | None = None) -> Path:
        """A directory with a copy of the probe in it."""
        workspace = self.directory(name, owner=owner, parent=parent)
        shutil.copy(self.probe, workspace / "probe")
        self.give(workspace / "probe", owner)
        return workspace

    def give(self, path: Path, owner: int | None = None) -> None:
        if os.geteuid() == 0:
            uid = self.mode.owner if owner is None else owner
            os.chown(path, uid, uid)

    def state(self) -> Path:
        """Where a state directory can be made."""
        return self.directory("state-of", owner=self.mode.uid) / "state"

    def harness(self) -> list[str]:
        return [str(self.probe.parent), self.probe.name]

    @contextmanager
    def daemon(
        self, state: Path | None = None, *, before: Sequence[str] = (), shared: bool = False
    ) -> Iterator[Daemon]:
        """A daemon that must end well, and leave no process. `shared`: it lets others into its state directory."""
        daemon = Daemon(self.mode, state or self.state(), before=before, shared=shared)
        try:
            yield daemon
            assert daemon.close() == 0
        finally:
            daemon.kill()

    def open(self, daemon: Daemon, workspace: Path | None = None, **request: Any) -> Session:
        """A Session whose Harness is the probe."""
        return daemon.open(self.workspace() if workspace is None else workspace, harness=self.harness(), **request)

    def open_as_codex(self, daemon: Daemon, workspace: Path | None = None, **request: Any) -> Session:
        """A Session that takes the probe for Codex: its declaration, home and mask are Codex's."""
        request.setdefault("provider", "http://127.0.0.1:9/v1")
        return daemon.open(self.workspace() if workspace is None else workspace, as_codex=self.probe, **request)


def eventually(check: Callable[[], bool], what: str) -> None:
    """Waits until `check` holds; a limit for the broken case, no measure of the good one."""
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def root_mode(base: Path) -> Mode:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    return Mode("root", 0, 1000, Path(sys.executable), _copied_driver(base), environment)


def rootless_mode(base: Path, python: Path) -> Mode:
    uid = UNPRIVILEGED_UID if os.geteuid() == 0 else os.geteuid()
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(base), "LANG": "C.UTF-8"}
    return Mode("rootless", uid, uid, python, _copied_driver(base), environment)


def _copied_driver(base: Path) -> Path:
    return Path(shutil.copy(Path(__file__).parent / "driver.py", base))

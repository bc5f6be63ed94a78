"""`agenthost launch` and `agenthost-codex` stand in for the program itself. contracts/launch.md."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import pytest

from tests.needs import ROOT, needs

pytestmark = [needs("linux", "root", "compiler"), pytest.mark.usefixtures("no_leaks")]

SECRET: Final = "planted-in-the-callers-environment"
CODEX_COMMAND: Final = ("-c", "import sys; from agenthost.cli.codex import main; sys.exit(main())")


@pytest.fixture(scope="module")
def harness_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the static program `harness` of tests/view/harness.c."""
    directory = tmp_path_factory.mktemp("harness")
    directory.chmod(0o755)  # as root, the Session's uid must be able to read it
    compiler = shutil.which("musl-gcc") or "cc"
    source = Path(__file__).with_name("harness.c")
    subprocess.run(
        [compiler, "-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o", directory / "harness", source], check=True
    )
    return directory


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who starts agenthost in `workspace`, with a secret in the environment."""

    workspace: Path
    state_dir: Path
    harness_dir: Path

    def environment(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {"PATH": "/usr/bin:/bin", "HOME": str(self.state_dir), "PYTHONPATH": str(ROOT), "PLANTED": SECRET}
        return own | dict(variables or {})

    def launch(self, *arguments: str | bytes) -> list[str | bytes]:
        """The command line that launches the harness program with `arguments`."""
        options = ["--state-dir", self.state_dir, "--harness-dir", self.harness_dir, "--binary", "harness"]
        return [sys.executable, "-m", "agenthost", "launch", *map(str, options), "--", *arguments]

    def run(
        self, *arguments: str | bytes, stdin: bytes | None = b"", prefix: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*prefix, *self.launch(*arguments)],
            cwd=self.workspace,
            env=self.environment(),
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def caller(workspace: Path, state_dir: Path, harness_dir: Path) -> Caller:
    return Caller(workspace, state_dir, harness_dir)


@pytest.mark.parametrize("status", [0, 1, 2, 3, 125, 255])
def test_the_exit_status_is_the_harnesss_own(caller: Caller, status: int) -> None:
    process = caller.run("exit", str(status))
    assert process.stderr == b""
    assert (process.returncode, process.stdout) == (status, b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_a_harness_that_a_signal_ended_is_128_and_its_number(caller: Caller, number: signal.Signals) -> None:
    process = caller.run("kill", str(number.value))
    assert (process.returncode, process.stderr) == (128 + number.value, b"")


def test_arguments_arrive_byte_for_byte(caller: Caller) -> None:
    arguments = [b"one", b"", b"--", b"-h", b"two words", b"new\nline", b"caf\xe9", "日本".encode(), b"x" * 100_000]
    process = caller.run(*arguments)
    assert process.stdout.split(b"\0")[:-1] == arguments


def test_a_megabyte_passes_through_unchanged(caller: Caller) -> None:
    data = bytes(range(256)) * 4096 + b"no line end"
    process = caller.run("copy", stdin=data)
    assert (process.returncode, process.stderr) == (0, b"")
    assert process.stdout == data


def test_stdout_and_stderr_stay_apart_and_nothing_is_added(caller: Caller) -> None:
    process = caller.run("both")
    assert (process.returncode, process.stdout, process.stderr) == (0, b"to stdout", b"to stderr")


def test_files_are_pumped_and_pipes_passed(caller: Caller, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "in").write_bytes(data)
    with (tmp_path / "in").open("rb") as given, (tmp_path / "out").open("wb") as taken:
        subprocess.run(
            caller.launch("copy"),
            cwd=caller.workspace,
            env=caller.environment(),
            stdin=given,
            stdout=taken,
            timeout=60,
            check=True,
        )
    assert (tmp_path / "out").read_bytes() == data


def test_only_three_descriptors_reach_the_harness_and_no_file_of_the_host(caller: Caller, tmp_path: Path) -> None:
    with (tmp_path / "in").open("wb+") as file:
        process = subprocess.run(
            caller.launch("descriptors"),
            cwd=caller.workspace,
            env=caller.environment(),
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(file.fileno(),),
            timeout=60,
            check=True,
        )
    found = dict(line.split(" ", 1) for line in process.stdout.decode().splitlines())
    assert sorted(found) == ["0", "1", "2"]
    assert found["0"].startswith("pipe:")
    assert found["2"] == os.devnull


def test_closed_descriptors_are_dev_null(caller: Caller) -> None:
    process = caller.run("descriptors", prefix=("/bin/sh", "-c", 'exec "$@" <&- 2>&-', "sh"))
    found = dict(line.split(" ", 1) for line in process.stdout.decode().splitlines())
    assert (process.returncode, found["0"], found["2"]) == (0, os.devnull, os.devnull)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_agenthost_reaches_the_harness(caller: Caller, number: signal.Signals) -> None:
    process = subprocess.Popen(
        caller.launch("wait"),
        cwd=caller.workspace,
        env=caller.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (7, b"signal %d\n" % number.value, b"")


def test_nothing_of_the_callers_environment_reaches_the_harness(caller: Caller) -> None:
    process = caller.run("environment")
    names = {line.partition("=")[0] for line in process.stdout.decode().splitlines()}
    assert SECRET not in process.stdout.decode()
    assert "PLANTED" not in names
    assert {"PATH", "HOME", "TMPDIR", "HTTPS_PROXY", "NO_PROXY"} <= names


@pytest.mark.parametrize("problem", ["no directory", "no program", "dynamic", "no workspace", "root", "reserved"])
def test_what_cannot_be_is_one_error_and_leaves_nothing(caller: Caller, problem: str) -> None:
    command = caller.launch("exit", "0")
    at = command.index("--")
    match problem:
        case "no directory":
            command[command.index("--harness-dir") + 1] = str(caller.workspace / "absent")
        case "no program":
            command[command.index("--binary") + 1] = "absent"
        case "dynamic":
            command[command.index("--harness-dir") + 1] = "/usr/bin"
            command[command.index("--binary") + 1] = "ls"
        case "no workspace":
            command[at:at] = ["--workspace", str(caller.workspace / "absent")]
        case "root":
            command[at:at] = ["--workspace", "/"]
        case "reserved":
            command[at:at] = ["--workspace", "/proc"]
    before = sorted(caller.workspace.iterdir())
    process = subprocess.run(
        command, cwd=caller.workspace, env=caller.environment(), capture_output=True, timeout=60, check=False
    )
    assert (process.returncode, process.stdout) == (125, b"")
    assert process.stderr.count(b"\n") == 1
    assert process.stderr.startswith(b"agenthost: ")
    assert sorted(caller.workspace.iterdir()) == before
    assert not caller.state_dir.exists() or not list((caller.state_dir / "sessions").iterdir())


class Client:
    """A JSON-RPC client of an app-server, one message a line."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._next = 0
        self.notifications: list[Mapping[str, object]] = []

    def call(self, method: str, params: Mapping[str, object]) -> Mapping[str, object]:
        self._next += 1
        self.send({"id": self._next, "method": method, "params": params})
        for message in self._messages():
            if message.get("id") == self._next and "method" not in message:
                assert "error" not in message, message
                result = message["result"]
                assert isinstance(result, dict)
                return result
        raise AssertionError(f"no answer to {method}")

    def send(self, message: Mapping[str, object]) -> None:
        self._stdin.write(json.dumps(message).encode() + b"\n")
        self._stdin.flush()

    def until(self, method: str) -> Mapping[str, object]:
        for message in self._messages():
            if message.get("method") == method:
                return message
        raise AssertionError(f"no {method}")

    def _messages(self) -> Iterator[Mapping[str, object]]:
        for line in self._stdout:
            message = json.loads(line)
            self.notifications.append(message)
            yield message


def one_turn(client: Client, workspace: Path) -> None:
    """initialize, thread/start, turn/start, to the end of the turn."""
    client.call("initialize", {"clientInfo": {"name": "a_client", "title": "A client", "version": "1"}})
    client.send({"method": "initialized"})
    thread = client.call("thread/start", {"cwd": str(workspace)})["thread"]
    assert isinstance(thread, dict)
    client.call(
        "turn/start", {"threadId": thread["id"], "input": [{"type": "text", "text": "Go on", "text_elements": []}]}
    )
    turn = client.until("turn/completed")["params"]
    assert isinstance(turn, dict)
    assert turn["turn"]["status"] == "completed"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.json"
    steps = [{"shell": "printenv; echo from the turn > made.txt"}, {"say": "done"}]
    path.write_text(json.dumps({"steps": steps}))
    return path


def serve(command: Sequence[str], caller: Caller, variables: Mapping[str, str]) -> list[Mapping[str, object]]:
    """A whole turn of a client with the app-server that `command` starts; what the server said."""
    with subprocess.Popen(
        command,
        cwd=caller.workspace,
        env=caller.environment(variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        client = Client(process.stdin, process.stdout)
        one_turn(client, caller.workspace)
        process.stdin.close()  # how the official clients stop it
        assert process.wait(60) == 0
    return client.notifications


@pytest.mark.parametrize("release", ["163", "171"])
def test_an_app_server_client_does_a_whole_turn(
    caller: Caller, script: Path, release: str, request: pytest.FixtureRequest
) -> None:
    codex: Path = request.getfixturevalue(f"codex_{release}")
    options = ["--state-dir", caller.state_dir, "--codex", codex, "--scripted", script]
    command = [sys.executable, "-m", "agenthost", "launch", *map(str, options), "--", "app-server"]
    said = json.dumps(serve(command, caller, {}))
    assert (caller.workspace / "made.txt").read_text() == "from the turn\n"
    assert (caller.workspace / "made.txt").stat().st_uid == caller.workspace.stat().st_uid
    assert SECRET not in said


def test_agenthost_codex_takes_options_before_the_subcommand_and_its_own_from_variables(
    caller: Caller, script: Path, codex_163: Path
) -> None:
    command = [sys.executable, *CODEX_COMMAND, "--config", "model_reasoning_effort=low"]
    variables = {
        "AGENTHOST_STATE_DIR": str(caller.state_dir),
        "AGENTHOST_CODEX": str(codex_163),
        "AGENTHOST_SCRIPTED": str(script),
        "OPENAI_API_KEY": SECRET,
    }
    said = json.dumps(serve([*command, "app-server", "--listen", "stdio://"], caller, variables))
    assert (caller.workspace / "made.txt").exists()
    assert SECRET not in said
    for name in ("PLANTED", "OPENAI_API_KEY", "AGENTHOST_", "PYTHONPATH"):
        assert name not in said


def test_agenthost_codex_gives_help_and_version_to_codex(caller: Caller, codex_163: Path) -> None:
    variables = {"AGENTHOST_STATE_DIR": str(caller.state_dir), "AGENTHOST_CODEX": str(codex_163)}
    process = subprocess.run(
        [sys.executable, *CODEX_COMMAND, "--version"],
        cwd=caller.workspace,
        env=caller.environment(variables | {"AGENTHOST_SCRIPTED": "demo"}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (process.returncode, process.stdout) == (0, b"codex-cli 0.163.0\n")


def test_a_daemon_that_is_killed_takes_its_view_with_it(caller: Caller, no_leaks: Callable[[], list[str]]) -> None:
    process = subprocess.Popen(
        caller.launch("wait"),
        cwd=caller.workspace,
        env=caller.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        # The view had the other end of this pipe: it reads as ended only when nobody in the view is left.
        assert process.stdout.read() == b""
    assert process.returncode == -signal.SIGKILL

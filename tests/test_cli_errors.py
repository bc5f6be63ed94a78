"""How a command that fails ends: one line, one exit status. contracts/errors.md; contracts/launch.md, L03 to L07."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from agenthost import errors
from agenthost.cli import main as cli
from agenthost.cli.usage import UsageError
from agenthost.errors import AgentHostError, LaunchFailed, RequestRefused, WireError

ROOT: Final = Path(__file__).resolve().parent.parent
LATER: Final = ("probe", "code", "qualify")


def agenthost(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "agenthost", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False, timeout=60)


def codex(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-c", "import sys; from agenthost.cli.codex import main; sys.exit(main())", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False, timeout=60)


def assert_one_line(process: subprocess.CompletedProcess[bytes], kind: str, status: int) -> str:
    text = process.stderr.decode()
    assert process.returncode == status, text
    assert process.stdout == b""
    assert re.fullmatch(rf"agenthost: {kind}: [^\n]+; [^\n]+\n", text), text
    return text


def every_error() -> Iterator[type[AgentHostError]]:
    todo: list[type[AgentHostError]] = [AgentHostError]
    while todo:
        one = todo.pop()
        todo += one.__subclasses__()
        yield one


def sample(kind: type[AgentHostError]) -> AgentHostError:
    return WireError("cut short") if kind is WireError else kind("this is wrong", remedy="do that")


@pytest.mark.parametrize("kind", list(every_error()), ids=lambda kind: kind.__name__)
def test_every_error_is_one_line_and_its_own_status(
    kind: type[AgentHostError], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise sample(kind)

    assert cli.settle(fail) == kind.exit_status
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"agenthost: {kind.kind}: {sample(kind).what}; {sample(kind).remedy}\n"


def test_a_usage_error_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise UsageError("--x and --y contradict each other", remedy="leave one out")

    assert cli.settle(fail) == errors.USAGE
    assert capsys.readouterr().err == "agenthost: usage: --x and --y contradict each other; leave one out\n"


def test_a_message_stays_one_line_and_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise RequestRefused("no directory /a\nb\x1b]0;title\x07\udcff", remedy="name another")

    assert cli.settle(fail) == 125
    assert capsys.readouterr().err == "agenthost: request: no directory /a\\nb\\x1b]0;title\\x07\\xff; name another\n"


def test_a_failed_step_says_the_kernels_word(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise LaunchFailed.at("mount the world", 1, remedy="run 'agenthost doctor'")

    assert cli.settle(fail) == 125
    assert "mount the world: Operation not permitted; run" in capsys.readouterr().err


def test_an_interrupt_is_130() -> None:
    def interrupt() -> int:
        raise KeyboardInterrupt

    assert cli.settle(interrupt) == 130


def test_a_defect_is_125_and_never_a_status_of_the_harness(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise ZeroDivisionError("a defect")

    assert cli.settle(fail) == 125
    assert capsys.readouterr().err.splitlines()[-1].startswith("agenthost: internal: ZeroDivisionError: a defect; ")


@pytest.mark.parametrize("name", LATER)
def test_a_command_still_to_come_refuses_whatever_its_arguments(name: str, tmp_path: Path) -> None:
    for arguments in ([], ["--json", "--only", "Q01", "--", "x"]):
        text = assert_one_line(agenthost(name, *arguments, cwd=tmp_path), "not-available-yet", 125)
        assert f"'agenthost {name}' is not available yet" in text


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nope"],
        ["run"],
        ["run", "one", "two"],
        ["launch", "app-server"],
        ["launch", "--grace", "soon"],
        ["declare", "--format", "xml"],
        ["scripted-model"],
        ["scripted-model", "demo", "--port", "70000"],
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(arguments: Sequence[str], tmp_path: Path) -> None:
    assert_one_line(agenthost(*arguments, cwd=tmp_path), "usage", 2)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_key_is_named_with_every_way_to_give_one(tmp_path: Path) -> None:
    text = assert_one_line(agenthost("run", "--state-dir", "state", "hello", cwd=tmp_path), "request", 125)
    for way in ("OPENAI_API_KEY", "--api-key-env", "--api-key-file", "--scripted demo"):
        assert way in text
    assert list(tmp_path.iterdir()) == []


def test_a_missing_or_broken_script_is_named_before_any_effect(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"steps": [{"shell": 1}]}')
    for name in ("absent.json", "broken.json"):
        for command in (["run", "--scripted", name, "hello"], ["scripted-model", name]):
            assert name in assert_one_line(agenthost(*command, cwd=tmp_path), "script", 125)
    assert [path.name for path in tmp_path.iterdir()] == ["broken.json"]


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os, sys; os.rmdir({str(gone)!r}); from agenthost.cli.main import main; sys.exit(main(['launch']))"
    environment = {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, cwd=gone, env=environment, capture_output=True, check=False, timeout=60)
    assert_one_line(process, "request", 125)


def test_agenthost_codex_refuses_a_misspelt_variable_and_takes_no_argument_for_itself(tmp_path: Path) -> None:
    for arguments in ([], ["--help"], ["--version"], ["--grace", "soon"]):
        text = assert_one_line(codex(*arguments, cwd=tmp_path, AGENTHOST_GRAEC="1"), "usage", 2)
        assert "AGENTHOST_GRAEC" in text


def test_agenthost_codex_reads_its_options_from_variables(tmp_path: Path) -> None:
    text = assert_one_line(codex("exec", "hello", cwd=tmp_path, AGENTHOST_SCRIPTED="absent.json"), "script", 125)
    assert str(tmp_path / "absent.json") in text
    assert_one_line(codex(cwd=tmp_path, AGENTHOST_MCP="docs=https://docs.example/mcp"), "not-available-yet", 125)


def test_a_reader_that_leaves_stdout_ends_the_command_as_sigpipe_would(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "agenthost", "--help"]
    process = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (141, b"")


def test_help_and_version_are_no_errors(tmp_path: Path) -> None:
    overview = agenthost("--help", cwd=tmp_path)
    assert (overview.returncode, overview.stderr) == (0, b"")
    for command in cli.COMMANDS:
        assert f"\n  {command.name} " in overview.stdout.decode()
    assert agenthost("--version", cwd=tmp_path).stdout.startswith(b"agenthost 0.")


def test_the_contract_names_every_kind_with_its_class_and_status() -> None:
    text = (ROOT / "contracts" / "errors.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| `(\w+)` \| (\d+) \|", text, re.MULTILINE)
    told = {(kind, name, int(status)) for kind, name, status in rows}
    assert told == {(kind.kind, kind.__name__, kind.exit_status) for kind in every_error()}
    assert len(rows) == len(told)

"""`agenthost run`: one turn of the real Codex, for people and for programs. contracts/launch.md, L50 to L54."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import MakeWorkspace
from tests.needs import ROOT, needs

pytestmark = [needs("linux", "root"), pytest.mark.usefixtures("no_leaks")]

SECRET: Final = "planted-in-the-callers-environment"


def command(*arguments: str | Path, codex: Path, state_dir: Path) -> list[str]:
    options = ["--state-dir", state_dir, "--codex", codex]
    return [sys.executable, "-m", "agenthost", "run", *map(str, [*options, *arguments])]


def environment(state_dir: Path) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": str(state_dir), "PYTHONPATH": str(ROOT), "PLANTED": SECRET}


def run(
    *arguments: str | Path, codex: Path, workspace: Path, state_dir: Path, stdin: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*arguments, codex=codex, state_dir=state_dir),
        cwd=workspace,
        env=environment(state_dir),
        input=stdin or b"",
        capture_output=True,
        timeout=90,
        check=False,
    )


def script(path: Path, *steps: Mapping[str, object]) -> Path:
    path.write_text(json.dumps({"steps": steps}))
    return path


def items(stdout: bytes, kind: str) -> list[Mapping[str, object]]:
    lines = [json.loads(line) for line in stdout.splitlines()]
    return [line["item"] for line in lines if line["type"] == "item.completed" and line["item"]["type"] == kind]


@pytest.mark.parametrize("release", ["163", "171"])
def test_the_demo_ends_with_a_summary_of_what_ran_where(
    release: str, workspace: Path, state_dir: Path, request: pytest.FixtureRequest
) -> None:
    codex: Path = request.getfixturevalue(f"codex_{release}")
    process = run("--scripted", "demo", "Show it", codex=codex, workspace=workspace, state_dir=state_dir)
    text = process.stdout.decode()
    assert process.returncode == 0, text
    places = [text.rindex(title) for title in ("In the view", "In the environment", "Through the gateway")]
    places += [text.rindex(title) for title in ("Files changed", "How it ended")]
    assert places == sorted(places)
    summary = text[places[0] :]
    assert "git × " in summary
    assert "credential: scripted" in summary
    assert re.search(r"\n  \+ \S+ +added", summary)
    assert "finished, exit status 0" in summary
    assert "\x1b" not in text


def test_json_is_codexs_own_and_nothing_else(
    make_workspace: MakeWorkspace, state_dir: Path, codex_163: Path, tmp_path: Path
) -> None:
    workspace = make_workspace("owned", owner=61001)
    file = script(
        tmp_path / "s.json",
        {"shell": "id; pwd; git status --short; echo hi > made.txt; exit 3"},
        {"say": "done"},
    )
    process = run("--scripted", file, "--json", "x", codex=codex_163, workspace=workspace, state_dir=state_dir)
    assert process.returncode == 0
    (ran,) = items(process.stdout, "command_execution")
    assert ran["exit_code"] == 3
    assert f"\n{workspace}\n" in str(ran["aggregated_output"])
    assert [item["text"] for item in items(process.stdout, "agent_message")] == ["done"]
    made = workspace / "made.txt"
    assert made.read_text() == "hi\n"
    assert made.stat().st_uid == 61001


def test_a_command_gets_only_forwarded_variables_and_the_environments_own(
    workspace: Path, state_dir: Path, codex_163: Path, tmp_path: Path
) -> None:
    file = script(tmp_path / "s.json", {"shell": "cat /proc/self/environ | tr '\\0' '\\n'"}, {"say": "done"})
    process = run("--scripted", file, "--json", "x", codex=codex_163, workspace=workspace, state_dir=state_dir)
    (ran,) = items(process.stdout, "command_execution")
    names = {line.partition("=")[0] for line in str(ran["aggregated_output"]).splitlines()}
    forwarded = "TERM COLORTERM NO_COLOR LINES COLUMNS PAGER GIT_PAGER GH_PAGER LANG LANGUAGE CODEX_CI CODEX_THREAD_ID"
    allowed = {
        *forwarded.split(),
        "CODEX_SESSION_ID",
        "GIT_OPTIONAL_LOCKS",
        "HOME",
        "PATH",
        "PWD",
        "SHLVL",
        "_",
        "OLDPWD",
    }
    assert {name for name in names if not name.startswith("LC_")} <= allowed
    assert SECRET.encode() not in process.stdout


def test_a_failed_command_is_shown_with_its_output_and_its_status(
    workspace: Path, state_dir: Path, codex_163: Path, tmp_path: Path
) -> None:
    file = script(tmp_path / "s.json", {"shell": "echo what went wrong >&2; exit 9"}, {"say": "oh"})
    process = run("--scripted", file, "x", codex=codex_163, workspace=workspace, state_dir=state_dir)
    text = process.stdout.decode()
    assert process.returncode == 0
    assert re.search(r"✗ echo what went wrong >&2; exit 9 +exit 9 +\d", text)
    assert "\n      what went wrong\n" in text
    assert "1 command, 1 failed" in text


def test_a_turn_that_fails_has_codexs_status_and_its_word_for_why(
    workspace: Path, state_dir: Path, codex_163: Path, tmp_path: Path
) -> None:
    file = script(tmp_path / "s.json", {"error": {"status": 400}})
    process = run("--scripted", file, "x", codex=codex_163, workspace=workspace, state_dir=state_dir)
    assert process.returncode == 1
    assert "failed, exit status 1" in process.stdout.decode()


def test_a_prompt_that_is_the_name_of_a_command_is_a_prompt(
    workspace: Path, state_dir: Path, codex_163: Path, tmp_path: Path
) -> None:
    file = script(tmp_path / "s.json", {"say": "done"})
    for prompt, stdin in (("resume", b""), ("-", b"from stdin")):
        process = run(
            "--scripted", file, "--json", prompt, codex=codex_163, workspace=workspace, state_dir=state_dir, stdin=stdin
        )
        assert process.returncode == 0, process.stderr
        assert items(process.stdout, "agent_message")


def test_escape_sequences_of_a_model_do_not_reach_the_terminal(
    workspace: Path, state_dir: Path, codex_163: Path, tmp_path: Path
) -> None:
    file = script(
        tmp_path / "s.json",
        {"shell": "printf '\\033]0;title\\007'; touch $(printf 'a\\033[2Jb'); exit 1"},
        {"say": "\x1b[2J\x1b]52;c;cm0gLXJm\x07 done"},
    )
    process = run("--scripted", file, "x", codex=codex_163, workspace=workspace, state_dir=state_dir)
    assert process.returncode == 0
    assert b"\x1b" not in process.stdout + process.stderr
    assert b"\x07" not in process.stdout + process.stderr


def test_events_are_copied_as_they_happen(workspace: Path, state_dir: Path, codex_163: Path, tmp_path: Path) -> None:
    copy = tmp_path / "events.jsonl"
    process = run(
        "--scripted", "demo", "--events", copy, "--session", "mine", "x",
        codex=codex_163, workspace=workspace, state_dir=state_dir,
    )  # fmt: skip
    assert process.returncode == 0
    assert copy.read_bytes() == (state_dir / "sessions" / "mine" / "events.jsonl").read_bytes()
    types = [json.loads(line)["type"] for line in copy.read_text().splitlines()]
    assert {"view.started", "command.started", "command.exited", "model.request", "view.exited"} <= set(types)


def test_an_interrupt_ends_the_turn_and_the_summary_says_so(
    workspace: Path, state_dir: Path, codex_163: Path, tmp_path: Path
) -> None:
    file = script(tmp_path / "s.json", {"shell": "touch started; sleep 300"}, {"say": "never"})
    with subprocess.Popen(
        command("--scripted", file, "x", codex=codex_163, state_dir=state_dir),
        cwd=workspace,
        env=environment(state_dir),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        deadline = time.monotonic() + 60
        while not (workspace / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 1  # Codex's own answer to an interrupt
    assert "failed, exit status 1" in out.decode()


def test_a_reader_that_leaves_ends_the_turn(workspace: Path, state_dir: Path, codex_163: Path, tmp_path: Path) -> None:
    file = script(tmp_path / "s.json", {"shell": "echo one"}, {"shell": "sleep 300"}, {"say": "never"})
    reader, writer = os.pipe()
    with subprocess.Popen(
        command("--scripted", file, "x", codex=codex_163, state_dir=state_dir),
        cwd=workspace,
        env=environment(state_dir),
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, b"")


@pytest.mark.parametrize("what", ["absent", "unpinned", "dynamic"])
def test_a_codex_that_gets_no_view_is_one_error(what: str, workspace: Path, state_dir: Path, tmp_path: Path) -> None:
    codex = tmp_path / what
    if what == "unpinned":
        codex.write_bytes(b"\x7fELF" + bytes(100))
        codex.chmod(0o755)
    elif what == "dynamic":
        codex = Path("/bin/ls")
    process = run("--scripted", "demo", "x", codex=codex, workspace=workspace, state_dir=state_dir)
    assert_one_error(process, "no-view")
    assert not state_dir.exists()


def assert_one_error(process: subprocess.CompletedProcess[bytes], kind: str) -> None:
    assert (process.returncode, process.stdout) == (125, b"")
    assert re.fullmatch(rf"agenthost: {kind}: [^\n]+\n", process.stderr.decode()), process.stderr


def test_the_key_is_in_no_argument_file_or_output(
    workspace: Path, state_dir: Path, codex_163: Path, tmp_path: Path
) -> None:
    """A real provider: the scripted model alone, as somebody else's server, reached with a key from a file."""
    key_file = tmp_path / "key"
    file = script(
        tmp_path / "s.json", {"shell": "cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'"}, {"say": "done"}
    )
    with subprocess.Popen(
        [sys.executable, "-m", "agenthost", "scripted-model", str(file)],
        env=environment(state_dir),
        stdout=subprocess.PIPE,
        text=True,
    ) as model:
        assert model.stdout is not None
        url, key = model.stdout.readline().strip(), model.stdout.readline().strip()
        key_file.touch(mode=0o600)
        key_file.write_text(key + "\n")
        process = run(
            "--provider-url", url, "--api-key-file", key_file, "x",
            codex=codex_163, workspace=workspace, state_dir=state_dir,
        )  # fmt: skip
        model.terminate()
    assert process.returncode == 0, process.stdout
    assert b"credential: real key from key" in process.stdout
    assert key.encode() not in process.stdout + process.stderr
    assert holding(key, state_dir, workspace) == []


def holding(text: str, *trees: Path) -> Sequence[Path]:
    files = [path for tree in trees for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if text.encode() in path.read_bytes()]


def test_a_command_with_a_terminal_knows_it_by_name(
    codex_163: Path, workspace: Path, state_dir: Path, tmp_path: Path
) -> None:
    """The terminal is one of the view's, and what a descriptor names can be opened again by /dev/stdout."""
    commands = "tty; echo out > /dev/stdout; echo err > /dev/stderr; echo both | tee /dev/stderr; echo own > /dev/tty"
    source = f"text((await tools.exec_command({{cmd: {json.dumps(commands)}, tty: true}})).output);"
    file = script(tmp_path / "terminal.json", {"code": source}, {"say": "done"})
    process = run("--scripted", file, "--json", "x", codex=codex_163, workspace=workspace, state_dir=state_dir)
    (item,) = items(process.stdout, "command_execution")
    name, *lines = str(item["aggregated_output"]).split()
    assert re.fullmatch(r"/dev/pts/\d+", name)
    assert lines == ["out", "err", "both", "both", "own"]

"""The closing summary and the progress, from recorded events and recorded lines of Codex 0.163.0: L50, L51."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenthost.cli import turn
from agenthost.cli.changes import Change
from agenthost.cli.render import duration, opening, progress, render, size
from agenthost.cli.summary import Summary, commands, how_it_ended, requests, summarise
from agenthost.cli.terminal import Style, columns

Event = Mapping[str, object]

JSONL: Final = rb"""
{"type":"thread.started","thread_id":"01a22e30-225a-7ff1-9817-634d459620df"}
{"type":"turn.started"}
{"type":"item.started","item":{"id":"item_0","type":"command_execution","command":"/bin/bash -c 'ls -la && id -un'","aggregated_output":"","exit_code":null,"status":"in_progress"}}
{"type":"item.completed","item":{"id":"item_0","type":"command_execution","command":"/bin/bash -c 'ls -la && id -un'","aggregated_output":"README.md\nroot\n","exit_code":0,"status":"completed"}}
{"type":"item.completed","item":{"id":"item_1","type":"command_execution","command":"/bin/bash -c 'git status --short'","aggregated_output":"","exit_code":0,"status":"completed"}}
{"type":"item.completed","item":{"id":"item_2","type":"command_execution","command":"/bin/bash -c 'ls /nope; exit 3'","aggregated_output":"ls: cannot access '/nope': No such file or directory\n","exit_code":3,"status":"failed"}}
{"type":"item.started","item":{"id":"item_3","type":"file_change","changes":[{"path":"/work/sample/README.md","kind":"update"},{"path":"/work/sample/hello.txt","kind":"add"}],"status":"in_progress"}}
{"type":"item.completed","item":{"id":"item_3","type":"file_change","changes":[{"path":"/work/sample/README.md","kind":"update"},{"path":"/work/sample/hello.txt","kind":"add"}],"status":"completed"}}
{"type":"item.completed","item":{"id":"item_4","type":"agent_message","text":"All done.\n\nI wrote `hello.txt` and changed README.md."}}
{"type":"turn.completed","usage":{"input_tokens":41250,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":325,"reasoning_output_tokens":0}}
"""  # noqa: E501 — as they were printed


def started(number: int, *argv: str) -> Event:
    return {"type": "command.started", "command": number, "argv": list(argv), "cwd": "/work/sample"}


def exited(number: int, status: int, ms: float, **more: object) -> Event:
    return {"type": "command.exited", "command": number, "status": status, "ms": ms, **more}


def asked(status: int = 200, outcome: str = "complete", credential: str = "real key from OPENAI_API_KEY") -> Event:
    fields = {"method": "POST", "path": "/responses", "bytes_out": 38000, "bytes_in": 900, "ms": 812}
    return {"type": "model.request", **fields, "status": status, "outcome": outcome, "credential": credential}


EVENTS: Final[tuple[Event, ...]] = (
    {"type": "view.started", "harness": "Codex 0.163.0", "uid": 64812},
    started(1, "git", "rev-parse", "--git-dir"),
    exited(1, 0, 3.1),
    asked(),
    started(2, "/bin/bash", "-c", "ls -la && id -un"),
    exited(2, 0, 12.4),
    started(3, "git", "remote", "-v"),
    exited(3, 1, 2.9),
    asked(),
    started(4, "/bin/bash", "-c", "git status --short"),
    exited(4, 0, 1432.0),
    asked(),
    started(5, "/bin/bash", "-c", "ls /nope; exit 3"),
    exited(5, 3, 4.0),
    asked(),
    {
        "type": "proxy.connect",
        "host": "ab.example.com",
        "port": 443,
        "decision": "denied",
        "reason": "not an allowed host",
    },
)

CHANGES: Final = (Change("changed", "README.md", 4), Change("added", "hello.txt", 6))

WHOLE: Final = """\
────────────────────────────────────────────────────────────────────────────────
In the view           Codex 0.163.0, uid 64812
  ✓ patch: README.md, hello.txt (added)

In the environment    3 commands, 1 failed
  ✓ ls -la && id -un                                       exit 0          12 ms
  ✓ git status --short                                     exit 0          1.4 s
  ✗ ls /nope; exit 3                                       exit 3           4 ms
  · git × 2, by Codex for itself                                            6 ms

Through the gateway   4 requests went out, 1 refused
  ✓ POST /responses × 4            200, credential: real key from OPENAI_API_KEY
  ✗ CONNECT ab.example.com:443                               not an allowed host

Files changed         2 in /work/sample
  ~ README.md                                                       changed, 4 B
  + hello.txt                                                         added, 6 B

How it ended          finished, exit status 0, after 6.5 s
                      41 250 tokens in, 325 out; go on with --session s-1
────────────────────────────────────────────────────────────────────────────────
"""


def lines_of(jsonl: bytes) -> list[turn.Line]:
    return [line for raw in jsonl.splitlines() if (line := turn.read(raw)) is not None]


def summary(
    *,
    status: int = 0,
    events: Sequence[Event] = EVENTS,
    lines: Sequence[turn.Line] | None = None,
    changes: Sequence[Change] | None = CHANGES,
    changes_note: str = "",
) -> Summary:
    return summarise(
        session="s-1",
        workspace="/work/sample",
        status=status,
        seconds=6.54,
        events=events,
        lines=lines_of(JSONL) if lines is None else lines,
        changes=changes,
        changes_note=changes_note,
    )


def test_the_summary_of_a_recorded_turn() -> None:
    assert render(summary(), Style(width=80)) == WHOLE


def test_a_stream_without_unicode_gets_plain_signs_at_the_same_places() -> None:
    text = render(summary(), Style(width=80, unicode=False))
    assert text.isascii()
    assert [len(line) for line in text.splitlines()] == [len(line) for line in WHOLE.splitlines()]


def test_colours_change_nothing_but_the_colours() -> None:
    coloured = render(summary(), Style(width=80, colour=True))
    for code in ("0", "1", "2", "31", "32"):
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert [line.rstrip() for line in coloured.splitlines()] == WHOLE.splitlines()


def test_a_turn_in_which_nothing_happened() -> None:
    text = render(summary(events=(), lines=(), changes=()), Style(width=80))
    for line in ("In the environment    no command", "Through the gateway   nothing went out", "none in /work/sample"):
        assert line in text


def test_a_workspace_that_was_not_compared_is_not_said_to_be_unchanged() -> None:
    text = render(summary(changes=None, changes_note="the workspace is too large"), Style(width=80))
    assert "Files changed         not compared in /work/sample\n    the workspace is too large\n" in text


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "finished, exit status 0"),
        (1, "failed, exit status 1"),
        (143, "ended by SIGTERM, exit status 143"),
        (137, "ended by SIGKILL, exit status 137"),
        (255, "failed, exit status 255"),
        (128, "failed, exit status 128"),
    ],
)
def test_how_it_ended_is_said_in_words(status: int, words: str) -> None:
    assert how_it_ended(status) == words
    assert words in render(summary(status=status), Style(width=80))


def test_codexs_own_word_for_a_failure_is_told() -> None:
    failed = b'{"type":"turn.failed","error":{"message":"unexpected status 401 Unauthorized: no key"}}'
    assert "unexpected status 401 Unauthorized: no key" in render(summary(status=1, lines=lines_of(failed)), Style())


def test_a_refused_command_says_why() -> None:
    refused: Event = {"type": "command.refused", "argv": ["rg", "x"], "status": 126, "reason": "not a declared program"}
    (command,) = commands([refused], [])
    assert (command.status, command.note, command.scripted) == (126, "not a declared program", False)
    assert "rg × 1, by Codex for itself: not a declared program" in render(summary(events=[refused]), Style(width=80))


def test_a_command_that_never_reached_the_environment_is_told_apart() -> None:
    line = turn.Ran("cd /nope", 1, "CreateProcess failed")
    (command,) = commands([], [line])
    assert (command.text, command.note) == ("cd /nope", "did not reach the environment")
    assert commands([started(1, "/bin/bash", "-c", "cd /nope"), exited(1, 1, 2.0)], [line])[0].note == ""


def test_a_long_script_that_an_event_cuts_short_is_still_one_command() -> None:
    script = "echo " + "x" * 20_000
    events = [{**started(1, "/bin/bash", "-c", script[:8192]), "argv_cut": 3}, exited(1, 1, 2.0)]
    assert len(commands(events, [turn.Ran(script, 1, "")])) == 1


def test_the_same_command_twice_is_two_commands() -> None:
    events = [
        started(1, "/bin/bash", "-c", "x"),
        exited(1, 0, 1.0),
        started(2, "/bin/bash", "-c", "x"),
        exited(2, 7, 1.0),
    ]
    lines = [turn.Ran("x", 0, ""), turn.Ran("x", 7, "")]
    assert [command.status for command in commands(events, lines)] == [0, 7]


def test_a_command_that_is_still_running_is_unfinished() -> None:
    assert "unfinished" in render(summary(events=[started(1, "/bin/bash", "-c", "sleep 1000")]), Style(width=80))


def test_a_failed_environment_is_told_with_its_message() -> None:
    events = [started(1, "/bin/bash", "-c", "x"), exited(1, 255, 1.0, message="the environment is gone")]
    assert commands(events, [])[0].note == "the environment is gone"


def test_requests_are_counted_by_what_became_of_them() -> None:
    events = [asked(), asked(500), asked(0, "refused", "none"), asked(0, "unreachable"), asked(200, "client-gone")]
    told = {(one.outcome, one.left, one.credential, one.count) for one in requests(events)}
    key = "real key from OPENAI_API_KEY"
    assert told == {
        ("200", True, key, 1),
        ("500", True, key, 1),
        ("200, client-gone", True, key, 1),
        ("refused", False, "", 1),
        ("unreachable", False, "", 1),
    }


def test_an_allowed_host_left_without_a_credential() -> None:
    event: Event = {"type": "proxy.connect", "host": "a.example", "port": 443, "decision": "allowed", "reason": ""}
    (request,) = requests([event])
    assert (request.target, request.left, request.credential) == ("CONNECT a.example:443", True, "")


HOSTILE: Final = "\x1b]0;title\x07\x1b[2K\r\u202e\u2028\n\udcff日本\u0301 x" * 3


@given(st.text(st.characters(exclude_categories=())), st.integers(min_value=48, max_value=110), st.booleans())
def test_nothing_that_a_model_or_a_workspace_chooses_commands_the_terminal_or_breaks_the_layout(
    text: str, width: int, unicode: bool
) -> None:
    for hostile in (text, HOSTILE):
        made = summarise(
            session="s-1",
            workspace="/" + hostile,
            status=0,
            seconds=1,
            events=[
                {"type": "view.started", "harness": hostile},
                started(1, "/bin/bash", "-c", hostile),
                exited(1, 1, 1.0, message=hostile),
                started(2, hostile, hostile),
                {**asked(), "path": hostile},
                {"type": "proxy.connect", "host": hostile, "port": 1, "decision": "denied", "reason": hostile},
            ],
            lines=[turn.Patched(((hostile, hostile),), applied=True), turn.Complained(hostile, fatal=True)],
            changes=[Change("added", hostile, 1), Change("renamed", "b", 1, origin=hostile)],
        )
        style = Style(width=width, unicode=unicode)
        shown = render(made, style)
        told: list[turn.Line] = [
            turn.Ran(hostile, 1, hostile),
            turn.Said(hostile),
            turn.Complained(hostile, fatal=False),
        ]
        shown += "".join(line + "\n" for one in told for line in progress(one, None, "/w", style))
        shown += opening("s-1", hostile, style) + "\n"
        assert shown.replace("\n", "").replace("\u200d", "").isprintable()
        for line in render(made, style).splitlines():
            if line.startswith("  "):
                assert columns(line) <= width, line


def test_progress_tells_of_each_thing_as_codex_reports_it() -> None:
    style = Style(width=80)
    told = [text for line in lines_of(JSONL) for text in progress(line, 12.0, "/work/sample", style)]
    assert told == [
        "  ✓ ls -la && id -un                                       exit 0          12 ms",
        "      README.md",
        "      root",
        "  ✓ git status --short                                     exit 0          12 ms",
        "  ✗ ls /nope; exit 3                                       exit 3          12 ms",
        "      ls: cannot access '/nope': No such file or directory",
        "  ✓ patch: README.md, hello.txt (added)",
        "",
        "  All done.",
        "",
        "  I wrote `hello.txt` and changed README.md.",
        "",
    ]


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("/bin/bash -c 'ls -la && id -un'", "ls -la && id -un"),
        ("/usr/bin/bash -lc ls", "ls"),
        ("""/bin/bash -c 'echo '"'"'a b'"'"''""", "echo 'a b'"),
        ("/bin/bash -c 'unbalanced", "/bin/bash -c 'unbalanced"),
        ("python3 x.py", "python3 x.py"),
        ("/bin/bash script.sh", "/bin/bash script.sh"),
    ],
)
def test_the_script_of_a_shell_is_what_people_see(command: str, script: str) -> None:
    assert turn.inner_command(command) == script


@given(st.lists(st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b""))), st.integers(min_value=1, max_value=7))
def test_lines_are_the_same_however_the_bytes_come(lines: list[bytes], step: int) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"rest"
    cutter = turn.Lines()
    got = [line for start in range(0, len(stream), step) for line in cutter.feed(stream[start : start + step])]
    assert (got, cutter.rest()) == (lines, b"rest")


def test_an_endless_line_is_left_out_and_the_next_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "LONGEST_LINE", 100)
    cutter = turn.Lines()
    got = [line for _ in range(50) for line in cutter.feed(b"x" * 10)]
    assert (got, cutter.rest()) == ([], b"")
    assert list(cutter.feed(b"xx\nnext\n")) == [b"next"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda it: st.lists(it) | st.dictionaries(st.text(), it)
    )
)
def test_a_line_that_a_later_codex_may_print_is_no_error(value: object) -> None:
    turn.read(json.dumps(value).encode())
    turn.read(json.dumps({"type": "item.completed", "item": value}).encode())
    for kind in ("command_execution", "file_change", "agent_message", "mcp_tool_call", "error"):
        item = {"type": kind, "command": value, "changes": value, "text": value, "message": value}
        turn.read(json.dumps({"type": "item.completed", "item": item}).encode())


def test_what_is_no_json_is_shown_as_it_is() -> None:
    assert turn.read(b"thread panicked\xff") == turn.Complained("thread panicked\ufffd", fatal=False)
    assert turn.read(b"") is None


def test_numbers_are_said_as_people_say_them() -> None:
    assert [duration(ms) for ms in (0, 12.4, 999, 1432, 59_900, 60_000, 3_725_000)] == [
        "0 ms",
        "12 ms",
        "999 ms",
        "1.4 s",
        "59.9 s",
        "1 min 00 s",
        "62 min 05 s",
    ]
    assert [size(n) for n in (0, 999, 1000, 12_345, 2_500_000, 999_999, 5_000_000_000_000)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "12 kB",
        "2.5 MB",
        "1.0 MB",
        "5000 GB",
    ]

"""What the caller gives as stdin, stdout and stderr reaches the Harness byte for byte, and never as it is when it
could be executed or be a terminal."""

from __future__ import annotations

import pytest

from tests.view.rig import Daemon, Session

pytestmark = pytest.mark.usefixtures("tidy")

LARGE = 50 << 20
KINDS = ("pipe", "own-pipe", "socket", "file")


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_000_003])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_same_on_the_other_side(daemon: Daemon, session: Session, kind: str, size: int) -> None:
    answer = daemon.call("transfer", session=session.id, source=kind, sink=kind, size=size)
    assert answer == {"status": 0, "received": size, "same": True}


@pytest.mark.slow
@pytest.mark.parametrize(("source", "sink"), [("pipe", "pipe"), ("file", "socket"), ("socket", "file")])
def test_much_of_it_is_too(daemon: Daemon, session: Session, source: str, sink: str) -> None:
    answer = daemon.call("transfer", session=session.id, source=source, sink=sink, size=LARGE)
    assert answer == {"status": 0, "received": LARGE, "same": True}


@pytest.mark.parametrize(("source", "sink"), [("terminal", "pipe"), ("file", "terminal"), ("terminal", "terminal")])
def test_a_terminal_is_pumped(daemon: Daemon, session: Session, source: str, sink: str) -> None:
    """Small enough for the terminal's own buffer."""
    answer = daemon.call("transfer", session=session.id, source=source, sink=sink, size=2000)
    assert answer == {"status": 0, "received": 2000, "same": True}


def test_dev_null_is_passed(daemon: Daemon, session: Session) -> None:
    answer = daemon.call("transfer", session=session.id, source="null", sink="null", size=0)
    assert answer == {"status": 0, "received": 0, "same": True}


def test_stdin_that_is_closed_ends(session: Session) -> None:
    assert session.run(["copy"], ["say", "end"], stdin="hello ").stdout == "hello say=end\n"


def test_stderr_is_apart(session: Session) -> None:
    result = session.run(["exec", "/bin/bash", "-c", "echo out; echo err >&2"])
    assert (result.stdout, result.stderr) == ("out\n", "err\n")


def test_a_command_gets_what_the_harness_got(session: Session) -> None:
    result = session.run(["exec", "/bin/bash", "-c", "tr a-z A-Z; exit 5"], stdin="through the shim")
    assert (result.stdout, result.status) == ("THROUGH THE SHIM", 5)


def test_all_that_was_written_before_the_end_arrives(session: Session) -> None:
    result = session.run(["exec", "/bin/bash", "-c", "head -c 3000000 /dev/zero"])
    assert (len(result.stdout), result.status) == (3_000_000, 0)


def test_what_holds_stdout_when_the_harness_ends_does_not_hold_the_caller(session: Session) -> None:
    result = session.run(["orphan"], ["say", "end"])
    assert result.facts == [("orphan", "left"), ("say", "end")]

"""The event log: one JSON object a line, whatever happens to the disk and to those who listen."""

from __future__ import annotations

import io
import json
import logging
import os
from datetime import datetime
from pathlib import Path

import pytest

from agenthost.events import Event, EventLog


def open_log(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_is_one_line_with_time_session_and_type(tmp_path: Path) -> None:
    log = EventLog("s1", open_log(tmp_path / "e"))
    log.write("command.started", argv=["git", "status"], cwd="/w")
    log.write("command.exited", status=3)
    log.close()
    first, second = lines(tmp_path / "e")
    assert list(first) == ["ts", "session", "type", "argv", "cwd"]
    assert first["session"] == "s1"
    assert second["status"] == 3
    moment = datetime.fromisoformat(str(first["ts"]))
    assert moment.utcoffset() is not None
    assert str(first["ts"]).endswith("Z")
    assert len(str(first["ts"])) == len("2026-01-31T12:00:00.123Z")


def test_what_a_view_chooses_cannot_break_a_line(tmp_path: Path) -> None:
    log = EventLog("s1", open_log(tmp_path / "e"))
    hostile = 'a\n{"type":"view.exited"}\r\x00\u2028' + b"\xff".decode("utf-8", "surrogateescape")
    log.write("proxy.connect", host=hostile)
    log.close()
    (event,) = lines(tmp_path / "e")
    assert event["host"] == hostile
    assert event["type"] == "proxy.connect"


def test_what_is_not_json_becomes_its_text(tmp_path: Path) -> None:
    log = EventLog("s1", open_log(tmp_path / "e"))
    log.write("view.started", closure=tmp_path)
    log.close()
    assert lines(tmp_path / "e")[0]["closure"] == str(tmp_path)


def test_the_copy_gets_the_same_lines_and_stays_the_callers(tmp_path: Path) -> None:
    copy = io.BytesIO()
    log = EventLog("s1", open_log(tmp_path / "e"), copy)
    log.write("view.started")
    log.close()
    assert copy.getvalue() == (tmp_path / "e").read_bytes()
    assert not copy.closed


def test_a_full_disk_is_remembered_and_not_raised() -> None:
    log = EventLog("s1", os.open("/dev/full", os.O_WRONLY))
    heard: list[Event] = []
    log.subscribers.append(heard.append)
    log.write("view.started")
    log.write("view.exited")
    log.close()
    assert log.failure is not None
    assert log.failure.strerror == "No space left on device"
    assert [event["type"] for event in heard] == ["view.started", "view.exited"]


def test_a_line_cut_short_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "e"
    log = EventLog("s1", open_log(path))
    real_write = os.write
    room = [5]

    def write(fd: int, data: bytes) -> int:
        if not room:
            return real_write(fd, data)
        if room[0] == 0:
            room.clear()
            raise OSError(28, "No space left on device")
        written = real_write(fd, data[: room[0]])
        room[0] = 0
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", write)
        log.write("view.started")
        log.write("view.exited")
    log.close()
    torn, whole = path.read_bytes().splitlines()
    assert torn == b'{"ts"'
    assert json.loads(whole)["type"] == "view.exited"


def test_a_broken_copy_does_not_stop_the_log(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb", buffering=0) as copy:
        log = EventLog("s1", open_log(tmp_path / "e"), copy)
        log.write("view.started")
        log.write("view.exited")
        log.close()
    assert isinstance(log.failure, BrokenPipeError)
    assert len(lines(tmp_path / "e")) == 2


def test_a_subscriber_that_raises_is_dropped_and_the_others_hear_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog("s1", open_log(tmp_path / "e"))
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise BrokenPipeError

    log.subscribers += [broken, heard.append]
    with caplog.at_level(logging.ERROR):
        log.write("view.started")
        log.write("view.exited")
    log.close()
    assert len(heard) == 2
    assert log.subscribers == [heard.append]
    assert len(caplog.records) == 1


def test_closing_twice_and_writing_after_it_are_harmless(tmp_path: Path) -> None:
    log = EventLog("s1", open_log(tmp_path / "e"))
    log.close()
    log.close()
    log.write("view.exited")
    assert (tmp_path / "e").read_bytes() == b""
    assert log.failure is None

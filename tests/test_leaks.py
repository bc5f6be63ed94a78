"""The leak check sees what it must see; without this, a test that asks for it could not be believed."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests import leaks
from tests.leaks import Held, left_in_state
from tests.needs import needs


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "PATIENCE_S", 0.2)


@pytest.fixture
def orphan(no_leaks: Callable[[], list[str]]) -> Iterator[int]:
    """A process whose parent has ended."""
    script = "sleep 600 >/dev/null 2>&1 </dev/null & echo $!"
    pid = int(subprocess.run(["sh", "-c", script], check=True, capture_output=True).stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)
    psutil.Process(pid).wait()


def test_nothing_held_is_nothing_left() -> None:
    assert Held.now().left_behind() == []


def test_an_orphan_is_seen(no_leaks: Callable[[], list[str]], orphan: int) -> None:
    assert no_leaks() == [f"process {orphan} (sleep 600)"]


def test_a_process_that_ends_meanwhile_is_not_left() -> None:
    before = Held.now()
    with subprocess.Popen(["sleep", "0.05"]):
        assert before.left_behind() == []


def test_a_descriptor_is_seen() -> None:
    before = Held.now()
    reading, writing = os.pipe()
    assert before.left_behind() == ["descriptor pipe (2 more)"]
    os.close(reading)
    os.close(writing)
    assert before.left_behind() == []


@needs("root")
def test_a_mount_is_seen(tmp_path: Path) -> None:
    before = Held.now()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(tmp_path)], check=True)
    left = before.left_behind()
    subprocess.run(["umount", str(tmp_path)], check=True)
    assert [item for item in left if item.startswith("mount ") and item.endswith(str(tmp_path))] == left
    assert left
    assert before.left_behind() == []


def test_an_idle_state_directory_holds_nothing_but_sessions(tmp_path: Path) -> None:
    assert left_in_state(tmp_path / "never-made") == []
    (tmp_path / "sessions" / "one").mkdir(parents=True)
    (tmp_path / "attach").mkdir()
    (tmp_path / "codex-digests.json").touch()
    assert left_in_state(tmp_path) == []


def test_an_untidy_state_directory_is_seen(tmp_path: Path) -> None:
    (tmp_path / "attach" / "42").mkdir(parents=True)
    (tmp_path / "scratch").touch()
    session = tmp_path / "sessions" / "one"
    session.mkdir(parents=True)
    lock = os.open(session, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    kinds = [item.split()[0] for item in left_in_state(tmp_path)]
    os.close(lock)
    assert kinds == ["attachment", "file", "lock"]

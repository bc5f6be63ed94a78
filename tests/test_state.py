"""The state directory: who may be in it at the same time, and what a start finds, settles and leaves alone."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agenthost.errors import CleanupFailed, RequestRefused, StateUnusable
from agenthost.layout import StateLayout
from agenthost.lease import lease_uid, remove_stale
from agenthost.recovery import Finding, collect, recover, recover_session, remove
from agenthost.session import AgentHost
from agenthost.state import hold_state, lock_made_session, lock_session
from tests.needs import ROOT, needs

pytestmark = needs("linux")

TEMPORARY = ".oac-0123456789abcdef"

HOLD = """
import sys
from pathlib import Path
from agenthost.layout import StateLayout
from agenthost.state import hold_state
hold_state(StateLayout(Path(sys.argv[1])), exclusive=sys.argv[2] == "exclusive")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    """Of a state directory that nobody has made yet."""
    return StateLayout(tmp_path / "state")


@pytest.fixture
def made(layout: StateLayout) -> StateLayout:
    """Of an empty state directory."""
    for directory in (layout.root, layout.attach, layout.sessions):
        directory.mkdir(mode=0o700)
    return layout


@contextmanager
def holder(layout: StateLayout, how: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the state directory."""
    command = [sys.executable, "-c", HOLD, str(layout.root), how]
    with subprocess.Popen(
        command, env={"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def make_session(layout: StateLayout, name: str, *, opened: bool = False) -> Path:
    """A Session as it lies on the disk; `opened` as a daemon that was killed leaves it."""
    directory = layout.session(name)
    (directory / "home" / "codex" / "sessions").mkdir(parents=True)
    (directory / "home" / "tmp").mkdir()
    (directory / "home" / "codex" / "sessions" / "thread").write_text("a thread")
    record = {"version": 1, "id": name, "workspace": "/srv/project", "uid": os.geteuid()}
    (directory / "session.json").write_text(json.dumps(record))
    (directory / "events.jsonl").write_text("")
    if opened:
        (directory / "open.json").write_text('{"pid": 1}')
    return directory


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


class TestOneDaemon:
    def test_a_second_one_is_refused_with_the_pid_of_the_first(self, layout: StateLayout) -> None:
        with holder(layout, "exclusive") as process:
            for exclusive in (True, False):
                with pytest.raises(StateUnusable, match=f"in use by process {process.pid};"):
                    hold_state(layout, exclusive=exclusive)
            assert everything(layout.root) == ["lock"]

    def test_the_lock_ends_with_its_holder_also_by_sigkill(self, layout: StateLayout) -> None:
        with holder(layout, "exclusive") as process:
            process.kill()
            process.wait()
            os.close(hold_state(layout, exclusive=True))

    def test_several_that_share_are_there_together_and_keep_one_alone_out(self, layout: StateLayout) -> None:
        with holder(layout, "shared") as one, holder(layout, "shared") as other:
            os.close(hold_state(layout, exclusive=False))
            with pytest.raises(StateUnusable) as caught:
                hold_state(layout, exclusive=True)
            assert caught.value.what.endswith(f"process {', '.join(map(str, sorted([one.pid, other.pid])))}")

    def test_agenthost_holds_it_from_entering_until_the_end(self, layout: StateLayout) -> None:
        async def body() -> None:
            async with AgentHost(layout.root):
                with pytest.raises(StateUnusable, match=f"in use by process {os.getpid()};"):
                    await AgentHost(layout.root).__aenter__()
            async with AgentHost(layout.root):
                pass

        asyncio.run(body())

    def test_one_that_shares_has_no_effect_before_it_opens_something(self, layout: StateLayout) -> None:
        async def body() -> None:
            async with AgentHost(layout.root, exclusive=False):
                assert not layout.root.exists()

        asyncio.run(body())

    def test_one_that_only_looks_is_waited_for(self, layout: StateLayout) -> None:
        look = hold_state(layout, exclusive=True)
        threading.Timer(0.01, os.close, [look]).start()
        os.close(hold_state(layout, exclusive=True))

    @pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
    def test_what_stands_where_the_lock_should_be_is_refused(
        self, made: StateLayout, tmp_path: Path, kind: str
    ) -> None:
        lock = made.root / "lock"
        if kind == "link":
            lock.symlink_to(tmp_path / "elsewhere")
        elif kind == "fifo":
            os.mkfifo(lock)
        else:
            lock.mkdir()
        with pytest.raises(StateUnusable):
            hold_state(made, exclusive=True)
        assert not (tmp_path / "elsewhere").exists()

    def test_one_that_is_open_to_others_is_refused(self, made: StateLayout) -> None:
        made.root.chmod(0o755)
        with pytest.raises(StateUnusable, match="open to others"):
            hold_state(made, exclusive=True)
        assert not (made.root / "lock").exists()


class TestSessionLock:
    def test_one_process_has_it(self, made: StateLayout) -> None:
        make_session(made, "one")
        lock = lock_session(made, "one")
        with pytest.raises(StateUnusable, match="Session one is open elsewhere"):
            lock_session(made, "one")
        os.close(lock)
        os.close(lock_session(made, "one"))

    def test_none_is_none(self, made: StateLayout) -> None:
        with pytest.raises(FileNotFoundError):
            lock_session(made, "none")

    def test_a_link_is_none(self, made: StateLayout, tmp_path: Path) -> None:
        made.session("link").symlink_to(tmp_path)
        with pytest.raises(StateUnusable, match="not the directory of a Session"):
            lock_session(made, "link")


class TestRecovery:
    def test_nothing_is_nothing(self, layout: StateLayout, made: StateLayout) -> None:
        assert recover(layout, alone=True) == ()
        make_session(made, "kept")
        before = everything(made.root)
        assert [one for one in recover(made, alone=True) if not one.name.startswith("uid ")] == []
        assert everything(made.root) == before

    def test_of_a_session_whose_daemon_was_killed_the_home_stays(self, made: StateLayout) -> None:
        directory = make_session(made, "cut", opened=True)
        (directory / TEMPORARY).write_text("half a record")
        (directory / "home" / TEMPORARY).mkdir()
        (directory / "home" / "codex" / TEMPORARY).write_text("half a file")
        (directory / "home" / "codex" / "model-catalog.json").write_text("{}")
        (directory / "events.jsonl").write_text('{"type": "view.started"}\n{"type": "half')
        assert Finding("sessions/cut", "a Session whose daemon has ended", "settled") in recover(made, alone=True)
        kept = ["events.jsonl", "home", "home/codex", "home/codex/sessions", "home/codex/sessions/thread", "home/tmp"]
        assert everything(directory) == [*kept, "session.json"]
        lines = (directory / "events.jsonl").read_text().splitlines()
        event = json.loads(lines[-1])
        assert event["type"] == "session.recovered"
        removed = [TEMPORARY, f"home/{TEMPORARY}", f"home/codex/{TEMPORARY}", "home/codex/model-catalog.json"]
        assert event["removed"] == removed
        assert len(lines) == 3
        assert "sessions/cut" not in [one.name for one in recover(made, alone=True)]

    def test_sessions_on_their_way_in_and_out_are_removed(self, made: StateLayout) -> None:
        made.session("half-made").mkdir()
        made.session("half-recorded").mkdir()
        (made.session("half-recorded") / TEMPORARY).write_text("{")
        make_session(made, "gone").rename(made.sessions / TEMPORARY)
        (made.root / TEMPORARY).write_text("half of the digests")
        found = {one.name: one.outcome for one in recover(made, alone=True)}
        names = [TEMPORARY, f"sessions/{TEMPORARY}", "sessions/half-made", "sessions/half-recorded"]
        assert {name: found[name] for name in names} == dict.fromkeys(names, "removed")
        assert everything(made.root) == ["attach", "sessions"]

    def test_what_is_held_is_not_touched(self, made: StateLayout) -> None:
        make_session(made, "live", opened=True)
        made.session("being-made").mkdir()
        make_session(made, "going").rename(made.sessions / TEMPORARY)
        locks = [os.open(path, os.O_RDONLY) for path in made.sessions.iterdir()]
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_EX)
        before = everything(made.root)
        assert [one for one in recover(made, alone=True) if one.name.startswith("sessions/")] == []
        assert everything(made.root) == before
        for lock in locks:
            os.close(lock)

    def test_who_is_not_alone_leaves_what_may_be_a_write_under_way(self, made: StateLayout) -> None:
        (made.root / TEMPORARY).write_text("half of the digests")
        assert recover(made, alone=False) == ()
        assert (made.root / TEMPORARY).exists()

    def test_what_agenthost_did_not_put_there_stays(self, made: StateLayout, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "file").write_text("not ours")
        (made.sessions / "link").symlink_to(outside)
        (made.sessions / TEMPORARY).symlink_to(outside)
        (made.sessions / "file").write_text("x")
        (made.sessions / ".hidden").mkdir()
        (made.sessions / ".oac-mine").mkdir()
        (made.session("no-record") / "home").mkdir(parents=True)
        (made.root / TEMPORARY).symlink_to(outside / "file")
        (made.root / ".oac-0123456789abcdee").mkdir()
        (made.root / "note").write_text("x")
        os.link(outside / "file", made.root / ".oac-0123456789abcded")
        before = everything(tmp_path)
        found = [one for one in recover(made, alone=True) if not one.name.startswith("uid ")]
        assert {one.outcome for one in found} == {"left"}
        assert everything(tmp_path) == before

    def test_a_link_planted_in_a_home_is_not_followed(self, made: StateLayout, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        (outside / TEMPORARY).mkdir(parents=True)
        (outside / "model-catalog.json").write_text("not ours")
        directory = make_session(made, "cut", opened=True)
        (directory / "home" / "codex" / "model-catalog.json").symlink_to(outside / "model-catalog.json")
        (directory / "home" / "tmp").rmdir()
        (directory / "home" / "tmp").symlink_to(outside)
        recover(made, alone=True)
        assert everything(outside) == [TEMPORARY, "model-catalog.json"]
        assert not (directory / "home" / "codex" / "model-catalog.json").is_symlink()

    def test_another_state_directory_is_not_touched(self, made: StateLayout, tmp_path: Path) -> None:
        other = StateLayout(tmp_path / "other")
        for directory in (other.root, other.sessions):
            directory.mkdir(mode=0o700)
        make_session(other, "cut", opened=True)
        other.session("half-made").mkdir()
        before = everything(other.root)
        recover(made, alone=True)
        assert everything(other.root) == before

    def test_a_dry_run_says_the_same_and_does_nothing(self, made: StateLayout) -> None:
        make_session(made, "cut", opened=True)
        made.session("half-made").mkdir()
        make_session(made, "gone").rename(made.sessions / TEMPORARY)
        before = everything(made.root)
        said = recover(made, alone=False, dry_run=True)
        assert everything(made.root) == before
        assert recover(made, alone=False) == said

    def test_what_was_half_written_in_a_session_that_nobody_has_open_is_removed(self, made: StateLayout) -> None:
        directory = make_session(made, "cut")
        (directory / TEMPORARY).write_text("{")
        before = {path.name for path in directory.iterdir()} - {TEMPORARY}
        assert recover(made, alone=False) == (Finding("sessions/cut", "a Session that was being opened", "settled"),)
        assert {path.name for path in directory.iterdir()} == before
        assert recover(made, alone=False) == ()

    def test_a_session_is_recovered_before_it_is_opened(self, made: StateLayout) -> None:
        directory = make_session(made, "cut", opened=True)
        other = make_session(made, "other", opened=True)
        recover_session(made, "cut")
        recover_session(made, "none")
        recover_session(made, "../cut")
        assert not (directory / "open.json").exists()
        assert (other / "open.json").exists()

    def test_a_daemon_that_starts_does_it_and_says_so(self, made: StateLayout) -> None:
        async def body() -> tuple[Finding, ...]:
            async with AgentHost(made.root) as host:
                return host.recovered

        make_session(made, "cut", opened=True)
        assert Finding("sessions/cut", "a Session whose daemon has ended", "settled") in asyncio.run(body())

    def test_ended_leases_are_removed_and_held_ones_are_not(self, tmp_path: Path) -> None:
        leases = tmp_path / "uids"
        held = lease_uid(1_900_100_010, leases=leases)
        (leases / "1900100011").touch()
        (leases / "note").touch()
        (leases / "01").touch()
        assert remove_stale(leases) == [1_900_100_011]
        assert sorted(path.name for path in leases.iterdir()) == ["01", "1900100010", "note"]
        held.release()
        assert sorted(path.name for path in leases.iterdir()) == ["01", "note"]


class TestRemove:
    def test_a_session_goes_with_its_home(self, made: StateLayout) -> None:
        for name in ("one", "two", "three"):
            make_session(made, name)
        remove(made, ["one", "two", "one"])
        assert [path.name for path in made.sessions.iterdir()] == ["three"]

    def test_all_or_none(self, made: StateLayout) -> None:
        for name in ("one", "open"):
            make_session(made, name)
        lock = lock_session(made, "open")
        before = everything(made.root)
        with pytest.raises(StateUnusable, match="Session open is open elsewhere"):
            remove(made, ["one", "open"])
        for unknown in ("none", "../sessions/one", ".", "", TEMPORARY):
            with pytest.raises(RequestRefused, match="no Session"):
                remove(made, ["one", unknown])
        assert everything(made.root) == before
        os.close(lock)

    def test_one_of_which_nothing_is_known_is_left_to_its_owner(self, made: StateLayout) -> None:
        (made.session("no-record") / "home").mkdir(parents=True)
        with pytest.raises(StateUnusable, match="no record"):
            remove(made, ["no-record"])
        assert (made.session("no-record") / "home").exists()

    def test_a_hostile_home_goes_whatever_its_depth_and_modes(self, made: StateLayout, tmp_path: Path) -> None:
        (tmp_path / "outside").write_text("not ours")
        home = make_session(made, "deep") / "home"
        plant_deep(home, 5000)
        (home / "link").symlink_to(tmp_path / "outside")
        os.mkfifo(home / "fifo")
        (home / "closed").mkdir()
        (home / "closed" / "inner").mkdir()
        (home / "closed" / "inner").chmod(0)
        (home / "closed").chmod(0)
        remove(made, ["deep"])
        assert list(made.sessions.iterdir()) == []
        assert (tmp_path / "outside").read_text() == "not ours"

    @needs("root")
    def test_what_cannot_be_removed_is_an_error_and_is_finished_later(self, made: StateLayout) -> None:
        directory = make_session(made, "held")
        (directory / "home" / "mounted").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", directory / "home" / "mounted"], check=True)
        try:
            with pytest.raises(CleanupFailed, match="held cannot be removed"):
                remove(made, ["held"])
            [left] = made.sessions.iterdir()
        finally:
            subprocess.run(["umount", next(made.sessions.rglob("mounted"))], check=True)
        assert Finding(f"sessions/{left.name}", "a Session that was being removed", "removed") in recover(
            made, alone=False
        )
        assert list(made.sessions.iterdir()) == []


class TestCollect:
    def test_only_what_is_old_closed_and_a_session(self, made: StateLayout) -> None:
        old = time.time() - 8 * 86_400
        for name in ("old", "old-but-open", "new", "used-lately"):
            directory = make_session(made, name)
            for file in ("session.json", "events.jsonl"):
                if name != "new":
                    os.utime(directory / file, (old, old))
        (made.session("used-lately") / "events.jsonl").touch()
        (made.session("no-record") / "home").mkdir(parents=True)
        lock = lock_session(made, "old-but-open")
        before = everything(made.root)
        said = collect(made, older_than_days=7, dry_run=True)
        assert set(everything(made.root)) - {"lock"} == set(before)
        assert Finding("sessions/old", "unused for 7 days", "removed") in said
        done = [one for one in collect(made, older_than_days=7) if not one.name.startswith("uid ")]
        assert done == list(said)
        left = {path.name for path in made.sessions.iterdir()}
        assert left == {"old-but-open", "new", "used-lately", "no-record"}
        os.close(lock)

    def test_without_an_age_no_session_goes(self, made: StateLayout) -> None:
        make_session(made, "one")
        collect(made, older_than_days=None)
        assert made.session("one").exists()

    def test_beside_a_daemon_it_removes_what_that_has_not_open(self, made: StateLayout) -> None:
        make_session(made, "one")
        (made.root / TEMPORARY).write_text("a write under way")
        with holder(made, "exclusive"):
            collect(made, older_than_days=0)
        assert list(made.sessions.iterdir()) == []
        assert (made.root / TEMPORARY).exists()

    def test_what_is_no_state_directory_is_not_made_one(self, tmp_path: Path) -> None:
        assert collect(StateLayout(tmp_path), older_than_days=0) == ()
        assert collect(StateLayout(tmp_path / "none"), older_than_days=0) == ()
        assert everything(tmp_path) == []


def plant_deep(directory: Path, levels: int) -> None:
    """Deeper than a path can be long and than Python recurses; each level closed to its owner."""
    above = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", 0o700, dir_fd=above)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=above)
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, 0, dir_fd=below))
        os.fchmod(above, 0o500)
        os.close(above)
        above = below
    os.close(above)


def test_who_opens_and_who_removes_at_once_never_share_a_session(made: StateLayout) -> None:
    """A hundred rounds with another process that removes whatever it finds."""
    script = """
import sys
from pathlib import Path
from agenthost.errors import AgentHostError
from agenthost.layout import StateLayout
from agenthost.recovery import collect, recover
layout = StateLayout(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    recover(layout, alone=False)
    collect(layout, older_than_days=0)
"""
    command = [sys.executable, "-c", script, str(made.root)]
    with subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(100):
            try:
                lock = lock_made_session(made, "contended")
            except StateUnusable:  # on a busy machine the other one is interrupted while it has the lock
                continue
            assert os.path.samestat(os.fstat(lock), made.session("contended").stat())
            (made.session("contended") / "session.json").write_text("{}")
            assert os.path.samestat(os.fstat(lock), made.session("contended").stat())
            os.close(lock)
        process.kill()

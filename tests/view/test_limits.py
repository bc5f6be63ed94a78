"""What a view and an environment may use: files, processes, memory; and what comes of it when there is no more."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agenthost.limits import find_delegation
from tests.needs import missing, needs, require
from tests.view.rig import Bench, Daemon, Refused, Result, Session

MIB = 1 << 20

SMALL_STATE = """
mount -t tmpfs -o size=3m,mode=0755,uid=$2 tmpfs "$1"
shift 2
exec "$@"
"""
"""Starts a daemon whose state directory is on a disk of 3 MiB, in a mount namespace of its own."""

DELEGATED = """
echo +memory +pids +cpu >"$1/cgroup.subtree_control"
mkdir "$2"
chown "$3" "$2" "$2/cgroup.procs" "$2/cgroup.subtree_control" "$2/cgroup.threads"
echo $$ >"$2/cgroup.procs"
shift 3
exec "$@"
"""
"""Starts a daemon in a cgroup that is its own."""

DELEGATED_AGAIN = """
echo $$ >"$1/agenthost-daemon/cgroup.procs"
shift
exec "$@"
"""
"""Starts another one in it."""


FORKS = """
import os, time
made = 0
try:
    for made in range(60):
        if os.fork() == 0:
            os.closerange(0, 3)
            time.sleep(1000)
except OSError as error:
    print(made, error.errno)
"""


def limits_of(result: Result) -> dict[str, tuple[str, str]]:
    """Soft and hard limit by name: proc_pid_limits(5), a table of fixed columns."""
    lines = result["cat /proc/self/limits"].splitlines()[1:]
    return {line[:26].strip(): (line[26:47].strip(), line[47:68].strip()) for line in lines}


@pytest.mark.usefixtures("tidy")
class TestOfAProcess:
    def test_view_and_environment_have_the_same_sane_ones(self, session: Session) -> None:
        actions = ["cat", "/proc/self/limits"]
        for result in (session.run(actions), session.command(actions)):
            limits = limits_of(result)
            soft, hard = limits["Max open files"]
            assert int(soft) <= 1024
            assert int(soft) <= int(hard) <= 524288
            assert int(limits["Max processes"][1]) <= 16384
            assert limits["Max core file size"] == ("0", "0")

    def test_it_may_ask_for_more_files_and_not_for_more_than_that(self, session: Session) -> None:
        script = "ulimit -Sn $(ulimit -Hn) && ulimit -Sn; ulimit -Hn 1048577 2>/dev/null || echo refused"
        more, refused = session.shell(script).stdout.split()
        assert 1024 <= int(more) <= 524288
        assert refused == "refused"


@pytest.mark.usefixtures("tidy")
class TestPrivateFiles:
    @pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "/home/agent"])
    def test_a_full_one_is_an_error_and_the_next_file_fits_again(self, session: Session, place: str) -> None:
        assert "No space left on device" in session.shell(f"head -c 1100M /dev/zero >{place}/big").stderr
        full = session.run(["write", f"{place}/more", "x"], ["stat", f"{place}/big"])
        assert full[f"write {place}/more"] == "!ENOSPC"
        empty = session.run(["unlink", f"{place}/big"], ["write", f"{place}/after", "x"])
        assert [value for _, value in empty.facts] == ["ok", "ok"]

    def test_names_without_content_have_an_end_too(self, session: Session) -> None:
        """Each costs the kernel about a kilobyte, which no size of a file counts."""
        assert 4096 <= int(session.shell("df --output=itotal /tmp | tail -1").stdout) <= 262_144


def fill_up(daemon: Daemon) -> Path:
    """A file that takes all the room that the daemon's disk has."""
    filler = Path(f"/proc/{daemon.pid}/root{daemon.state.parent}/filler")
    with filler.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return filler


class TestFullStateDirectory:
    @pytest.fixture
    def small(self, bench: Bench) -> Iterator[Daemon]:
        require("root")
        place = bench.directory("small", owner=bench.mode.uid)
        before = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", SMALL_STATE, "sh", str(place)]
        with bench.daemon(place / "state", before=[*before, str(bench.mode.uid)]) as daemon:
            yield daemon

    def test_a_full_home_is_an_error_of_the_write_and_of_the_next_launch(self, bench: Bench, small: Daemon) -> None:
        filled = bench.open(small).run(["fill", "/.oac/home/tmp/big", "10"])
        assert filled["fill /.oac/home/tmp/big"] == "!ENOSPC"
        session = bench.open_as_codex(small)
        filler = fill_up(small)
        with pytest.raises(Refused, match="No space left on device") as caught:
            session.run(["say", "hello"])
        assert caught.value.kind == "state"
        assert caught.value.remedy
        filler.unlink()
        assert session.run(["say", "hello"]).status == 0
        session.close()

    def test_a_session_that_does_not_fit_is_refused_and_leaves_nothing(self, bench: Bench, small: Daemon) -> None:
        session = bench.open(small)
        fill_up(small)
        sessions = Path(f"/proc/{small.pid}/root{small.state}/sessions")
        before = set(sessions.iterdir())
        with pytest.raises(Refused, match="No space left on device") as caught:
            bench.open(small)
        assert caught.value.kind == "state"
        assert set(sessions.iterdir()) == before
        session.close()

    def test_events_that_do_not_fit_harm_nothing(self, bench: Bench, small: Daemon) -> None:
        session = bench.open(small)
        fill_up(small)
        for _ in range(3):
            assert session.run(["write", "made", "x"]).status == 0
        assert (session.workspace / "made").read_text() == "x"
        session.close()


class TestOfASession:
    @pytest.mark.parametrize("asked", [{"memory": 256 * MIB}, {"pids": 100}, {"cpus": 1.5}])
    def test_one_that_cannot_be_had_is_an_error_before_any_effect(self, bench: Bench, asked: dict[str, Any]) -> None:
        if bench.mode.root and missing("cgroup2-controllers") is None:
            pytest.skip("it can be had here")
        with bench.daemon() as daemon:
            with pytest.raises(Refused) as caught:
                bench.open(daemon, **asked)
            assert caught.value.type == "HostUnfit"
            assert any(word in caught.value.what for word in ("delegated", "cgroup v2"))
            assert caught.value.remedy
            assert not (daemon.state / "sessions").exists()

    @pytest.mark.parametrize("asked", [{"memory": 1}, {"pids": 1}, {"cpus": 0.001}])
    def test_one_that_nothing_could_live_with_is_refused(
        self, bench: Bench, daemon: Daemon, asked: dict[str, Any]
    ) -> None:
        with pytest.raises(Refused) as caught:
            bench.open(daemon, **asked)
        assert caught.value.type == "RequestRefused"

    def test_private_files_fit_into_the_memory(self, session: Session) -> None:
        """Without a limit: that of the machine."""
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        size = int(session.shell("df --output=size --block-size=1 /tmp | tail -1").stdout)
        assert size <= min(whole // 4, 1 << 30)


@contextmanager
def delegated_cgroup(bench: Bench) -> Iterator[tuple[Path, list[str]]]:
    """A cgroup with all controllers, and how to start a daemon in it. Nothing may be left in it but its own leaf."""
    base = find_delegation(("memory", "pids", "cpu")).base
    own = base / f"test-{os.getpid()}-{bench.mode.name}"
    try:
        yield own, ["sh", "-ec", DELEGATED, "sh", str(base), str(own), str(bench.mode.uid)]
        assert [path.name for path in own.iterdir() if path.is_dir()] == ["agenthost-daemon"]
    finally:
        with suppress(FileNotFoundError):
            (own / "agenthost-daemon").rmdir()
        own.rmdir()


@contextmanager
def delegated(bench: Bench) -> Iterator[Daemon]:
    with delegated_cgroup(bench) as (_, before), bench.daemon(before=before) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def hungry(bench: Bench) -> Path:
    """A closure that holds one program: see hungry.c."""
    compiler = "musl-gcc" if shutil.which("musl-gcc") else "cc"
    directory = bench.directory("hungry")
    source = Path(__file__).parent / "hungry.c"
    subprocess.run([compiler, "-std=c11", "-O1", "-static", "-o", str(directory / "hungry"), str(source)], check=True)
    return directory


@needs("root", "cgroup2-controllers")
class TestEnforced:
    def test_memory_that_runs_out_in_the_view_ends_it_with_137_and_an_event(self, bench: Bench, hungry: Path) -> None:
        with delegated(bench) as daemon:
            session = daemon.open(bench.workspace(), harness=[str(hungry), "hungry"], memory=64 * MIB)
            assert session.run(["20"]).status == 0
            assert session.run(["200"]).status == 137
            types = {event["type"]: event for event in session.events()}
            assert types["view.oom"]["killed"] >= 1
            assert types["view.exited"]["status"] == 137
            assert session.run(["20"]).status == 0
            session.close()
            assert {event["type"]: event for event in session.events()}["session.used"]["oom_kills"] >= 1

    def test_in_the_environment_the_command_is_killed_and_the_session_goes_on(self, bench: Bench) -> None:
        with delegated(bench) as daemon:
            session = bench.open(daemon, memory=64 * MIB)
            assert session.shell("exec 2>/dev/null; x=$(head -c 200000000 /dev/zero | tr '\\0' x)").status == 137
            assert session.shell("echo alive").stdout == "alive\n"
            assert "environment.oom" in {event["type"] for event in session.events()}
            session.close()

    def test_processes_beyond_the_limit_are_refused_and_counted(self, bench: Bench) -> None:
        with delegated(bench) as daemon:
            session = bench.open(daemon, pids=30)
            (session.workspace / "forks.py").write_text(FORKS)
            made, error = session.shell("/usr/bin/python3 forks.py").stdout.split()
            assert 10 < int(made) < 30
            assert int(error) == errno.EAGAIN
            session.close()
            used = {event["type"]: event for event in session.events()}["session.used"]
            assert used["forks_refused"] > 0
            assert used.get("pids_peak", 30) <= 30

    def test_a_full_tmp_is_no_lack_of_memory(self, bench: Bench) -> None:
        with delegated(bench) as daemon:
            session = bench.open(daemon, memory=64 * MIB)
            result = session.run(["fill", "/tmp/big", "64"], ["say", "alive"])
            assert result["fill /tmp/big"] == "!ENOSPC"
            assert result["filled /tmp/big"] == "16"
            assert result.status == 0
            session.close()

    def test_view_and_environment_see_their_own_cgroup_as_the_root(self, bench: Bench) -> None:
        with delegated(bench) as daemon:
            session = bench.open(daemon, pids=100)
            actions = ["cat", "/proc/self/cgroup"]
            for result in (session.run(actions), session.command(actions)):
                assert result["cat /proc/self/cgroup"].splitlines()[-1] == "0::/"
            session.close()

    def test_what_a_killed_daemon_left_is_removed_when_the_session_is_opened_again(self, bench: Bench) -> None:
        state = bench.state()
        with delegated_cgroup(bench) as (_, before):
            daemon = Daemon(bench.mode, state, before=before)
            session = bench.open(daemon, memory=64 * MIB, session="again")
            record = Path((session.directory / "cgroup").read_text().strip())
            assert record.exists()
            daemon.kill()
            assert record.exists()
            with bench.daemon(state, before=["sh", "-ec", DELEGATED_AGAIN, "sh", str(record.parent)]) as second:
                again = bench.open(second, session.workspace, session="again")
                assert not record.exists()
                assert not (again.directory / "cgroup").exists()
                again.close()

"""How views begin and end: exit statuses, stopping, what dies with what, and Sessions that are opened again."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator

import psutil
import pytest

from tests.view.rig import Bench, Daemon, Refused, Session, eventually

IGNORED_OR_STOPPING = {
    *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH),
    *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
}
DEADLY = sorted(number for number in range(1, 65) if number not in IGNORED_OR_STOPPING and number not in {32, 33})
"""Not 32 and 33, which a libc keeps for itself."""

CI_ROUNDS = 20


@pytest.fixture
def quick(bench: Bench, daemon: Daemon) -> Iterator[Session]:
    """A Session of this test alone, with little grace."""
    session = bench.open(daemon, grace_s=0.3)
    yield session
    session.close()


@pytest.mark.usefixtures("tidy")
class TestExitStatus:
    @pytest.mark.parametrize("status", [0, 1, 2, 125, 126, 127, 128, 143, 255])
    def test_of_an_exit(self, session: Session, status: int) -> None:
        assert session.run(["exit", str(status)]).status == status

    def test_of_every_signal_that_ends_a_process(self, session: Session) -> None:
        ends = {number: session.run(["die", str(number)]).status for number in DEADLY}
        assert ends == {number: 128 + number for number in DEADLY}

    def test_of_a_signal_that_the_caller_sends(self, session: Session) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
            running = session.start(["say", "ready"], ["wait"])
            running.until("ready")
            running.signal(number)
            assert running.wait().status == 128 + number

    def test_is_in_the_events(self, session: Session) -> None:
        session.run(["exit", "9"])
        last = [event for event in session.events() if event["type"] == "view.exited"][-1]
        assert last["status"] == 9


@pytest.mark.usefixtures("tidy")
class TestStop:
    def test_a_harness_that_ends_on_term_is_not_killed(self, bench: Bench, daemon: Daemon) -> None:
        session = bench.open(daemon, grace_s=60)
        running = session.start(["say", "ready"], ["wait"])
        running.until("ready")
        seconds = running.stop()
        result = running.wait()
        session.close()
        assert result.status == 128 + signal.SIGTERM
        assert seconds < 60

    def test_one_that_ignores_term_is_killed_after_the_grace(self, quick: Session) -> None:
        running = quick.start(["ignore-signals"], ["say", "ready"], ["wait"])
        running.until("ready")
        seconds = running.stop()
        assert running.wait().status == 128 + signal.SIGKILL
        assert seconds >= 0.3

    def test_a_stopped_one_ends_on_term(self, bench: Bench, daemon: Daemon) -> None:
        session = bench.open(daemon, grace_s=60)
        running = session.start(["say", "ready"], ["die", str(int(signal.SIGSTOP))])
        running.until("ready")
        seconds = running.stop()
        status = running.wait().status
        session.close()
        assert (status, seconds < 60) == (128 + signal.SIGTERM, True)

    def test_closing_the_session_stops_its_view(self, bench: Bench, daemon: Daemon) -> None:
        session = bench.open(daemon, grace_s=0.2)
        running = session.start(["ignore-signals"], ["say", "ready"], ["wait"])
        running.until("ready")
        session.close()
        assert running.wait().status == 128 + signal.SIGKILL

    def test_stopping_twice_at_once_is_stopping(self, daemon: Daemon, quick: Session) -> None:
        running = quick.start(["ignore-signals"], ["say", "ready"], ["wait"])
        running.until("ready")
        stops = [daemon.begin("stop", process=running.number) for _ in range(3)]
        for stop in stops:
            daemon.finish(stop)
        assert running.wait().status == 128 + signal.SIGKILL

    def test_stopping_what_has_ended_is_nothing(self, quick: Session) -> None:
        running = quick.start(["exit", "3"])
        quick.daemon.call("until_end", process=running.number)
        running.stop()
        assert running.wait().status == 3

    @pytest.mark.parametrize("count", [10, 3000])
    def test_processes_in_sessions_of_their_own_that_ignore_every_signal_are_gone(
        self, daemon: Daemon, quick: Session, count: int
    ) -> None:
        before = len(daemon.children())
        running = quick.start(["fork-many", str(count)], ["say", "ready"], ["wait"])
        running.until("ready")
        during = len(daemon.children())
        running.stop()
        running.wait()
        assert during >= before + count
        assert len(daemon.children()) == before

    def test_they_are_gone_when_the_harness_just_ends(self, daemon: Daemon, quick: Session) -> None:
        before = len(daemon.children())
        result = quick.run(["fork-many", "300"], ["orphan"], ["exit", "4"])
        assert (result.status, result["forked"]) == (4, "300")
        assert len(daemon.children()) == before


@pytest.mark.usefixtures("tidy")
class TestLaunches:
    def test_a_second_live_view_is_refused(self, session: Session) -> None:
        running = session.start(["say", "ready"], ["wait"])
        running.until("ready")
        with pytest.raises(Refused, match=f"StateUnusable: Session {session.id} has a live view"):
            session.run(["say", "hello"])
        running.stop()
        running.wait()
        assert session.run(["say", "hello"])["say"] == "hello"

    def test_two_at_the_same_moment_make_one_view(self, daemon: Daemon, session: Session) -> None:
        asked = [
            daemon.begin("start", session=session.id, args=["say", "ready", "++", "wait"], stdin=None) for _ in range(2)
        ]
        ends = []
        for number in asked:
            try:
                ends.append(daemon.finish(number)["process"])
            except Refused as refused:
                ends.append(refused.type)
        [process] = [end for end in ends if isinstance(end, int)]
        daemon.call("stop", process=process)
        daemon.call("wait", process=process)
        assert [end for end in ends if not isinstance(end, int)] == ["StateUnusable"]

    def test_many_one_after_the_other_leave_nothing(self, daemon: Daemon, session: Session) -> None:
        children, descriptors = set(daemon.children()), daemon.descriptors()
        for _ in range(30):
            session.run(["say", "x"])
        assert (set(daemon.children()), daemon.descriptors()) == (children, descriptors)

    def test_many_sessions_at_once_leave_nothing(self, bench: Bench, daemon: Daemon) -> None:
        sessions = [bench.open(daemon) for _ in range(8)]
        running = [session.start(["say", "ready"], ["wait"]) for session in sessions]
        for process in running:
            process.until("ready")
        uids = {session.uid for session in sessions}
        for session in sessions:
            session.close()
        assert [process.wait().status for process in running] == [128 + signal.SIGTERM] * 8
        assert len(uids) == (8 if bench.mode.root else 1)


@pytest.mark.usefixtures("tidy")
class TestSessionsAgain:
    def test_it_has_the_same_home_and_uid_and_a_new_tmp(self, bench: Bench, daemon: Daemon) -> None:
        first = bench.open(daemon)
        first.run(["write", "/.oac/home/codex/kept", "x"], ["write", "/tmp/gone", "x"])
        uid = first.uid
        first.close()
        second = bench.open(daemon, first.workspace, session=first.id)
        result = second.run(["cat", "/.oac/home/codex/kept"], ["cat", "/tmp/gone"], ["stat", "/.oac/home/codex/kept"])
        second.close()
        assert [value for _, value in result.facts] == ["x", "!ENOENT", f"{uid} {uid} 644"]
        assert second.uid == uid

    def test_a_name_of_the_callers_choice_makes_one(self, bench: Bench, daemon: Daemon) -> None:
        session = bench.open(daemon, session="of-mine.1")
        session.close()
        assert session.id == "of-mine.1"

    def test_another_workspace_is_refused(self, bench: Bench, daemon: Daemon) -> None:
        session = bench.open(daemon)
        session.close()
        with pytest.raises(Refused, match=f"StateUnusable: Session {session.id} has the workspace"):
            bench.open(daemon, session=session.id)
        bench.open(daemon, session.workspace, session=session.id).close()

    def test_open_elsewhere_is_refused(self, bench: Bench, daemon: Daemon) -> None:
        session = bench.open(daemon)
        with pytest.raises(Refused, match="StateUnusable"):
            bench.open(daemon, session.workspace, session=session.id)
        session.close()


def test_a_session_that_is_open_in_another_daemon_is_refused(bench: Bench) -> None:
    with bench.daemon(shared=True) as one:
        session = bench.open(one)
        with bench.daemon(one.state, shared=True) as other, pytest.raises(Refused, match="StateUnusable"):
            bench.open(other, session.workspace, session=session.id)
        session.close()
        with bench.daemon(one.state, shared=True) as other:
            again = bench.open(other, session.workspace, session=session.id)
            again.close()


class TestDeath:
    def test_when_the_daemon_dies_everything_dies(self, bench: Bench) -> None:
        daemon = Daemon(bench.mode, bench.state())
        session = bench.open(daemon)
        running = session.start(
            ["ignore-signals"], ["fork-many", "50"], ["say", "ready"], ["spawn", "/bin/bash", "-c", "sleep 60"]
        )
        running.until("ready")
        eventually(lambda: any("sleep 60" in command for command in daemon.children().values()), "no command ran")
        processes = [psutil.Process(pid) for pid in daemon.children()]
        daemon.kill()
        _, alive = psutil.wait_procs([process for process in processes if process.is_running()], timeout=10)
        assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []

    @pytest.mark.slow
    def test_when_it_dies_at_any_moment_everything_dies_and_the_session_opens_again(self, bench: Bench) -> None:
        """Between its start and the end of a launch, some hundred milliseconds; other rounds are in `make soak`."""
        chance = random.Random(bench.mode.name)
        workspace, state = bench.workspace(), bench.state()
        longest = 0.6
        before = _ours()
        for _ in range(CI_ROUNDS):
            daemon = Daemon(bench.mode, state)
            killer = threading.Timer(chance.uniform(0.0, longest), daemon._process.kill)
            killer.start()
            try:
                while True:
                    session = bench.open(daemon, workspace, session="again")
                    session.run(["spawn", "/bin/bash", "-c", "exit 0"], ["fork-many", "3"])
                    session.close()
            except (EOFError, BrokenPipeError):
                pass
            killer.join()
            daemon.kill()
            eventually(lambda: _ours() <= before, f"left behind: {_ours() - before}")
        with bench.daemon(state) as daemon:
            session = bench.open(daemon, workspace, session="again")
            assert session.shell("exit 6").status == 6
            session.close()

    def test_when_the_view_is_ended_from_outside_that_is_an_error(self, bench: Bench, daemon: Daemon) -> None:
        session = bench.open(daemon)
        running = session.start(["say", "ready"], ["wait"])
        running.until("ready")
        psutil.Process(daemon.inits()[-1]).kill()
        with pytest.raises(Refused, match=f"EnvironmentFailed: view of Session {session.id} has ended"):
            running.wait()
        assert session.run(["exit", "5"]).status == 5
        session.close()

    def test_when_the_builder_dies_the_next_launch_says_so(self, bench: Bench) -> None:
        with bench.daemon() as daemon:
            session = bench.open(daemon)
            running = session.start(["say", "ready"], ["copy"])
            running.until("ready")
            psutil.Process(daemon.builder()).kill()
            daemon.call("close_stdin", process=running.number)
            assert running.wait().status == 0
            for _ in range(2):
                with pytest.raises(Refused, match="LaunchFailed: the builder has ended"):
                    session.run(["say", "hello"])
            session.close()

    def test_when_the_builder_died_a_session_still_closes_well(self, bench: Bench) -> None:
        with bench.daemon() as daemon:
            session = bench.open(daemon)
            psutil.Process(daemon.builder()).kill()
            session.close()


def _ours() -> set[tuple[int, str]]:
    """This process is a subreaper (fixture `bench`): what outlives a daemon comes to it."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add((process.pid, " ".join(process.cmdline())))
        except psutil.NoSuchProcess:
            continue
    return found

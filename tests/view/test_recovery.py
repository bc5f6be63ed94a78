"""Daemons that are killed, several at once, and the odd ones: what the next one finds, and what it does about it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from agenthost.lease import LEASES
from tests.needs import as_unprivileged
from tests.view.rig import Bench, Daemon, Refused, Session, eventually

CI_ROUNDS = 30
LONGEST_S = 0.9
"""From the start of a daemon, over its first Session and its launches, to the second or third Session."""

ODD = """
import asyncio, json, sys, threading
from pathlib import Path
from agenthost.session import AgentHost, Harness, SessionRequest

state, workspace, directory, binary, result = sys.argv[1:]
host, loop, made = AgentHost(Path(state)), asyncio.new_event_loop(), {}

async def start():
    await host.__aenter__()
    request = SessionRequest(workspace=Path(workspace), harness=Harness(Path(directory), binary))
    made["opened"] = host.open(request)
    session = await made["opened"].__aenter__()
    made["process"] = await session.launch(["copy", "++", "exit", "7"])

async def end():
    process = made["process"]
    process.stdin.write(b"through")
    process.stdin.close()
    said = await process.stdout.read()
    status = await process.wait()
    await made["opened"].__aexit__(None, None, None)
    await host.__aexit__(None, None, None)
    return {"said": said.decode(), "status": status}

thread = threading.Thread(target=lambda: loop.run_until_complete(start()))
thread.start()
thread.join()
Path(result).write_text(json.dumps(loop.run_until_complete(end())))
"""
"""A daemon that starts its view from a thread that ends."""


def findings(daemon: Daemon) -> dict[str, tuple[str, str]]:
    """What the start of this daemon found, and what became of it; leases are the machine's."""
    found = daemon.call("recovered")["findings"]
    return {name: (what, outcome) for name, what, outcome in found if not name.startswith("uid ")}


def untidy(state: Path) -> list[str]:
    """What only a live daemon may have in its state directory."""
    names = [path for path in state.rglob("*") if path.name.startswith(".oac-") or path.name == "open.json"]
    half = [path for path in (state / "sessions").glob("*") if not (path / "session.json").exists()]
    catalogs = list(state.rglob("model-catalog.json"))
    return [str(path.relative_to(state)) for path in (*names, *half, *catalogs, *state.glob("attach/*"))]


def command(bench: Bench, *arguments: object) -> list[str]:
    """`agenthost ARGUMENTS...` as the mode's user."""
    line = [str(bench.mode.python), "-m", "agenthost", *map(str, arguments)]
    return line if bench.mode.root else as_unprivileged(line)


def agenthost(bench: Bench, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(bench, *arguments),
        env=bench.mode.environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )


def launching(bench: Bench, state: Path, workspace: Path, *actions: str) -> list[str]:
    directory, binary = bench.harness()
    return command(
        bench,
        *("launch", "--state-dir", state, "--workspace", workspace, "--harness-dir", directory, "--binary", binary),
        *("--", *actions),
    )


def start(bench: Bench, line: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        line,
        env=bench.mode.environment,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


class TestKilled:
    def test_what_it_had_open_is_settled_and_the_home_stays(self, bench: Bench) -> None:
        state, workspace = bench.state(), bench.workspace()
        daemon = Daemon(bench.mode, state)
        session = bench.open(daemon, workspace, session="cut")
        session.run(["write", "/.oac/home/codex/kept", "x"])
        running = session.start(["say", "ready"], ["wait"])
        running.until("ready")
        lease = LEASES / str(session.uid)
        daemon.kill()
        assert (session.directory / "open.json").exists()
        with bench.daemon(state) as again:
            assert findings(again) == {"sessions/cut": ("a Session whose daemon has ended", "settled")}
            assert untidy(state) == []
            assert not lease.exists()
            last = session.events()[-1]
            assert (last["type"], last["removed"]) == ("session.recovered", [])
            opened = bench.open(again, workspace, session="cut")
            assert opened.run(["cat", "/.oac/home/codex/kept"]).facts[-1][1] == "x"
            opened.close()
        with bench.daemon(state) as third:
            assert findings(third) == {}

    def test_the_same_daemon_finds_what_another_left_in_a_session_it_opens(self, bench: Bench) -> None:
        with bench.daemon(shared=True) as daemon:
            daemon.call("idle")
            other = Daemon(bench.mode, daemon.state, shared=True)
            session = bench.open(other, session="cut")
            other.kill()
            again = bench.open(daemon, session.workspace, session="cut")
            assert "session.recovered" in [event["type"] for event in again.events()]
            again.close()

    @pytest.mark.slow
    def test_at_any_moment_the_next_start_leaves_all_as_it_should_be(self, bench: Bench) -> None:
        """Also while it starts, opens and removes; another state directory beside it stays as it is."""
        chance = random.Random(f"recovery {bench.mode.name}")
        workspace, state = bench.workspace(), bench.state()
        with bench.daemon() as beside:
            bystander = bench.open(beside, session="beside")
            for round_ in range(CI_ROUNDS):
                self._one_life(bench, state, workspace, chance.uniform(0.0, LONGEST_S), round_)
                with bench.daemon(state) as daemon:
                    assert {outcome for _, outcome in findings(daemon).values()} <= {"settled", "removed"}
                    assert untidy(state) == []
            assert bystander.run(["exit", "5"]).status == 5
            bystander.close()
            assert "session.recovered" not in [event["type"] for event in bystander.events()]
        kept = list((state / "sessions").glob("*/home/codex/kept"))
        recovered = [path.read_text() for path in (state / "sessions").glob("*/events.jsonl")]
        with bench.daemon(state) as daemon:
            session = bench.open(daemon, workspace, session="again")
            assert session.shell("exit 6").status == 6
            session.close()
        assert kept, "no round came so far as to write something"
        assert any("session.recovered" in text for text in recovered), "no round was cut off in an open Session"

    def _one_life(self, bench: Bench, state: Path, workspace: Path, seconds: float, round_: int) -> None:
        before = _alive()
        daemon = Daemon(bench.mode, state, stderr=subprocess.DEVNULL)
        killer = threading.Timer(seconds, daemon._process.kill)
        killer.start()
        try:
            for number in range(1000):
                name = "again" if number % 2 else f"new-{round_}-{number}"
                session = bench.open(daemon, workspace, session=name)
                session.run(["write", "/.oac/home/codex/kept", "x"], ["fork-many", "3"])
                session.close()
        except (EOFError, BrokenPipeError):
            pass
        killer.join()
        daemon.kill()
        eventually(lambda: _alive() <= before, f"left behind: {_alive() - before}")


class TestOneDaemon:
    def test_a_second_one_is_refused_before_any_effect(self, bench: Bench) -> None:
        with bench.daemon() as daemon:
            session = bench.open(daemon)
            second = subprocess.run(
                bench.mode.command(daemon.state),
                env=bench.mode.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            assert second.returncode == 1
            assert f"in use by process {daemon.pid}".encode() in second.stderr
            assert session.run(["exit", "4"]).status == 4
            session.close()

    def test_a_command_beside_it_is_refused(self, bench: Bench) -> None:
        with bench.daemon() as daemon:
            daemon.call("idle")
            before = sorted(daemon.state.rglob("*"))
            done = subprocess.run(
                launching(bench, daemon.state, bench.workspace(), "exit", "0"),
                env=bench.mode.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            assert (done.returncode, done.stdout) == (125, b"")
            message = f"agenthost: state: the state directory {daemon.state} is in use by process {daemon.pid};"
            assert done.stderr.decode().startswith(message)
            assert sorted(daemon.state.rglob("*")) == before

    def test_commands_run_at_the_same_time_and_keep_a_daemon_out(self, bench: Bench) -> None:
        state = bench.state()
        running = [start(bench, launching(bench, state, bench.workspace(), "copy")) for _ in range(4)]
        for number, process in enumerate(running):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"%d\n" % number)
            process.stdin.flush()
            assert process.stdout.readline() == b"%d\n" % number
        daemon = subprocess.run(
            bench.mode.command(state),
            env=bench.mode.environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        assert b"is in use by process" in daemon.stderr
        for process in running:
            process.communicate()
        assert [process.returncode for process in running] == [0] * 4
        assert untidy(state) == []

    def test_a_command_settles_what_a_killed_one_left_while_others_run(self, bench: Bench) -> None:
        state = bench.state()
        running, killed = [start(bench, launching(bench, state, bench.workspace(), "copy")) for _ in range(2)]
        for process in (running, killed):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"x\n")
            process.stdin.flush()
            process.stdout.readline()
        killed.kill()
        killed.communicate()
        assert len(list(state.glob("sessions/*/open.json"))) == 2
        third = start(bench, launching(bench, state, bench.workspace(), "exit", "3"))
        third.communicate()
        assert third.returncode == 3
        assert len(list(state.glob("sessions/*/open.json"))) == 1
        running.communicate()
        assert (running.returncode, untidy(state)) == (0, [])


class TestSessionsCommand:
    def listed(self, bench: Bench, daemon: Daemon) -> dict[str, dict[str, Any]]:
        done = agenthost(bench, "sessions", "list", "--json", "--state-dir", daemon.state)
        assert done.returncode == 0, done.stderr
        return {one["id"]: one for one in json.loads(done.stdout)["sessions"]}

    def test_it_tells_what_a_daemon_has_open_and_how_launches_ended(self, bench: Bench) -> None:
        with bench.daemon() as daemon:
            session = bench.open(daemon, session="one")
            running = session.start(["say", "ready"], ["copy"])
            running.until("ready")
            one = self.listed(bench, daemon)["one"]
            assert (one["open"], one["end"], one["workspace"]) == (True, "open", str(session.workspace))
            daemon.call("close_stdin", process=running.number)
            running.wait()
            session.run(["exit", "3"])
            session.close()
            one = self.listed(bench, daemon)["one"]
            assert (one["open"], one["end"]) == (False, 3)
            assert one["last_launch"]

    def test_remove_and_gc_work_beside_a_daemon_on_what_it_has_not_open(self, bench: Bench) -> None:
        with bench.daemon() as daemon:
            kept, gone, old = (bench.open(daemon, session=name) for name in ("kept", "gone", "old"))
            gone.run(["write", "/.oac/home/codex/file", "x"])
            for session in (gone, old):
                session.close()
            refused = agenthost(bench, "sessions", "remove", "--state-dir", daemon.state, "gone", "kept")
            assert refused.returncode == 125
            assert refused.stderr.startswith(b"agenthost: state: Session kept is open elsewhere")
            assert agenthost(bench, "sessions", "remove", "--state-dir", daemon.state, "gone").returncode == 0
            assert agenthost(bench, "sessions", "gc", "--older-than", "0", "--state-dir", daemon.state).returncode == 0
            assert set(self.listed(bench, daemon)) == {"kept"}
            assert kept.run(["exit", "2"]).status == 2
            kept.close()


class TestOddDaemons:
    @pytest.mark.parametrize(
        "before",
        [
            [],
            ["env", "--ignore-signal=CHLD"],
            ["/bin/sh", "-c", 'exec "$0" "$@" <&-'],
            ["/bin/sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-'],
        ],
        ids=["thread", "SIGCHLD ignored", "stdin closed", "all closed"],
    )
    def test_a_view_from_a_thread_that_ends(self, bench: Bench, before: list[str]) -> None:
        directory = bench.directory("result", owner=bench.mode.uid)
        arguments = [str(bench.state()), str(bench.workspace()), *bench.harness(), str(directory / "result")]
        line = [*before, str(bench.mode.python), "-c", ODD, *arguments]
        children = _alive()
        done = subprocess.run(
            line if bench.mode.root else as_unprivileged(line), env=bench.mode.environment, cwd="/", check=False
        )
        assert done.returncode == 0
        assert json.loads((directory / "result").read_text()) == {"said": "through", "status": 7}
        eventually(lambda: _alive() <= children, f"left behind: {_alive() - children}")

    def test_exit_statuses_are_right_where_sigchld_is_ignored(self, bench: Bench) -> None:
        with bench.daemon(before=["env", "--ignore-signal=CHLD"]) as daemon:
            session: Session = bench.open(daemon, grace_s=0.2)
            assert session.run(["exit", "9"]).status == 9
            assert session.run(["die", str(int(signal.SIGSEGV))]).status == 128 + signal.SIGSEGV
            assert session.shell("exit 6").status == 6
            running = session.start(["ignore-signals"], ["fork-many", "20"], ["say", "ready"], ["wait"])
            running.until("ready")
            running.stop()
            assert running.wait().status == 128 + signal.SIGKILL
            session.close()

    def test_a_builder_that_is_killed_is_an_error_and_the_next_daemon_is_well(self, bench: Bench) -> None:
        state = bench.state()
        with bench.daemon(state) as daemon:
            session = bench.open(daemon, session="one")
            os.kill(daemon.builder(), signal.SIGKILL)
            with pytest.raises(Refused, match="LaunchFailed: the builder has ended"):
                session.run(["exit", "0"])
            session.close()
        with bench.daemon(state) as daemon:
            again = bench.open(daemon, session.workspace, session="one")
            assert again.run(["exit", "8"]).status == 8
            again.close()


def _alive() -> set[int]:
    """What this process, a subreaper, has below it and is no zombie."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_killed_daemon_lets_go_of_its_state_directory_at_once(bench: Bench) -> None:
    state = bench.state()
    for _ in range(3):
        daemon = Daemon(bench.mode, state)
        daemon.call("idle")
        started = time.monotonic()
        daemon.kill()
        with bench.daemon(state) as again:
            again.call("idle")
        assert time.monotonic() - started < 30

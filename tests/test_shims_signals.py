"""Signals, stops and terminals through the real shim: contracts/shim.md, S20 to S39."""

from __future__ import annotations

import errno
import os
import pty
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native_environment import serving
from tests.needs import needs
from tests.shim_world import (
    PATIENCE_S,
    Terminal,
    World,
    default_compiler,
    make_world,
    read_line,
    served_world,
    state_of,
    wait_until,
)

pytestmark = needs("linux", "compiler", "make")

CATCHABLE = sorted(set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP, 32, 33})  # 32 and 33 are glibc's own
STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="shims-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["musl-gcc", "gcc", "sanitized"])
def every_world(request: pytest.FixtureRequest, place: Path) -> Iterator[World]:
    """A world for each way to build the shim."""
    with served_world(request.param, place) as world:
        yield world


@pytest.fixture
def world(place: Path) -> Iterator[World]:
    with served_world(default_compiler(), place) as world:
        yield world


@pytest.fixture
def brokerless(place: Path) -> Iterator[World]:
    """A world in which the test itself is the broker, or nobody."""
    world = make_world(default_compiler(), place)
    world.address.unlink(missing_ok=True)
    yield world
    world.close()


# Signals --------------------------------------------------------------------------------------------------------------

COUNT_SIGNALS = """
import signal, sys
numbers = [n for n in map(int, sys.argv[1:])]
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
while True:
    print(signal.sigwait(numbers), flush=True)
"""


def test_every_signal_that_a_program_can_catch_reaches_it(every_world: World) -> None:
    numbers = [number for number in CATCHABLE if number not in STOPS]
    process = every_world.start("python", "-c", COUNT_SIGNALS, *map(str, numbers), stdout=subprocess.PIPE)
    assert read_line(process) == b"ready\n"
    for number in numbers:
        process.send_signal(number)
        assert read_line(process) == b"%d\n" % number
    process.kill()
    process.communicate(timeout=PATIENCE_S)


GROUP = """
sh -c 'trap "echo child; exit" TERM; echo up; while :; do sleep 0.05; done' &
trap 'wait; echo leader; exit 3' TERM
wait
"""
TRAPPED = "trap 'exit 4' {signal}; echo up; while :; do sleep 0.05; done"


def test_a_signal_reaches_the_whole_group_of_the_command(every_world: World) -> None:
    process = every_world.start("bash", "-c", GROUP, stdout=subprocess.PIPE)
    assert read_line(process) == b"up\n"
    process.terminate()
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out.split()) == (3, [b"child", b"leader"])


def test_a_signal_to_the_group_of_the_shim_reaches_the_command(world: World) -> None:
    script = TRAPPED.format(signal="INT")
    process = world.start("bash", "-c", script, stdout=subprocess.PIPE, process_group=0)
    assert read_line(process) == b"up\n"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4


def test_a_signal_before_the_broker_answers_is_not_lost(brokerless: World, place: Path) -> None:
    listener = brokerless.listen()
    process = brokerless.start("python", "-c", COUNT_SIGNALS, "15", "10", stdout=subprocess.PIPE)
    wait_until(lambda: "SigBlk:\tfffffff" in Path(f"/proc/{process.pid}/status").read_text())
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)  # so that the frames are there, behind INVOKE, before anybody reads
    command = brokerless.policy
    with serving(listener, command, place / "events.jsonl"):
        process.wait(PATIENCE_S)
    # The command had no time to block them: the first one ended it, as it would have ended a native one.
    assert process.returncode in {-signal.SIGUSR1, -signal.SIGTERM}
    process.communicate()


def test_a_signal_that_the_shim_inherited_as_ignored_is_not_forwarded(world: World) -> None:
    command = shlex.join([str(world.bin / "bash"), "-c", TRAPPED.format(signal="TERM")])
    shell = ["/bin/sh", "-c", f"trap '' HUP; exec {command}"]
    process = subprocess.Popen(shell, cwd=world.path, stdout=subprocess.PIPE)
    assert read_line(process) == b"up\n"
    process.send_signal(signal.SIGHUP)
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4


@pytest.mark.parametrize("number", STOPS)
def test_a_stop_reaches_the_command_and_stops_the_shim_until_it_is_continued(every_world: World, number: int) -> None:
    numbers = [number, signal.SIGCONT]
    # Its own group in the session of this process: not orphaned, so that the kernel lets it stop.
    process = every_world.start(
        "python", "-c", COUNT_SIGNALS, *map(str, numbers), stdout=subprocess.PIPE, process_group=0
    )
    assert read_line(process) == b"ready\n"
    process.send_signal(number)
    assert read_line(process) == b"%d\n" % number
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert os.WSTOPSIG(status) == number
    process.send_signal(signal.SIGCONT)
    assert read_line(process) == b"%d\n" % signal.SIGCONT
    wait_until(lambda: state_of(process.pid) != "T")
    process.kill()
    process.communicate(timeout=PATIENCE_S)


def test_a_stop_that_was_taken_back_does_not_stop_for_good(world: World) -> None:
    process = world.start("python", "-c", COUNT_SIGNALS, "20", "18", stdout=subprocess.DEVNULL, process_group=0)
    for _ in range(300):
        process.send_signal(signal.SIGTSTP)
        process.send_signal(signal.SIGCONT)
    wait_until(lambda: state_of(process.pid) == "S")
    process.terminate()
    process.send_signal(signal.SIGCONT)
    process.wait(PATIENCE_S)


def test_the_death_of_the_shim_ends_the_command(every_world: World) -> None:
    process = every_world.start(
        "bash", "-c", "trap '' TERM INT HUP; echo $$; while :; do sleep 0.05; done", stdout=subprocess.PIPE
    )
    pid = int(read_line(process))
    process.kill()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    process.communicate(timeout=PATIENCE_S)
    wait_until(lambda: any(event["type"] == "command.exited" for event in every_world.events))
    assert every_world.events[-1]["status"] == 128 + signal.SIGKILL


@pytest.fixture
def terminal(every_world: World) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(*args: str) -> Terminal:
        made.append(Terminal(every_world, *args))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_the_command_has_the_controlling_terminal(terminal: Callable[..., Terminal]) -> None:
    one = terminal("-c", "tty; stty size; echo by-name > /dev/tty; exit 6")
    one.expect(one.name.encode() + b"\r\n")
    one.expect(b"24 80\r\n")
    one.expect(b"by-name\r\n")
    assert one.process.wait(PATIENCE_S) == 6


def test_control_c_interrupts_the_command(terminal: Callable[..., Terminal]) -> None:
    one = terminal("-c", "echo up; exec sleep 1000")
    one.expect(b"up\r\n")
    one.type(b"\x03")
    assert one.process.wait(PATIENCE_S) == -signal.SIGINT


def test_a_resize_reaches_the_command(terminal: Callable[..., Terminal]) -> None:
    one = terminal("-c", "trap 'stty size; exit 8' WINCH; echo up; while :; do sleep 0.05; done")
    one.expect(b"up\r\n")
    one.set_size(50, 132)
    one.expect(b"50 132\r\n")
    assert one.process.wait(PATIENCE_S) == 8


def test_job_control_works_in_an_interactive_shell(terminal: Callable[..., Terminal]) -> None:
    one = terminal("--norc", "-i")
    one.type(b"PS1='$ '; cat\n")
    one.type(b"echoed\n")
    one.expect(b"echoed\r\n")  # by the terminal
    one.expect(b"echoed\r\n")  # by cat, which has the terminal now
    one.type(b"\x1a")
    one.expect(b"Stopped")
    one.type(b"jobs; fg\n")
    one.expect(b"Stopped")
    one.type(b"again\n")
    one.expect(b"again\r\n")
    one.type(b"\x04")
    one.type(b"exit 7\n")
    assert one.process.wait(PATIENCE_S) == 7


def test_the_end_of_the_terminal_hangs_the_command_up(terminal: Callable[..., Terminal]) -> None:
    one = terminal("-c", "echo up; exec sleep 1000")
    one.expect(b"up\r\n")
    master, one.master = one.master, os.open(os.devnull, os.O_RDONLY)
    os.close(master)
    assert one.process.wait(PATIENCE_S) == -signal.SIGHUP


NO_TERMINAL = """
import os, termios
termios.tcgetattr(0)
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError as error:
    raise SystemExit(error.errno)
"""


def test_a_terminal_that_is_not_the_shims_own_is_a_descriptor_and_no_more(world: World) -> None:
    master, slave = pty.openpty()
    assert world.run("python", "-c", NO_TERMINAL, stdin=slave).returncode == errno.ENXIO
    os.close(slave)
    os.close(master)

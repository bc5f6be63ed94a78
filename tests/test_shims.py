"""The real shim, a real broker and real commands: contracts/shim.md, clause by clause.

The shim is compiled with another socket path and stands in a directory of the host; the commands run natively. What a
view adds (mounts, another user, init in place of tests/native_environment.py) is tested in tests/view.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import resource
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agenthost.elf import is_static_elf
from agenthost.layout import SHIM_SOCKET
from tests.needs import ROOT, missing, needs
from tests.shim_world import (
    PATIENCE_S,
    World,
    default_compiler,
    make_world,
    read_line,
    served_world,
    wait_until,
)

pytestmark = needs("linux", "compiler", "make")


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


# Status ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 2, 7, 77, 125, 126, 127, 128, 129, 137, 254, 255])
def test_the_exit_code_is_the_commands(every_world: World, code: int) -> None:
    done = every_world.bash(f"echo out; echo err >&2; exit {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, b"out\n", b"err\n")


DIE = """
import os, signal, sys
number = int(sys.argv[1])
if number in {signal.SIGINT, signal.SIGPIPE}:  # those that Python does something about
    signal.signal(number, signal.SIG_DFL)
os.kill(os.getpid(), number)
"""


@pytest.mark.parametrize("number", [1, 2, 6, 9, 11, 13, 14, 15, 34, 64])
def test_a_death_by_a_signal_is_mirrored(every_world: World, number: int) -> None:
    done = every_world.run("python", "-c", DIE, str(number))
    assert done.returncode == -number
    assert done.stderr == b""


def test_the_shim_dumps_no_core(world: World) -> None:
    previous = resource.getrlimit(resource.RLIMIT_CORE)
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (previous[1], previous[1]))
    try:
        process = world.start("bash", "-c", "ulimit -c 0; kill -SEGV $$")
        _, status = os.waitpid(process.pid, 0)
        process.returncode = 0
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, previous)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    assert not os.WCOREDUMP(status)


def test_a_program_that_is_absent_ends_with_127(world: World) -> None:
    done = world.run("absent")
    assert done.returncode == 127
    assert done.stderr.startswith(b"agenthost: ")
    assert done.stderr.count(b"\n") == 1


def test_a_program_that_cannot_be_executed_ends_with_126(world: World) -> None:
    done = world.run("directory")
    assert (done.returncode, done.stderr.count(b"\n")) == (126, 1)


def test_an_undeclared_program_is_refused_with_126_and_the_rule(every_world: World) -> None:
    done = every_world.run("undeclared", "--version")
    assert (done.returncode, done.stdout) == (126, b"")
    assert done.stderr.startswith(b"agenthost: refused by the rule 'program': ")
    assert done.stderr.count(b"\n") == 1
    assert every_world.events[-1]["type"] == "command.refused"


def test_a_refusal_is_silent_when_stderr_is_closed(world: World) -> None:
    done = world.run("undeclared", preexec_fn=lambda: os.close(2), stderr=None)
    assert (done.returncode, done.stdout) == (126, b"")


# No broker, no environment --------------------------------------------------------------------------------------------


def test_without_a_broker_the_status_is_255_with_a_reason(brokerless: World) -> None:
    done = brokerless.bash("echo never")
    assert (done.returncode, done.stdout) == (255, b"")
    assert done.stderr == f"agenthost: broker: {brokerless.address}: No such file or directory\n".encode()
    brokerless.listen().close()
    assert b"Connection refused" in brokerless.bash("echo never").stderr


def test_a_broker_that_leaves_is_255_with_a_reason(brokerless: World) -> None:
    listener = brokerless.listen()
    process = brokerless.start("bash", "-c", "echo never", stderr=subprocess.PIPE)
    connection, _ = listener.accept()
    connection.close()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 255
    assert err.startswith(b"agenthost: environment: ")
    assert err.count(b"\n") == 1


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack("<IHHIII", 12, 4, 0, 1, 256, 0),  # an exit code out of range
        struct.pack("<IHHIII", 12, 4, 0, 1, 0, 65),  # a signal out of range
        struct.pack("<IHHII", 8, 4, 0, 1, 0),  # too short
        struct.pack("<IHHIIII", 16, 5, 0, 1, 0, 0, 5),  # a string that is not there
        struct.pack("<IHH", 0, 7, 0),  # another frame
        struct.pack("<IHH", 1 << 30, 4, 0),  # beyond the limit
        b"\0" * 5,  # half a header
    ],
)
def test_an_answer_that_makes_no_sense_is_255(brokerless: World, answer: bytes) -> None:
    listener = brokerless.listen()
    process = brokerless.start("bash", "-c", "echo never", stderr=subprocess.PIPE)
    connection, _ = listener.accept()
    connection.sendall(answer)
    connection.close()  # and with it the copy of the pipe that waits in there
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err.count(b"\n")) == (255, 1)


def test_an_environment_that_ends_is_255_with_a_reason(world: World) -> None:
    assert world.served is not None
    process = world.start("bash", "-c", "echo up; sleep 1000", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert read_line(process) == b"up\n"
    world.served.call(world.served.environment.drop_connections)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 255
    assert err == b"agenthost: environment: it ended, or the session did, before the command's status came\n"


def test_an_environment_that_is_gone_is_255_with_a_reason(world: World) -> None:
    assert world.served is not None
    world.served.environment.gone = True
    done = world.bash("echo never")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (255, b"", 1)
    assert b"the environment ended" in done.stderr


# Streams --------------------------------------------------------------------------------------------------------------


def test_binary_data_passes_through_both_pipes(world: World) -> None:
    data = os.urandom(1 << 20)
    done = world.run("bash", "-c", "cat", input=data)
    assert (done.returncode, done.stdout) == (0, data)


def test_64_mebibytes_arrive_whole(world: World) -> None:
    script = "head -c 67108864 /dev/zero | tr '\\0' 'x'"
    with world.start("bash", "-c", script, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        digest = hashlib.file_digest(process.stdout, "sha256")  # type: ignore[arg-type]
    assert process.returncode == 0
    assert digest.digest() == hashlib.sha256(b"x" * (64 << 20)).digest()


REPORT_OPEN = """
import os, sys
found = [n for n in range(3) if os.path.lexists(f"/proc/self/fd/{n}")]
open(sys.argv[1], "w").write(str(found))
"""


@pytest.mark.parametrize("closed", [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_closed_descriptors_are_closed_in_the_command(every_world: World, closed: tuple[int, ...]) -> None:
    report = every_world.path / "report"
    # A shell's `exec` leaves exactly these closed; subprocess would give the numbers to pipes of its own.
    command = shlex.join([str(every_world.bin / "python"), "-c", REPORT_OPEN, str(report)])
    shell = f"exec {command} {' '.join(f'{fd}>&-' for fd in closed)}"
    done = subprocess.run(["/bin/sh", "-c", shell], cwd=every_world.path, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0
    assert report.read_text() == str([fd for fd in range(3) if fd not in closed])


def test_a_file_is_written_at_its_own_offset(world: World) -> None:
    file = world.path / "file"
    file.write_bytes(b"abc")
    with file.open("r+b") as handle:
        handle.seek(1, os.SEEK_SET)
        handle.flush()
        assert world.bash("printf X; printf Y", stdout=handle).returncode == 0
        assert os.lseek(handle.fileno(), 0, os.SEEK_CUR) == 3
    assert file.read_bytes() == b"aXY"


def test_the_reader_sees_the_end_when_the_command_closes_its_stdout(world: World) -> None:
    with world.start(
        "bash", "-c", "echo last; exec >&-; read line", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"last\n"  # ends while the command runs
        assert process.poll() is None
        process.communicate(b"go\n", timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_reader_who_leaves_ends_the_writer_by_sigpipe(world: World) -> None:
    process = world.start("bash", "-c", "exec yes", stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(PATIENCE_S) == -signal.SIGPIPE


def test_the_writer_sees_that_the_command_closed_its_stdin(world: World) -> None:
    process = world.start("bash", "-c", "exec <&-; exec sleep 1000", stdin=subprocess.PIPE)
    assert process.stdin is not None
    poll = select.poll()
    poll.register(process.stdin, 0)
    assert poll.poll(PATIENCE_S * 1000) == [(process.stdin.fileno(), select.POLLERR)]  # nobody reads any more
    assert process.poll() is None


def test_a_background_job_keeps_the_pipe_open_after_the_leader_exited(world: World) -> None:
    process = world.start("bash", "-c", "cat <&0 & exit 5", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.wait(PATIENCE_S) == 5
    out, _ = process.communicate(b"late", timeout=PATIENCE_S)
    assert out == b"late"


def test_a_socket_is_as_good_as_a_pipe(world: World) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = world.start("bash", "-c", "read line; echo got $line", stdin=theirs, stdout=theirs)
        theirs.close()
        ours.sendall(b"word\n")
        assert ours.makefile("rb").read() == b"got word\n"
        assert process.wait(PATIENCE_S) == 0


# Invocation -----------------------------------------------------------------------------------------------------------


def test_any_bytes_are_arguments(every_world: World) -> None:
    words = [b"", b"plain", b"\xff\xfe\x80", b"two\nlines", b"\x01\x7f", "žluťoučký".encode(), b" ", b"-n"]
    done = every_world.bash("printf '%s\\0' \"$@\"", "name", *words)
    assert done.stdout.split(b"\0")[:-1] == words


def test_argv0_is_forwarded_and_not_believed(world: World) -> None:
    script = "tr '\\0' '\\n' < /proc/$$/cmdline | head -n 1"
    done = world.run("bash", argv=[b"git\xff", "-c", script])
    assert (done.returncode, done.stdout) == (0, b"git\xff\n")
    assert world.run("undeclared", argv=[str(world.bin / "bash"), "-c", "echo no"]).returncode == 126


def test_a_link_to_a_shim_is_the_shim(world: World) -> None:
    link = world.path / "link"
    link.symlink_to(world.bin / "bash")
    done = subprocess.run([link, "-c", "echo yes"], cwd=world.path, stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (0, b"yes\n")


@needs("git")
def test_a_shim_by_name_runs_what_the_environments_path_has(world: World) -> None:
    done = world.run("git", "--version")
    assert (done.returncode, done.stdout[:12]) == (0, b"git version ")


def test_only_declared_variables_reach_the_command_and_the_environments_own_win(world: World) -> None:
    given = [b"PATH=/evil", b"HOME=/evil", b"SECRET=s", b"TERM=dumb\xff", b"LC_ALL=", b"GIT_OPTIONAL_LOCKS=a\nb"]
    done = run_with_environment(world, given, "tr '\\0' '\\1' < /proc/$$/environ")
    found = set(done.split(b"\1")[:-1])
    assert found == {b"PATH=/usr/bin:/bin", b"HOME=/", b"LANG=C.UTF-8", *given[3:]}


def test_the_first_of_two_entries_with_one_name_counts(world: World) -> None:
    done = run_with_environment(world, [b"TERM=first", b"TERM=second"], "tr '\\0' '\\1' < /proc/$$/environ")
    assert [entry for entry in done.split(b"\1") if entry.startswith(b"TERM=")] == [b"TERM=first"]


def run_with_environment(world: World, env: Sequence[bytes], script: str) -> bytes:
    """Runs a script with an environment that os.environ could not hold, by execve(2) itself."""
    libc = ctypes.CDLL(None, use_errno=True)
    argv = (ctypes.c_char_p * 4)(b"bash", b"-c", script.encode(), None)
    envp = (ctypes.c_char_p * (len(env) + 1))(*env, None)
    program = os.fsencode(world.bin / "bash")
    prepare = functools.partial(libc.execve, program, argv, envp)
    done = subprocess.run(["/bin/false"], preexec_fn=prepare, stdout=subprocess.PIPE, check=True)
    return done.stdout


def test_cwd_umask_and_nice_are_the_callers(world: World) -> None:
    directory = world.path / os.fsdecode(b"caf\xe9 dir")
    directory.mkdir(exist_ok=True)

    def prepare() -> None:
        os.umask(0o027)
        os.nice(3)

    done = world.bash("pwd; umask; nice", cwd=directory, preexec_fn=prepare)
    assert done.stdout == os.fsencode(directory) + b"\n0027\n%d\n" % (os.nice(0) + 3)


def test_a_directory_without_a_path_is_refused(world: World) -> None:
    directory = world.path / "gone"
    directory.mkdir()
    done = world.bash("pwd", preexec_fn=directory.rmdir, cwd=directory)
    assert done.returncode == 126
    assert done.stderr == b"agenthost: shim: the working directory has no path: No such file or directory\n"


def test_arguments_at_the_kernels_limits_arrive(world: World) -> None:
    count = "import sys; print(len(sys.argv), sum(map(len, sys.argv)))"
    long = "x" * (127 << 10)
    assert world.run("python", "-c", count, long).stdout.split() == [b"2", b"%d" % (2 + len(long))]
    assert world.run("python", "-c", count, *["y"] * 100_000).stdout.split() == [b"100001", b"100002"]
    big = "z" * (120 << 10)
    environment = {
        "TERM": big,
        "LC_ALL": big,
        "GIT_OPTIONAL_LOCKS": big,
        "BIG": big,
        **{f"N{i}": big for i in range(5)},
    }
    script = "import os; print(sum(len(os.environ[n]) for n in ('TERM', 'LC_ALL', 'GIT_OPTIONAL_LOCKS', 'BIG')))"
    assert world.run("python", "-c", script, env=environment).stdout == b"%d\n" % (4 * len(big))


def test_what_the_frame_cannot_hold_is_e2big(place: Path, tmp_path: Path) -> None:
    for name in ("shim.c", "wire.c", "wire.h"):
        text = (ROOT / "shims" / name).read_text()
        (tmp_path / name).write_text(text.replace("#define WIRE_MAX_BODY (8u << 20)", "#define WIRE_MAX_BODY 4096u"))
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        flags = [f'-DSHIM_SOCKET="{tmp_path}/s"', "-Os", "-o", str(tmp_path / "bash")]
        subprocess.run(["cc", *flags, "shim.c", "wire.c"], cwd=tmp_path, check=True)
        done = subprocess.run([tmp_path / "bash", "x" * 5000], env={}, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 126
    assert (
        done.stderr == b"agenthost: shim: cannot hand over the arguments and the environment: Argument list too long\n"
    )


def test_two_hundred_commands_run_at_once(world: World) -> None:
    processes = [world.start("bash", "-c", f"read line; exit {n}", stdin=subprocess.PIPE) for n in range(200)]
    for process in reversed(processes):
        process.communicate(b"go\n", timeout=PATIENCE_S)
    assert [process.returncode for process in processes] == list(range(200))


# The program itself ---------------------------------------------------------------------------------------------------


def test_the_installed_shim_is_static_and_calls_the_brokers_socket(shim_build: Path) -> None:
    shim = shim_build / "oac-shim"
    assert SHIM_SOCKET.encode() + b"\0" in shim.read_bytes()
    if not missing("musl"):
        assert shim.stat().st_size < 64 << 10

    assert is_static_elf(shim)


@needs("gcc")
def test_the_c_tests_pass_under_the_sanitizers(tmp_path: Path) -> None:
    subprocess.run(["make", "-s", "-C", "shims", f"OUT={tmp_path}/build", "test"], cwd=ROOT, check=True)


def test_shim_and_broker_leave_no_descriptor_behind(world: World) -> None:
    def run() -> None:
        for script in ("exit 0", "exit 1", "kill -9 $$"):
            world.bash(script)
        world.run("undeclared")
        world.run("absent")

    run()
    wait_until(lambda: len([e for e in world.events if e["type"] == "command.exited"]) == 4)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        run()
    wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before)


def test_the_events_tell_what_ran(world: World) -> None:
    world.bash("exit 3", "a\udcffb")
    wait_until(lambda: len(world.events) == 2)
    started, exited = world.events
    assert started["type"] == "command.started"
    assert started["argv"] == ["bash", "-c", "exit 3", "a\\xffb"]
    assert started["cwd"] == str(world.path)
    assert started["program"] == str(world.bin / "bash")
    assert exited["type"] == "command.exited"
    assert (exited["command"], exited["status"]) == (started["command"], 3)
    assert isinstance(exited["ms"], float)
    assert exited["ms"] > 0

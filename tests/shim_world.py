"""Shims of our own making, the broker that they talk to, and a terminal to run them on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agenthost.broker import Policy, Program
from tests.native_environment import Served, serving
from tests.needs import ROOT, missing, require

ENVIRONMENT = {"HOME": "/", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
FORWARDED = frozenset({"TERM", "LC_ALL", "GIT_OPTIONAL_LOCKS", "BIG"})
PATIENCE_S = 20.0
"""For what never happens when all is well."""


@dataclass
class World:
    """A directory with shims, and the broker that they talk to."""

    bin: Path
    path: Path
    address: Path
    policy: Policy
    served: Served | None = None
    listeners: list[socket.socket] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def listen(self) -> socket.socket:
        self.address.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.address))
        listener.listen(128)
        self.listeners.append(listener)
        return listener

    def start(self, program: str, *args: str | bytes, **options: object) -> subprocess.Popen[bytes]:
        settings: dict[str, object] = {"cwd": self.path, "env": {}, "stdin": subprocess.DEVNULL} | options
        argv = settings.pop("argv", [program, *args])
        process = subprocess.Popen(argv, executable=self.bin / program, **settings)  # type: ignore[call-overload]
        self.processes.append(process)
        return process  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends what a failed test left running, so that the failure is all there is to see."""
        for process in self.processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        for listener in self.listeners:
            listener.close()

    def run(self, program: str, *args: str | bytes, **options: object) -> subprocess.CompletedProcess[bytes]:
        data = options.pop("input", None)
        if data is not None:
            options["stdin"] = subprocess.PIPE
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        with self.start(program, *args, **options) as process:
            out, err = process.communicate(data, timeout=PATIENCE_S)  # type: ignore[arg-type]
            return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def bash(self, script: str, *args: str | bytes, **options: object) -> subprocess.CompletedProcess[bytes]:
        return self.run("bash", "-c", script, *args, **options)

    @property
    def events(self) -> Sequence[Mapping[str, object]]:
        assert self.served is not None
        return self.served.events


def compile_shim(compiler: str, socket_path: Path, out: Path) -> Path:
    defined = f"-DSHIM_SOCKET='\"{socket_path}\"'"
    if compiler == "sanitized":
        flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1", "-D_GNU_SOURCE"]
        sources = ["shims/shim.c", "shims/wire.c"]
        out.mkdir(exist_ok=True)
        command = ["gcc", *flags, *shlex.split(defined), "-o", str(out / "oac-shim"), *sources]
    else:
        command = ["make", "-s", "-C", "shims", f"CC={compiler}", f"OUT={out}", f"CFLAGS={defined}", f"{out}/oac-shim"]
    subprocess.run(command, cwd=ROOT, check=True)
    return out / "oac-shim"


def make_world(compiler: str, place: Path) -> World:
    require({"musl-gcc": "musl"}.get(compiler, "gcc"))
    bin_ = place / compiler
    shim = bin_ / "build" / "oac-shim"
    if not shim.exists():
        bin_.mkdir()
        compile_shim(compiler, place / "broker", bin_ / "build")
        for name in ("bash", "git", "python", "undeclared", "absent", "directory"):
            shutil.copy(shim, bin_ / name)
    path = place / "work"
    path.mkdir(exist_ok=True)
    programs = {
        str(bin_ / "bash"): Program("/bin/bash", "/bin/bash"),
        str(bin_ / "git"): Program("git", "git"),
        str(bin_ / "python"): Program("python", sys.executable),
        str(bin_ / "absent"): Program("absent", "/nowhere/absent"),
        str(bin_ / "directory"): Program("directory", "/usr"),
    }
    return World(bin_, path, place / "broker", Policy(programs, FORWARDED, ENVIRONMENT))


@contextlib.contextmanager
def served_world(compiler: str, place: Path) -> Iterator[World]:
    world = make_world(compiler, place)
    with serving(world.listen(), world.policy, place / "events.jsonl") as served:
        world.served = served
        world.listeners.clear()  # the broker owns it now
        try:
            yield world
        finally:
            world.close()


def default_compiler() -> str:
    return "gcc" if missing("musl") else "musl-gcc"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.005)


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Terminal:
    """A pseudo-terminal, and the shim that leads its session."""

    def __init__(self, world: World, *args: str) -> None:
        self.master, slave = pty.openpty()
        self.set_size(24, 80)

        def prepare() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        env = {"TERM": "dumb"}
        self.name = os.ttyname(slave)
        self.process = world.start(
            "bash", *args, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=prepare, env=env
        )
        os.close(slave)
        self.seen = b""

    def set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def expect(self, data: bytes) -> bytes:
        deadline = time.monotonic() + PATIENCE_S
        while data not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{data!r} never came; there was {self.seen!r}"
            got = b""
            with contextlib.suppress(OSError):  # EIO: the last one closed the terminal
                got = os.read(self.master, 65536)
            assert got, f"{data!r} never came; there was {self.seen!r}"
            self.seen += got
        before, _, self.seen = self.seen.partition(data)
        return before

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self.master)

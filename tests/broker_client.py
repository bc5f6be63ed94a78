"""Clients of a broker, well-mannered and not, and a place with a broker behind it."""

from __future__ import annotations

import array
import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agenthost.broker import Limits, Policy, Program
from agenthost.wire import (
    HEADER,
    CommandFlag,
    Exited,
    Failed,
    Frame,
    FrameType,
    Invocation,
    decode_header,
    encode,
)
from tests.native_environment import Served, serving

PATIENCE_S = 20.0
POLICY = Policy(
    {"/bin/sh": Program("/bin/sh", "/bin/sh"), "/.oac/bin/git": Program("git", "git")},
    frozenset({"TERM"}),
    {"HOME": "/", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
)
SHELL = Invocation(
    descriptors=0,
    umask=0o022,
    nice=0,
    flags=CommandFlag(0),
    executable=b"/bin/sh",
    cwd=b"/",
    argv=(b"sh", b"-c", b"exit 3"),
    env=(),
)


class Client:
    """A blocking client, which may be as ill-mannered as a test wants."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self.socket.sendmsg([data], rights)
        if sent < len(data):
            self.socket.sendall(data[sent:])

    def invoke(self, invocation: Invocation, fds: Sequence[int] = ()) -> None:
        self.send(encode(FrameType.INVOKE, invocation.body(), len(fds)), fds)

    def receive(self) -> Frame | None:
        """The next frame; None when the broker has closed, with or without a reset."""
        header = self._exactly(HEADER.size)
        if header is None:
            return None
        length, kind, _ = decode_header(header)
        return Frame(kind, self._exactly(length) or b"")

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                more = self.socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data


@dataclass
class Place:
    """A listening socket and the broker behind it."""

    path: Path
    log: Path
    served: Served
    idle_fds: int

    def client(self) -> Client:
        return Client(self.path)

    def status(self, invocation: Invocation = SHELL, fds: Sequence[int] = ()) -> int:
        with self.client() as client:
            client.invoke(invocation, fds)
            return status_of(client.receive())

    def types(self) -> list[object]:
        return [event["type"] for event in self.served.events]

    def until(self, count: int) -> Sequence[Mapping[str, object]]:
        wait_until(lambda: len(self.served.events) >= count)
        return self.served.events

    def wait_until_idle(self) -> None:
        """Returns when this process holds no more descriptors than before the first client."""
        wait_until(lambda: open_fds() <= self.idle_fds)

    def still_serves(self) -> bool:
        return self.status() == 3


def status_of(frame: Frame | None) -> int:
    assert frame is not None
    if frame.type is FrameType.EXITED:
        return Exited.parse(frame.body).status
    assert frame.type is FrameType.FAILED
    return Failed.parse(frame.body).status


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.005)


@contextlib.contextmanager
def broker(directory: Path, *, uid: int | None = None, policy: Policy = POLICY, **limits: object) -> Iterator[Place]:
    listener = socket.socket(socket.AF_UNIX)
    path = directory / "broker"
    listener.bind(str(path))
    path.chmod(0o777)
    listener.listen(512)
    log = directory / "events.jsonl"
    with serving(listener, policy, log, uid=uid, limits=Limits(**limits)) as served:  # type: ignore[arg-type]
        yield Place(path, log, served, open_fds())


def open_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))

"""The builder: a process of its own that makes mounts, and starts the init that attaches them.

It is single-threaded, reads requests from one socket and ends when that closes. It loads nothing but the standard
library and the few modules below. It holds what the daemon must not have: a private mount namespace and, rootless, the
user namespace whose capabilities the mounts need.

The first request on its socket is a `Start`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from agenthost.launcher.forge import Forge, StepFailed
from agenthost.launcher.wire import BuildRequest, ForgetRequest, parse_request, reply_failure, reply_ok
from agenthost.linux import privileges, syscalls
from agenthost.linux.fdpass import close_fds, receive_frame, send_frame
from agenthost.wire import FrameType, Setup, SetupFlag, tree_body

_MEMFD_NOEXEC: Final = "/proc/sys/vm/memfd_noexec"
"""Since Linux 6.3."""

_EVERY_DESCRIPTOR: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Start:
    """How the builder sets itself up."""

    init: str
    attach: str
    rootless: bool

    def body(self) -> bytes:
        return json.dumps({"init": self.init, "attach": self.attach, "rootless": self.rootless}).encode("ascii")

    @classmethod
    def parse(cls, body: bytes) -> Start:
        return cls(**json.loads(body))


def enter_namespaces(start: Start) -> None:
    """A private mount namespace; rootless, inside a user namespace that knows the caller's ids and no others."""
    if start.rootless:
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        privileges.write_proc("/proc/self/setgroups", "deny")
        privileges.write_proc("/proc/self/uid_map", f"{uid} {uid} 1")
        privileges.write_proc("/proc/self/gid_map", f"{gid} {gid} 1")
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    if start.rootless:
        # Nothing that runs below may make user namespaces, whatever its seccomp filter says.
        privileges.write_proc("/proc/sys/user/max_user_namespaces", "0")
        privileges.keep_capabilities_over_exec()


class Builder:
    """Answers requests, one after the other."""

    def __init__(self, sock: socket.socket, start: Start) -> None:
        self._sock = sock
        self._start = start
        self._has_memfd_noexec = not start.rootless and os.path.exists(_MEMFD_NOEXEC)
        self._forge = Forge(start.attach, rootless=start.rootless, spawn_user_namespace=self._spawn_user_namespace)

    def serve(self) -> None:
        """Until the daemon closes its end."""
        while (frame := receive_frame(self._sock)) is not None:
            fds: tuple[int, ...] = ()
            try:
                match parse_request(frame.body):
                    case BuildRequest() as request:
                        fds = self._build(request, *frame.fds)
                    case ForgetRequest() as request:
                        self._forge.forget(request.session)
                body = reply_ok()
            except StepFailed as failure:
                body = reply_failure(failure.step, failure.reason, failure.remedy)
            except OSError as error:
                body = _failure("build", error)
            finally:
                close_fds(frame.fds)
            send_frame(self._sock, FrameType.REPLY, body, fds)
            close_fds(fds)

    def _build(self, request: BuildRequest, control: int, cgroup: int | None = None) -> tuple[int, ...]:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with here:
            # init makes its network namespace, the slowest part, while the mounts are made here.
            with there:
                pid = self._spawn("tree", control, there.fileno())
            if cgroup is not None:
                _put_into_cgroup(pid, cgroup)
            setup = self._effective(request.setup)
            _tell(here, FrameType.SETUP, setup.body())
            with self._forge.tree(request.session, request.steps, request.shim_socket) as tree:
                targets = [os.fsencode(target) for target, _ in tree.mounts]
                fds = [tree.root, *(fd for _, fd in tree.mounts)]
                _tell(here, FrameType.TREE, tree_body(targets), fds)
                return tree.release_listener()

    def _effective(self, setup: Setup) -> Setup:
        flags = setup.flags | (SetupFlag.ROOTLESS if self._start.rootless else SetupFlag(0))
        if not self._has_memfd_noexec:
            # The seccomp filter says the same, to everything but init itself.
            flags &= ~SetupFlag.MEMFD_NOEXEC
        return replace(setup, flags=flags)

    def _spawn(self, mode: str, control: int, setup: int | None = None) -> int:
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in range(3)
        ]
        actions.append((os.POSIX_SPAWN_DUP2, control, 3))
        if setup is not None:
            actions.append((os.POSIX_SPAWN_DUP2, setup, 4))
        every = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
        return os.posix_spawn(
            self._start.init, ["oac-init", mode], {}, file_actions=actions, setsigdef=every, setsigmask=()
        )

    def _spawn_user_namespace(self, control: int) -> int:
        return self._spawn("userns", control)


def _put_into_cgroup(pid: int, cgroup: int) -> None:
    """Before init has its set-up: it waits for that, and what it makes afterwards is in the cgroup, its own root."""
    try:
        os.write(cgroup, str(pid).encode("ascii"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise StepFailed("put init into the cgroup of the Session", reason, "leave the limits out") from error


def _tell(init: socket.socket, kind: FrameType, body: bytes, fds: Sequence[int] = ()) -> None:
    """An init that has failed has told the daemon why itself: that it no longer listens is not the reason."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        send_frame(init, kind, body, fds)


def _failure(step: str, error: OSError) -> bytes:
    """The body of a REPLY. What the error names is said too, unless it is a descriptor, which tells nobody anything."""
    named = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
    return reply_failure(f"{step}{named}", error.strerror or str(error), "see 'agenthost doctor'")


def _above_low_descriptors(fd: int) -> int:
    """Moves `fd` above 9 and fills what lies below: 3 to 9 are targets of dup2 in the children."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    filler = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    while filler < 9:
        filler = fcntl.fcntl(filler, fcntl.F_DUPFD_CLOEXEC, 3)
    return moved


def main(fd: int) -> None:
    """Entry of the process: serves on the socket `fd` and closes every other descriptor that it inherited."""
    os.closerange(3, fd)
    os.closerange(fd + 1, _EVERY_DESCRIPTOR)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.umask(0)
    with socket.socket(fileno=_above_low_descriptors(fd)) as sock:
        _run(sock)


def _run(sock: socket.socket) -> None:
    frame = receive_frame(sock)
    if frame is None:
        return
    start = Start.parse(frame.body)
    try:
        enter_namespaces(start)
        builder = Builder(sock, start)
    except OSError as error:
        send_frame(sock, FrameType.REPLY, _failure("start the builder", error))
        return
    send_frame(sock, FrameType.REPLY, reply_ok())
    builder.serve()

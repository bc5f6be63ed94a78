"""Asks a trusted program of the host something: closed, bounded in time and output, and with nothing left of it.

Promise: however the program behaves (hangs, floods, forks), the call ends by its deadline, and then its process group
is gone and the program reaped.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence


class NoAnswer(Exception):
    """Why there is none: the end of a sentence that begins with the program."""


def ask(fd: int, argv: Sequence[str], *, env: Mapping[str, str], seconds: float, limit: int) -> bytes:
    """What the program behind the descriptor prints on stdout until it ends with status 0. Raises `NoAnswer`.

    The descriptor is executed, not a path: what answers is the file that was looked at. It gets `env` and no other
    variable, no input, no terminal, and a session of its own. `limit` is in bytes.
    """
    deadline = time.monotonic() + seconds
    with subprocess.Popen(
        argv,
        executable=f"/proc/self/fd/{fd}",
        pass_fds=(fd,),
        cwd="/",
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            said = _read_all(process, deadline, limit)
            _await_end(process.pid, deadline)
        finally:
            # Before the leader is reaped, so that its id names its group and no other.
            if _is_ours_to_reap(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise NoAnswer(f"ended with status {process.returncode}")
    return said


def _read_all(process: subprocess.Popen[bytes], deadline: float, limit: int) -> bytes:
    assert process.stdout is not None  # noqa: S101 - for the type checker
    out = process.stdout.fileno()
    said = bytearray()
    poll = select.poll()
    poll.register(out, select.POLLIN)
    while True:
        _await(poll, deadline)
        data = os.read(out, 1 << 16)
        if not data:
            return bytes(said)
        said += data
        if len(said) > limit:
            raise NoAnswer("does not stop talking")


def _await_end(pid: int, deadline: float) -> None:
    """Until the process has ended. It is not reaped by this."""
    if not _is_ours_to_reap(pid):
        return
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        _await(poll, deadline)
    finally:
        os.close(handle)


def _is_ours_to_reap(pid: int) -> bool:
    """Not in a daemon that ignores SIGCHLD: the kernel has reaped an ended child there, and its id may be another's."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _await(poll: select.poll, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise NoAnswer("gave no answer in time")

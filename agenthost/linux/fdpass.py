"""Frames with descriptors over a blocking Unix stream socket, and the pieces that `framestream` shares.

`MSG_CMSG_CLOEXEC` keeps every received descriptor from leaking into a child; a frame that breaks a limit closes what
came with it.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Final

from agenthost.errors import WireError
from agenthost.wire import HEADER, MAX_FDS, Frame, FrameType, decode_header, encode

_FD_SIZE: Final = array.array("i").itemsize
_ANCILLARY: Final = socket.CMSG_SPACE((MAX_FDS + 3) * _FD_SIZE)
CHUNK: Final = 256 << 10
"""Bytes of one receive."""


def close_fds(fds: Iterable[int]) -> None:
    """Closes each descriptor; close(2) errors say nothing about ownership, the descriptor is gone in any case."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def rights_of(fds: Sequence[int]) -> list[tuple[int, int, bytes]]:
    """The ancillary data that passes descriptors (unix(7), SCM_RIGHTS)."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []


def _received(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _FD_SIZE])
    return list(fds)


def receive_some(sock: socket.socket, size: int, fds: list[int], max_fds: int) -> bytes:
    """One recvmsg(2) of at most `size` bytes; descriptors are added to `fds`. Raises `WireError` beyond `max_fds`."""
    data, ancillary, flags, _ = sock.recvmsg(size, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    fds.extend(_received(ancillary))
    if flags & socket.MSG_CTRUNC or len(fds) > max_fds:
        raise WireError("more descriptors than a frame may carry")
    return data


def send_frame(sock: socket.socket, kind: FrameType, body: bytes, fds: Sequence[int] = ()) -> None:
    """Sends one frame on a blocking socket. The caller keeps its descriptors."""
    data = memoryview(encode(kind, body, len(fds)))
    sent = sock.sendmsg([data], rights_of(fds), socket.MSG_NOSIGNAL)
    while sent < len(data):
        sent += sock.send(data[sent:], socket.MSG_NOSIGNAL)


def receive_frame(sock: socket.socket) -> Frame | None:
    """Receives one frame from a blocking socket; None at the peer's end. Raises `WireError` at half a frame."""
    fds: list[int] = []
    try:
        header = _receive_exact(sock, HEADER.size, fds)
        if header is None:
            return None
        length, kind, count = decode_header(header)
        body = _receive_exact(sock, length, fds) if length else b""
        if body is None or len(fds) != count:
            raise WireError("a frame cut short, or with other descriptors than it says")
    except BaseException:
        close_fds(fds)
        raise
    return Frame(kind, body, tuple(fds))


def _receive_exact(sock: socket.socket, size: int, fds: list[int]) -> bytes | None:
    parts: list[bytes] = []
    left = size
    while left:
        data = receive_some(sock, min(left, CHUNK), fds, MAX_FDS)
        if not data:
            if left == size:
                return None
            raise WireError("a frame cut short")
        parts.append(data)
        left -= len(data)
    return b"".join(parts)

"""The frames that daemon, builder, broker, shim and init speak: encoding only, no sockets.

    0        4      6      8
    | length | type | fds  | body ... |        little-endian; `length` counts the body alone

`fds` descriptors travel (SCM_RIGHTS) with the first byte of the frame. In a body a *string* is a u32 length and that
many bytes without a NUL; a *list* is a u32 count and that many strings. `shims/wire.h` is the C half;
`contracts/frames` holds frames that both halves must read and write alike. Strings are bytes: what the kernel passes
need not be UTF-8.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from agenthost.errors import WireError

HEADER: Final = struct.Struct("<IHH")
MAX_BODY: Final = 8 << 20
"""Bytes. The kernel passes at most 6 MiB of arguments and environment (execve(2), three quarters of 8 MiB of stack)."""

MAX_FDS: Final = 250
"""Descriptors in one frame; the kernel takes 253 (SCM_MAX_FD)."""

MAX_STRINGS: Final = 1 << 20


class FrameType(enum.IntEnum):
    """Who sends each frame is in the comment."""

    INVOKE = 1  # shim -> broker
    COMMAND = 2  # daemon -> init
    SIGNAL = 3  # shim -> init, daemon -> init
    EXITED = 4  # init -> shim, init -> daemon
    FAILED = 5  # broker -> shim, init -> shim, init -> daemon
    STARTED = 6  # init -> daemon
    READY = 7  # init -> daemon
    SETUP = 8  # builder -> init
    TREE = 9  # builder -> init
    REQUEST = 10  # daemon -> builder
    REPLY = 11  # builder -> daemon


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `fds` are owned by whoever holds the frame."""

    type: FrameType
    body: bytes
    fds: tuple[int, ...] = ()


class Writer:
    """Builds a body."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def u32(self, value: int) -> Writer:
        self._parts.append(struct.pack("<I", value & 0xFFFFFFFF))
        return self

    def string(self, value: bytes) -> Writer:
        if b"\0" in value:
            raise WireError("a string with a NUL byte")
        return self.blob(value)

    def blob(self, value: bytes) -> Writer:
        self._parts.append(struct.pack("<I", len(value)))
        self._parts.append(value)
        return self

    def strings(self, values: Sequence[bytes]) -> Writer:
        self.u32(len(values))
        for value in values:
            self.string(value)
        return self

    def body(self) -> bytes:
        return b"".join(self._parts)


class Reader:
    """Takes a body apart; raises `WireError` where it is short, too long or malformed."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def i32(self) -> int:
        return int.from_bytes(self._take(4), "little", signed=True)

    def blob(self) -> bytes:
        return self._take(self.u32())

    def string(self) -> bytes:
        value = self.blob()
        if b"\0" in value:
            raise WireError("a string with a NUL byte")
        return value

    def strings(self) -> tuple[bytes, ...]:
        count = self.u32()
        if count > MAX_STRINGS or count * 4 > len(self._body) - self._at:
            raise WireError("a list longer than its frame")
        return tuple([self.string() for _ in range(count)])

    def end(self) -> None:
        if self._at != len(self._body):
            raise WireError("bytes behind the end of a body")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._body):
            raise WireError("a body shorter than it says")
        value = self._body[self._at : end]
        self._at = end
        return value


def encode(kind: FrameType, body: bytes, fds: int = 0) -> bytes:
    """The bytes of a frame that carries `fds` descriptors."""
    if len(body) > MAX_BODY:
        raise WireError(f"a body of {len(body)} bytes (the limit is {MAX_BODY})")
    if fds > MAX_FDS:
        raise WireError(f"{fds} descriptors in one frame (the limit is {MAX_FDS})")
    return HEADER.pack(len(body), kind, fds) + body


def decode_header(data: bytes) -> tuple[int, FrameType, int]:
    """Body length in bytes, type and number of descriptors, from the first 8 bytes of a frame."""
    length, kind, fds = HEADER.unpack(data)
    if length > MAX_BODY or fds > MAX_FDS:
        raise WireError("a frame header beyond the limits")
    try:
        return length, FrameType(kind), fds
    except ValueError:
        raise WireError(f"an unknown frame type {kind}") from None


class SignalScope(enum.IntEnum):
    """Whom a SIGNAL frame is for."""

    GROUP = 0  # the process group of the command
    LEADER = 1  # the command's first process alone
    END = 2  # every process of the namespace; init ends when none is left


class CommandFlag(enum.IntFlag):
    """Bits of `Command.flags` and `Invocation.flags`."""

    TERMINAL = 1  # descriptor 0, 1 or 2 was the caller's controlling terminal and becomes the command's
    CONNECTION = 2  # the last descriptor is the shim's connection
    MAIN = 4  # init ends when this command ends


_Execution = tuple[int, int, int, CommandFlag, bytes, bytes, tuple[bytes, ...], tuple[bytes, ...]]
"""What INVOKE and COMMAND have in common, in the order of their fields."""


def _read_execution(reader: Reader) -> _Execution:
    return (
        reader.u32(),
        reader.u32(),
        reader.i32(),
        CommandFlag(reader.u32()),
        reader.string(),
        reader.string(),
        reader.strings(),
        reader.strings(),
    )


def _write_execution(writer: Writer, item: Invocation | Command, path: bytes) -> bytes:
    writer.u32(item.descriptors).u32(item.umask).u32(item.nice).u32(item.flags)
    return writer.string(path).string(item.cwd).strings(item.argv).strings(item.env).body()


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a shim tells the broker: INVOKE.

    u32 descriptors | u32 umask | i32 nice | u32 flags | string executable | string cwd | list argv | list env

    Bit N of `descriptors` says that descriptor N (0 to 2) was open; the open ones come with the frame, in order.
    `executable` is the shim's own `/proc/self/exe`.
    """

    descriptors: int
    umask: int
    nice: int
    flags: CommandFlag
    executable: bytes
    cwd: bytes
    argv: tuple[bytes, ...]
    env: tuple[bytes, ...]

    def body(self) -> bytes:
        return _write_execution(Writer(), self, self.executable)

    @classmethod
    def parse(cls, body: bytes) -> Invocation:
        reader = Reader(body)
        value = cls(*_read_execution(reader))
        reader.end()
        return value


@dataclass(frozen=True, slots=True)
class Command:
    """What init is to run: COMMAND.

    u32 id | u32 descriptors | u32 umask | i32 nice | u32 flags | string program | string cwd | list argv | list env

    A `program` without a slash is searched in the `PATH` of `env`. The descriptors come in order, then, when `flags`
    has CONNECTION, the shim's connection.
    """

    id: int
    descriptors: int
    umask: int
    nice: int
    flags: CommandFlag
    program: bytes
    cwd: bytes
    argv: tuple[bytes, ...]
    env: tuple[bytes, ...]

    def body(self) -> bytes:
        return _write_execution(Writer().u32(self.id), self, self.program)

    @classmethod
    def parse(cls, body: bytes) -> Command:
        reader = Reader(body)
        value = cls(reader.u32(), *_read_execution(reader))
        reader.end()
        return value


@dataclass(frozen=True, slots=True)
class Signal:
    """SIGNAL: u32 signal | u32 scope."""

    signal: int
    scope: SignalScope

    def body(self) -> bytes:
        return Writer().u32(self.signal).u32(self.scope).body()

    @classmethod
    def parse(cls, body: bytes) -> Signal:
        reader = Reader(body)
        signal, scope = reader.u32(), reader.u32()
        reader.end()
        if not 1 <= signal <= 64 or scope not in SignalScope._value2member_map_:
            raise WireError("a signal frame out of range")
        return cls(signal, SignalScope(scope))


@dataclass(frozen=True, slots=True)
class Exited:
    """EXITED: u32 id | u32 code | u32 signal. One of code and signal is 0 unless the command exited with 0."""

    id: int
    code: int
    signal: int

    @property
    def status(self) -> int:
        """As a shell gives it: the exit code, or 128 and the signal's number."""
        return 128 + self.signal if self.signal else self.code

    def body(self) -> bytes:
        return Writer().u32(self.id).u32(self.code).u32(self.signal).body()

    @classmethod
    def parse(cls, body: bytes) -> Exited:
        reader = Reader(body)
        value = cls(reader.u32(), reader.u32(), reader.u32())
        reader.end()
        return value


@dataclass(frozen=True, slots=True)
class Failed:
    """FAILED: u32 id | u32 errno | u32 status | string message.

    To a shim: print `message` on stderr and exit with `status`. To the daemon: the step that failed, and why.
    """

    id: int
    errno: int
    status: int
    message: bytes

    def body(self) -> bytes:
        return Writer().u32(self.id).u32(self.errno).u32(self.status).string(self.message).body()

    @classmethod
    def parse(cls, body: bytes) -> Failed:
        reader = Reader(body)
        value = cls(reader.u32(), reader.u32(), reader.u32(), reader.string())
        reader.end()
        return value


@dataclass(frozen=True, slots=True)
class Started:
    """STARTED: u32 id | u32 pid. The pid is the one inside the namespace."""

    id: int
    pid: int

    def body(self) -> bytes:
        return Writer().u32(self.id).u32(self.pid).body()

    @classmethod
    def parse(cls, body: bytes) -> Started:
        reader = Reader(body)
        value = cls(reader.u32(), reader.u32())
        reader.end()
        return value


class SetupFlag(enum.IntFlag):
    """Bits of `Setup.flags`."""

    PRIVATE_NETWORK = 1  # own network namespace with loopback up; else the host's network
    PROC_SUBSET = 2  # /proc with subset=pid and hidepid=invisible
    MEMFD_NOEXEC = 4  # vm.memfd_noexec=2 in the PID namespace; needs the initial user namespace
    LANDLOCK = 8  # only `executables` may be executed
    ROOTLESS = 16  # uid and gid are already the ones to run with
    OWN_FILES = 32  # Landlock: nothing is written but below the tree's own root, whatever descriptor leads elsewhere


@dataclass(frozen=True, slots=True)
class Setup:
    """How init sets itself up: SETUP.

    u32 flags | u32 uid | u32 gid | string hostname | list ports (decimal) | list executables | blob seccomp
    """

    flags: SetupFlag
    uid: int
    gid: int
    hostname: bytes
    ports: tuple[int, ...]
    executables: tuple[bytes, ...]
    seccomp: bytes = field(repr=False)

    def body(self) -> bytes:
        writer = Writer().u32(self.flags).u32(self.uid).u32(self.gid).string(self.hostname)
        writer.strings([b"%d" % port for port in self.ports]).strings(self.executables)
        return writer.blob(self.seccomp).body()

    @classmethod
    def parse(cls, body: bytes) -> Setup:
        reader = Reader(body)
        value = cls(
            flags=SetupFlag(reader.u32()),
            uid=reader.u32(),
            gid=reader.u32(),
            hostname=reader.string(),
            ports=tuple(int(port) for port in reader.strings()),
            executables=reader.strings(),
            seccomp=reader.blob(),
        )
        reader.end()
        return value


def tree_body(targets: Sequence[bytes]) -> bytes:
    """TREE: list targets. Descriptor 0 of the frame is the root mount; descriptor N+1 belongs at target N."""
    return Writer().strings(targets).body()

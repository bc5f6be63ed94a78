"""The Python half of the wire. shims/tests/test_frames.c reads the same golden frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenthost import wire
from agenthost.errors import WireError
from agenthost.wire import (
    HEADER,
    Command,
    CommandFlag,
    Exited,
    Failed,
    FrameType,
    Invocation,
    Reader,
    Setup,
    SetupFlag,
    Signal,
    SignalScope,
    Started,
    Writer,
)

FRAMES = Path(__file__).resolve().parent.parent / "contracts" / "frames"


class Value(Protocol):
    def body(self) -> bytes: ...


GOLDEN: dict[str, tuple[FrameType, int, Value]] = {
    "invoke": (
        FrameType.INVOKE,
        3,
        Invocation(
            descriptors=7,
            umask=0o022,
            nice=0,
            flags=CommandFlag(0),
            executable=b"/.oac/bin/git",
            cwd=b"/work/repo",
            argv=(b"git", b"status", b"--short"),
            env=(b"PATH=/.oac/bin", b"GIT_OPTIONAL_LOCKS=0"),
        ),
    ),
    "invoke-bytes": (
        FrameType.INVOKE,
        2,
        Invocation(
            descriptors=6,
            umask=0o077,
            nice=-5,
            flags=CommandFlag.TERMINAL,
            executable=b"/usr/bin/bash",
            cwd=b"/work/\xff\xfe/caf\xc3\xa9",
            argv=(b"", b"-c", b"printf '%s\n' \xe9\x80", b""),
            env=(b"LANG=\xff", b"EMPTY=", b"", b"LANG=second", b"no equals sign"),
        ),
    ),
    "command": (
        FrameType.COMMAND,
        4,
        Command(
            id=1,
            descriptors=7,
            umask=0o022,
            nice=10,
            flags=CommandFlag.CONNECTION,
            program=b"git",
            cwd=b"/work/repo",
            argv=(b"git", b"log", b"--format=\xff"),
            env=(b"HOME=/home/agent", b"PATH=/usr/bin:/bin", b"LANG=C.UTF-8"),
        ),
    ),
    "command-main": (
        FrameType.COMMAND,
        0,
        Command(
            id=0xFFFFFFFF,
            descriptors=0,
            umask=0,
            nice=-20,
            flags=CommandFlag.MAIN,
            program=b"/.oac/codex/codex",
            cwd=b"/",
            argv=(b"codex",),
            env=(),
        ),
    ),
    "signal-group": (FrameType.SIGNAL, 0, Signal(15, SignalScope.GROUP)),
    "signal-end": (FrameType.SIGNAL, 0, Signal(64, SignalScope.END)),
    "exited-code": (FrameType.EXITED, 0, Exited(7, 3, 0)),
    "exited-signal": (FrameType.EXITED, 0, Exited(7, 0, 9)),
    "failed": (FrameType.FAILED, 0, Failed(8, 2, 127, b"cannot run git: No such file or directory")),
    "failed-bytes": (FrameType.FAILED, 0, Failed(0, 0, 126, b"policy: /usr/bin/\xff\xfe")),
    "started": (FrameType.STARTED, 0, Started(9, 4194304)),
    "setup": (
        FrameType.SETUP,
        0,
        Setup(
            flags=SetupFlag(31),
            uid=65536,
            gid=65537,
            hostname=b"view",
            ports=(17100, 17101),
            executables=(b"/.oac/codex/codex", b"/.oac/bin/\xff"),
            seccomp=b"\x20\0\0\0\x04\0\0\0\x06\0\0\0\0\0\xff\x7f",
        ),
    ),
    "setup-empty": (
        FrameType.SETUP,
        0,
        Setup(flags=SetupFlag(0), uid=0, gid=0, hostname=b"", ports=(), executables=(), seccomp=b""),
    ),
}

PARSE: dict[FrameType, Callable[[bytes], Value]] = {
    FrameType.INVOKE: Invocation.parse,
    FrameType.COMMAND: Command.parse,
    FrameType.SIGNAL: Signal.parse,
    FrameType.EXITED: Exited.parse,
    FrameType.FAILED: Failed.parse,
    FrameType.STARTED: Started.parse,
    FrameType.SETUP: Setup.parse,
}


def golden(name: str) -> bytes:
    lines = (FRAMES / f"{name}.hex").read_text().splitlines()
    return bytes.fromhex("".join(line.partition("#")[0] for line in lines))


def test_each_golden_frame_has_a_check() -> None:
    assert {path.stem for path in FRAMES.iterdir()} == {*GOLDEN, "tree"}
    assert {kind for kind, _, _ in GOLDEN.values()} == set(PARSE)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_frame_is_read_as_its_value_and_written_as_its_bytes(name: str) -> None:
    kind, fds, value = GOLDEN[name]
    frame = golden(name)
    assert wire.decode_header(frame[: HEADER.size]) == (len(frame) - HEADER.size, kind, fds)
    assert PARSE[kind](frame[HEADER.size :]) == value
    assert wire.encode(kind, value.body(), fds) == frame


def test_the_golden_tree_is_written_as_its_bytes() -> None:
    body = wire.tree_body([b"/.oac/codex", b"/work/\xff dir"])
    assert wire.encode(FrameType.TREE, body, 3) == golden("tree")


@pytest.mark.parametrize("name", GOLDEN)
def test_a_frame_cut_short_or_prolonged_is_an_error(name: str) -> None:
    kind, _, _ = GOLDEN[name]
    body = golden(name)[HEADER.size :]
    for length in range(len(body)):
        with pytest.raises(WireError):
            PARSE[kind](body[:length])
    with pytest.raises(WireError):
        PARSE[kind](body + b"\0")


u32 = st.integers(0, 0xFFFFFFFF)
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
strings = st.binary(max_size=40).filter(lambda value: b"\0" not in value)
lists = st.lists(strings, max_size=6).map(tuple)
invocations = st.builds(
    Invocation,
    descriptors=u32,
    umask=u32,
    nice=i32,
    flags=u32.map(CommandFlag),
    executable=strings,
    cwd=strings,
    argv=lists,
    env=lists,
)
commands = st.builds(
    Command,
    id=u32,
    descriptors=u32,
    umask=u32,
    nice=i32,
    flags=u32.map(CommandFlag),
    program=strings,
    cwd=strings,
    argv=lists,
    env=lists,
)
setups = st.builds(
    Setup,
    flags=u32.map(SetupFlag),
    uid=u32,
    gid=u32,
    hostname=strings,
    ports=st.lists(st.integers(0, 65535), max_size=6).map(tuple),
    executables=lists,
    seccomp=st.binary(max_size=64),
)
values = st.one_of(
    invocations.map(lambda value: (FrameType.INVOKE, value)),
    commands.map(lambda value: (FrameType.COMMAND, value)),
    setups.map(lambda value: (FrameType.SETUP, value)),
    st.builds(Signal, st.integers(1, 64), st.sampled_from(SignalScope)).map(lambda value: (FrameType.SIGNAL, value)),
    st.builds(Exited, u32, u32, u32).map(lambda value: (FrameType.EXITED, value)),
    st.builds(Failed, u32, u32, u32, strings).map(lambda value: (FrameType.FAILED, value)),
    st.builds(Started, u32, u32).map(lambda value: (FrameType.STARTED, value)),
)


@given(values)
def test_every_value_survives_the_wire(pair: tuple[FrameType, Value]) -> None:
    kind, value = pair
    assert PARSE[kind](value.body()) == value


# SETUP is not here: it goes from the builder to init, and nobody in Python reads one.
@given(st.sampled_from(sorted(set(PARSE) - {FrameType.SETUP})), st.data())
def test_hostile_bytes_raise_nothing_but_a_wire_error(kind: FrameType, data: st.DataObject) -> None:
    body = data.draw(st.binary(max_size=80) | mutations(kind))
    try:
        value = PARSE[kind](body)
    except WireError:
        return
    assert value.body() == body


def mutations(kind: FrameType) -> st.SearchStrategy[bytes]:
    """A golden body with one byte changed, so that most of it still makes sense."""
    bodies = [golden(name)[HEADER.size :] for name, (other, _, _) in GOLDEN.items() if other is kind]

    def mutate(body: bytes, at: int, byte: int) -> bytes:
        at %= len(body)
        return body[:at] + bytes([byte]) + body[at + 1 :]

    return st.builds(mutate, st.sampled_from(bodies), st.integers(0, 1 << 16), st.integers(0, 255))


@given(st.binary(min_size=HEADER.size, max_size=HEADER.size))
def test_a_header_is_within_the_limits_or_an_error(data: bytes) -> None:
    try:
        length, kind, fds = wire.decode_header(data)
    except WireError:
        return
    assert length <= wire.MAX_BODY
    assert fds <= wire.MAX_FDS
    assert HEADER.pack(length, kind, fds) == data


@pytest.mark.parametrize(("size", "fds"), [(wire.MAX_BODY + 1, 0), (0, wire.MAX_FDS + 1)])
def test_nothing_beyond_the_limits_is_encoded(size: int, fds: int) -> None:
    with pytest.raises(WireError):
        wire.encode(FrameType.READY, bytes(size), fds)


def test_a_nul_is_refused_in_a_string_and_allowed_in_a_blob() -> None:
    with pytest.raises(WireError):
        Writer().string(b"a\0b")
    body = Writer().blob(b"a\0b").body()
    assert Reader(body).blob() == b"a\0b"
    with pytest.raises(WireError):
        Reader(body).string()


@pytest.mark.parametrize("count", [1, 2, wire.MAX_STRINGS + 1, 0xFFFFFFFF])
def test_a_list_that_cannot_fit_is_refused_before_it_is_read(count: int) -> None:
    with pytest.raises(WireError):
        Reader(Writer().u32(count).body()).strings()


def test_a_status_is_what_a_shell_would_say() -> None:
    assert (Exited(1, 3, 0).status, Exited(1, 0, 9).status, Exited(1, 0, 0).status) == (3, 137, 0)

"""The broker against clients of every kind: real sockets, real descriptors, real commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agenthost.wire import (
    HEADER,
    CommandFlag,
    Failed,
    FrameType,
    Signal,
    SignalScope,
    Writer,
    encode,
)
from tests.broker_client import PATIENCE_S, SHELL, Place, broker, open_fds, status_of, wait_until
from tests.needs import UNPRIVILEGED_UID, needs

pytestmark = needs("linux")


@pytest.fixture
def place(open_dir: Path) -> Iterator[Place]:
    with broker(open_dir) as place:
        yield place


# Well-mannered clients ------------------------------------------------------------------------------------------------


def test_a_command_runs_and_its_status_comes_back(place: Place) -> None:
    reading, writing = os.pipe()
    hello = replace(SHELL, descriptors=0b010, argv=(b"sh", b"-c", b"echo hello; exit 7"))
    assert place.status(hello, [writing]) == 7
    os.close(writing)
    with os.fdopen(reading, "rb") as output:
        assert output.read() == b"hello\n"


def test_both_events_are_in_the_log(place: Place) -> None:
    assert place.status() == 3
    place.until(2)
    started, exited = [json.loads(line) for line in place.log.read_text().splitlines()]
    assert {key: started[key] for key in ("session", "type", "command", "program", "argv", "cwd")} == {
        "session": "test",
        "type": "command.started",
        "command": 1,
        "program": "/bin/sh",
        "argv": ["sh", "-c", "exit 3"],
        "cwd": "/",
    }
    assert {key: exited[key] for key in ("type", "command", "status")} == {
        "type": "command.exited",
        "command": 1,
        "status": 3,
    }
    assert exited["ms"] > 0


def test_a_refusal_says_why_and_is_an_event(place: Place) -> None:
    with place.client() as client:
        client.invoke(replace(SHELL, executable=b"/bin/\xffevil\n"))
        frame = client.receive()
        assert frame is not None
        assert frame.type is FrameType.FAILED
        failed = Failed.parse(frame.body)
        assert client.receive() is None
    line = "refused by the rule 'program': /bin/\\xffevil\\n is not a declared program (declared: /bin/sh, git)"
    assert (failed.status, failed.message.decode()) == (126, line)
    event = place.until(1)[0]
    assert (event["type"], event["status"], event["reason"]) == ("command.refused", 126, line)


def test_what_could_not_be_started_has_its_status_and_message_in_the_event(place: Place) -> None:
    assert place.status(replace(SHELL, cwd=b"/nowhere")) == 127
    event = place.until(2)[1]
    assert (event["type"], event["status"]) == ("command.exited", 127)
    assert "/nowhere" in str(event["message"])


def test_a_long_argv_is_cut_in_the_event_and_whole_in_the_command(place: Place) -> None:
    argv = (b"sh", b"-c", b'test $# = 50000 && test "$1" = x', b"sh", *[b"x"] * 50_000)
    assert place.status(replace(SHELL, argv=argv)) == 0
    event = place.until(1)[0]
    assert event["argv_cut"] == len(argv)
    assert len(json.dumps(event)) < 64 << 10


def test_signals_that_follow_the_invocation_at_once_reach_the_environment(place: Place) -> None:
    sleeper = replace(SHELL, argv=(b"sh", b"-c", b"exec sleep 1000"))
    with place.client() as client:
        term = encode(FrameType.SIGNAL, Signal(15, SignalScope.GROUP).body())
        client.send(encode(FrameType.INVOKE, sleeper.body()) + term)
        assert status_of(client.receive()) == 143


def test_the_environment_gets_no_flag_that_only_the_daemon_may_set(place: Place) -> None:
    assert place.status(replace(SHELL, flags=CommandFlag.MAIN)) == 3
    assert place.served.environment.commands[-1].flags == CommandFlag.CONNECTION


def test_an_environment_that_is_gone_gives_255_with_its_words(place: Place) -> None:
    place.served.environment.gone = True
    with place.client() as client:
        client.invoke(SHELL)
        frame = client.receive()
    assert frame is not None
    failed = Failed.parse(frame.body)
    assert (failed.status, failed.message) == (255, b"environment: the environment ended; start the Session again")
    assert place.until(1)[0]["type"] == "command.refused"


def test_many_commands_at_once_are_all_served(place: Place) -> None:
    clients = [place.client() for _ in range(150)]
    for client in clients:
        client.invoke(SHELL)
    assert [status_of(client.receive()) for client in clients] == [3] * len(clients)
    for client in clients:
        client.socket.close()
    assert len(place.until(300)) == 300


# Ill-mannered clients -------------------------------------------------------------------------------------------------


def frame(body: bytes, kind: int = FrameType.INVOKE, fds: int = 0) -> bytes:
    return HEADER.pack(len(body), kind, fds) + body


BAD = {
    "another type": (frame(SHELL.body(), FrameType.COMMAND), 0),
    "an unknown type": (frame(SHELL.body(), 77), 0),
    "a signal first": (frame(Signal(15, SignalScope.GROUP).body(), FrameType.SIGNAL), 0),
    "no body": (frame(b""), 0),
    "a short body": (frame(SHELL.body()[:-1]), 0),
    "a long body": (frame(SHELL.body() + b"\0"), 0),
    "a length beyond the limit": (HEADER.pack((8 << 20) + 1, 1, 0), 0),
    "the largest length": (HEADER.pack(0xFFFFFFFF, 1, 0), 0),
    "a string beyond its body": (frame(Writer().u32(0).u32(0).u32(0).u32(0).u32(0xFFFFFFFF).body()), 0),
    "a list beyond its body": (frame(SHELL.body()[:-4] + b"\xff\xff\xff\xff"), 0),
    "four descriptors": (frame(SHELL.body(), fds=4), 4),
    "four descriptors, said to be three": (frame(SHELL.body(), fds=3), 4),
    "as many descriptors as the kernel passes": (frame(SHELL.body(), fds=250), 253),
    "fewer descriptors than said": (frame(SHELL.body(), fds=3), 2),
    "descriptors that nobody announced": (frame(SHELL.body()), 3),
    "half a header": (b"\x10\0\0", 0),
    "half a header with descriptors": (b"\x10\0\0", 3),
    "half a body with descriptors": (frame(SHELL.body(), fds=3)[:20], 3),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_ends_its_connection_and_nothing_else(place: Place, name: str) -> None:
    assert place.still_serves()
    place.until(2)
    data, count = BAD[name]
    with place.client() as client:
        client.send(data, [client.socket.fileno()] * count)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.receive() is None
    assert place.until(3)[2]["type"] == "broker.rejected"
    place.wait_until_idle()
    assert place.still_serves()


def test_a_client_that_says_nothing_is_forgotten_in_silence(place: Place) -> None:
    with place.client():
        pass
    assert place.still_serves()
    assert place.until(2)
    assert "broker.rejected" not in place.types()


def test_a_declared_count_that_is_not_what_came_is_refused(place: Place) -> None:
    assert place.status(replace(SHELL, descriptors=0b111)) == 126
    assert "'descriptors'" in str(place.until(1)[0]["reason"])


def test_a_client_that_stops_in_the_middle_is_dropped_in_time(open_dir: Path) -> None:
    with broker(open_dir, invoke_s=0.2) as place:
        with place.client() as client:
            client.send(frame(SHELL.body(), fds=1)[:30], [client.socket.fileno()])
            assert client.receive() is None
        assert "in time" in str(place.until(1)[0]["reason"])
        place.wait_until_idle()
        assert place.still_serves()


def test_a_trickling_client_does_not_hold_up_another(place: Place) -> None:
    with place.client() as slow:
        for byte in frame(SHELL.body())[:40]:
            slow.send(bytes([byte]))
            assert place.still_serves()


def test_idle_clients_fill_their_places_and_no_more(open_dir: Path) -> None:
    with broker(open_dir, connections=4, invoke_s=0.5) as place:
        idle = [place.client() for _ in range(4)]
        assert place.still_serves()  # waits until the idle ones have had their time
        assert place.types().count("broker.rejected") == 4
        for client in idle:
            client.socket.close()


def test_commands_beyond_the_limit_are_refused(open_dir: Path) -> None:
    with broker(open_dir, commands=2) as place:
        clients = [place.client() for _ in range(2)]
        for client in clients:
            client.invoke(replace(SHELL, argv=(b"sh", b"-c", b"exec sleep 1000")))
        place.until(2)
        assert place.status() == 126
        assert "the limit of 2 commands" in str(place.until(3)[2]["reason"])
        for client in clients:
            client.socket.close()
        wait_until(lambda: place.types().count("command.exited") == 2)
        assert place.still_serves()


def test_only_so_many_rejections_are_told(open_dir: Path) -> None:
    with broker(open_dir, rejections=3) as place:
        for _ in range(10):
            with place.client() as client:
                client.send(frame(b""))
                assert client.receive() is None
        assert place.still_serves()
        rejected = [event for event in place.until(5) if event["type"] == "broker.rejected"]
        assert [event.get("last") for event in rejected] == [None, None, True]


def test_without_descriptors_the_broker_waits_until_there_are_some(open_dir: Path) -> None:
    with broker(open_dir, pause_s=0.02) as place:
        assert place.still_serves()
        place.until(2)
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE_S)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            client.connect(str(place.path))
            client.sendall(frame(SHELL.body()))
            readable, _, _ = select.select([client], [], [], 0.2)
            assert not readable
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with client:
            assert client.recv(1)
        assert place.still_serves()


@needs("root", "setpriv")
def test_another_uid_is_turned_away_before_it_is_heard(place: Place) -> None:
    script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nprint(len(s.recv(1)))"
    command = ["setpriv", f"--reuid={UNPRIVILEGED_UID}", "--clear-groups", "/usr/bin/python3", "-c", script]
    done = subprocess.run([*command, str(place.path)], stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True)
    assert done.stdout == b"0\n"
    assert place.until(1)[0]["reason"] == f"uid {UNPRIVILEGED_UID} is not the Session's"
    assert place.still_serves()


def test_closing_drops_who_has_not_finished_asking(open_dir: Path) -> None:
    before = open_fds()
    with contextlib.ExitStack() as clients:
        with broker(open_dir) as place:
            half, silent, running = [clients.enter_context(place.client()) for _ in range(3)]
            half.send(frame(SHELL.body(), fds=1)[:30], [half.socket.fileno()])
            running.invoke(replace(SHELL, argv=(b"sh", b"-c", b"exec sleep 1000")))
            place.until(1)
        assert half.receive() is None
        assert silent.receive() is None
        assert status_of(running.receive()) == 137
        assert place.types() == ["command.started", "command.exited"]
    assert open_fds() <= before


def test_settling_waits_for_the_last_events_of_commands_whose_shims_are_gone(place: Place) -> None:
    with place.client() as client:
        client.invoke(replace(SHELL, argv=(b"sh", b"-c", b"trap '' TERM; exec sleep 1000")))
        place.until(1)
    place.served.settle(PATIENCE_S)
    assert place.types() == ["command.started", "command.exited"]


def test_settling_takes_no_longer_than_it_is_told(place: Place) -> None:
    with place.client() as client:
        client.invoke(replace(SHELL, argv=(b"sh", b"-c", b"exec sleep 1000")))
        place.until(1)
        place.served.settle(0.05)
        assert place.types() == ["command.started"]


def test_a_hostile_parser_does_not_stop_the_loop(place: Place) -> None:
    """The costliest body there is, while another client must be answered."""
    count = 1 << 20
    empty = struct.pack("<I", count) + bytes(4 * count)
    head = Writer().u32(0).u32(0).u32(0).u32(0).string(b"/bin/no").string(b"/").body()
    longest = 0.0
    ticking = True

    async def tick() -> None:
        nonlocal longest
        while ticking:
            started = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - started)

    tasks: list[asyncio.Task[None]] = []
    place.served.call(lambda: tasks.append(asyncio.get_running_loop().create_task(tick())))
    with place.client() as client:
        started = time.monotonic()
        client.send(frame(head + empty + struct.pack("<I", 0)))
        assert status_of(client.receive()) == 126
        took = time.monotonic() - started
    ticking = False
    wait_until(tasks[0].done)
    assert longest < took / 2, f"the loop stood still for {longest:.3f} s of {took:.3f} s"


pieces = st.one_of(
    st.binary(max_size=64),
    st.sampled_from([data for data, _ in BAD.values()]),
    st.just(frame(SHELL.body())),
    st.builds(frame, st.binary(max_size=64), st.integers(0, 20), st.integers(0, 5)),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.lists(st.tuples(pieces, st.integers(0, 5)), min_size=1, max_size=4))
def test_no_sequence_of_bytes_and_descriptors_harms_the_broker(place: Place, sent: list[tuple[bytes, int]]) -> None:
    with place.client() as client, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for data, count in sent:
            if data:
                client.send(data, [client.socket.fileno()] * count)
        client.socket.shutdown(socket.SHUT_WR)
        while client.receive() is not None:
            continue
    assert place.still_serves()
    place.wait_until_idle()

"""Frames with descriptors over real sockets: whole, in pieces, too large, cut short, and closed while someone waits."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenthost.errors import WireError
from agenthost.linux.fdpass import close_fds, receive_frame, send_frame
from agenthost.linux.framestream import FrameStream
from agenthost.wire import HEADER, MAX_BODY, MAX_FDS, FrameType, encode

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


@contextlib.contextmanager
def open_files(count: int) -> Iterator[list[int]]:
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
    try:
        yield fds
    finally:
        close_fds(fds)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def send_raw(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())])


class TestBlocking:
    @given(body=st.binary(max_size=2000), count=st.integers(0, 5), kind=st.sampled_from(FrameType))
    def test_a_frame_arrives_as_it_was_sent(self, body: bytes, count: int, kind: FrameType) -> None:
        here, there = socket.socketpair()
        with here, there, open_files(count) as fds:
            send_frame(here, kind, body, fds)
            frame = receive_frame(there)
            assert frame is not None
            close_fds(frame.fds)
            assert (frame.type, frame.body, len(frame.fds)) == (kind, body, count)

    def test_received_descriptors_are_others_and_close_on_exec(self, pair: Pair) -> None:
        reading, writing = os.pipe()
        send_frame(pair[0], FrameType.COMMAND, b"", [writing])
        frame = receive_frame(pair[1])
        assert frame is not None
        [received] = frame.fds
        assert not os.get_inheritable(received)
        assert received not in {reading, writing}
        os.write(received, b"x")
        assert os.read(reading, 1) == b"x"
        close_fds([reading, writing, received])

    def test_the_largest_frame_arrives(self, pair: Pair) -> None:
        body = os.urandom(MAX_BODY)
        with open_files(MAX_FDS) as fds:
            sender = threading.Thread(target=send_frame, args=(pair[0], FrameType.TREE, body, fds))
            sender.start()
            frame = receive_frame(pair[1])
            sender.join()
        assert frame is not None
        close_fds(frame.fds)
        assert (frame.body == body, len(frame.fds)) == (True, MAX_FDS)

    def test_two_frames_stay_apart(self, pair: Pair) -> None:
        with open_files(1) as fds:
            send_frame(pair[0], FrameType.STARTED, b"one", fds)
            send_frame(pair[0], FrameType.EXITED, b"two", fds)
        first, second = receive_frame(pair[1]), receive_frame(pair[1])
        assert first is not None
        assert second is not None
        close_fds([*first.fds, *second.fds])
        assert (first.body, len(first.fds), second.body, len(second.fds)) == (b"one", 1, b"two", 1)

    def test_the_end_between_two_frames_is_none(self, pair: Pair) -> None:
        pair[0].close()
        assert receive_frame(pair[1]) is None

    @pytest.mark.parametrize("size", [1, HEADER.size - 1, HEADER.size, HEADER.size + 2])
    def test_a_frame_cut_short_is_an_error_and_keeps_no_descriptor(self, pair: Pair, size: int) -> None:
        before = descriptors()
        with open_files(2) as fds:
            send_raw(pair[0], encode(FrameType.SIGNAL, b"body", 2)[:size], fds)
        pair[0].shutdown(socket.SHUT_WR)
        with pytest.raises(WireError):
            receive_frame(pair[1])
        assert descriptors() == before

    @pytest.mark.parametrize(("said", "sent"), [(0, 1), (1, 0), (2, 1), (1, 2)])
    def test_other_descriptors_than_it_says_are_an_error(self, pair: Pair, said: int, sent: int) -> None:
        before = descriptors()
        with open_files(sent) as fds:
            send_raw(pair[0], encode(FrameType.INVOKE, b"body", said), fds)
        with pytest.raises(WireError):
            receive_frame(pair[1])
        assert descriptors() == before

    def test_more_than_may_be_is_an_error_before_anything_is_sent(self, pair: Pair) -> None:
        with pytest.raises(WireError):
            send_frame(pair[0], FrameType.INVOKE, bytes(MAX_BODY + 1))
        pair[0].close()
        assert receive_frame(pair[1]) is None


class TestStream:
    def test_frames_come_in_whatever_pieces(self, pair: Pair) -> None:
        frames = [(FrameType.COMMAND, b"a" * 300), (FrameType.SIGNAL, b""), (FrameType.EXITED, b"end")]
        data = b"".join(encode(kind, body) for kind, body in frames)

        async def main() -> list[tuple[FrameType, bytes]]:
            stream = FrameStream(pair[1])
            receiving = asyncio.create_task(_all(stream))
            for byte in data:
                pair[0].send(bytes([byte]))
                await asyncio.sleep(0)
            pair[0].close()
            got = await receiving
            stream.close()
            return got

        assert asyncio.run(main()) == frames

    @given(bodies=st.lists(st.binary(max_size=500), max_size=5), cuts=st.lists(st.integers(1, 40), min_size=1))
    def test_frames_come_in_pieces_of_any_size(self, bodies: list[bytes], cuts: list[int]) -> None:
        data = b"".join(encode(FrameType.REPLY, body) for body in bodies)

        async def main() -> list[bytes]:
            here, there = socket.socketpair()
            stream = FrameStream(there)
            receiving = asyncio.create_task(_all(stream))
            at, turn = 0, 0
            with here:
                while at < len(data):
                    size = cuts[turn % len(cuts)]
                    here.send(data[at : at + size])
                    at, turn = at + size, turn + 1
                    await asyncio.sleep(0)
            got = await receiving
            stream.close()
            return [body for _, body in got]

        assert asyncio.run(main()) == bodies

    def test_descriptors_come_with_their_own_frame(self, pair: Pair) -> None:
        async def main() -> list[int]:
            one, other = FrameStream(pair[0]), FrameStream(pair[1])
            counts = []
            for count in (0, 3, 1):
                with open_files(count) as fds:
                    await one.send(FrameType.COMMAND, b"x", fds)
            for _ in range(3):
                frame = await other.receive()
                assert frame is not None
                counts.append(len(frame.fds))
                close_fds(frame.fds)
            one.close()
            other.close()
            return counts

        assert asyncio.run(main()) == [0, 3, 1]

    def test_large_frames_of_several_senders_do_not_mix(self, pair: Pair) -> None:
        bodies = [bytes([number]) * (1 << 20) for number in range(4)]

        async def main() -> list[bytes]:
            one, other = FrameStream(pair[0]), FrameStream(pair[1])
            sending = asyncio.gather(*(one.send(FrameType.REQUEST, body) for body in bodies))
            got = []
            for _ in bodies:
                frame = await other.receive()
                assert frame is not None
                got.append(frame.body)
            await sending
            one.close()
            other.close()
            return got

        assert asyncio.run(main()) == bodies

    def test_who_waits_when_it_is_closed_gets_an_error(self, pair: Pair) -> None:
        async def main() -> None:
            stream = FrameStream(pair[1])
            waiting = asyncio.create_task(stream.receive())
            await asyncio.sleep(0)
            stream.close()
            stream.close()
            with pytest.raises(ConnectionResetError):
                await waiting
            with pytest.raises(OSError):
                await stream.send(FrameType.SIGNAL, b"")

        asyncio.run(main())

    def test_who_sends_when_it_is_closed_gets_an_error(self, pair: Pair) -> None:
        async def main() -> None:
            stream = FrameStream(pair[0])
            sending = asyncio.create_task(stream.send(FrameType.SIGNAL, bytes(MAX_BODY)))
            await asyncio.sleep(0.01)
            assert not sending.done()
            stream.close()
            with pytest.raises(OSError):
                await sending

        asyncio.run(main())

    def test_closing_closes_what_nobody_took(self, pair: Pair) -> None:
        before = descriptors()

        async def main() -> None:
            stream = FrameStream(pair[1])
            with open_files(3) as fds:
                send_raw(pair[0], encode(FrameType.INVOKE, b"body", 3)[:-1], fds)
            waiting = asyncio.create_task(stream.receive())
            await asyncio.sleep(0.01)
            stream.close()
            with pytest.raises(ConnectionResetError):
                await waiting

        asyncio.run(main())
        assert descriptors() == before - 1  # the stream owned its socket

    @pytest.mark.parametrize("fds", [2, MAX_FDS])
    def test_more_descriptors_than_its_limit_are_an_error(self, pair: Pair, fds: int) -> None:
        async def main() -> int:
            before = descriptors()
            stream = FrameStream(pair[1], max_fds=1)
            with open_files(fds) as opened:
                send_frame(pair[0], FrameType.INVOKE, b"", opened)
            with pytest.raises(WireError):
                await stream.receive()
            stream.close()
            return before - descriptors()

        assert asyncio.run(main()) in {0, 1}

    def test_a_body_beyond_its_limit_is_an_error_before_it_is_read(self, pair: Pair) -> None:
        async def main() -> None:
            stream = FrameStream(pair[1], max_body=10)
            pair[0].send(HEADER.pack(11, FrameType.INVOKE, 0))
            with pytest.raises(WireError, match="limits"):
                await asyncio.wait_for(stream.receive(), 5)
            stream.close()

        asyncio.run(main())

    def test_half_a_frame_is_an_error_and_no_frame_is_the_end(self, pair: Pair) -> None:
        async def main() -> None:
            stream = FrameStream(pair[1])
            pair[0].send(encode(FrameType.EXITED, b"body")[:-1])
            pair[0].close()
            with pytest.raises(WireError, match="cut short"):
                await stream.receive()
            stream.close()

        asyncio.run(main())

    def test_a_cancelled_receive_loses_nothing(self, pair: Pair) -> None:
        async def main() -> bytes:
            stream = FrameStream(pair[1])
            data = encode(FrameType.EXITED, b"0123456789")
            pair[0].send(data[:12])
            waiting = asyncio.create_task(stream.receive())
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            stream.close()
            return data

        assert len(asyncio.run(main())) == 18


async def _all(stream: FrameStream) -> list[tuple[FrameType, bytes]]:
    got = []
    while (frame := await stream.receive()) is not None:
        got.append((frame.type, frame.body))
    return got

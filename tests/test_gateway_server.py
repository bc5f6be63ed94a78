"""The gateway as a whole: it ends within a second, tells when it broke, and holds nothing afterwards."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agenthost.errors import GatewayFailed
from agenthost.gateway.destinations import AllowedHost
from agenthost.gateway.provider import Provider
from agenthost.gateway.server import Gateway
from tests.gateway_rig import KEY, answering, ask, event_log, gateway, listening, provider_at, read_head, upstream

pytestmark = pytest.mark.usefixtures("no_leaks")

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
PROVIDER = Provider(base_url="http://127.0.0.1:9/v1", api_key=KEY)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def open_descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_closing_ends_every_kind_of_connection_within_a_second() -> None:
    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.read()

    async def main() -> None:
        async with upstream(stall) as far, gateway(provider_at(far), allow=[f"127.0.0.1:{far}"]) as rig:
            openings = {
                rig.model_port: [b"", b"POST /resp", rig.request(), rig.request("Content-Length: 10", body=b"x")],
                rig.proxy_port: [
                    b"",
                    b"CONNECT a",
                    f"CONNECT 127.0.0.1:{far} HTTP/1.1\r\n\r\n".encode(),
                    f"GET http://127.0.0.1:{far}/ HTTP/1.1\r\n\r\n".encode(),
                ],
            }
            readers = []
            for port, starts in openings.items():
                for start in starts:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(start)
                    readers.append((reader, writer))
            for index in (2, 6, 7):
                await read_head(readers[index][0])
            begun = time.monotonic()
            await rig.gateway.aclose()
            assert time.monotonic() - begun < 1
            for reader, writer in readers:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
            for port in openings:
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection("127.0.0.1", port)

    run(main)


def test_closing_is_quick_also_for_a_client_that_reads_nothing() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(1 << 20))
            await writer.drain()

    async def main() -> None:
        async with upstream(flood) as far, gateway(provider_at(far), allow=[f"127.0.0.1:{far}"]) as rig:
            starts = {
                rig.model_port: rig.request(),
                rig.proxy_port: f"CONNECT 127.0.0.1:{far} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n".encode(),
            }
            writers = []
            for port, start in starts.items():
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
                writer.write(start)
                await read_head(reader)
                writers.append(writer)
            await asyncio.sleep(0.2)
            begun = time.monotonic()
            await rig.gateway.aclose()
            assert time.monotonic() - begun < 1
            for writer in writers:
                writer.close()

    run(main)


@pytest.mark.parametrize("broken", ["model", "proxy"])
def test_a_listener_that_breaks_is_told(broken: str) -> None:
    async def main() -> None:
        with event_log() as (log, _):
            sockets = {"model": listening(), "proxy": listening()}
            running = Gateway(PROVIDER, allow_hosts=[], events=log)
            await running.start(proxy=sockets["proxy"], model=sockets["model"])
            waiting = asyncio.create_task(running.failed())
            await asyncio.sleep(0)
            sockets[broken].shutdown(socket.SHUT_RDWR)
            failure = await asyncio.wait_for(waiting, 10)
            assert isinstance(failure, GatewayFailed)
            assert broken in failure.what
            assert running.failure is failure
            await running.aclose()

    run(main)


def test_a_gateway_that_was_closed_has_not_failed() -> None:
    async def main() -> None:
        async with gateway() as rig:
            waiting = asyncio.create_task(rig.gateway.failed())
            await asyncio.sleep(0)
            await rig.gateway.aclose()
            await rig.gateway.aclose()
            await asyncio.sleep(0.05)
            assert not waiting.done()
            waiting.cancel()

    run(main)


@pytest.mark.parametrize("broken", ["model", "proxy"])
def test_a_socket_that_does_not_listen_is_refused_and_both_are_closed(broken: str) -> None:
    async def main() -> None:
        with event_log() as (log, _):
            sockets = {"model": listening(), "proxy": listening()}
            sockets[broken].close()
            sockets[broken] = socket.socket()
            sockets[broken].bind(("127.0.0.1", 0))
            with pytest.raises(GatewayFailed, match=broken):
                await Gateway(PROVIDER, events=log).start(proxy=sockets["proxy"], model=sockets["model"])
            assert [sock.fileno() for sock in sockets.values()] == [-1, -1]

    run(main)


def test_a_shortage_of_descriptors_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with upstream(answering(OK)) as far, gateway(provider_at(far)) as rig:
            loop = asyncio.get_running_loop()
            accept = loop.sock_accept
            failures = [24, 23, 103]  # EMFILE, ENFILE, ECONNABORTED

            async def sock_accept(sock: socket.socket) -> object:
                if failures:
                    number = failures.pop()
                    raise OSError(number, os.strerror(number))
                return await accept(sock)

            monkeypatch.setattr(loop, "sock_accept", sock_accept)
            for _ in range(5):
                head, _body = await ask(rig.model_port, rig.request())
                assert head.status == 200
            assert failures == []

    run(main)


def test_a_thousand_requests_leave_no_descriptor_open() -> None:
    async def main() -> None:
        async with upstream(answering(OK)) as far, gateway(provider_at(far), allow=[f"127.0.0.1:{far}"]) as rig:

            async def each(number: int) -> None:
                match number % 4:
                    case 0:
                        await ask(rig.model_port, rig.request(body=b"x"))
                    case 1:
                        await ask(rig.model_port, rig.request(line="GET /nothing HTTP/1.1"))
                    case 2:
                        await ask(rig.proxy_port, b"CONNECT a.example:443 HTTP/1.1\r\n\r\n")
                    case _:
                        await ask(rig.proxy_port, f"GET http://127.0.0.1:{far}/ HTTP/1.1\r\n\r\n".encode())

            before = open_descriptors()
            for start in range(0, 1000, 20):
                await asyncio.gather(*(each(number) for number in range(start, start + 20)))
            for _ in range(100):
                if open_descriptors() <= before:
                    break
                await asyncio.sleep(0.05)
            assert open_descriptors() <= before + 1  # the descriptor that lists them

    run(main)


def test_the_key_is_in_no_text_of_the_gateway(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        echo = f"HTTP/1.1 200 {KEY}\r\nX: {KEY}\r\nBroken {KEY}\r\n\r\n".encode()
        async with upstream(answering(echo)) as far, gateway(provider_at(far)) as rig:
            head, body = await ask(rig.model_port, rig.request())
            texts = [repr(rig.gateway), repr(rig.gateway._listeners), repr(head), body.decode(), json.dumps(rig.events)]
            assert not [text for text in texts if KEY in text]
            assert rig.events

    asyncio.run(main(), debug=True)
    text = io.StringIO()
    for record in caplog.records:
        text.write(logging.Formatter().format(record))
    assert KEY not in text.getvalue()


def test_the_list_of_allowed_hosts_is_what_the_proxy_goes_by() -> None:
    async def main() -> None:
        with event_log() as (log, _):
            allow = [AllowedHost.parse("example.com")]
            running = Gateway(PROVIDER, allow_hosts=allow, events=log)
            allow.clear()
            assert "example.com" in repr(running)

    run(main)

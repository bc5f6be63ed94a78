"""The proxy listener with real connections: denied at once, or relayed byte for byte."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agenthost.events import Event
from agenthost.gateway.destinations import Address, AllowedHost
from agenthost.gateway.proxy import ProxyLimits, ProxyListener
from agenthost.gateway.resolve import Resolve, resolve
from tests.gateway_rig import (
    PATIENCE_S,
    Head,
    answering,
    ask,
    event_log,
    gateway,
    listening,
    read_body,
    read_head,
    upstream,
)

pytestmark = pytest.mark.usefixtures("no_leaks")


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


@asynccontextmanager
async def proxy(
    allow: Sequence[str] = (), *, limits: ProxyLimits | None = None, resolver: Resolve = resolve
) -> AsyncIterator[tuple[int, list[Event]]]:
    with event_log() as (log, events):
        sock = listening()
        hosts = [AllowedHost.parse(host) for host in allow]
        listener = ProxyListener(sock, hosts, log, limits=limits, resolver=resolver)
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield sock.getsockname()[1], events
        finally:
            await listener.aclose()


def decisions(events: list[Event]) -> list[tuple[object, object, object]]:
    return [(event["host"], event["port"], event["decision"]) for event in events if event["type"] == "proxy.connect"]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what comes, and ends when it ends."""
    while data := await reader.read(1000):
        writer.write(data)
    writer.write_eof()


def answers_with(*addresses: str) -> Resolve:
    async def resolver(host: str) -> list[Address]:
        return [ipaddress.ip_address(address) for address in addresses]

    return resolver


def test_by_default_everything_is_denied_at_once() -> None:
    async def main() -> None:
        async with gateway() as rig:
            head, body = await ask(rig.proxy_port, b"CONNECT ab.chatgpt.com:443 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert head.first == "HTTP/1.1 403 Forbidden"
            assert b"ab.chatgpt.com:443: not an allowed host" in body
            head, _ = await ask(rig.proxy_port, b"GET http://example.com/ HTTP/1.1\r\n\r\n")
            assert head.status == 403
            assert decisions(rig.events) == [("ab.chatgpt.com", 443, "denied"), ("example.com", 80, "denied")]

    run(main)


def test_a_name_that_is_not_allowed_is_not_even_resolved() -> None:
    async def resolver(host: str) -> list[Address]:
        raise AssertionError(host)

    async def main() -> None:
        async with proxy(["other.example"], resolver=resolver) as (port, _):
            head, _body = await ask(port, b"CONNECT secret-data.attacker.example:443 HTTP/1.1\r\n\r\n")
            assert head.status == 403

    run(main)


@pytest.mark.parametrize("line", ["CONNECT a.example:443", "POST http://a.example/"])
def test_a_refusal_reaches_a_client_that_says_all_before_it_listens(line: str) -> None:
    """More than every buffer holds: where the connection is reset while the client still sends, it never reads."""

    def talk(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"{line} HTTP/1.1\r\nContent-Length: 30000000\r\n\r\n".encode() + bytes(30_000_000))
            return client.recv(100)

    async def main() -> None:
        async with proxy() as (port, _):
            assert (await asyncio.to_thread(talk, port)).startswith(b"HTTP/1.1 403 Forbidden\r\n")

    run(main)


def test_a_tunnel_carries_bytes_sent_with_the_request_and_each_half_ends_on_its_own() -> None:
    async def main() -> None:
        async with upstream(echo) as far, proxy([f"127.0.0.1:{far}"]) as (port, events):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT 127.0.0.1:{far} HTTP/1.1\r\n\r\nat once".encode())
            assert (await read_head(reader)).status == 200
            assert await reader.readexactly(7) == b"at once"
            writer.write(b"and last")
            writer.write_eof()
            assert await reader.read() == b"and last"
            writer.close()
            assert decisions(events) == [("127.0.0.1", far, "allowed")]

    run(main)


def test_the_far_side_may_end_first_and_still_listen() -> None:
    heard = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.write_eof()
        assert await reader.read() == b"late"
        heard.set()

    async def main() -> None:
        async with upstream(serve) as far, proxy([f"127.0.0.1:{far}"]) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT 127.0.0.1:{far} HTTP/1.1\r\n\r\n".encode())
            await read_head(reader)
            assert await reader.read() == b"bye"
            writer.write(b"late")
            writer.write_eof()
            await heard.wait()
            writer.close()

    run(main)


def test_a_tunnel_carries_a_lot_both_ways() -> None:
    data = bytes(range(256)) * 40_000

    async def main() -> None:
        async with upstream(echo) as far, proxy([f"127.0.0.1:{far}"]) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT 127.0.0.1:{far} HTTP/1.1\r\n\r\n".encode())
            await read_head(reader)

            async def send() -> None:
                writer.write(data)
                await writer.drain()
                writer.write_eof()

            _, received = await asyncio.gather(send(), reader.read())
            assert received == data
            writer.close()

    run(main)


def test_a_reset_on_one_side_is_no_regular_end_on_the_other() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    async def main() -> None:
        async with upstream(serve) as far, proxy([f"127.0.0.1:{far}"]) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT 127.0.0.1:{far} HTTP/1.1\r\n\r\n".encode())
            await read_head(reader)
            writer.write(b"x")
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

    run(main)


def test_a_request_is_made_for_the_client_with_the_hosts_own_name() -> None:
    seen: list[tuple[Head, bytes]] = []
    answer = b"HTTP/1.1 200 OK\r\nKeep-Alive: 5\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello"

    async def main() -> None:
        async with upstream(answering(answer, seen)) as far, proxy([f"127.0.0.1:{far}"]) as (port, events):
            raw = f"POST http://127.0.0.1:{far}/p?q HTTP/1.1\r\nHost: evil\r\nProxy-Authorization: x\r\n"
            head, body = await ask(port, raw.encode() + b"Content-Length: 3\r\n\r\nabc")
            assert (head.status, body) == (200, b"hello")
            assert head.names == {"content-length", "connection"}
            sent, sent_body = seen[0]
            assert (sent.first, sent_body) == ("POST /p?q HTTP/1.1", b"abc")
            assert sent.one("host") == f"127.0.0.1:{far}"
            assert sent.one("connection") == "close"
            assert sent.names == {"host", "connection", "content-length"}
            assert decisions(events) == [("127.0.0.1", far, "allowed")]

    run(main)


def test_an_interim_answer_comes_before_the_final_one() -> None:
    answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"

    async def main() -> None:
        async with upstream(answering(answer)) as far, proxy([f"127.0.0.1:{far}"]) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET http://127.0.0.1:{far}/ HTTP/1.1\r\n\r\n".encode())
            assert (await read_head(reader)).status == 100
            assert (await read_head(reader)).status == 204
            assert await reader.read() == b""
            writer.close()

    run(main)


def test_an_answer_that_is_no_http_is_a_502() -> None:
    async def main() -> None:
        async with upstream(answering(b"SSH-2.0-x\r\n\r\n")) as far, proxy([f"127.0.0.1:{far}"]) as (port, _):
            head, _body = await ask(port, f"GET http://127.0.0.1:{far}/ HTTP/1.1\r\n\r\n".encode())
            assert head.status == 502

    run(main)


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /responses HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET https://a.example/ HTTP/1.1\r\n\r\n",
        b"CONNECT a.example HTTP/1.1\r\n\r\n",
        b"CONNECT 2130706433:80 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\r\n\r\n",
    ],
)
def test_what_a_proxy_cannot_take_is_a_bad_request(raw: bytes) -> None:
    async def main() -> None:
        async with proxy(["a.example"]) as (port, events):
            head, _body = await ask(port, raw)
            assert head.status == 400
            assert decisions(events) == [("", 0, "denied")]

    run(main)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "224.0.0.1", "0.0.0.0", "fe80::1"],
)
def test_a_name_that_is_made_to_point_inwards_leads_nowhere(address: str) -> None:
    async def main() -> None:
        async with proxy(["rebind.example:443"], resolver=answers_with(address)) as (port, events):
            head, body = await ask(port, b"CONNECT rebind.example:443 HTTP/1.1\r\n\r\n")
            assert head.status == 403
            assert address.encode() not in body
            assert decisions(events) == [("rebind.example", 443, "denied")]

    run(main)


def test_loopback_is_reached_only_where_it_is_named() -> None:
    async def main() -> None:
        async with upstream(echo) as far:
            async with proxy([f"127.0.0.1:{far + 1}", f"localhost:{far + 1}"]) as (port, _):
                for host in ("127.0.0.1", "localhost"):
                    head, _body = await ask(port, f"CONNECT {host}:{far} HTTP/1.1\r\n\r\n".encode())
                    assert head.status == 403
            async with proxy([f"localhost:{far}"]) as (port, _):
                head, _body = await ask(port, f"CONNECT localhost:{far} HTTP/1.1\r\n\r\n".encode())
                assert head.status == 200

    run(main)


def test_a_name_is_resolved_once_and_the_judged_address_is_the_one_reached() -> None:
    asked: list[str] = []

    async def main() -> None:
        async with upstream(echo) as far:

            async def resolver(host: str) -> list[Address]:
                asked.append(host)
                return [ipaddress.ip_address("10.255.255.1"), ipaddress.ip_address("127.0.0.1")]

            allow = [f"service.example:{far}", f"127.0.0.1:{far}"]
            async with proxy(allow, resolver=resolver) as (port, _):
                head, _body = await ask(port, f"CONNECT service.example:{far} HTTP/1.1\r\n\r\n".encode())
                assert head.status == 200
                assert asked == ["service.example"]

    run(main)


def test_the_next_address_is_tried_when_one_refuses() -> None:
    async def main() -> None:
        async with upstream(echo) as far:
            resolver = answers_with("127.0.0.9", "127.0.0.1")
            allow = [f"s.example:{far}", f"127.0.0.9:{far}", f"127.0.0.1:{far}"]
            async with proxy(allow, resolver=resolver) as (port, _):
                head, _body = await ask(port, f"CONNECT s.example:{far} HTTP/1.1\r\n\r\n".encode())
                assert head.status == 200

    run(main)


def test_an_allowed_host_that_does_not_answer_is_a_502_without_addresses() -> None:
    async def main() -> None:
        closed = listening()
        far = closed.getsockname()[1]
        closed.close()
        allow = [f"s.example:{far}", f"127.0.0.1:{far}"]
        async with proxy(allow, resolver=answers_with("127.0.0.1")) as (port, events):
            head, body = await ask(port, f"CONNECT s.example:{far} HTTP/1.1\r\n\r\n".encode())
            assert head.status == 502
            assert b"127.0.0.1" not in body
            assert decisions(events) == [("s.example", far, "denied")]

    run(main)


def test_a_name_without_an_answer_is_a_502_and_a_slow_one_a_504() -> None:
    async def none(host: str) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "none")

    async def never(host: str) -> list[Address]:
        await asyncio.get_running_loop().create_future()
        return []

    async def main() -> None:
        async with proxy(["a.example"], resolver=none) as (port, _):
            assert (await ask(port, b"CONNECT a.example:443 HTTP/1.1\r\n\r\n"))[0].status == 502
        async with proxy(["a.example"], resolver=never, limits=ProxyLimits(resolve_s=0.1)) as (port, _):
            assert (await ask(port, b"CONNECT a.example:443 HTTP/1.1\r\n\r\n"))[0].status == 504

    run(main)


def test_the_systems_resolver_is_asked_and_a_name_that_is_none_fails() -> None:
    async def main() -> None:
        assert {str(address) for address in await resolve("localhost")} == {"127.0.0.1", "::1"}
        with pytest.raises(OSError):
            await resolve("nowhere.invalid")

    run(main)


def test_a_client_whose_head_does_not_end_gets_a_408() -> None:
    async def main() -> None:
        async with proxy(limits=ProxyLimits(head_s=0.1)) as (port, events):
            head, _body = await ask(port, b"CONNECT a.example:443 HTTP/1.1\r\nX-Slow: ")
            assert head.status == 408
            assert decisions(events) == [("", 0, "denied")]

    run(main)


def test_a_client_that_is_slower_than_slow_gets_no_more_time_for_each_byte() -> None:
    async def main() -> None:
        async with proxy(limits=ProxyLimits(head_s=0.3)) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"CONNECT a.example:443 HTTP/1.1\r\n")

            async def drip() -> None:
                while True:
                    writer.write(b"X")
                    await asyncio.sleep(0.01)

            dripping = asyncio.create_task(drip())
            assert (await read_head(reader)).status == 408
            dripping.cancel()
            writer.close()

    run(main)


def test_a_head_that_is_too_long_gets_a_431() -> None:
    async def main() -> None:
        async with proxy() as (port, _):
            head, _body = await ask(port, b"CONNECT a:443 HTTP/1.1\r\nX: " + b"y" * 100_000)
            assert head.status == 431

    run(main)


def test_a_tunnel_in_which_nothing_moves_ends() -> None:
    limits = ProxyLimits(idle_s=1.0)

    async def main() -> None:
        async with upstream(echo) as far, proxy([f"127.0.0.1:{far}"], limits=limits) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT 127.0.0.1:{far} HTTP/1.1\r\n\r\n".encode())
            await read_head(reader)
            await asyncio.sleep(0.2)
            moved = time.monotonic()
            writer.write(b"x")
            await reader.readexactly(1)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            assert time.monotonic() - moved >= 0.99  # what moved began the time anew
            writer.close()

    run(main)


def test_one_connection_more_than_allowed_is_reset_and_room_is_made_again() -> None:
    async def main() -> None:
        async with proxy(limits=ProxyLimits(connections=2)) as (port, _):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises(ConnectionResetError):
                assert await reader.read() != b""
            writer.close()
            for _, held_writer in held:
                held_writer.close()
                await held_writer.wait_closed()
            while True:
                try:
                    head, _body = await ask(port, b"CONNECT a.example:443 HTTP/1.1\r\n\r\n")
                except (ConnectionResetError, asyncio.IncompleteReadError):
                    continue  # the server has not heard of both ends yet
                assert head.status == 403
                break

    run(main)


def test_a_fetch_with_a_chunked_body_goes_out_in_its_own_framing() -> None:
    seen: list[tuple[Head, bytes]] = []
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"

    async def main() -> None:
        async with upstream(answering(answer, seen)) as far, proxy([f"127.0.0.1:{far}"]) as (port, _):
            raw = f"POST http://127.0.0.1:{far}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(raw + b"3\r\nabc\r\n0\r\n\r\n")
            assert await read_body(reader, await read_head(reader)) == b"ok"
            writer.close()
            assert seen[0][1] == b"abc"

    run(main)

"""What a view and an environment can reach: the gateway's listeners, and nothing of the host."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator

import pytest

from tests.view.rig import Bench, Daemon, Session

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.fixture
def service() -> Iterator[int]:
    """The port of a service on the host's loopback, and the proof that it answers there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        yield port


@pytest.fixture
def abstract_service() -> Iterator[str]:
    """The name of an abstract socket of the host."""
    name = f"agenthost-test-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(f"\0{name}")
        yield f"@{name}"


def interfaces(text: str) -> list[str]:
    return [line.partition(":")[0].strip() for line in text.splitlines() if ":" in line]


def test_a_view_has_the_loopback_interface_alone(session: Session) -> None:
    assert interfaces(session.run(["cat", "/proc/self/net/dev"])["cat /proc/self/net/dev"]) == ["lo"]


@pytest.mark.parametrize("port", [17100, 17101])
def test_a_view_reaches_its_gateway(codex_session: Session, port: int) -> None:
    assert codex_session.run(["connect", "127.0.0.1", str(port)])[f"connect 127.0.0.1 {port}"] == "ok"


def test_without_a_provider_there_is_a_proxy_and_no_model(session: Session) -> None:
    result = session.run(["connect", "127.0.0.1", "17100"], ["connect", "127.0.0.1", "17101"])
    assert result["connect 127.0.0.1 17100"] == "ok"
    assert result["connect 127.0.0.1 17101"] == "!ECONNREFUSED"


def test_a_view_reaches_nothing_else(session: Session, service: int) -> None:
    result = session.run(
        ["connect", "127.0.0.1", str(service)],
        ["connect", "127.0.0.1", "17102"],
        ["connect", "::1", "17101"],
        ["connect", "192.0.2.1", "80"],
        ["connect", "10.0.0.1", "53"],
        ["connect", "169.254.169.254", "80"],
        ["connect", "2001:db8::1", "80"],
    )
    connected = [value for name, value in result.facts if name.startswith("connect ")]
    assert connected == ["!ECONNREFUSED"] * 3 + ["!ENETUNREACH"] * 4
    sent = [value for name, value in result.facts if name.startswith("datagram ")]
    assert sent == ["ok"] * 3 + ["!ENETUNREACH"] * 4  # a datagram to an own address goes, and is lost


def test_a_view_does_not_reach_an_abstract_socket_of_the_host(session: Session, abstract_service: str) -> None:
    assert session.run(["unix", abstract_service])[f"unix {abstract_service}"] == "!ECONNREFUSED"


def test_an_environment_reaches_neither_host_nor_gateway(session: Session, service: int, abstract_service: str) -> None:
    result = session.command(
        ["connect", "127.0.0.1", str(service)],
        ["connect", "127.0.0.1", "17100"],
        ["connect", "127.0.0.1", "17101"],
        ["connect", "192.0.2.1", "80"],
        ["unix", abstract_service],
        ["cat", "/proc/self/net/dev"],
    )
    connected = [value for name, value in result.facts if name.startswith("connect ")]
    assert connected == ["!ECONNREFUSED"] * 3 + ["!ENETUNREACH"]
    assert result[f"unix {abstract_service}"] == "!ECONNREFUSED"
    assert interfaces(result["cat /proc/self/net/dev"]) == ["lo"]


def test_two_views_do_not_reach_each_other(bench: Bench, daemon: Daemon, session: Session) -> None:
    other = bench.open(daemon, provider="http://127.0.0.1:9/v1")
    running = other.start(["connect", "127.0.0.1", "17101"], ["say", "ready"], ["wait"])
    running.until("connect 127.0.0.1 17101=ok")
    running.until("ready")
    # Once a command was served the gateway has started, and closed what it does not serve.
    result = session.run(["spawn", "/bin/bash", "-c", "true"], ["connect", "127.0.0.1", "17101"], ["ls", "/proc"])
    running.stop()
    running.wait()
    other.close()
    assert result["connect 127.0.0.1 17101"] == "!ECONNREFUSED"  # the other one has a provider, and listens there
    assert len([name for name in result["ls /proc"].split("/") if name.isdigit()]) == 1


def test_an_environment_with_the_hosts_network_has_it_and_the_view_does_not(
    bench: Bench, daemon: Daemon, service: int
) -> None:
    session = bench.open(daemon, env_network="host")
    command = session.command(["connect", "127.0.0.1", str(service)], ["ls", "/etc"])
    view = session.run(["connect", "127.0.0.1", str(service)])
    session.close()
    assert command[f"connect 127.0.0.1 {service}"] == "ok"
    assert "resolv.conf" in command["ls /etc"].split("/")
    assert view[f"connect 127.0.0.1 {service}"] == "!ECONNREFUSED"

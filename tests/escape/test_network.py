"""What a command reaches with the host's network, and what not even then."""

from __future__ import annotations

import contextlib
import secrets
import socket

from tests.view.rig import Bench, Daemon


def test_the_hosts_network_brings_no_abstract_socket_of_the_host(bench: Bench, daemon: Daemon) -> None:
    """They belong to the network namespace, and services listen on them; Landlock keeps them apart (Linux 6.12)."""
    name = f"agenthost-test-{secrets.token_hex(8)}"
    session = bench.open(daemon, env_network="host")
    with contextlib.ExitStack() as stack:
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        abstract.bind(f"\0{name}")
        abstract.listen()
        service = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = str(service.getsockname()[1])
        result = session.command(["unix", f"@{name}"], ["connect", "127.0.0.1", port], ["unix", "/run/absent"])
    session.close()
    assert result[f"unix @{name}"] == "!EPERM"
    assert result[f"connect 127.0.0.1 {port}"] == "ok"


def test_abstract_sockets_of_the_environments_own_work(bench: Bench, daemon: Daemon) -> None:
    session = bench.open(daemon, env_network="host")
    script = (
        "import os, socket; name = '\\0agenthost-test-%d' % os.getpid();"
        "here = socket.socket(socket.AF_UNIX); here.bind(name); here.listen();"
        "there = socket.socket(socket.AF_UNIX); there.connect(name); print('connected')"
    )
    result = session.shell(f'/usr/bin/python3 -c "{script}"')
    session.close()
    assert result.stdout == "connected\n"

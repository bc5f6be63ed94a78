"""Provider and McpServer: refused when they make no sense, and silent about their credential."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agenthost.errors import RequestRefused
from agenthost.gateway.provider import McpServer, Provider

KEY = "sk-very-secret"


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com",
        "https://api.example.com/v1",
        "https://api.example.com:8443/openai/v1/",
        "http://127.0.0.1:8000/v1",
        "http://127.8.9.1/v1",
        "http://localhost:8000",
        "http://[::1]:8000/v1",
    ],
)
def test_a_base_url_over_tls_or_on_loopback_is_taken(url: str) -> None:
    assert Provider(base_url=url, api_key=KEY).base_url == url


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("", "empty"),
        ("api.example.com/v1", "not an absolute"),
        ("ftp://api.example.com", "not an absolute"),
        ("https:///v1", "not an absolute"),
        ("https://api.example.com:99999/", "malformed"),
        ("https://[::1/", "malformed"),
        ("https://user@api.example.com/", "user name"),
        ("https://user:hunter2@api.example.com/", "user name"),
        ("https://api.example.com/#x", "fragment"),
        ("https://api.example.com/v1?x=y", "query"),
        ("https://api.example.com/a/../b", "not clean"),
        ("https://api.example.com/a/%2e%2e/b", "not clean"),
        ("https://api.example.com/a//b", "not clean"),
        ("https://api.example.com/a b", "blanks"),
        ("https://api.example.com/\nx", "blanks"),
        ("http://api.example.com/v1", "in the clear"),
        ("http://10.0.0.1/v1", "in the clear"),
        ("http://localhost.example.com/v1", "in the clear"),
        ("http://127.0.0.1.example.com/v1", "in the clear"),
    ],
)
def test_a_base_url_that_makes_no_sense_is_refused(url: str, cause: str) -> None:
    with pytest.raises(RequestRefused, match=cause) as caught:
        Provider(base_url=url, api_key=KEY)
    assert KEY not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "a b", "line\nbreak", "carriage\r", "tab\t", "nul\x00", "clé"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        Provider(base_url="https://h/", api_key=key)
    if key:
        assert key not in str(caught.value)


def test_the_key_is_in_no_repr() -> None:
    assert KEY not in repr(Provider(base_url="https://h/v1", api_key=KEY))
    assert KEY not in repr(McpServer(label="x", url="https://h/mcp", bearer=KEY))


def test_the_base_urls_path_goes_before_the_requests() -> None:
    assert (
        Provider(base_url="https://h/openai/v1/", api_key=KEY).endpoint("/responses") == "https://h/openai/v1/responses"
    )
    assert Provider(base_url="https://h", api_key=KEY).endpoint("/responses") == "https://h/responses"


def test_an_mcp_server_keeps_path_and_query() -> None:
    server = McpServer(label="my-server_1", url="https://h/mcp?tenant=7")
    assert server.url == "https://h/mcp?tenant=7"
    assert server.bearer is None


@pytest.mark.parametrize("label", ["", "-x", "a b", "a.b", "x" * 65, "é"])
def test_a_label_that_cannot_be_a_name_is_refused(label: str) -> None:
    with pytest.raises(RequestRefused):
        McpServer(label=label, url="https://h/mcp")


def test_an_mcp_server_in_the_clear_or_with_an_empty_bearer_is_refused() -> None:
    with pytest.raises(RequestRefused, match="in the clear"):
        McpServer(label="x", url="http://h/mcp")
    with pytest.raises(RequestRefused, match="bearer"):
        McpServer(label="x", url="https://h/mcp", bearer="")


@pytest.mark.parametrize("module", ["agenthost.gateway.provider", "agenthost.gateway", "agenthost.scripted.script"])
def test_a_value_module_loads_neither_aiohttp_nor_asyncio(module: str) -> None:
    code = f"import sys, {module}; sys.exit(', '.join({{'aiohttp', 'asyncio'}} & set(sys.modules)) or 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).stderr == b""


def test_the_gateway_loads_aiohttp_only_when_it_starts() -> None:
    code = "import sys, agenthost.gateway.server; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

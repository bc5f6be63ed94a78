"""Where model and MCP requests go, and with which credential. Values only: nothing here opens a connection.

Loaded by the command line before it knows whether a gateway will run, so it imports neither aiohttp nor asyncio.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from agenthost.errors import RequestRefused

_KEY: Final = re.compile(r"[\x21-\x7e]+")
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_URL: Final = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A server that speaks the Responses protocol, and the key for it. Raises RequestRefused when it makes no sense."""

    base_url: str
    """Absolute, `https://`, or `http://` on loopback; its path is put before the path of each request."""

    api_key: str = field(repr=False)
    """Sent as a bearer. It stays in this process: no view, file, argv, event or error ever holds it."""

    label: str = "provider"
    """How summaries and events name the credential's kind, such as "real key from OPENAI_API_KEY" or "scripted"."""

    def __post_init__(self) -> None:
        what = f"the provider's URL {_shown(self.base_url)}"
        parts = _checked_url(self.base_url, what)
        if parts.query:
            raise RequestRefused(
                f"{what} has a query", remedy="give the base URL up to the path, such as https://host/v1"
            )
        if not _KEY.fullmatch(self.api_key):
            raise RequestRefused(
                "the API key is empty or holds characters that an HTTP header cannot",
                remedy="check where the key comes from; a trailing line break is a usual cause",
            )

    def endpoint(self, path: str) -> str:
        """The URL of `path` (absolute, clean) at this provider."""
        return self.base_url.rstrip("/") + path


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """An MCP server that the Harness reaches through the gateway. Raises RequestRefused when it makes no sense."""

    label: str
    """Its name in the Harness's configuration: letters, digits, `_` and `-`, at most 64."""

    url: str
    """Absolute, `https://`, or `http://` on loopback; path and query are kept."""

    bearer: str | None = field(default=None, repr=False)
    """Sent as a bearer, never shown to the view. None: the server needs none."""

    def __post_init__(self) -> None:
        if not _LABEL.fullmatch(self.label):
            raise RequestRefused(
                f"{self.label!r} cannot name an MCP server",
                remedy="use letters, digits, '_' and '-', at most 64, beginning with a letter or digit",
            )
        _checked_url(self.url, f"the URL {_shown(self.url)} of MCP server {self.label!r}")
        if self.bearer is not None and not _KEY.fullmatch(self.bearer):
            raise RequestRefused(
                f"the bearer of MCP server {self.label!r} is empty or holds characters that an HTTP header cannot",
                remedy="check where it comes from; a trailing line break is a usual cause",
            )


def _checked_url(url: str, what: str) -> SplitResult:
    if not _URL.fullmatch(url):
        raise RequestRefused(f"{what} is empty or not plain ASCII without blanks", remedy="percent-encode the rest")
    example = "give one such as https://host/v1"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 — the property raises for a port that is none
    except ValueError as error:
        raise RequestRefused(f"{what} is malformed ({error})", remedy=example) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise RequestRefused(f"{what} is not an absolute http(s) URL", remedy=example)
    if "@" in parts.netloc:
        raise RequestRefused(f"{what} holds a user name or a password", remedy="give the credential as the key instead")
    if "#" in url:
        raise RequestRefused(f"{what} has a fragment", remedy="leave out '#' and what follows")
    path = unquote(parts.path)
    if {".", ".."} & set(path.split("/")) or "//" in path or "\\" in path:
        raise RequestRefused(f"{what} has a path that is not clean", remedy="leave out '.', '..', empty parts and '\\'")
    if parts.scheme == "http" and not _loopback(parts.hostname):
        raise RequestRefused(f"{what} would send the credential in the clear", remedy="use https:// beyond loopback")
    return parts


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(url: str) -> str:
    """The URL for a message: without the user name and password that someone may have put into it."""
    return repr(re.sub(r"//[^/?#]*@", "//…@", url, count=1).partition("?")[0])

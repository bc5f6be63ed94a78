"""What the model listener does with a request, decided on its method, raw target and headers alone.

Nothing is normalised before it is judged: the target is compared as it came over the wire, so that there is no second
reading of it (`//`, `%2e`, absolute form) that the provider could take differently. What may pass is listed; everything
else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from agenthost.layout import PLACEHOLDER

Headers = tuple[tuple[str, str], ...]
"""In their order, repeated ones repeated."""

ROUTES: Final[Mapping[str, tuple[str, ...]]] = {"/responses": ("POST",)}
"""Path to methods: all that the pinned releases call with our configuration (exec, app-server, compaction)."""

HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authentication-info",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""RFC 9110, 7.6.1; what `Connection` names joins them. They are about one connection and never passed on."""

CREDENTIALS: Final = frozenset(
    {"authorization", "cookie", "cookie2", "chatgpt-account-id", "openai-organization", "openai-project"}
)
"""Never passed on from the view: credentials, and what chooses whose account a credential is used for."""

CREDENTIAL_PARTS: Final = (
    "authorization",
    "api-key",
    "apikey",
    "auth-token",
    "access-token",
    "security-token",
    "secret",
)
"""A request header whose name holds one of these is a credential too: `x-api-key`, `api-key`, `x-goog-api-key` ..."""

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})

_CARRIED: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")
"""Values that can be sent on as they came. A lone surrogate stands for a byte that is not UTF-8."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The request goes to the provider."""

    path: str
    """Put after the provider's base URL."""
    headers: Headers
    """What travels on, without the credential."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request ends here."""

    status: int
    code: str
    """One word for programs."""
    message: str
    """For the person who reads the Harness's error."""
    headers: Headers = ()


def decide(method: str, target: str, headers: Headers, port: int) -> Forward | Refusal:
    """What to do with a request that came in on `port`."""
    refusal = _check_target(method, target) or _check_headers(headers, port)
    if refusal is not None:
        return refusal
    return Forward(target, request_headers(headers))


def request_headers(headers: Headers) -> Headers:
    """What of a request's headers goes to the provider. `Host` and the credential are for the caller to add."""
    drop = HOP_BY_HOP | _named_by_connection(headers) | {"host", "expect"}
    return tuple(
        (name, value)
        for name, value in headers
        if (lower := name.lower()) not in drop and not _is_credential(lower) and _CARRIED.fullmatch(value)
    )


def response_headers(headers: Headers, key: str) -> Headers:
    """What of a response's headers goes into the view: nothing with the key in it, and no cookie."""
    drop = HOP_BY_HOP | _named_by_connection(headers) | {"set-cookie", "set-cookie2"}
    return tuple(
        (name, value)
        for name, value in headers
        if name.lower() not in drop and key not in value and key not in name and _CARRIED.fullmatch(value)
    )


def reason_phrase(reason: str | None, key: str) -> str | None:
    """The reason phrase to pass on; None for the usual one of the status."""
    if not reason or key in reason or not _CARRIED.fullmatch(reason):
        return None
    return reason


def _check_target(method: str, target: str) -> Refusal | None:
    if not target.startswith("/"):
        return Refusal(400, "target", "only a path may stand in the request line")
    path, question_mark, _ = target.partition("?")
    if "//" in path or "%" in path or "\\" in path or {".", ".."} & set(path.split("/")):
        return Refusal(400, "target", "the path is not in its plain form")
    methods = ROUTES.get(path)
    if methods is None:
        return Refusal(404, "route", f"the gateway serves {', '.join(ROUTES)} and nothing else")
    if question_mark:
        return Refusal(400, "target", "the provider's query parameters are added outside the view")
    if method not in methods:
        return Refusal(405, "method", f"use {' or '.join(methods)}", (("Allow", ", ".join(methods)),))
    return None


def _check_headers(headers: Headers, port: int) -> Refusal | None:
    if "upgrade" in {name.lower() for name, _ in headers}:
        return Refusal(400, "upgrade", "the gateway does not change protocols")
    hosts = _values(headers, "host")
    if len(hosts) != 1 or not _is_own_host(hosts[0], port):
        return Refusal(421, "host", "the Host is not the gateway's")
    if len(_values(headers, "content-length")) + len(_values(headers, "transfer-encoding")) > 1:
        return Refusal(400, "framing", "the length of the body is told twice")
    if _values(headers, "authorization") != [f"Bearer {PLACEHOLDER}"]:
        return Refusal(401, "placeholder", "the placeholder must be the bearer", (("WWW-Authenticate", "Bearer"),))
    return None


def _is_own_host(host: str, port: int) -> bool:
    name, colon, number = host.rpartition(":")
    return bool(colon) and number == str(port) and name.lower() in LOOPBACK_HOSTS


def _is_credential(name: str) -> bool:
    return name in CREDENTIALS or any(part in name for part in CREDENTIAL_PARTS)


def _named_by_connection(headers: Iterable[tuple[str, str]]) -> frozenset[str]:
    listed = (value for name, value in headers if name.lower() == "connection")
    return frozenset(token.strip().lower() for value in listed for token in value.split(","))


def _values(headers: Headers, name: str) -> list[str]:
    return [value.strip() for header, value in headers if header.lower() == name]

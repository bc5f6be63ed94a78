"""config.toml of the Session home, and the managed_config.toml and requirements.toml that stand above it.

Promise: config.toml names the gateway, the placeholder and the Session's HTTP MCP servers, and nothing that is secret.
A value of any content survives: it is read back as it was given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agenthost.errors import RequestRefused, UnsupportedOperation
from agenthost.layout import PLACEHOLDER

PROVIDER: Final = "oac"
"""Any name but `OpenAI`: that one makes Codex compress requests, ask for /models and compact remotely."""

MCP_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What Codex accepts as the name of an MCP server."""


@dataclass(frozen=True, slots=True)
class HttpBinding:
    """An MCP server behind the gateway: `url` is the gateway's listener for it inside the view, without credentials."""

    label: str
    url: str


@dataclass(frozen=True, slots=True)
class StdioBinding:
    """An MCP server that would be a program. A view cannot have one: it would run with the Harness's own rights."""

    label: str
    command: tuple[str, ...]


McpBinding = HttpBinding | StdioBinding


def check_bindings(bindings: Sequence[McpBinding]) -> tuple[HttpBinding, ...]:
    """The bindings, all of them HTTP. Raises `UnsupportedOperation` or `RequestRefused`; touches nothing."""
    admitted: list[HttpBinding] = []
    for binding in bindings:
        if isinstance(binding, StdioBinding):
            raise UnsupportedOperation(
                f"the MCP server {binding.label!r} is a stdio binding",
                remedy="bind it over HTTP; a view runs no server",
            )
        if not MCP_LABEL.fullmatch(binding.label):
            raise RequestRefused(
                f"the MCP label {binding.label!r} is not one that Codex accepts",
                remedy="use letters, digits, hyphens and underscores, at most 64",
            )
        if any(binding.label == other.label for other in admitted):
            raise RequestRefused(f"the MCP label {binding.label!r} is bound twice", remedy="give each server its own")
        admitted.append(binding)
    return tuple(admitted)


def render(
    *,
    gateway: str,
    model: str | None = None,
    model_verbosity: str | None = None,
    mcp: Sequence[McpBinding] = (),
) -> bytes:
    """config.toml. `gateway` is the model listener's URL without a path; what is None is Codex's own default."""
    import tomlkit  # noqa: PLC0415 - slow to import, and a Session without Codex does without it

    servers = check_bindings(mcp)
    settings: dict[str, Any] = {} if model is None else {"model": _text(model, "the model name")}
    if model_verbosity is not None:
        settings["model_verbosity"] = model_verbosity
    settings |= _provider(gateway)
    if servers:
        settings["mcp_servers"] = {server.label: {"url": _text(server.url, "an MCP URL")} for server in servers}
    return tomlkit.dumps(settings).encode()


def managed(*, gateway: str, workspace: str, fixed: Mapping[str, str | bool | list[str]]) -> bytes:
    """managed_config.toml, the layer that neither arguments nor app-server clients can override (measured on both
    pinned releases).

    It holds `fixed` (dotted keys), the gateway as the provider, and the workspace as untrusted, so that nothing of
    `<workspace>/.codex` is loaded and no trust entry is written.
    """
    import tomlkit  # noqa: PLC0415 - as above

    settings: dict[str, Any] = {}
    for key, value in fixed.items():
        *tables, last = key.split(".")
        table = settings
        for name in tables:
            table = table.setdefault(name, {})
        table[last] = value
    settings |= _provider(gateway)
    settings["projects"] = {_text(workspace, "the workspace"): {"trust_level": "untrusted"}}
    return tomlkit.dumps(settings).encode()


def requirements(mcp: Sequence[McpBinding] = ()) -> bytes:
    """requirements.toml: what managed_config.toml cannot hold, because a client's parameters are no configuration.

    An app-server client's `modelProvider` gives way to the gateway's, and an MCP server that is not one of the
    Session's own by label and URL is not started (measured on both pinned releases).
    """
    import tomlkit  # noqa: PLC0415 - as above

    servers = {server.label: {"identity": {"url": _text(server.url, "an MCP URL")}} for server in check_bindings(mcp)}
    return tomlkit.dumps({"model_provider": PROVIDER, "mcp_servers": servers}).encode()


def _provider(gateway: str) -> dict[str, Any]:
    return {
        "model_provider": PROVIDER,
        "model_providers": {
            PROVIDER: {
                "name": PROVIDER,
                "base_url": gateway,
                "wire_api": "responses",
                "experimental_bearer_token": PLACEHOLDER,
            }
        },
    }


def _text(value: str, what: str) -> str:
    """TOML is UTF-8: a lone surrogate (a byte of a file name that is not UTF-8) has no way into it."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RequestRefused(f"{what} {value!r} is not UTF-8", remedy="use a name that is") from error
    return value

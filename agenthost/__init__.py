"""Runs a coding agent (the Harness) in a view of its own, and its commands in an environment.

The public names are imported when they are first used: `import agenthost` itself loads nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from agenthost.codex import discover_view
    from agenthost.declaration import Mask, Mount, View
    from agenthost.elf import is_static_elf
    from agenthost.errors import (
        AgentHostError,
        CleanupFailed,
        DeclarationInvalid,
        EnvironmentFailed,
        GatewayFailed,
        HomeUnsafe,
        HostUnfit,
        LaunchFailed,
        NotAvailableYet,
        NoView,
        RequestRefused,
        ScriptInvalid,
        StateUnusable,
        UnsupportedOperation,
        WireError,
    )
    from agenthost.gateway.provider import McpServer, Provider
    from agenthost.process import Process
    from agenthost.scripted.server import ScriptedModel
    from agenthost.session import AgentHost, Session, SessionRequest

__version__ = "0.1.0"

__all__ = [
    "AgentHost",
    "AgentHostError",
    "CleanupFailed",
    "DeclarationInvalid",
    "EnvironmentFailed",
    "GatewayFailed",
    "HomeUnsafe",
    "HostUnfit",
    "LaunchFailed",
    "Mask",
    "McpServer",
    "Mount",
    "NoView",
    "NotAvailableYet",
    "Process",
    "Provider",
    "RequestRefused",
    "ScriptInvalid",
    "ScriptedModel",
    "Session",
    "SessionRequest",
    "StateUnusable",
    "UnsupportedOperation",
    "View",
    "WireError",
    "__version__",
    "discover_view",
    "is_static_elf",
]

_HOMES: Final = {
    "AgentHost": "session",
    "Mask": "declaration",
    "McpServer": "gateway.provider",
    "Mount": "declaration",
    "Process": "process",
    "Provider": "gateway.provider",
    "ScriptedModel": "scripted.server",
    "Session": "session",
    "SessionRequest": "session",
    "View": "declaration",
    "discover_view": "codex",
    "is_static_elf": "elf",
}
"""Where each public name lives; the rest of `__all__` is in `errors`."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

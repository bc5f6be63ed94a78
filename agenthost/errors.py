"""Every error that agenthost raises, in one tree.

    AgentHostError                 exit status 125
    ├── RequestRefused             the request itself is wrong; nothing was done
    │   ├── UnsupportedOperation   a view cannot do this, by design
    │   └── NotAvailableYet        a later release brings it
    ├── DeclarationInvalid         a `View` that contradicts itself
    ├── NoView                     this host or this Codex gets no view; says why
    ├── HostUnfit                  the kernel or the system lacks what a view needs
    ├── StateUnusable              the state directory or a Session in it cannot be used
    ├── HomeUnsafe                 something in a Session home is not what it must be
    ├── ScriptInvalid              a scripted-model file cannot be played
    ├── LaunchFailed               a step of building a view or an environment failed
    ├── EnvironmentFailed          the environment ended or answers no more
    ├── GatewayFailed              a listener of the gateway cannot serve
    ├── WireError                  a frame that breaks the wire format
    └── CleanupFailed              something could not be ended or removed

Each error has a *kind* (one word, stable: programs may match on it), says what is wrong, and names the remedy.
On the command line it is one line: ``agenthost: KIND: WHAT; REMEDY``.
"""

from __future__ import annotations

import os
from typing import ClassVar, Final

FAILED_BEFORE_HARNESS: Final = 125
"""Exit status when agenthost failed before the Harness ran."""

USAGE: Final = 2
"""Exit status of a command line that cannot be understood."""

NO_VIEW: Final = 3
"""Exit status of `agenthost declare` when there is no view."""


class AgentHostError(Exception):
    """What went wrong, and what the reader can do about it.

    `what` and `remedy` are parts of one sentence, without a full stop at the end.
    """

    kind: ClassVar[str] = "error"
    exit_status: ClassVar[int] = FAILED_BEFORE_HARNESS

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}; {self.remedy}"


class RequestRefused(AgentHostError):
    """The request is wrong in itself. Raised before any effect."""

    kind = "request"


class UnsupportedOperation(RequestRefused):
    """A view cannot do this, by design. Raised before any effect."""

    kind = "unsupported"


class NotAvailableYet(RequestRefused):
    """The option is part of the contract and its substance is still to come."""

    kind = "not-available-yet"


class DeclarationInvalid(AgentHostError):
    """A declaration contradicts itself or the rules of contracts/view.md."""

    kind = "declaration"


class NoView(AgentHostError):
    """This host, or this Codex, gets no view."""

    kind = "no-view"


class HostUnfit(AgentHostError):
    """The kernel or the system lacks something that a view needs."""

    kind = "host"


class StateUnusable(AgentHostError):
    """The state directory, or a Session in it, cannot be used."""

    kind = "state"


class HomeUnsafe(AgentHostError):
    """Something in a Session home is not what it must be."""

    kind = "home"


class ScriptInvalid(AgentHostError):
    """A scripted-model file cannot be played."""

    kind = "script"


class LaunchFailed(AgentHostError):
    """A step of building a view or an environment failed; nothing of it is left."""

    kind = "launch"

    @classmethod
    def at(cls, step: str, errno: int, remedy: str) -> LaunchFailed:
        """The step that failed, with the kernel's word for why."""
        return cls(f"{step}: {os.strerror(errno)}", remedy=remedy)


class EnvironmentFailed(AgentHostError):
    """The environment ended, or answers no more."""

    kind = "environment"


class GatewayFailed(AgentHostError):
    """A listener of the gateway cannot serve."""

    kind = "gateway"


class WireError(AgentHostError):
    """Bytes that are not a frame of shims/wire.h."""

    kind = "wire"

    def __init__(self, what: str) -> None:
        super().__init__(what, remedy="both ends must come from the same agenthost build; run 'make shims' again")


class CleanupFailed(AgentHostError):
    """Something that agenthost made could not be ended or removed."""

    kind = "cleanup"

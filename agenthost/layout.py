"""Where things are: in a view, in an environment, and in the state directory.

Host paths are `pathlib.Path`; paths inside a view or an environment are `ViewPath`. The two are different types,
so that one cannot be passed for the other.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NewType

ViewPath = NewType("ViewPath", str)
"""An absolute, clean path inside a view or an environment. Never opened on the host."""

OAC: Final = ViewPath("/.oac")
CODEX_CLOSURE: Final = ViewPath("/.oac/codex")
SHIM_DIR: Final = ViewPath("/.oac/bin")
RUN_DIR: Final = ViewPath("/.oac/run")
SHIM_SOCKET: Final = ViewPath("/.oac/run/broker")
HOME: Final = ViewPath("/.oac/home")
CODEX_HOME: Final = ViewPath("/.oac/home/codex")
HOME_TMP: Final = ViewPath("/.oac/home/tmp")

ENVIRONMENT_HOME: Final = ViewPath("/home/agent")
"""`HOME` of the commands, in the `local` environment."""

PRIVATE_TMP: Final = ViewPath("/tmp")

RESERVED: Final = (OAC, ViewPath("/proc"), ViewPath("/dev"), ViewPath("/sys"))
"""Trees that belong to the view itself: nothing else may be mounted over, in or around them."""

PROXY_PORT: Final = 17100
MODEL_PORT: Final = 17101
FIRST_MCP_PORT: Final = 17102

PLACEHOLDER: Final = "placeholder"
"""The bearer that the Harness holds in place of a credential."""

SESSION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A Session id names a directory, so it can be neither hidden, nor a path, nor longer than 64 characters."""


def default_state_dir() -> Path:
    """`/var/lib/agenthost` as root, else `$XDG_STATE_HOME/agenthost` (XDG Base Directory Specification 0.8)."""
    if os.geteuid() == 0:
        return Path("/var/lib/agenthost")
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return root / "agenthost"


def overlaps(one: str, other: str) -> bool:
    """Whether one of two absolute, clean paths is the other or lies below it."""
    return one == other or one.startswith(other.rstrip("/") + "/") or other.startswith(one.rstrip("/") + "/")


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Names in the state directory; `agenthost.state` says what is behind them."""

    root: Path

    @property
    def attach(self) -> Path:
        return self.root / "attach"

    @property
    def sessions(self) -> Path:
        return self.root / "sessions"

    def session(self, session_id: str) -> Path:
        return self.sessions / session_id

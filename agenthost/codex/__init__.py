"""The Codex adapter: which Codex is installed, what it needs in a view, and the plan of one launch."""

from __future__ import annotations

import os
from pathlib import Path

from agenthost.codex.install import discover
from agenthost.codex.plan import declare
from agenthost.declaration import View

__all__ = ["discover_view"]


def discover_view(codex: Path | None = None) -> View:
    """The declaration of the installed Codex (or of the one at `codex`); raises `NoView` with the reason."""
    return declare(discover(codex, os.environ))

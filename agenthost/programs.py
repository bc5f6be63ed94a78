"""The static programs of `shims/`, as they are installed with the package."""

from __future__ import annotations

import os
from pathlib import Path

from agenthost.errors import HostUnfit


def static_program(name: str) -> Path:
    """The host path of `oac-shim`, `oac-init` or `oac-attack`, without a link in it. Raises `HostUnfit` without it."""
    path = Path(__file__).resolve().parent / "bin" / name
    if not os.access(path, os.X_OK):
        raise HostUnfit(
            f"{path} is not there",
            remedy="run 'make shims' in the source tree, or install the package again with a C compiler",
        )
    return path

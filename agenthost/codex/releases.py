"""The pinned releases of Codex: contracts/codex-releases.json, as the one place that names them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import agenthost

CODEX: Final = "codex"
CODE_MODE_HOST: Final = "codex-code-mode-host"


@dataclass(frozen=True, slots=True)
class Release:
    """One release on one architecture. Digests are SHA-256, in lower-case hexadecimal."""

    release: str
    codex: str
    code_mode_host: str


def contract(name: str) -> Path:
    """A contract file: in the installed package, or in the source tree beside it."""
    package = Path(agenthost.__file__).parent
    packaged = package / "contracts" / name
    return packaged if packaged.is_file() else package.parent / "contracts" / name


def pinned(architecture: str) -> Mapping[str, Release]:
    """The releases pinned for an architecture, by the digest of their `codex`."""
    table = json.loads(contract("codex-releases.json").read_bytes())
    found: dict[str, Release] = {}
    for row in table["releases"]:
        programs = row["programs"].get(architecture)
        if programs is not None:
            found[programs[CODEX]] = Release(row["release"], programs[CODEX], programs[CODE_MODE_HOST])
    return found

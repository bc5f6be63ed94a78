"""The model catalog of the installed Codex, and whether a model has a choice of verbosity.

Codex leaves `model_verbosity` out of its requests, without a word, for a model that does not know it. So the choice is
looked up first, in the catalog that the trusted host install prints, outside of any view and before any effect.

    choice          probe
    None, medium    none: medium is what every model does
    low, high       `codex debug models`; the launch uses that catalog

Promise: the catalog that answered is the one that the launch gets, byte for byte.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from agenthost.codex import config
from agenthost.codex.ask import NoAnswer, ask
from agenthost.codex.install import Install, check_unchanged
from agenthost.errors import NoView, UnsupportedOperation
from agenthost.layout import MODEL_PORT, PROXY_PORT

Verbosity = Literal["low", "medium", "high"]

VERBOSITIES: Final[tuple[Verbosity, ...]] = ("low", "medium", "high")
UNPROBED: Final[Verbosity] = "medium"

PROBE_SECONDS: Final = 20.0
"""It answers in 15 ms; on a loaded machine with a cold cache it reads 300 MB first."""

MAX_CATALOG: Final = 16 << 20
"""Bytes; 0.171.0 prints 0.9 MB."""

NAMESPACED: Final = re.compile(r"[A-Za-z0-9_-]+/([^/]+)")
"""`vendor/model`: one namespace, of these characters (observed on both pinned releases)."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model, how verbose, and the catalog that said so; None is Codex's own."""

    model: str | None = None
    verbosity: Verbosity | None = None
    catalog: bytes | None = field(default=None, repr=False)


CODEXS_OWN: Final = ModelChoice()
"""No choice at all."""


def choose(install: Install, model: str | None, verbosity: Verbosity | None) -> ModelChoice:
    """The choice, proved where it must be. Takes a few dozen milliseconds then, at most `PROBE_SECONDS`.

    Raises `UnsupportedOperation` for a model that knows no verbosity, `NoView` when the catalog cannot be read.
    """
    if verbosity is None or verbosity == UNPROBED:
        return ModelChoice(model, verbosity)
    if model is None:
        raise UnsupportedOperation(
            f"the model verbosity {verbosity!r} without a model", remedy="name the model that it is for"
        )
    catalog = read_catalog(install)
    if not knows_verbosity(_models(catalog, install.binary), model):
        raise UnsupportedOperation(
            f"the model {model!r} has no choice of verbosity in Codex {install.release}",
            remedy="leave the verbosity out, or use another model",
        )
    return ModelChoice(model, verbosity, catalog)


def knows_verbosity(models: Mapping[str, bool], model: str) -> bool:
    """As Codex itself looks a model up: the longest slug that it begins with, then once more without a namespace."""
    namespaced = NAMESPACED.fullmatch(model)
    for name in (model, namespaced[1]) if namespaced else (model,):
        found = [slug for slug in models if name.startswith(slug)]
        if found:
            return models[max(found, key=len)]
    return False


def read_catalog(install: Install) -> bytes:
    """What `codex debug models` prints, with a home that holds gateway and placeholder and nothing else.

    Neither is there outside a view: a request, which it does not make, would fail at once. Raises `NoView`.
    """
    check_unchanged(install)
    with tempfile.TemporaryDirectory(prefix="agenthost-catalog-") as scratch:
        home = Path(scratch, "codex")
        home.mkdir(mode=0o700)
        (home / "config.toml").write_bytes(config.render(gateway=f"http://127.0.0.1:{MODEL_PORT}"))
        proxy = f"http://127.0.0.1:{PROXY_PORT}"
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
        (Path(scratch) / "tmp").mkdir(mode=0o700)
        env = {"PATH": os.devnull, "HOME": scratch, "CODEX_HOME": str(home), "TMPDIR": f"{scratch}/tmp", **proxies}
        fd = os.open(install.binary, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return ask(fd, [str(install.binary), "debug", "models"], env=env, seconds=PROBE_SECONDS, limit=MAX_CATALOG)
        except NoAnswer as error:
            raise _unreadable(install.binary, str(error)) from None
        finally:
            os.close(fd)


def _models(catalog: bytes, binary: Path) -> dict[str, bool]:
    """Each slug of a catalog, and whether it supports verbosity."""
    try:
        rows = json.loads(catalog)["models"]
        return {_text(row["slug"]): row["support_verbosity"] is True for row in rows}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _unreadable(binary, "prints something else") from None


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(value)
    return value


def _unreadable(binary: Path, why: str) -> NoView:
    return NoView(
        f"the model catalog cannot be read: {binary} debug models {why}",
        remedy="install Codex again, or leave the model verbosity out",
    )

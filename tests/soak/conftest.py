"""The rig of tests/view, and how much is asked of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest

from tests.view.conftest import bench, probe_binary

__all__ = ["bench", "probe_binary"]

MOST: Final = {"SOAK_KILLS": 10_000, "SOAK_VIEWS": 1_000, "SOAK_MINUTES": 1_440}
USUAL: Final = {"SOAK_KILLS": 500, "SOAK_VIEWS": 200, "SOAK_MINUTES": 3}


@dataclass(frozen=True, slots=True)
class Size:
    """How much to do: from the environment, within bounds, so that no slip of a finger lets it run for a year."""

    kills: int
    views: int
    minutes: float

    @classmethod
    def of_environment(cls) -> Size:
        values = {name: float(os.environ.get(name) or usual) for name, usual in USUAL.items()}
        for name, value in values.items():
            if not 0 < value <= MOST[name]:
                raise pytest.UsageError(f"{name}={value:g}: give a number above 0, at most {MOST[name]}")
        return cls(int(values["SOAK_KILLS"]), int(values["SOAK_VIEWS"]), values["SOAK_MINUTES"])


@pytest.fixture(scope="session")
def size() -> Size:
    return Size.of_environment()


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Prints what was measured, whatever pytest captures."""

    def tell(what: str, **values: object) -> None:
        text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
        with capsys.disabled():
            sys.stdout.write(f"\nsoak: {what}: {text}\n")
            sys.stdout.flush()

    return tell

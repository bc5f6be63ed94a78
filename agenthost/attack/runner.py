"""Runs the catalogue and judges what came of it.

Attacks that leave their process alive share a launch, in groups: one that ends its launch costs the rest of its group
their answers, and an attack without an answer does not count as held.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from agenthost.attack.attack import Attack, Mode, Place
from agenthost.attack.catalogue import cases
from agenthost.attack.scene import BETWEEN, Scene, scene

NO_ANSWER: Final = "no answer"

_ENV: Final = "/usr/bin/env"
_LAUNCH_S: Final = 120.0
_Case = tuple[Attack, Place, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attack in one place. `expected` may name several, with "|" between them."""

    attack: Attack
    place: Place
    expected: str
    found: str

    @property
    def held(self) -> bool:
        return self.found in self.expected.split("|")

    def describe(self) -> str:
        """One line for a person."""
        verdict = "held" if self.held else "FAILED"
        came = f"{self.found or 'nothing'}" + ("" if self.held else f" instead of {self.expected or 'nothing'}")
        return f"{verdict}: {self.attack.id} in the {self.place}: {self.attack.tries}: {came}"


async def run_catalogue(base: Path | None = None, only: Sequence[str] = ()) -> list[Outcome]:
    """Tries every attack of the catalogue, or those with an id in `only`, in a view and in an environment of this user.

    Root mode or rootless mode, as the caller is. `base` is a directory that everybody can enter; all that is made is
    made below it, and removed. Raises what `AgentHost.open` and `Session.launch` raise.
    """
    mode: Mode = "root" if os.geteuid() == 0 else "rootless"
    outcomes: list[Outcome] = []
    async with scene(base) as here:
        for group in _launches([case for case in cases(mode) if not only or case[0].id in only]):
            outcomes += await _try(here, group)
    return outcomes


def _launches(tried: Sequence[_Case]) -> Iterator[list[_Case]]:
    """What shares a launch: the attacks of one group in one place, and those that must be alone."""
    for _, found in groupby(tried, key=lambda case: (case[1], case[0].group, case[0].id if case[0].alone else "")):
        yield list(found)


async def _try(here: Scene, group: Sequence[_Case]) -> list[Outcome]:
    actions = ["cd", "/tmp"]
    for attack, _, _ in group:
        actions += [BETWEEN, "say", _mark(attack)]
        for action in attack.actions:
            actions += [BETWEEN, *here.fill(action)]
    in_view = group[0][1] == "view"
    args = actions if in_view else ["exec", _ENV, here.names["program"], *actions]
    facts = _facts(await _output(here, args))
    outcomes = []
    for attack, place, expected in group:
        wanted = here.fill((attack.fact,))[0]
        found = facts.get((_mark(attack), wanted), NO_ANSWER)
        outcomes.append(Outcome(attack, place, expected, found.removeprefix("!")))
    return outcomes


async def _output(here: Scene, args: Sequence[str]) -> bytes:
    process = await here.session.launch(args)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None  # noqa: S101, PT018
    process.stdin.close()
    try:
        async with asyncio.timeout(_LAUNCH_S):
            written, _ = await asyncio.gather(process.stdout.read(), process.stderr.read())
    except TimeoutError:
        written = b""
    finally:
        await process.stop()
        await process.wait()
    return written


def _mark(attack: Attack) -> str:
    return f"attack:{attack.id}"


def _facts(output: bytes) -> dict[tuple[str, str], str]:
    """What each attack told, by its mark and the fact's name; of two with one name the first counts."""
    facts: dict[tuple[str, str], str] = {}
    mark = ""
    for line in output.decode("latin-1").splitlines():
        name, equals, value = line.partition("=")
        if name == "say" and value.startswith("attack:"):
            mark = value
        elif equals:
            facts.setdefault((mark, _plain(name)), _plain(value))
    return facts


def _plain(text: str) -> str:
    unescaped = re.sub(r"\\(\\|x([0-9a-f]{2}))", lambda m: chr(int(m[2], 16)) if m[2] else "\\", text)
    return os.fsdecode(unescaped.encode("latin-1"))

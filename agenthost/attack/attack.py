"""What an attack is: one row of the catalogue."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

Place = Literal["view", "environment"]
Mode = Literal["root", "rootless"]

PLACES: Final[tuple[Place, ...]] = ("view", "environment")

_MACHINE: Final = os.uname().machine if hasattr(os, "uname") else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One thing that is tried, and the outcome that it must have.

    actions       what the attack program (shims/attack*.c) does; `{name}` stands for a part of the runner's `Scene`
    fact          the fact that tells the outcome
    view          the outcome in a view: "ok", an errno's name, or the fact's value; "A|B" where kernels differ;
                  None where it is not tried
    environment   the same for an environment
    rootless      the outcome in both places where there is no root, when it is another one
    modes         where it is tried at all
    control       whether it succeeds for an unprivileged user whom nothing confines
    alone         it needs a launch of its own: its last action executes something
    machine       the architecture that it belongs to; None: all
    """

    id: str
    group: str
    tries: str
    actions: tuple[tuple[str, ...], ...]
    fact: str
    view: str | None = None
    environment: str | None = None
    rootless: str | None = None
    modes: frozenset[Mode] = field(default=frozenset({"root", "rootless"}))
    control: bool = False
    alone: bool = False
    machine: str | None = None

    def expected(self, place: Place, mode: Mode) -> str | None:
        """The outcome that it must have, or None when it is not tried there."""
        if mode not in self.modes or self.machine not in {None, _MACHINE}:
            return None
        outcome = self.view if place == "view" else self.environment
        if outcome is None:
            return None
        return self.rootless if mode == "rootless" and self.rootless is not None else outcome


class Where(NamedTuple):
    """An outcome for each place; None: not tried there."""

    view: str | None = None
    environment: str | None = None

    @classmethod
    def of(cls, outcome: str | Where) -> Where:
        """A text is the outcome in both."""
        return cls(outcome, outcome) if isinstance(outcome, str) else outcome


def call(
    name: str,
    group: str,
    tries: str,
    outcome: str | Where,
    *,
    rootless: str | None = None,
    control: bool = False,
    machine: str | None = None,
) -> Attack:
    """One of the attack program's named attempts, `try NAME`."""
    where = Where.of(outcome)
    return Attack(
        id=name.replace("_", "-"),
        group=group,
        tries=tries,
        actions=(("try", name),),
        fact=f"try {name}",
        view=where.view,
        environment=where.environment,
        rootless=rootless,
        control=control,
        machine=machine,
    )

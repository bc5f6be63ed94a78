"""The catalogue of attacks: all that is known to be worth trying against a view and an environment.

It holds no path of this machine: the runner sets a scene with decoys, and the rows name its parts. SECURITY.md says
which promise each group belongs to.
"""

from __future__ import annotations

from typing import Final

from agenthost.attack.attack import PLACES, Attack, Mode, Place
from agenthost.attack.calls import CALLS
from agenthost.attack.places import PLACES_AND_PROGRAMS

CATALOGUE: Final[tuple[Attack, ...]] = (*CALLS, *PLACES_AND_PROGRAMS)


def cases(mode: Mode) -> list[tuple[Attack, Place, str]]:
    """Each attack with each place in which it is tried, and the outcome that it must have there."""
    tried = ((attack, place, attack.expected(place, mode)) for place in PLACES for attack in CATALOGUE)
    return [(attack, place, expected) for attack, place, expected in tried if expected is not None]


__all__ = ["CATALOGUE", "Attack", "Mode", "Place", "cases"]

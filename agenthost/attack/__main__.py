"""`python -m agenthost.attack [ID...]`: runs the catalogue as this user, one JSON object an attack and place."""

from __future__ import annotations

import asyncio
import json
import sys

from agenthost.attack.runner import run_catalogue


def main() -> int:
    """1 when an attack has not the outcome that it must have."""
    outcomes = asyncio.run(run_catalogue(only=sys.argv[1:]))
    for outcome in outcomes:
        values = {"id": outcome.attack.id, "place": outcome.place, "expected": outcome.expected, "found": outcome.found}
        sys.stdout.write(json.dumps({**values, "held": outcome.held}) + "\n")
    return 0 if all(outcome.held for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

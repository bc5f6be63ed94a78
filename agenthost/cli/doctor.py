"""`agenthost doctor`: what this host can do, and what it lacks: one line a check, with the cause and a remedy.

With `--attack` the catalogue of attacks is run as well, in a view and in an environment of this user.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agenthost.cli.terminal import printable
from agenthost.cli.usage import Parser
from agenthost.errors import NO_VIEW

if TYPE_CHECKING:
    from agenthost.attack.runner import Outcome
    from agenthost.doctor import Finding

ATTACK_CAME_THROUGH: Final = 1
"""Exit status when an attack has not the outcome that it must have."""

_EPILOG: Final = """\
Nothing is changed, and nothing is left. Exit status: 0 when a view can run, 3 when not; 1 when it can, and an attack
came through.
"""
_MARKS: Final = {"ok": "ok", "warning": "warning", "failure": "FAILURE"}


def run(arguments: Sequence[str], /) -> int:
    """The command. Raises UsageError, and with `--attack` AgentHostError."""
    parser = Parser(
        "doctor",
        usage="[--workspace DIR] [--state-dir DIR] [--codex PATH] [--attack] [--json]",
        description="Say what a view needs and whether this host has it.",
        epilog=_EPILOG,
    )
    parser.add_argument("--workspace", metavar="DIR", type=Path, help="try a view with this workspace")
    parser.add_argument("--state-dir", metavar="DIR", type=Path, help="the state directory to look at")
    parser.add_argument("--codex", metavar="PATH", type=Path, help="the Codex to look at (default: as for run)")
    parser.add_argument("--attack", action="store_true", help="when a view can run, attack one with the catalogue")
    parser.add_argument("--json", action="store_true", help="one JSON object (contracts/doctor.schema.json)")
    namespace = parser.parse_args(arguments)
    from agenthost import doctor

    patient = doctor.Patient.here(state_dir=namespace.state_dir, workspace=namespace.workspace, codex=namespace.codex)
    findings = []
    for finding in doctor.examine(patient):
        findings.append(finding)
        if not namespace.json:
            _print(line(finding))
    fit = doctor.fit(findings)
    outcomes = _attack() if namespace.attack and fit else []
    if namespace.json:
        value: dict[str, object] = {"fit": fit, "checks": [finding.to_json() for finding in findings]}
        if namespace.attack:
            value["attacks"] = [_to_json(outcome) for outcome in outcomes]
        print(json.dumps(value, indent=2))
    else:
        for outcome in outcomes:
            _print(outcome.describe())
    if not fit:
        return NO_VIEW
    return 0 if all(outcome.held for outcome in outcomes) else ATTACK_CAME_THROUGH


def line(finding: Finding) -> str:
    """A finding for people."""
    verdict = finding.verdict
    remedy = f"; {verdict.remedy}" if verdict.remedy else ""
    return f"{_MARKS[verdict.outcome]:<9}{finding.check:<17}{verdict.what}{remedy}"


def _attack() -> list[Outcome]:
    from agenthost.attack.runner import run_catalogue

    return asyncio.run(run_catalogue())


def _to_json(outcome: Outcome) -> dict[str, object]:
    attack = outcome.attack
    values = {"id": attack.id, "place": outcome.place, "expected": outcome.expected, "found": outcome.found}
    return {**values, "held": outcome.held}


def _print(text: str) -> None:
    print(printable(text))
    sys.stdout.flush()  # each as it is found: the last ones take their time

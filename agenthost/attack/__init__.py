"""Attacks on a view and an environment: what is tried, and what must come of it.

catalogue   the table: what is tried, where, and the outcome that it must have
runner      opens Sessions whose Harness is the attack program `oac-attack`, tries all of it, and judges
"""

from __future__ import annotations

from agenthost.attack.catalogue import CATALOGUE, cases
from agenthost.attack.runner import Outcome, run_catalogue

__all__ = ["CATALOGUE", "Outcome", "cases", "run_catalogue"]

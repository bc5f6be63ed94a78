"""Attacks on whole Sessions, with the probe as the Harness: see tests/view/conftest.py."""

from __future__ import annotations

import os

import pytest

from tests.view.conftest import bench, daemon, probe_binary

__all__ = ["bench", "daemon", "probe_binary"]

ROUNDS = 200
SOAK_ROUNDS = 10_000


@pytest.fixture(scope="session", params=[ROUNDS, pytest.param(SOAK_ROUNDS, marks=pytest.mark.soak)])
def rounds(request: pytest.FixtureRequest) -> int:
    """How often a race is run: 200 times, 10,000 in `make soak`, or as often as AGENTHOST_ATTACK_ROUNDS says."""
    return int(os.environ.get("AGENTHOST_ATTACK_ROUNDS", request.param))

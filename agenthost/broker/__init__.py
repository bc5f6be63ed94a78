"""Decides on every command that the view asks for, and hands it to the environment: contracts/shim.md."""

from __future__ import annotations

from agenthost.broker.broker import Broker, Limits
from agenthost.broker.policy import Policy, Program, Refusal, Rule

__all__ = ["Broker", "Limits", "Policy", "Program", "Refusal", "Rule"]

"""`agenthost-codex ARGS...`: stands in for `codex ARGS...` wherever a program expects that command.

Every argument is Codex's, `--help` and `--version` too. The session options are variables (see `options`); nothing of
the caller's environment reaches the view, which gets the environment of its plan and no other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from agenthost.cli.launch import pass_through
from agenthost.cli.main import settle
from agenthost.cli.opening import here
from agenthost.cli.options import from_variables


def main(argv: Sequence[str] | None = None) -> int:
    """The console script `agenthost-codex`. Returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return settle(lambda: pass_through(from_variables(os.environ, here=here()), arguments))

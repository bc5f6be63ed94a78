"""`python -m agenthost`: the command line, for when the program `agenthost` is not in PATH."""

from __future__ import annotations

import sys

from agenthost.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

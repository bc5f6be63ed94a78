"""A command line that cannot be understood: exit status 2, one line, before any effect."""

from __future__ import annotations

import argparse
from typing import NoReturn


class UsageError(Exception):
    """The command line is wrong. `remedy` completes the sentence: ``agenthost: usage: WHAT; REMEDY``."""

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"usage: {self.what}; {self.remedy}"


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError` where the standard one prints several lines and exits."""

    def __init__(self, command: str, *, usage: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=f"agenthost {command}",
            usage=f"agenthost {command} {usage}",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._command = command

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy=see_help(self._command))


def see_help(command: str) -> str:
    """The remedy of last resort."""
    return f"see 'agenthost {command} --help'"

"""`agenthost launch [options] -- ARGS...`: the Harness in a view, as if it were run right here.

stdin, stdout and stderr pass byte for byte, signals are forwarded, the exit status is the Harness's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agenthost.cli.opening import here, in_session
from agenthost.cli.options import HARNESS_OPTIONS, SESSION_OPTIONS, SessionOptions, add_options, from_arguments
from agenthost.cli.stdio import STDERR, STDIN, STDOUT
from agenthost.cli.usage import Parser, UsageError

if TYPE_CHECKING:
    from agenthost.cli.signals import Signals
    from agenthost.session import Session

_EPILOG = """\
Exit status: the Harness's own; 128+n when signal n ended it; 125 when agenthost failed; 2 for a wrong command line.
A program that expects the command 'codex' can be given 'agenthost-codex', whose options are variables.
"""


def run(arguments: Sequence[str], /) -> int:
    """The command. Raises UsageError and AgentHostError."""
    options, harness_arguments = parse(arguments)
    return pass_through(options, harness_arguments)


def parse(arguments: Sequence[str]) -> tuple[SessionOptions, tuple[str, ...]]:
    """Options before the first `--`, the Harness's arguments after it."""
    parser = Parser(
        "launch",
        usage="[options] [-- ARGS...]",
        description="Run Codex, or another static program, in a view; ARGS go to it as they are.",
        epilog=_EPILOG,
    )
    add_options(parser, (*SESSION_OPTIONS, *HARNESS_OPTIONS))
    own, harness_arguments = split(arguments)
    namespace, unknown = parser.parse_known_args(own)
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is no option of launch", remedy="put '--' before the arguments that are the Harness's"
        )
    return from_arguments(namespace, (*SESSION_OPTIONS, *HARNESS_OPTIONS), here=here()), harness_arguments


def split(arguments: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What stands before and after the first `--`."""
    if "--" not in arguments:
        return tuple(arguments), ()
    at = list(arguments).index("--")
    return tuple(arguments[:at]), tuple(arguments[at + 1 :])


def pass_through(options: SessionOptions, arguments: Sequence[str], *, stdin: int = STDIN) -> int:
    """Launch with this process's own descriptors and mirror how it ended."""

    async def act(session: Session, signals: Signals) -> int:
        process = await session.launch(arguments, stdin=stdin, stdout=STDOUT, stderr=STDERR)
        with signals.forwarded_to(process):
            return await process.wait()

    return in_session(options, act)

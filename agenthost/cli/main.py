"""`agenthost COMMAND ...`: finds the command, and turns what it raises into one line and an exit status.

No command is imported before it is named, and no error is worded anywhere but in `agenthost.errors`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from agenthost import __version__
from agenthost.cli.stdio import complete_descriptors
from agenthost.cli.terminal import printable
from agenthost.cli.usage import UsageError
from agenthost.errors import FAILED_BEFORE_HARNESS, USAGE, AgentHostError, NotAvailableYet


@dataclass(frozen=True, slots=True)
class Command:
    """A command and the module whose `run(arguments)` is it; without a module it is still to come."""

    name: str
    summary: str
    module: str | None = None


COMMANDS: Final = (
    Command("run", "one Codex turn in a view, with progress and a closing summary", "agenthost.cli.run"),
    Command("launch", "Codex, or another Harness, in a view: a drop-in for the program itself", "agenthost.cli.launch"),
    Command("declare", "what Codex needs in a view, or why it gets none", "agenthost.cli.declare"),
    Command("scripted-model", "the scripted model alone, as an HTTP server", "agenthost.cli.scripted_model"),
    Command("probe", "the sandbox probe"),
    Command("code", "a native coding run"),
    Command("doctor", "what this host can do, and what it lacks", "agenthost.cli.doctor"),
    Command("qualify", "try a Codex release: fourteen behaviours"),
    Command("sessions", "list, show and remove what the state directory holds", "agenthost.cli.sessions"),
)


class CommandModule(Protocol):
    """What a command's module offers."""

    def run(self, arguments: Sequence[str], /) -> int:
        """Do it; the exit status."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """The console script `agenthost`. Returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return settle(lambda: dispatch(arguments))


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` name. Raises what it raises, and UsageError."""
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help", "help"):
        sys.stdout.write(overview())
        return 0
    if name == "--version":
        sys.stdout.write(f"agenthost {__version__}\n")
        return 0
    command = next((one for one in COMMANDS if one.name == name), None)
    if command is None:
        what = f"{name!r} is no command" if name else "no command is given"
        raise UsageError(what, remedy="see 'agenthost --help'")
    if command.module is None:
        raise NotAvailableYet(f"'agenthost {name}' is not available yet", remedy="use a release that brings it")
    return cast("CommandModule", importlib.import_module(command.module)).run(arguments[1:])


def settle(act: Callable[[], int]) -> int:
    """The one place where an error becomes a line on stderr and an exit status."""
    complete_descriptors()
    try:
        status = act()
        sys.stdout.flush()
    except UsageError as error:
        return _complain(str(error), USAGE)
    except AgentHostError as error:
        return _complain(str(error), error.exit_status)
    except BrokenPipeError:
        # Whoever read stdout has left; a native program would have died of SIGPIPE.
        _abandon_stdout()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 — a defect must not pass for an exit status of the Harness
        import traceback  # only a defect pays for it

        traceback.print_exc()
        what = f"{type(error).__name__}: {error}"
        return _complain(f"internal: {what}; this is a defect, report it with the lines above", FAILED_BEFORE_HARNESS)
    return status


def overview() -> str:
    """The text of `agenthost --help`."""
    lines = [
        "usage: agenthost COMMAND [...]",
        "",
        "Runs agent programs in views: they hold no credential, reach nothing,",
    ]
    lines += ["and what they execute runs elsewhere.", "", "commands:"]
    for command in COMMANDS:
        later = "" if command.module else " (not available yet)"
        lines.append(f"  {command.name:<15} {command.summary}{later}")
    lines += ["", "'agenthost COMMAND --help' says more. 'agenthost-codex ARGS...' stands in for 'codex ARGS...':"]
    lines += ["its options are variables, AGENTHOST_STATE_DIR for --state-dir.", ""]
    return "\n".join(lines)


def _complain(message: str, status: int) -> int:
    sys.stderr.write(f"agenthost: {printable(message)}\n")
    return status


def _abandon_stdout() -> None:
    # The interpreter flushes stdout once more when it ends, and would complain.
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, 1)
    os.close(null)

"""`agenthost scripted-model FILE --port P`: the scripted model alone, until a signal ends it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agenthost.cli.signals import Signals
from agenthost.cli.usage import Parser, UsageError

if TYPE_CHECKING:
    from agenthost.gateway.provider import Provider
    from agenthost.scripted.script import Script

_EPILOG = """\
The first line on stdout is the base URL and the second the API key that it requires, for a client's settings.
Ended by TERM or INT it has done its work: exit status 0.
"""


def run(arguments: Sequence[str], /) -> int:
    """The command. Raises UsageError, ScriptInvalid, RequestRefused."""
    parser = Parser(
        "scripted-model",
        usage="FILE|demo [--port P]",
        description="Serve a scripted model: the Responses protocol, played from a file.",
        epilog=_EPILOG,
    )
    parser.add_argument("file", metavar="FILE", help="the script, or 'demo' for the embedded one")
    parser.add_argument("--port", metavar="P", default="0", help="port on 127.0.0.1 (default: 0, any free one)")
    namespace = parser.parse_args(arguments)
    if not namespace.port.isascii() or not namespace.port.isdigit() or int(namespace.port) > 65535:
        raise UsageError(f"--port is {namespace.port!r}", remedy="give a number from 0 to 65535")
    from agenthost.scripted.script import Script

    script = Script.demo() if namespace.file == "demo" else Script.load(Path(namespace.file))
    return asyncio.run(_serve(script, int(namespace.port)))


def _announce(provider: Provider) -> None:
    print(provider.base_url, provider.api_key, sep=os.linesep, flush=True)


async def _serve(script: Script, port: int) -> int:
    from agenthost.scripted.server import serve_alone

    with Signals() as signals:
        try:
            await serve_alone(script, "127.0.0.1", port, _announce)
        except asyncio.CancelledError:
            if signals.ended_by is None:
                raise
    return 0

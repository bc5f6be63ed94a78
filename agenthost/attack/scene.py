"""Where the attacks take place: decoys on the host, and a second Session whose view lives meanwhile.

Everything that an attack could reach if it succeeded is the scene's own, and is gone with it: a file with a secret, a
service on the loopback interface, an abstract and a named socket, a neighbour. The daemon itself is only looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agenthost.errors import HostUnfit
from agenthost.gateway.provider import Provider
from agenthost.process import Process
from agenthost.programs import static_program
from agenthost.request import Harness, SessionRequest
from agenthost.session import AgentHost, Session

PROGRAM: Final = "oac-attack"
BETWEEN: Final = "++"

_SHIM_PATHS: Final = ("/usr/bin/env",)
_LOADERS: Final = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
_SECRETS: Final = ("/tmp/secret", "/var/tmp/secret", "/dev/shm/secret")
_NOWHERE: Final = "http://127.0.0.1:9/v1"
_SHORT: Final = 4096


@dataclass(frozen=True, slots=True)
class Scene:
    """An open Session to attack from, and the names of what its attacks aim at."""

    session: Session
    names: Mapping[str, str] = field(repr=False)

    def fill(self, action: tuple[str, ...]) -> list[str]:
        """The action with the scene's own names in place of `{name}`."""
        return [re.sub(r"\{(\w+)\}", lambda found: self.names[found[1]], part) for part in action]


@contextlib.asynccontextmanager
async def scene(base: Path | None = None) -> AsyncIterator[Scene]:
    """A scene below `base`, a directory that everybody can enter; without one, below /var/tmp.

    Raises what `AgentHost.open` raises, and `HostUnfit` when the neighbour does not come to life.
    """
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(_open_directory(base or Path("/var/tmp")))
        decoys = dict(_decoys(directory, stack))
        program = static_program(PROGRAM)
        workspaces = [_workspace(directory / name, program) for name in ("workspace", "neighbour")]
        state = directory / "state"
        # A Session without a provider has no model listener of its own: who answers there is the neighbour.
        async with (
            AgentHost(state) as host,
            host.open(_request(workspaces[1], program, Provider(base_url=_NOWHERE, api_key="x"))) as other,
            _living(other) as pid,
            host.open(_request(workspaces[0], program, None)) as session,
        ):
            yield Scene(session, decoys | _names(session, other, state, pid))


@contextlib.contextmanager
def _open_directory(base: Path) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="agenthost-attack-", dir=base))
    try:
        directory.chmod(0o755)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _decoys(directory: Path, stack: contextlib.ExitStack) -> Iterator[tuple[str, str]]:
    secret = directory / "secret"
    secret.write_text("a secret of the host\n")
    secret.chmod(0o644)
    yield "secret", str(secret)
    service = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    yield "port", str(service.getsockname()[1])
    name = f"agenthost-attack-{secrets.token_hex(8)}"
    for key, address in (("abstract", f"\0{name}"), ("socket", str(directory / "socket"))):
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(address)
        listener.listen()
        yield key, address.replace("\0", "@")
    yield "disk", next((entry.name for entry in sorted(Path("/sys/block").glob("*"))), "sda")
    yield "loader", next((str(Path(path).resolve()) for path in _LOADERS if Path(path).exists()), _LOADERS[0])
    yield "daemon", str(os.getpid())
    yield "parent", str(directory)


def _names(session: Session, other: Session, state: Path, pid: int) -> dict[str, str]:
    return {
        "workspace": str(session.workspace),
        "program": str(session.workspace / PROGRAM),
        "state": str(state),
        "events": str(state / "sessions" / session.id / "events.jsonl"),
        "other": str(pid),
        "other_home": str(state / "sessions" / other.id / "home"),
        "other_workspace": str(other.workspace),
    }


def _workspace(directory: Path, program: Path) -> Path:
    directory.mkdir(mode=0o755)
    shutil.copy(program, directory / PROGRAM)
    return directory


def _request(workspace: Path, program: Path, provider: Provider | None) -> SessionRequest:
    harness = Harness(program.parent, PROGRAM)
    return SessionRequest(workspace=workspace, harness=harness, provider=provider, shim_paths=_SHIM_PATHS)


@contextlib.asynccontextmanager
async def _living(other: Session) -> AsyncIterator[int]:
    """The neighbour's view, with secrets and a terminal; its pid on the host."""
    mark = secrets.token_hex(8)
    actions: list[str] = []
    for path in _SECRETS:
        actions += ["write", path, "of another Session", BETWEEN]
    process = await other.launch([*actions, "hold-terminal", BETWEEN, "say", mark, BETWEEN, "wait"])
    try:
        await _until(process, mark)
        yield _pid_with(mark)
    finally:
        await process.stop()
        await process.wait()


async def _until(process: Process, mark: str) -> None:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    async with asyncio.timeout(30):
        while mark.encode() not in (line := await process.stdout.readline()):
            if not line:
                raise HostUnfit("the neighbour of the attacks ended at once", remedy="see 'agenthost doctor'")


def _pid_with(mark: str) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError), (entry / "cmdline").open("rb") as file:
                if mark.encode() in file.read(_SHORT):
                    return int(entry.name)
    raise HostUnfit("the neighbour of the attacks is not seen in /proc", remedy="mount /proc without hidepid")

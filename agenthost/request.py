"""What a Session is asked to be, and its admission: what can be refused is refused here, before any effect."""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from agenthost.codex.catalog import VERBOSITIES, Verbosity
from agenthost.codex.harness import PASSWD_SHELL
from agenthost.codex.plan import CODEX_MASK
from agenthost.errors import NotAvailableYet, RequestRefused, UnsupportedOperation
from agenthost.gateway.destinations import AllowedHost
from agenthost.gateway.provider import McpServer, Provider
from agenthost.launcher.mounts import Identity
from agenthost.layout import ENVIRONMENT_HOME, PRIVATE_TMP, RESERVED, SESSION_ID, ViewPath, overlaps

LEAST_MEMORY: Final = 16 << 20
"""Bytes. Below it not even the processes that hold view and environment together are safe from being killed."""

LEAST_PIDS: Final = 8
"""View and environment have an init each, and a command its shim."""

LEAST_CPUS: Final = 0.01
"""The kernel's least quota is 1 ms in a period, which is 100 ms here (cgroup-v2.rst, cpu.max)."""

_PRIVATE: Final = (PRIVATE_TMP, ViewPath("/var/tmp"), ENVIRONMENT_HOME)


@dataclass(frozen=True, slots=True)
class Harness:
    """A static program that is not Codex: `binary`, a file name, in `directory`, which becomes the closure."""

    directory: Path
    binary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """A Session as a client asks for it. Nothing is looked at before `AgentHost.open`."""

    workspace: Path | None
    """The directory that the Harness works in; it keeps its path in view and environment."""

    provider: Provider | None = None
    """Where model requests go. Without one the model listener refuses them; Codex needs one."""

    model: str | None = None
    """The model's slug; None is Codex's own default."""

    model_verbosity: Verbosity | None = None
    """`low`, `medium` or `high`; refused for a `model` that has no such choice. None leaves it to Codex."""

    mcp: Sequence[McpServer] = ()
    codex: Path | None = None
    """The Codex to use; None looks at `AGENTHOST_CODEX`, the installed extra and `PATH`."""

    harness: Harness | None = None
    """Another Harness in place of Codex."""

    session: str | None = None
    """The id of a Session to open again, or to make; None makes a new one under an id of its own."""

    allow_hosts: Sequence[str] = ()
    """`HOST[:PORT]`: where the proxy lets requests go. Everything else is refused."""

    environment: Literal["local", "none"] = "local"
    env_network: Literal["none", "host"] = "none"
    shim_paths: Sequence[str] = ()
    """Further paths in the view at which the shim stands."""

    bind_ro: Sequence[Path] = ()
    """Further host paths that view and environment show, read-only, at their own paths."""

    memory: int | None = None
    """Bytes."""

    pids: int | None = None
    """Processes and threads."""

    cpus: float | None = None
    """Processors' worth of time, such as 1.5."""

    grace_s: float = 3.0
    """Seconds between TERM and KILL when a view is stopped."""

    events_copy: Path | None = None
    """A file that gets a copy of the events."""

    capabilities: Sequence[str] = ()
    hosted_skills: Sequence[str] = ()
    skills: bool | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request whose paths were looked at once: links resolved, the workspace held by a descriptor until `close`."""

    request: SessionRequest
    workspace: Path
    workspace_fd: int = field(repr=False)
    workspace_status: os.stat_result = field(repr=False)
    bind_ro: tuple[Path, ...]
    allow_hosts: tuple[AllowedHost, ...]

    @property
    def identity(self) -> Identity:
        """Which directory the workspace is."""
        return Identity.of(self.workspace_status)

    def close(self) -> None:
        os.close(self.workspace_fd)


@contextlib.contextmanager
def admit(request: SessionRequest, state_dir: Path) -> Iterator[Admitted]:
    """The request with its paths resolved. Raises `RequestRefused` and its kinds, before any effect."""
    _refuse_what_cannot_be(request)
    _refuse_what_is_to_come(request)
    _check_values(request)
    allow_hosts = tuple(AllowedHost.parse(text) for text in request.allow_hosts)
    bind_ro = tuple(_resolve(path, "the path of --bind-ro") for path in request.bind_ro)
    if request.workspace is None:
        raise UnsupportedOperation("there is no workspace", remedy="name the directory to work in")
    fd, workspace = _open_workspace(request.workspace)
    try:
        status = os.fstat(fd)
        _check_place(workspace, "workspace", request, state_dir)
        for path in bind_ro:
            _check_place(path, "path of --bind-ro", request, state_dir)
        _check_binds(workspace, bind_ro)
        yield Admitted(request, workspace, fd, status, bind_ro, allow_hosts)
    finally:
        os.close(fd)


def _refuse_what_cannot_be(request: SessionRequest) -> None:
    """spec/agent-host-view: "Rejected in a view"."""
    refused = {
        "environment none": request.environment == "none",
        "installed Capabilities": bool(request.capabilities),
        "hosted skills": bool(request.hosted_skills),
        "the skills option": request.skills is not None,
    }
    for what, asked in refused.items():
        if asked:
            raise UnsupportedOperation(f"a view has no place for {what}", remedy="leave it out, or run without a view")


def _refuse_what_is_to_come(request: SessionRequest) -> None:
    to_come = {
        "MCP servers (--mcp)": bool(request.mcp),
    }
    for what, asked in to_come.items():
        if asked:
            raise NotAvailableYet(f"{what} not available yet", remedy="leave it out")


def _check_values(request: SessionRequest) -> None:
    if request.session is not None and not SESSION_ID.fullmatch(request.session):
        raise RequestRefused(
            f"{request.session!r} is not a Session id",
            remedy="use letters, digits, '.', '_' and '-', at most 64, not beginning with a mark",
        )
    if not 0 <= request.grace_s <= 3600:
        raise RequestRefused(f"a grace of {request.grace_s} s", remedy="give 0 to 3600 seconds")
    _check_limits(request)
    if request.model_verbosity not in (None, *VERBOSITIES):
        raise RequestRefused(
            f"{request.model_verbosity!r} is no model verbosity", remedy=f"give one of {', '.join(VERBOSITIES)}"
        )
    of_codex = (request.codex, request.model, request.model_verbosity)
    if request.harness is not None and any(value is not None for value in of_codex):
        raise RequestRefused("a Harness and a Codex or model at once", remedy="give one of them")
    if request.harness is None and request.provider is None:
        raise RequestRefused("there is no provider for the model requests", remedy="give a Provider")


def _check_limits(request: SessionRequest) -> None:
    bounds: tuple[tuple[str, float | None, float, str], ...] = (
        ("memory", request.memory, LEAST_MEMORY, "bytes"),
        ("pids", request.pids, LEAST_PIDS, "processes and threads"),
        ("cpus", request.cpus, LEAST_CPUS, "processors"),
    )
    for name, value, least, unit in bounds:
        if value is not None and not least <= value < math.inf:
            raise RequestRefused(f"a limit of {value} {unit} ({name})", remedy=f"give at least {least}")


def _resolve(path: Path, what: str) -> Path:
    try:
        return Path(os.path.realpath(path, strict=True))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RequestRefused(f"{what} {path} cannot be used ({reason})", remedy="name one that exists") from error


def _open_workspace(path: Path) -> tuple[int, Path]:
    """Resolved once; the descriptor and the path are of the same directory."""
    real = _resolve(path, "the workspace")
    try:
        fd = os.open(real, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        reason = error.strerror
        raise RequestRefused(f"the workspace {path} cannot be used ({reason})", remedy="name a directory") from error
    anchored = real.lstat()
    opened = os.fstat(fd)
    if not stat.S_ISDIR(opened.st_mode) or (anchored.st_dev, anchored.st_ino) != (opened.st_dev, opened.st_ino):
        os.close(fd)
        raise RequestRefused(f"the workspace {path} changes while it is looked at", remedy="try again")
    return fd, real


def _check_place(path: Path, what: str, request: SessionRequest, state_dir: Path) -> None:
    """What a view puts at a place of its own cannot be covered, and the state directory is never shown."""
    text = str(path)
    if text == "/":
        raise RequestRefused(f"the {what} is /", remedy="name a directory below it")
    for tree in RESERVED:
        if overlaps(text, tree):
            raise RequestRefused(f"the {what} {text} overlaps {tree}, which belongs to the view", remedy="use another")
    if overlaps(text, str(Path(os.path.realpath(state_dir)))):
        raise RequestRefused(
            f"the {what} {text} overlaps the state directory {state_dir}", remedy="use another --state-dir"
        )
    for covered, name in _own_places(request):
        if overlaps(text, covered):
            raise RequestRefused(f"the {what} {text} overlaps {covered}, {name}", remedy="use another directory")
    for private in _PRIVATE:
        if private == text or private.startswith(text + "/"):
            raise RequestRefused(
                f"the {what} {text} would cover the Session's own {private}", remedy="use one below it"
            )


def _own_places(request: SessionRequest) -> Iterator[tuple[str, str]]:
    if request.harness is None:
        yield CODEX_MASK, "which is masked"
    for path in (PASSWD_SHELL, *request.shim_paths):
        yield path, "which is a shim path"
        yield os.path.realpath(path), "which is a shim path"


def _check_binds(workspace: Path, bind_ro: Sequence[Path]) -> None:
    paths = [workspace, *bind_ro]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise RequestRefused(f"{path} is asked for twice", remedy="name it once, as workspace or with --bind-ro")
    for path in bind_ro:
        if str(workspace).startswith(f"{path}/"):
            continue
        if str(path).startswith(f"{workspace}/"):
            raise RequestRefused(
                f"{path} lies in the workspace", remedy="leave out --bind-ro for it: it is shown already"
            )

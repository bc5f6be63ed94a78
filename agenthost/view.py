"""The story of a view, top to bottom: discover, declare, prepare, launch.

`discover` and `declare` find the Harness and what it needs; `prepare` turns that into a plan, which is a value;
`launch` carries the plan out. Everything before `launch` touches nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final

from agenthost.broker.policy import Policy
from agenthost.codex.catalog import CODEXS_OWN, ModelChoice
from agenthost.codex.catalog import choose as choose_model
from agenthost.codex.harness import HarnessPlan, declare_harness, plan_harness
from agenthost.codex.install import Install
from agenthost.codex.install import check_unchanged as check_install
from agenthost.codex.install import discover as discover_codex
from agenthost.codex.plan import declare as declare_codex
from agenthost.codex.plan import plan_launch
from agenthost.declaration import Mask, View
from agenthost.environment.protocol import Environment
from agenthost.errors import NoView
from agenthost.home import Home
from agenthost.launcher.client import Init, Launcher, RunningCommand
from agenthost.launcher.filters import view_filter
from agenthost.launcher.mounts import Bind, Content, MountStep, Overlay
from agenthost.layout import HOME, MODEL_PORT, PROXY_PORT, SHIM_DIR, SHIM_SOCKET, ViewPath
from agenthost.linux.rootdir import Owner
from agenthost.request import Harness, SessionRequest
from agenthost.wire import Command, CommandFlag, Setup, SetupFlag

_STDIO: Final = 0b111
_UMASK: Final = 0o022
_FLAGS: Final = (
    SetupFlag.PRIVATE_NETWORK
    | SetupFlag.PROC_SUBSET
    | SetupFlag.MEMFD_NOEXEC
    | SetupFlag.LANDLOCK
    | SetupFlag.OWN_FILES
)


@dataclass(frozen=True, slots=True)
class Declared:
    """The Harness that was found, and what it needs in a view."""

    found: Install | Harness
    view: View
    choice: ModelChoice


@dataclass(frozen=True, slots=True)
class Place:
    """Where a Session's launches take place.

    workspace   its path on the host and in the view
    home        the Session home on the host
    shim        the shim program on the host
    owner       whom the view runs as
    """

    workspace: str
    home: Path
    shim: Path
    owner: Owner


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch, decided: what is mounted, who the Harness is, what it runs, and what it may ask for."""

    harness: HarnessPlan
    steps: tuple[MountStep, ...]
    setup: Setup
    policy: Policy

    def command(self) -> Command:
        """The Harness, as the view's init is told to run it."""
        return Command(
            id=0,
            descriptors=_STDIO,
            umask=_UMASK,
            nice=0,
            flags=CommandFlag.MAIN,
            program=os.fsencode(self.harness.program),
            cwd=os.fsencode(self.harness.cwd),
            argv=tuple(os.fsencode(argument) for argument in self.harness.argv),
            env=tuple(os.fsencode(f"{name}={value}") for name, value in self.harness.env.items()),
        )


def discover(request: SessionRequest, environ: Mapping[str, str], state_dir: Path) -> Install | Harness:
    """Which Harness the request means. Raises `NoView`."""
    if request.harness is not None:
        return request.harness
    return discover_codex(request.codex, environ, state_dir=state_dir)


def choose(found: Install | Harness, request: SessionRequest) -> ModelChoice:
    """The model and its verbosity, probed where that must be. Raises `UnsupportedOperation` and `NoView`."""
    return choose_model(found, request.model, request.model_verbosity) if isinstance(found, Install) else CODEXS_OWN


def declare(found: Install | Harness, shim_paths: Sequence[str], choice: ModelChoice = CODEXS_OWN) -> Declared:
    """What it needs in a view, with the Session's further shim paths. Raises `NoView` and `DeclarationInvalid`."""
    view = declare_codex(found) if isinstance(found, Install) else declare_harness(found.directory, found.binary)
    further = tuple(ViewPath(path) for path in shim_paths if path not in view.shim_paths)
    return Declared(found, replace(view, shim_paths=(*view.shim_paths, *further)), choice)


def described(declared: Declared) -> dict[str, object]:
    """What an event says of the Harness. Not its arguments: a prompt may be among them."""
    program = declared.view.local_exec[0]
    if isinstance(declared.found, Install):
        return {"harness": f"Codex {declared.found.release}", "program": program}
    return {"harness": declared.found.binary, "program": program}


def check_reach(declared: Declared) -> None:
    """In root mode the Session's uid is nobody's: raises `NoView` when it could not execute the closure's programs."""
    for mount in declared.view.closure:
        programs = [path for path in declared.view.local_exec if path.startswith(f"{mount.path}/")]
        needed = [(mount.source, 0o001), *((mount.source / path[len(mount.path) + 1 :], 0o005) for path in programs)]
        for path, bits in needed:
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & bits != bits:
                raise NoView(
                    f"{path} is closed to the user of a Session (mode {mode:04o})", remedy=f"run: chmod o+rx {path}"
                )


def programs(declared: Declared) -> dict[str, Path]:
    """What the environment's `PATH` has besides: models call `apply_patch` in scripts that Codex does not intercept."""
    return {"apply_patch": declared.found.binary} if isinstance(declared.found, Install) else {}


def prepare(
    declared: Declared,
    environment: Environment,
    place: Place,
    *,
    args: Sequence[str],
    agents_md: bytes | None,
) -> Plan:
    """The plan of one launch. Touches nothing."""
    view = declared.view
    if isinstance(declared.found, Install):
        harness = plan_launch(
            declared.found,
            view,
            workspace=place.workspace,
            args=args,
            choice=declared.choice,
            agents_md=agents_md,
        )
    else:
        harness = plan_harness(view, workspace=place.workspace, args=args)
    policy = Policy.of(view, canonical=environment.canonical, environment=environment.variables)
    steps = tuple(_view_steps(view, harness, environment, place, programs=tuple(policy.programs)))
    setup = Setup(
        flags=_FLAGS,
        uid=place.owner.uid,
        gid=place.owner.gid,
        hostname=b"view",
        ports=(PROXY_PORT, MODEL_PORT),
        executables=tuple(os.fsencode(path) for path in (*view.local_exec, *policy.programs)),
        seccomp=view_filter(),
    )
    return Plan(harness, steps, setup, policy)


def check_unchanged(declared: Declared) -> None:
    """Before each launch: raises `NoView` when Codex is no longer what it was when the Session was opened."""
    if isinstance(declared.found, Install):
        check_install(declared.found)


def prepare_home(plan: Plan, home: Home) -> None:
    """The Session home as this launch finds it. Raises `HomeUnsafe`."""
    harness = plan.harness
    home.prepare(harness.home_files, harness.home_keep, empty=harness.home_empty, once=harness.home_once)


async def launch(
    plan: Plan, launcher: Launcher, session: str, stdio: Sequence[int], *, cgroup: int | None = None
) -> tuple[Init, RunningCommand]:
    """Builds the view, in `cgroup` if there is one, and starts the Harness. Raises `LaunchFailed`, with nothing left.

    The gateway's and the broker's listeners exist before the Harness runs: what it sends early waits in their queues.
    """
    init = await launcher.build(session, plan.steps, plan.setup, shim_socket=SHIM_SOCKET, cgroup=cgroup)
    try:
        return init, await init.run(plan.command(), stdio)
    except BaseException:
        await init.aclose()
        raise


def _view_steps(
    view: View, harness: HarnessPlan, environment: Environment, place: Place, *, programs: Sequence[str]
) -> Iterator[MountStep]:
    yield from _masked(environment.world(), view.masks, harness.mask_files)
    for mount in view.closure:
        yield Bind(str(mount.source), mount.path, executable=True)
    yield Bind(str(place.home), HOME, readonly=False)
    # rename(2) refuses to move a mount point, not a directory above one: without a mount of its own that directory
    # could be moved away, and another one put in its place.
    shown = (*harness.home_files, *harness.home_once, *harness.home_empty)
    for directory in sorted({str(PurePosixPath(name).parent) for name in shown} - {"."}):
        yield Bind(str(place.home / directory), ViewPath(f"{HOME}/{directory}"), readonly=False)
    for name in shown:
        # Written by the daemon for this launch: the Harness reads it and cannot change what it says.
        yield Bind(str(place.home / name), ViewPath(f"{HOME}/{name}"))
    by_name = [f"{SHIM_DIR}/{name}" for name in view.shims]
    for path in dict.fromkeys([*by_name, *programs]):
        yield Bind(str(place.shim), ViewPath(path), executable=True)


def _masked(world: Sequence[MountStep], masks: Sequence[Mask], files: Mapping[ViewPath, bytes]) -> Iterator[MountStep]:
    """The world with each mask in the mount that it lies in: by an overlay whose top layer is ours."""
    masks_of: dict[int, list[Mask]] = {}
    for mask in masks:
        holders = [index for index, step in enumerate(world) if mask.path.startswith(f"{step.target}/")]
        masks_of.setdefault(holders[-1] if holders else -1, []).append(mask)
    for index, step in enumerate(world):
        inside = masks_of.get(index, [])
        if not inside:
            yield step
        elif isinstance(step, Bind | Content):
            yield _overlay(step, inside, files)
        else:
            raise AssertionError(f"a mask inside {step.describe()} at {step.target}")
    for mask in masks_of.get(-1, []):
        yield Content(f"mask{mask.path.replace('/', '-')}", mask.path, _below(mask, files))


def _overlay(step: Bind | Content, masks: Sequence[Mask], files: Mapping[ViewPath, bytes]) -> Overlay:
    directories = [mask for mask in masks if mask.kind == "directory"]
    opaque = {_inside(step, mask): _below(mask, files) for mask in directories}
    return Overlay(
        # A Session's content is made once under its name: what differs has another name.
        name=f"masked-{sha256(repr((step.target, opaque)).encode()).hexdigest()[:16]}",
        target=step.target,
        below=step,
        opaque=opaque,
        files={_inside(step, mask): b"" for mask in masks if mask.kind == "file"},
    )


def _inside(step: MountStep, mask: Mask) -> str:
    return mask.path[len(step.target) + 1 :]


def _below(mask: Mask, files: Mapping[ViewPath, bytes]) -> dict[str, bytes]:
    prefix = f"{mask.path}/"
    return {path[len(prefix) :]: content for path, content in files.items() if path.startswith(prefix)}

"""The built-in environment: namespaces on this host that show its programs, the workspace, and nothing else of it.

What a command sees: the host's `/usr` with the usual links to it, a curated `/etc`, a private `/tmp` and `HOME`, a
minimal `/dev`, its own `/proc`, the workspace at its own path, and what was asked for with `--bind-ro`. One init runs
every command of the Session.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from agenthost.launcher.client import Init, Launcher, RunningCommand
from agenthost.launcher.filters import environment_filter
from agenthost.launcher.mounts import Bind, Content, Devices, Directory, Identity, IdMap, Link, MountStep, Private
from agenthost.layout import ENVIRONMENT_HOME, PRIVATE_TMP, ViewPath
from agenthost.limits import TmpfsSizes
from agenthost.linux.rootdir import Owner
from agenthost.wire import Command, Setup, SetupFlag

_ETC: Final = ViewPath("/etc")
_PROGRAMS: Final = ViewPath("/.oac/programs")
_ROOT_NAMES: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_NAMES: Final = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "fonts"),
    *("gai.conf", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime"),
    *("magic", "magic.mime", "mime.types", "os-release", "perl", "pki/ca-trust", "pki/tls", "protocols", "python3"),
    *("services", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vim"),
)
_SMALL_FILE: Final = 1 << 20
"""Bytes. A larger file of /etc is not shown; ld.so.cache of a full desktop has 150 KiB."""

_GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Workspace:
    """The workspace as it was admitted: links resolved, anchored to one directory."""

    path: Path
    identity: Identity
    idmap: IdMap | None
    readonly: bool = False

    def step(self, *, executable: bool) -> Bind:
        """The same path inside as on the host, so that a client's `cwd` means the same on both sides."""
        return Bind(
            str(self.path),
            ViewPath(str(self.path)),
            readonly=self.readonly,
            executable=executable,
            identity=self.identity,
            idmap=self.idmap,
        )


class LocalEnvironment:
    """One Session's environment on this host. Made by `start`."""

    def __init__(
        self,
        workspace: Workspace,
        owner: Owner,
        *,
        bind_ro: Sequence[Path],
        programs: Mapping[str, Path],
        network: bool,
        sizes: TmpfsSizes,
    ) -> None:
        self._workspace = workspace
        self._owner = owner
        self._bind_ro = tuple(bind_ro)
        self._programs = dict(programs)
        self._network = network
        self._sizes = sizes
        self._etc = _curated_etc(owner, network=network)
        self._init: Init | None = None

    @property
    def variables(self) -> Mapping[str, str]:
        """`HOME`, `PATH` and `LANG`, and nothing else."""
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        if self._programs:
            path += f":{_PROGRAMS}"
        return {"HOME": ENVIRONMENT_HOME, "PATH": path, "LANG": "C.UTF-8"}

    def world(self) -> Sequence[MountStep]:
        """The environment's files without a single executable one."""
        return tuple(self._steps(executable=False))

    def canonical(self, path: ViewPath) -> ViewPath:
        """`/usr` and the links to it are the host's own, so the host's answer holds."""
        return ViewPath(os.path.realpath(path))

    async def start(self, launcher: Launcher, session: str, *, cgroup: int | None = None) -> None:
        """Starts the environment's init, in `cgroup` if there is one. Raises `LaunchFailed`."""
        steps = [*self._steps(executable=True)]
        steps += [
            Bind(str(source.resolve()), ViewPath(f"{_PROGRAMS}/{name}"), executable=True)
            for name, source in self._programs.items()
        ]
        flags = SetupFlag.OWN_FILES | (SetupFlag(0) if self._network else SetupFlag.PRIVATE_NETWORK)
        setup = Setup(flags, self._owner.uid, self._owner.gid, b"environment", (), (), environment_filter())
        self._init = await launcher.build(session, steps, setup, cgroup=cgroup)

    async def spawn(self, command: Command, fds: Sequence[int]) -> RunningCommand:
        """See `Environment.spawn`."""
        if self._init is None:
            raise RuntimeError("the environment was not started")
        return await self._init.run(command, fds)

    async def aclose(self) -> None:
        """See `Environment.aclose`."""
        if self._init is not None:
            await self._init.stop(_GRACE_S)

    def _steps(self, *, executable: bool) -> Iterator[MountStep]:
        yield from _root_names(executable=executable)
        yield Bind("/usr", ViewPath("/usr"), executable=executable)
        yield self._etc
        yield from _etc_directories(executable=executable)
        yield Directory(ViewPath("/run"))
        yield Directory(ViewPath("/var"))
        owner, size = self._owner, self._sizes.private
        yield Private("var-tmp", ViewPath("/var/tmp"), executable=executable, mode=0o1777, size=size)
        yield Private("tmp", PRIVATE_TMP, executable=executable, mode=0o1777, size=size)
        yield Private("home", ENVIRONMENT_HOME, executable=executable, size=size, uid=owner.uid, gid=owner.gid)
        yield Devices(executable=executable, shm_size=self._sizes.shm)
        binds = [Bind(str(path), ViewPath(str(path)), executable=executable) for path in self._bind_ro]
        binds.append(self._workspace.step(executable=executable))
        # What lies inside another mount is attached after it.
        attached: list[Bind | Content] = [*_ways(binds), *binds]
        yield from sorted(attached, key=lambda step: step.target.count("/"))


def _root_names(*, executable: bool) -> Iterator[MountStep]:
    for name in _ROOT_NAMES:
        path = Path("/", name)
        if path.is_symlink():
            yield Link(ViewPath(str(path)), str(path.readlink()))
        elif path.is_dir():
            yield Bind(str(path), ViewPath(str(path)), executable=executable)


def _ways(binds: Sequence[Bind]) -> Iterator[Content]:
    """A read-only mount over the first directory on the way from a private mount to each bind below it.

    rename(2) refuses to move a mount point, not a directory above one, and in the private mounts everything is the
    Session's: without this, the workspace's parent could be moved away and another directory put in its place.
    """
    targets = {bind.target for bind in binds}
    ways = set()
    for target in targets:
        for private in (ViewPath("/var/tmp"), PRIVATE_TMP, ENVIRONMENT_HOME):
            first, below, _ = target.removeprefix(f"{private}/").partition("/")
            if target.startswith(f"{private}/") and below:
                ways.add(ViewPath(f"{private}/{first}"))
    for way in sorted(ways - targets):
        yield Content(f"way-{sha256(os.fsencode(way)).hexdigest()[:16]}", way)


def _etc_directories(*, executable: bool) -> Iterator[MountStep]:
    for name in _ETC_NAMES:
        path = Path("/etc", name)
        if path.is_dir() and not path.is_symlink():
            yield Bind(str(path), ViewPath(str(path)), executable=executable)


def _curated_etc(owner: Owner, *, network: bool) -> Content:
    """What programs look for in `/etc` and that says nothing about the host's users, services or secrets."""
    uid, gid = owner.uid, owner.gid
    files = {
        "passwd": f"root:x:0:0:root:/:/usr/sbin/nologin\nagent:x:{uid}:{gid}:agent:{ENVIRONMENT_HOME}:/bin/bash\n",
        "group": f"root:x:0:\nagent:x:{gid}:\n",
        "hosts": "127.0.0.1\tlocalhost environment\n::1\tlocalhost\n",
        "hostname": "environment\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
        "shells": "/bin/sh\n/bin/bash\n",
    }
    contents = {name: text.encode("ascii") for name, text in files.items()}
    links: dict[str, str] = {}
    directories: list[str] = []
    names = [*_ETC_NAMES, "resolv.conf"] if network else list(_ETC_NAMES)
    for name in names:
        path = Path("/etc", name)
        if path.is_symlink() and name != "resolv.conf":
            links[name] = str(path.readlink())
        elif path.is_dir():
            directories.append(name)
        elif path.is_file() and path.stat().st_size <= _SMALL_FILE:
            contents[name] = path.read_bytes()
    return Content("etc", _ETC, contents, links, directories)

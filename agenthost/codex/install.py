"""Which Codex is installed, and may it have a view?

Promise: an `Install` is a static program of this machine whose bytes are those of a pinned release. Nothing is executed
before its digest is known, and then only `--version`, closed and bounded.

    found by            resolved to
    --codex PATH        the file behind all symbolic links;
    AGENTHOST_CODEX     behind npm's script launcher (bin/codex.js), the program of its platform package
    codex_cli_bin       bin/codex of the package (the extra `codex`)
    PATH                as for --codex

The first of them that names something decides: if that one gets no view, there is none.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from agenthost.codex.ask import NoAnswer, ask
from agenthost.codex.digests import Digests
from agenthost.codex.releases import CODE_MODE_HOST, CODEX, Release, pinned
from agenthost.elf import why_not_static
from agenthost.errors import NoView
from agenthost.layout import default_state_dir

EXTRA: Final = "codex_cli_bin"
"""The import name of PyPI's openai-codex-cli-bin."""

VERSION_SECONDS: Final = 10.0
"""It answers in 6 ms; on a loaded machine with a cold cache it reads 300 MB first."""

MAX_VERSION: Final = 4096
MAX_PACKAGE_JSON: Final = 65536

_PINNED_REMEDY: Final = (
    "install a pinned release (pip install 'agenthost[codex]'; contracts/codex-releases.json names them all)"
)
_NPM_PLATFORMS: Final = {"x86_64": "codex-linux-x64", "aarch64": "codex-linux-arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """A pinned static Codex.

    found            what was named, before links and launchers were followed
    origin           who named it: "--codex", "AGENTHOST_CODEX", "codex_cli_bin" or "PATH"
    binary           the program
    directory        its directory, the closure
    code_mode_host   the program beside it, when that is there and static
    digests          SHA-256 by file name
    judged           which files they were: see `check_unchanged`
    """

    found: Path
    origin: str
    binary: Path
    directory: Path
    release: str
    code_mode_host: Path | None
    digests: Mapping[str, str]
    judged: Mapping[Path, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    def to_json(self) -> dict[str, object]:
        """As `$defs/codex` of contracts/declaration.schema.json has it."""
        return {
            "found": str(self.found),
            "origin": self.origin,
            "binary": str(self.binary),
            "release": self.release,
            "digests": dict(self.digests),
        }


def discover(explicit: Path | None, environ: Mapping[str, str], *, state_dir: Path | None = None) -> Install:
    """The installed Codex, or `NoView` with the one reason why it gets no view.

    Takes about 10 ms, and a quarter of a second more when the digests are not remembered in `state_dir`.
    """
    if sys.platform != "linux":
        raise NoView("not Linux", remedy="run agenthost on Linux")
    origin, found = _find(explicit, environ)
    digests = Digests(default_state_dir() if state_dir is None else state_dir)
    install = _judge(origin, found, pinned(os.uname().machine), digests)
    digests.save()
    return install


def _find(explicit: Path | None, environ: Mapping[str, str]) -> tuple[str, Path]:
    if explicit is not None:
        return "--codex", explicit
    if named := environ.get("AGENTHOST_CODEX"):
        return "AGENTHOST_CODEX", Path(named)
    spec = importlib.util.find_spec(EXTRA)
    if spec is not None and spec.origin is not None:
        return EXTRA, Path(spec.origin).parent / "bin" / CODEX
    for directory in environ.get("PATH", "").split(os.pathsep):
        candidate = Path(directory) / CODEX
        # A relative entry would let the current directory, often somebody's checkout, choose the program.
        if directory.startswith("/") and candidate.is_file() and os.access(candidate, os.X_OK):
            return "PATH", candidate
    raise NoView(
        "no Codex found (--codex, AGENTHOST_CODEX, the extra 'codex', PATH)",
        remedy="install the extra (pip install 'agenthost[codex]') or name the program with --codex",
    )


def _judge(origin: str, found: Path, releases: Mapping[str, Release], digests: Digests) -> Install:
    binary = _resolve(origin, found)
    if reason := why_not_static(binary):
        raise NoView(f"{binary} {reason}", remedy=f"name the program itself with --codex, or {_PINNED_REMEDY}")
    if binary.parent == Path("/"):
        raise NoView(f"{binary} lies in the root, which cannot be a closure", remedy="put Codex into its own directory")
    fd = os.open(binary, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        judged = {binary: _mark(os.fstat(fd))}
        digest = _digest(digests, fd, binary)
        release = releases.get(digest)
        if release is None:
            raise NoView(f"{binary} is not a pinned release{_said_version(binary)}", remedy=_PINNED_REMEDY)
        said = _version(fd)
    finally:
        os.close(fd)
    if said != f"codex-cli {release.release}":
        raise NoView(f"{binary} has the digest of {release.release} and says {said!r}", remedy=_PINNED_REMEDY)
    names = {binary.name: digest}
    host = _code_mode_host(binary.parent, release, digests)
    if host is not None:
        names[host[0].name] = release.code_mode_host
        judged[host[0]] = host[1]
    return Install(
        found=found,
        origin=origin,
        binary=binary,
        directory=binary.parent,
        release=release.release,
        code_mode_host=None if host is None else host[0],
        digests=MappingProxyType(names),
        judged=MappingProxyType(judged),
    )


def check_unchanged(install: Install) -> None:
    """Raises `NoView` when a program is no longer the file that was judged: a Session can outlive an upgrade.

    It tells an exchanged file from the judged one, by device, inode, size and time of change. It is no defence against
    the owner of the installation, who can write into the file that runs.
    """
    for path, mark in install.judged.items():
        try:
            unchanged = _mark(path.stat()) == mark
        except OSError:
            unchanged = False
        if not unchanged:
            raise NoView(f"{path} is not the file any more that it was", remedy="open the Session again")


def _mark(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _digest(digests: Digests, fd: int, path: Path) -> str:
    try:
        return digests.sha256(fd)
    except OSError as error:
        raise NoView(f"{path} cannot be read ({error})", remedy="install Codex again") from error


def _resolve(origin: str, found: Path) -> Path:
    """The file behind links, and behind npm's launcher."""
    try:
        real = Path(os.path.realpath(found, strict=True))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a path"
        raise NoView(f"{found} ({origin}) cannot be found ({why})", remedy="name an installed Codex") from error
    if real.name == "codex.js" and real.parent.name == "bin":
        return _behind_launcher(real)
    return real


def _behind_launcher(script: Path) -> Path:
    """The program that npm's `bin/codex.js` would start: it looks where Node's module resolution looks, then beside
    itself (observed in @openai/codex 0.171.0)."""
    machine = os.uname().machine
    platform = _NPM_PLATFORMS.get(machine, f"codex-linux-{machine}")
    program = Path("vendor") / f"{machine}-unknown-linux-musl" / "bin" / CODEX
    package = script.parent.parent
    if _member(package / "package.json", "name") == "@openai/codex":
        above = [directory for directory in script.parents if directory.name != "node_modules"]
        trees = [directory / "node_modules" / "@openai" / platform for directory in above]
        for tree in (*trees, package):
            if (tree / program).is_file():
                return Path(os.path.realpath(tree / program, strict=True))
    raise NoView(
        f"{script} is npm's launcher and its program is not installed (@openai/{platform})",
        remedy="install @openai/codex again with its optional dependencies, or name the program with --codex",
    )


def _member(path: Path, name: str) -> object:
    """A member of a small JSON object; None for anything that is none."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_PACKAGE_JSON:
            return None
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found.get(name) if isinstance(found, dict) else None


def _said_version(binary: Path) -> str:
    """What an unpinned install says of itself, read from its package: it is not run to be asked."""
    said = _member(binary.parent.parent / "codex-package.json", "version")
    return f" (its package says {said})" if isinstance(said, str) and len(said) < 64 and said.isprintable() else ""


def _code_mode_host(directory: Path, release: Release, digests: Digests) -> tuple[Path, tuple[int, ...]] | None:
    host = directory / CODE_MODE_HOST
    # A link would point out of the closure, and the view shows only the closure.
    if host.is_symlink() or why_not_static(host):
        return None
    fd = os.open(host, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mark = _mark(os.fstat(fd))
        digest = _digest(digests, fd, host)
    finally:
        os.close(fd)
    if digest != release.code_mode_host:
        raise NoView(f"{host} is not the one of {release.release}", remedy="install Codex again, in a new directory")
    return host, mark


def _version(fd: int) -> str:
    """The first line that the program behind `fd` prints for `--version`, or what it did instead.

    It gets no variable but a CODEX_HOME that cannot exist: it would make `~/.codex`.
    """
    env = {"HOME": os.devnull, "CODEX_HOME": os.devnull}
    try:
        said = ask(fd, [CODEX, "--version"], env=env, seconds=VERSION_SECONDS, limit=MAX_VERSION)
    except NoAnswer as error:
        return str(error)
    return said.decode(errors="replace").partition("\n")[0].strip()

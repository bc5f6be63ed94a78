"""What a test may need and a machine may lack.

`@needs("root", "git")` (or `pytestmark = needs("root")`) skips the test with the reason, and fails it instead under
`AGENTHOST_MUST_WORK=1`: where the suite is said to run whole, nothing is skipped in silence.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn

import pytest

from agenthost.errors import HostUnfit
from agenthost.limits import find_delegation

ROOT: Final = Path(__file__).resolve().parent.parent
"""The source tree."""

UNPRIVILEGED_UID: Final = 61001
"""Nobody's uid: Debian gives out 60000 to 64999 on request only (policy 9.2.2), and systemd takes none near it."""

CAP_SYS_ADMIN: Final = 21  # linux/capability.h


def needs(*names: str) -> pytest.MarkDecorator:
    """Marks a test, a class or (as `pytestmark`) a module with what it cannot do without: keys of `CATALOGUE`."""
    unknown = sorted(set(names) - CATALOGUE.keys())
    if unknown:
        raise ValueError(f"no such need: {', '.join(unknown)} (there are {', '.join(sorted(CATALOGUE))})")
    return pytest.mark.needs(*names)


def require(*names: str) -> None:
    """As `needs`, from inside a fixture."""
    reasons = {name: reason for name in names if (reason := missing(name)) is not None}
    if reasons.keys() - MAY_LACK:
        lacking("; ".join(reasons.values()))
    if reasons:
        pytest.skip("; ".join(reasons.values()))


def lacking(reason: str) -> NoReturn:
    """Ends the test: skipped, or failed where everything must work."""
    if os.environ.get("AGENTHOST_MUST_WORK") == "1":
        pytest.fail(f"AGENTHOST_MUST_WORK=1 and {reason}", pytrace=False)
    pytest.skip(reason)


@cache
def missing(name: str) -> str | None:
    """Why `name` is not there, or None when it is. Each is looked for once in a run."""
    return CATALOGUE[name]()


def codex_release(release: str) -> Path | None:
    """The binary of a pinned Codex: from `AGENTHOST_TEST_CODEX_163` / `_171`, else 0.163.0 from the extra `codex`."""
    named = os.environ.get(f"AGENTHOST_TEST_CODEX_{release}", "")
    if named:
        return Path(named).resolve()
    spec = find_spec("codex_cli_bin") if release == "163" else None
    if spec is None or spec.origin is None:
        return None
    return (Path(spec.origin).parent / "bin" / "codex").resolve()


def as_unprivileged(command: list[str]) -> list[str]:
    """The command line that runs `command` without privileges: as the caller, or for root as `UNPRIVILEGED_UID`."""
    if os.geteuid() != 0:
        return command
    uid = str(UNPRIVILEGED_UID)
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", *command]


def _program(name: str, package: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name) else f"there is no {name} here (Debian package {package})"


def _linux() -> str | None:
    return None if sys.platform == "linux" else f"this is {sys.platform}, not Linux"


def _root() -> str | None:
    if os.geteuid() != 0:
        return "this is not root"
    effective = next(
        line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:")
    )
    if not int(effective, 16) >> CAP_SYS_ADMIN & 1:
        return "this root has no CAP_SYS_ADMIN"
    return None


def _user_namespaces() -> str | None:
    probe = subprocess.run(
        as_unprivileged(["unshare", "--user", "--map-current-user", "true"]), capture_output=True, check=False, cwd="/"
    )
    why = probe.stderr.decode().strip()
    return None if probe.returncode == 0 else f"an unprivileged user gets no user namespace: {why}"


def _codex(release: str) -> Callable[[], str | None]:
    def check() -> str | None:
        path = codex_release(release)
        if path is None:
            return f"there is no Codex 0.{release}.0 here (set AGENTHOST_TEST_CODEX_{release} to its binary)"
        return None if os.access(path, os.X_OK) else f"{path} is not an executable file"

    return check


def _static_compiler() -> str | None:
    if shutil.which("musl-gcc") or shutil.which("cc"):
        return None
    return "there is no C compiler here (Debian packages gcc, libc6-dev, musl-tools)"


def _libseccomp() -> str | None:
    try:
        ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return "there is no libseccomp here (Debian package libseccomp2)"
    return None


def _cgroup2() -> str | None:
    """One in which this process may make others, whatever the controllers."""
    try:
        find_delegation(())
    except HostUnfit as refused:
        return refused.what
    return None


def _cgroup2_controllers() -> str | None:
    try:
        find_delegation(("memory", "pids", "cpu"))
    except HostUnfit as refused:
        return f"{refused.what}; {refused.remedy}"
    return None


MAY_LACK: Final = {"cgroup2", "cgroup2-controllers"}
"""What a machine may lack even where everything must work: no package brings it, and taking the controllers away from
whoever has them would change the machine. That they cannot be had is tested in their place."""

CATALOGUE: Final[dict[str, Callable[[], str | None]]] = {
    "cgroup2": _cgroup2,
    "cgroup2-controllers": _cgroup2_controllers,
    "bwrap": _program("bwrap", "bubblewrap"),
    "codex-163": _codex("163"),
    "codex-171": _codex("171"),
    "compiler": _static_compiler,
    "gcc": _program("gcc", "gcc"),
    "git": _program("git", "git"),
    "libseccomp": _libseccomp,
    "linux": _linux,
    "make": _program("make", "make"),
    "musl": _program("musl-gcc", "musl-tools"),
    "npm": _program("npm", "npm"),
    "root": _root,
    "setpriv": _program("setpriv", "util-linux"),
    "strace": _program("strace", "strace"),
    "user-namespaces": _user_namespaces,
}

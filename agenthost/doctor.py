"""What this host offers to a view: each requirement by itself, and in the end a view.

Each check says one finding: what is so, and if that is a failure or a warning, what can be done. No check leaves
anything behind; the last one builds a view in a temporary state directory, and takes it down.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from agenthost import view as story
from agenthost.codex.install import discover
from agenthost.elf import why_not_static
from agenthost.errors import AgentHostError, HostUnfit, NoView, RequestRefused
from agenthost.gateway.provider import Provider
from agenthost.launcher.filters import environment_filter, view_filter
from agenthost.layout import default_state_dir
from agenthost.limits import find_delegation
from agenthost.linux import syscalls
from agenthost.linux.seccomp import ARCHITECTURES
from agenthost.programs import static_program
from agenthost.request import Harness, SessionRequest, admit
from agenthost.session import AgentHost

_NEWER: Final = "boot a newer kernel"
_CAP_SYS_ADMIN: Final = 21  # linux/capability.h
_TRIAL_S: Final = 60.0

_MAKE_NAMESPACES: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from agenthost.linux import syscalls
syscalls.unshare(syscalls.CLONE_NEWUSER)
syscalls.unshare(syscalls.CLONE_NEWNS)
sys.stdout.write("made")
"""

# linux/magic.h, and for CIFS, SMB2 and Ceph their own headers in fs/.
_NETWORK: Final = {
    0x6969: "NFS",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x517B: "SMB",
    0x65735546: "FUSE",
    0x01021997: "9P",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x0BD00BD0: "Lustre",
}
_EMPTY_BELOW_PROC: Final = ("/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd")
"""Mount points that are directories without content: they hide nothing (proc_create_mount_point)."""


class Outcome(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding: `what` is so; `remedy` is empty when all is well."""

    outcome: Outcome
    what: str
    remedy: str = ""


def _ok(what: str) -> Verdict:
    return Verdict(Outcome.OK, what)


def _warning(what: str, remedy: str) -> Verdict:
    return Verdict(Outcome.WARNING, what, remedy)


def _failure(what: str, remedy: str) -> Verdict:
    return Verdict(Outcome.FAILURE, what, remedy)


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict, and the check that it is of: a word that does not change between releases."""

    check: str
    verdict: Verdict

    def to_json(self) -> dict[str, str]:
        verdict = self.verdict
        return {"check": self.check, "outcome": verdict.outcome, "what": verdict.what, "remedy": verdict.remedy}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What is looked at: the host, as this user, with these choices of the command line."""

    state_dir: Path
    workspace: Path | None = None
    codex: Path | None = None
    rootless: bool = True
    proc: Path = Path("/proc")

    @classmethod
    def here(
        cls, *, state_dir: Path | None = None, workspace: Path | None = None, codex: Path | None = None
    ) -> Patient:
        chosen = (state_dir or default_state_dir()).absolute()
        return cls(state_dir=chosen, workspace=workspace, codex=codex, rootless=os.geteuid() != 0)

    def setting(self, name: str) -> str | None:
        """A file below /proc/sys, or None when this kernel has none of this name."""
        try:
            return (self.proc / "sys" / name).read_text().strip()
        except OSError:
            return None


Check = Callable[[Patient], Verdict]


def examine(patient: Patient) -> Iterator[Finding]:
    """Every finding, in order, as it is made."""
    first = check_linux(patient)
    yield Finding("linux", first)
    if first.outcome is Outcome.FAILURE:
        return
    for name, check in CHECKS.items():
        yield Finding(name, check(patient))


def fit(findings: list[Finding]) -> bool:
    """Whether a view can run."""
    return all(finding.verdict.outcome is not Outcome.FAILURE for finding in findings)


# The kernel ----------------------------------------------------------------------------------------------------------


def check_linux(_patient: Patient) -> Verdict:
    if sys.platform != "linux":
        return _failure(f"this is {sys.platform}, not Linux", "run agenthost on Linux")
    system = os.uname()
    if system.machine not in ARCHITECTURES:
        return _failure(f"this machine is {system.machine}", f"use one of {', '.join(ARCHITECTURES)}")
    return _ok(f"Linux {system.release} on {system.machine}")


def _present(act: Callable[[], object], name: str, since: str) -> Verdict:
    """Whether the kernel has a call, asked with arguments that it must refuse: only ENOSYS says that it has not."""
    try:
        act()
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return _failure(
                f"{name} is not there (Linux {since}, or a filter around this process)",
                f"{_NEWER}, or allow the call in the container's seccomp profile",
            )
    return _ok(f"{name} is there")


def check_openat2(_patient: Patient) -> Verdict:
    return _present(lambda: os.close(syscalls.openat2(0, "/", os.O_PATH)), "openat2", "5.6")


def check_mount_api(_patient: Patient) -> Verdict:
    return _present(lambda: syscalls.mount_setattr(-1), "mount_setattr", "5.12")


def check_pidfd(_patient: Patient) -> Verdict:
    return _present(lambda: os.close(os.pidfd_open(os.getpid())), "pidfd_open", "5.3")


def check_landlock(_patient: Patient) -> Verdict:
    try:
        version = syscalls.landlock_version()
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return _failure("Landlock is switched off", "boot with 'landlock' in the kernel's lsm= parameter")
        return _failure("Landlock is not there (Linux 5.13, CONFIG_SECURITY_LANDLOCK)", _NEWER)
    if version < 2:
        return _warning("Landlock 1 forbids the Harness to rename from directory to directory", f"{_NEWER} (5.19)")
    return _ok(f"Landlock {version} is there")


def check_memfd(patient: Patient) -> Verdict:
    if patient.rootless or patient.setting("vm/memfd_noexec") is None:
        return _ok("memory files are kept from execution by the system call filter")
    return _ok("memory files are kept from execution by the system call filter and by vm.memfd_noexec")


def check_overlay(patient: Patient) -> Verdict:
    try:
        known = {line.split()[-1] for line in (patient.proc / "filesystems").read_text().splitlines()}
    except OSError as error:
        return _failure(f"/proc/filesystems cannot be read ({error.strerror})", "mount /proc")
    if "overlay" not in known:
        remedy = "as root: modprobe overlay"
        return (_failure if patient.rootless else _warning)("overlayfs is not loaded", remedy)
    return _ok("overlayfs is there")


# Namespaces ----------------------------------------------------------------------------------------------------------


def check_privileges(patient: Patient) -> Verdict:
    if patient.rootless:
        return _ok(f"uid {os.geteuid()}: views share this user's uid")
    for line in (patient.proc / "self/status").read_text().splitlines():
        if line.startswith("CapEff:") and not int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1:
            return _failure(
                "this root has no CAP_SYS_ADMIN",
                "run as an unprivileged user, or give the container CAP_SYS_ADMIN",
            )
    return _ok("root: each Session has a uid of its own")


def check_user_namespaces(patient: Patient) -> Verdict:
    if patient.setting("user/max_user_namespaces") == "0":
        return _failure("no user namespaces (user.max_user_namespaces is 0)", "sysctl user.max_user_namespaces=15000")
    if patient.rootless and patient.setting("kernel/unprivileged_userns_clone") == "0":
        return _failure(
            "no user namespaces for this user (kernel.unprivileged_userns_clone is 0)",
            "sysctl kernel.unprivileged_userns_clone=1",
        )
    step = _stops_at()
    if step is None:
        return _ok("user namespaces are there")
    if patient.rootless and patient.setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return _failure(
            "AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1)",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a profile for the interpreter with 'userns,'",
        )
    return _failure(
        f"no user namespaces: {step}",
        "allow unshare(2) in the container's seccomp profile, and do not run in a chroot",
    )


def _stops_at() -> str | None:
    """What fails when a process makes a user namespace and uses its privileges there; None when nothing does.

    Where AppArmor restricts them the namespace is made, and is without privileges.
    """
    package = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-I", "-S", "-c", _MAKE_NAMESPACES, package]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd="/")
    # Whoever started this may have SIGCHLD ignored; then the status is lost, not what was said.
    return None if done.stdout == "made" else done.stderr.strip().rpartition("\n")[2] or "it ended at once"


def check_proc(patient: Patient) -> Verdict:
    """A proc of a user namespace must not show what the one around it hides: mount_too_revealing (fs/namespace.c)."""
    if not patient.rootless and (patient.proc / "self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
        return _ok("/proc of a view can be mounted")
    lines = [line.split() for line in (patient.proc / "self/mountinfo").read_text().splitlines()]
    masked = [fields[4] for fields in lines if fields[4].startswith("/proc/") and fields[4] not in _EMPTY_BELOW_PROC]
    elsewhere = [
        fields
        for fields in lines
        if fields[fields.index("-") + 1] == "proc" and fields[3] == "/" and fields[4] != "/proc"
    ]
    if masked and not elsewhere:
        some = ", ".join(masked[:3]) + (", ..." if len(masked) > 3 else "")
        return _failure(
            f"/proc is masked ({some})",
            "run the container with an unmasked /proc (docker: --security-opt systempaths=unconfined)",
        )
    return _ok("/proc is whole")


# What is installed ---------------------------------------------------------------------------------------------------


def check_libseccomp(_patient: Patient) -> Verdict:
    try:
        size = len(view_filter()) + len(environment_filter())
    except HostUnfit as error:
        return _failure(error.what, error.remedy)
    except OSError as error:
        return _failure(f"libseccomp compiles no filter ({error.filename}: {error.strerror})", "install a newer one")
    return _ok(f"libseccomp compiles both filters ({size // 8} instructions)")


def check_programs(_patient: Patient) -> Verdict:
    for name in ("oac-init", "oac-shim"):
        try:
            path = static_program(name)
        except HostUnfit as error:
            return _failure(error.what, error.remedy)
        if reason := why_not_static(path):
            return _failure(f"{path} {reason}", "run 'make shims' with a compiler that links statically")
    return _ok("the static programs are there")


def check_codex(patient: Patient) -> Verdict:
    try:
        with tempfile.TemporaryDirectory() as forgotten:
            install = discover(patient.codex, os.environ, state_dir=Path(forgotten))
        if not patient.rootless:
            story.check_reach(story.declare(install, ()))
    except NoView as error:
        return _failure(error.what, error.remedy)
    return _ok(f"Codex {install.release} at {install.binary}")


# Places --------------------------------------------------------------------------------------------------------------


def check_state(patient: Patient) -> Verdict:
    remedy = "use another --state-dir"
    state = patient.state_dir
    try:
        place = next(path for path in (state, *state.parents) if path.exists())
        found = place.stat()
        kind = _NETWORK.get(syscalls.filesystem_type(place))
    except OSError as error:
        return _failure(f"the state directory {state} cannot be used ({error.strerror})", remedy)
    if not stat.S_ISDIR(found.st_mode) or not os.access(place, os.W_OK | os.X_OK):
        return _failure(f"the state directory {state} cannot be written (at {place})", remedy)
    if place == state and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
        return _failure(f"the state directory {state} is open to others", f"chmod 700 {state}, or {remedy}")
    if kind is not None:
        return _warning(f"the state directory {state} is on a network filesystem ({kind})", f"{remedy}, on a local one")
    return _ok(f"the state directory is {state}")


def check_workspace(patient: Patient) -> Verdict:
    if patient.workspace is None:
        return _ok("no workspace was named, and a temporary one is tried")
    try:
        # Any Harness will do: what is asked is whether a view can have this workspace.
        with admit(
            SessionRequest(workspace=patient.workspace, harness=Harness(Path("/"), "none")), patient.state_dir
        ) as admitted:
            kind = _NETWORK.get(syscalls.filesystem_type(admitted.workspace))
    except RequestRefused as error:
        return _failure(error.what, error.remedy)
    if kind is not None and not patient.rootless:
        return _warning(
            f"the workspace {admitted.workspace} is on a filesystem that may not support id-mapped mounts ({kind})",
            "the last line tells; use one on ext4, xfs, btrfs or tmpfs",
        )
    return _ok(f"the workspace {admitted.workspace} can be had")


def check_cgroups(_patient: Patient) -> Verdict:
    try:
        delegation = find_delegation(("memory", "pids", "cpu"))
    except HostUnfit as error:
        return _warning(f"no limits for Sessions: {error.what}", error.remedy)
    return _ok(f"limits for Sessions can be set in {delegation.base}")


def check_core_pattern(patient: Patient) -> Verdict:
    pattern = patient.setting("kernel/core_pattern") or ""
    if pattern.startswith("|"):
        # core(5): a pipe gets the dump whatever RLIMIT_CORE is.
        return _warning(
            f"a crash in a view hands its memory to a program of the host ({pattern[1:].split()[0]})",
            "sysctl kernel.core_pattern=core, where that must not be",
        )
    return _ok("core dumps go to files, which a view may not write")


# A view --------------------------------------------------------------------------------------------------------------


def check_view(patient: Patient) -> Verdict:
    """A view and an environment, as any launch makes them, and a program in the view: Codex, or init for want of it."""
    try:
        with tempfile.TemporaryDirectory(prefix="agenthost-doctor-") as place:
            return asyncio.run(asyncio.wait_for(_try(patient, Path(place)), _TRIAL_S))
    except AgentHostError as error:
        return _failure(f"no view could be made: {error.what}", _another(error.remedy))
    except TimeoutError:
        return _failure(f"a view was not ready within {_TRIAL_S:.0f} s", "look for a hung mount")
    except OSError as error:
        return _failure(f"no view could be made: {error.filename}: {error.strerror}", "correct what it names")


def _another(remedy: str) -> str:
    return "see the lines above; if they are all well, report it" if "agenthost doctor" in remedy else remedy


async def _try(patient: Patient, place: Path) -> Verdict:
    workspace = patient.workspace
    if workspace is None:
        workspace = place / "workspace"
        workspace.mkdir()
    request, arguments, expected = _trial(patient, workspace)
    async with AgentHost(place / "state") as host, host.open(request) as session:
        process = await session.launch(arguments)
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise AssertionError("a launch with pipes has no pipes")
        process.stdin.close()
        said, complaint = await asyncio.gather(process.stdout.read(), process.stderr.read())
        status = await process.wait()
    if expected in said + complaint:
        return _ok(f"a view was made, and {session.declaration.local_exec[0]} ran in it")
    last = (said + complaint).decode(errors="replace").strip().rpartition("\n")[2]
    return _failure(f"the program in the view ended with {status}, saying {last!r}", "report it with these lines")


def _trial(patient: Patient, workspace: Path) -> tuple[SessionRequest, list[str], bytes]:
    """A request, arguments, and what the program then says."""
    if check_codex(patient).outcome is Outcome.OK:
        # Nothing is asked of this provider.
        provider = Provider(base_url="http://127.0.0.1:9/v1", api_key="none")
        request = SessionRequest(workspace=workspace, codex=patient.codex, provider=provider)
        return request, ["--version"], b"codex-cli "
    init = static_program("oac-init")
    return SessionRequest(workspace=workspace, harness=Harness(init.parent, init.name)), [], b"oac-init is started by"


CHECKS: Final[dict[str, Check]] = {
    "openat2": check_openat2,
    "mount-api": check_mount_api,
    "pidfd": check_pidfd,
    "landlock": check_landlock,
    "memfd": check_memfd,
    "overlay": check_overlay,
    "privileges": check_privileges,
    "user-namespaces": check_user_namespaces,
    "proc": check_proc,
    "libseccomp": check_libseccomp,
    "programs": check_programs,
    "codex": check_codex,
    "state": check_state,
    "workspace": check_workspace,
    "cgroups": check_cgroups,
    "core-pattern": check_core_pattern,
    "view": check_view,
}
"""Every check but `linux`, in order."""

"""A fault at any step of building a view: an error and an empty machine, or the very same view; never a weaker one.

A first launch records the system calls of the builder and of every init. Then each of them fails in a launch of its
own, without having been done (tests/view/faults.c). As root all of it happens in a box with namespaces of its own, so
that what a fault leaves undone cannot reach the host.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from agenthost.linux import seccomp
from tests.needs import require
from tests.view.conftest import WARNINGS
from tests.view.rig import root_mode, rootless_mode

HERE: Final = Path(__file__).parent
BOX: Final = (
    *("unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--mount-proc"),
    *("/bin/sh", "-c", 'echo agenthost-faults >/proc/sys/kernel/hostname && exec "$@"', "sh"),
)
TOLD: Final = ("facts", "++", "mounts", "++", "try")
TRIED: Final = (
    *("unshare_user", "clone_user", "mount_tmpfs", "set_namespace", "init_root", "init_memory", "init_environment"),
    *("init_descriptors", "proc_sys", "trace_init", "memfd_plain", "memfd_executable", "socket_vsock", "key_add"),
    *("set_uid", "raise_core", "set_host_name", "map_zero", "read_implies_exec"),
)
"""Attempts of the probe, by name: what each guard of a view must stop."""

GUARDS: Final = (
    *("unshare", "mount", "sethostname", "fsopen", "fsconfig", "fsmount", "move_mount", "open_tree", "mount_setattr"),
    *("pivot_root", "openat2", "setresuid", "setresgid", "setgroups", "capset", "landlock_create_ruleset"),
    *("landlock_add_rule", "landlock_restrict_self"),
)
"""Calls that the boundary is made of: where one of them fails there is no view, not even one that looks the same."""

ERRORS: Final = (errno.EIO, errno.EINVAL, errno.EPERM)
"""EINVAL and EPERM are what a kernel says that lacks something: nothing may take them for a reason to do without."""

SAMPLE: Final = 100
"""Launches a mode, in `make test`; `make soak` has one for each call."""


@dataclass(frozen=True, slots=True)
class Point:
    """The `number`th system call of a process, and which one it is."""

    process: str
    number: int
    call: int

    @classmethod
    def parse(cls, line: str) -> Point:
        process, number, call = line.split()
        return cls(process, int(number), int(call))


class Box:
    """A running tests/view/fault_driver.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def launch(self, process: str = "builder", number: int = 0, error: int = errno.EIO) -> dict[str, Any]:
        """One Session and one launch, in which that call fails; with 0 none does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        fault = {"process": process, "number": number, "errno": error}
        self._process.stdin.write(json.dumps(fault) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def faults_binary() -> Iterator[Path]:
    require("linux", "compiler")
    compiler = "musl-gcc" if shutil.which("musl-gcc") else "cc"
    directory = Path(tempfile.mkdtemp(prefix="agenthost-faults-", dir="/var/tmp"))
    directory.chmod(0o755)
    command = [
        compiler,
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Os",
        "-s",
        "-static",
        *WARNINGS,
        "-o",
        str(directory / "faults"),
    ]
    subprocess.run([*command, str(HERE / "faults.c")], check=True)
    yield directory / "faults"
    shutil.rmtree(directory)


@pytest.fixture(params=["root", "rootless"])
def box(request: pytest.FixtureRequest, probe_binary: Path, faults_binary: Path) -> Iterator[Box]:
    require("root" if request.param == "root" else "user-namespaces", "setpriv")
    base = Path(tempfile.mkdtemp(prefix="agenthost-box-", dir="/var/tmp"))
    base.chmod(0o755)
    mode = (
        root_mode(base) if request.param == "root" else rootless_mode(base, request.getfixturevalue("rootless_python"))
    )
    driver = Path(shutil.copy(HERE / "fault_driver.py", base))
    for name, owner in (("workspace", mode.owner), ("state-of", mode.uid), ("scratch", mode.uid)):
        (base / name).mkdir()
        (base / name).chmod(0o755)
        if os.geteuid() == 0:
            os.chown(base / name, owner, owner)
    command = mode.command(base / "state-of" / "state")
    command[command.index(str(mode.driver))] = str(driver)
    command += [str(base / "workspace"), str(probe_binary.parent), probe_binary.name, str(faults_binary)]
    command += [str(base / "scratch"), *TOLD, *TRIED]
    with _started([*(BOX if os.geteuid() == 0 else ()), *command], mode.environment) as box:
        yield box
    shutil.rmtree(base)


@contextmanager
def _started(command: Sequence[str], environment: dict[str, str]) -> Iterator[Box]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd="/",
    )
    with process:
        try:
            yield Box(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def _told(answer: dict[str, Any]) -> tuple[int, str]:
    """The status and what the probe found out. The uid of a new Session is another one."""
    return answer["status"], re.sub(r"19000\d{5}", "UID", answer["stdout"])


def _guards() -> set[int]:
    resolve = seccomp._library().seccomp_syscall_resolve_name
    return {resolve(name.encode()) for name in GUARDS}


def _wrong(point: Point, answer: dict[str, Any], good: tuple[int, str], guards: set[int]) -> str | None:
    """What must not be; None when all is well."""
    if answer["left"]:
        return f"left behind: {answer['left']}"
    if not answer["failed"]:
        return None
    if "error" in answer:
        error = answer["error"]
        return f"{error['type']}: {error['what']}" if error["type"] in ("hang", "defect") or not error["what"] else None
    if _told(answer) != good:
        return f"another view: {set(_told(answer)[1].splitlines()) ^ set(good[1].splitlines())}, {answer['stderr']}"
    failed = int(answer["failed"][0].split()[1])
    return "a guard failed, and there is a view" if failed in guards else None


def _survey(box: Box, most: int | None, errors: Sequence[int]) -> None:
    box.launch()  # what a daemon makes once, it has made
    recorded = box.launch()
    good = _told(recorded)
    assert good[0] == 0
    assert "Seccomp=2" in good[1]
    points = [Point.parse(line) for line in recorded["calls"]]
    assert len({point.process for point in points}) >= 5
    step = 1 if most is None else -(-len(points) // most)
    guards = _guards()
    wrong: list[str] = []
    missed = 0
    chosen = sorted(points, key=lambda point: (point.process, point.number))[step // 2 :: step]
    for index, point in enumerate(chosen):
        error = errors[index % len(errors)]
        answer = box.launch(point.process, point.number, error)
        missed += not answer["failed"]
        problem = _wrong(point, answer, good, guards)
        if problem is not None:
            wrong.append(f"{point} {errno.errorcode[error]}: {problem}")
    assert wrong == []
    assert missed <= len(chosen) // 20, "the sequence is another one each time"
    assert _told(box.launch()) == good


@pytest.mark.slow
def test_a_fault_at_any_step_is_an_error_or_no_difference(box: Box) -> None:
    _survey(box, SAMPLE, ERRORS)


@pytest.mark.soak
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: errno.errorcode[error])
def test_a_fault_at_every_step_is_an_error_or_no_difference(box: Box, error: int) -> None:
    _survey(box, None, [error])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could do harm")
def test_faults_are_injected_in_a_box_alone(faults_binary: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [faults_binary, "builder", "1", "5", tmp_path / "log", "/bin/true"], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == b"faults: this is root outside of a box\n"

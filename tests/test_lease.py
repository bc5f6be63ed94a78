"""Leases of uids: never one that somebody holds, and free again when the holder is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agenthost.errors import StateUnusable
from agenthost.lease import UID_RANGE, lease_uid
from tests.needs import ROOT, UNPRIVILEGED_UID, needs

pytestmark = needs("linux")

FREE = range(1_900_100_000, 1_900_100_004)
"""Beside the range of the product, so that no daemon of this machine is in the way."""

HOLD = """
import sys
from pathlib import Path
from agenthost.lease import lease_uid
lease_uid(int(sys.argv[2]), leases=Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    return tmp_path / "run" / "uids"


def test_it_is_of_the_range(leases: Path) -> None:
    lease = lease_uid(uids=FREE, leases=leases)
    lease.release()
    assert lease.uid in FREE


def test_the_products_range_is_nobodys() -> None:
    """UIDS-GIDS of systemd: containers end at 1879048191; a uid is signed in some interfaces."""
    assert UID_RANGE.start > 1_879_048_191
    assert UID_RANGE.stop <= 1 << 31


def test_no_two_are_the_same_and_then_there_is_none(leases: Path) -> None:
    held = [lease_uid(uids=FREE, leases=leases) for _ in FREE]
    assert {lease.uid for lease in held} == set(FREE)
    with pytest.raises(StateUnusable, match="no free uid in 1900100000 to 1900100003"):
        lease_uid(uids=FREE, leases=leases)
    held[0].release()
    again = lease_uid(uids=FREE, leases=leases)
    assert again.uid == held[0].uid
    for lease in [again, *held[1:]]:
        lease.release()


def test_a_wanted_one_is_given_or_refused(leases: Path) -> None:
    lease = lease_uid(FREE[0], leases=leases)
    assert lease.uid == FREE[0]
    with pytest.raises(StateUnusable, match=f"uid {FREE[0]} of this Session is in use"):
        lease_uid(FREE[0], leases=leases)
    lease.release()
    lease_uid(FREE[0], leases=leases).release()


def test_one_that_another_process_holds_is_free_when_that_is_killed(leases: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(leases), str(FREE[0])]
    environment = {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(StateUnusable):
            lease_uid(FREE[0], leases=leases)
        process.kill()
    lease_uid(FREE[0], leases=leases).release()


def test_it_is_not_inherited_by_a_child(leases: Path) -> None:
    lease = lease_uid(FREE[0], leases=leases)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False):
        lease.release()
        lease_uid(FREE[0], leases=leases).release()


@pytest.fixture
def somebody(request: pytest.FixtureRequest) -> Iterator[int]:
    """A uid that a running process holds."""
    command = ["setpriv", f"--reuid={UNPRIVILEGED_UID}", f"--regid={UNPRIVILEGED_UID}", "--clear-groups", "cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"running\n")
        process.stdin.flush()
        process.stdout.readline()
        yield UNPRIVILEGED_UID


@needs("root", "setpriv")
def test_one_that_any_process_runs_with_is_refused(leases: Path, somebody: int) -> None:
    with pytest.raises(StateUnusable):
        lease_uid(somebody, leases=leases)
    with pytest.raises(StateUnusable, match="no free uid"):
        lease_uid(uids=range(somebody, somebody + 1), leases=leases)


@needs("root")
@pytest.mark.parametrize("kind", ["effective", "saved", "filesystem"])
def test_one_that_a_single_thread_has_in_any_of_its_four_uids_is_refused(leases: Path, kind: str) -> None:
    """A thread changes its own by the bare system call; its process's first thread shows nothing of it."""
    import ctypes

    libc = ctypes.CDLL(None)
    number = {"x86_64": (117, 122), "aarch64": (147, 151)}[os.uname().machine]
    changed, done = threading.Event(), threading.Event()

    def hold() -> None:
        if kind == "filesystem":
            libc.syscall(number[1], FREE[0])
        else:
            uids = (-1, FREE[0], -1) if kind == "effective" else (-1, -1, FREE[0])
            libc.syscall(number[0], *uids)
        changed.set()
        done.wait()
        libc.syscall(number[0], -1, 0, 0)

    thread = threading.Thread(target=hold)
    thread.start()
    changed.wait()
    try:
        with pytest.raises(StateUnusable):
            lease_uid(FREE[0], leases=leases)
    finally:
        done.set()
        thread.join()
    lease_uid(FREE[0], leases=leases).release()


@needs("root")
@pytest.mark.parametrize("spoil", ["others", "owner", "link", "file"])
def test_a_directory_that_is_not_this_users_alone_is_refused(leases: Path, spoil: str) -> None:
    leases.parent.mkdir(parents=True)
    if spoil == "link":
        (leases.parent / "real").mkdir(mode=0o700)
        leases.symlink_to("real")
    elif spoil == "file":
        leases.touch()
    else:
        leases.mkdir(mode=0o700)
        os.chown(leases, 1 if spoil == "owner" else 0, 0)
        leases.chmod(0o777 if spoil == "others" else 0o700)
    with pytest.raises((StateUnusable, FileExistsError)):
        lease_uid(uids=FREE, leases=leases)


@needs("root")
def test_a_link_in_place_of_a_lease_is_not_followed(leases: Path, tmp_path: Path) -> None:
    leases.mkdir(mode=0o700, parents=True)
    victim = tmp_path / "victim"
    (leases / str(FREE[0])).symlink_to(victim)
    with pytest.raises(OSError):
        lease_uid(FREE[0], leases=leases)
    assert not victim.exists()


@needs("root")
def test_a_zombie_holds_none(leases: Path) -> None:
    """Where nobody reaps it stays, and it runs nothing."""
    become = "import os, sys; os.setresuid(*[int(sys.argv[1])] * 3); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", become, str(FREE[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(StateUnusable):
            lease_uid(FREE[1], leases=leases)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        lease_uid(FREE[1], leases=leases).release()


def test_its_file_goes_with_it_and_no_two_get_one_that_goes(leases: Path) -> None:
    """Threads that take and release the same few at once: a file that was removed is nobody's lock."""
    holding: set[int] = set()
    broken: list[int] = []

    def take() -> None:
        for _ in range(60):
            try:
                lease = lease_uid(uids=FREE[:2], leases=leases)
            except StateUnusable:
                continue
            if lease.uid in holding:
                broken.append(lease.uid)
            holding.add(lease.uid)
            holding.discard(lease.uid)
            lease.release()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    assert list(leases.iterdir()) == []

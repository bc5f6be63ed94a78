"""Limits by a cgroup v2 of a Session's own.

What needs the controllers runs where this process may hand them on; on every other machine the refusal is what is
tested. The rest is done with real cgroups, without a controller.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agenthost import limits as module
from agenthost.errors import HostUnfit
from agenthost.limits import (
    ENVIRONMENT,
    VIEW,
    Delegation,
    Limits,
    SessionCgroup,
    TmpfsSizes,
    find_delegation,
    limited,
    remove_left,
)
from tests.needs import missing, needs

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def session_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "s-0123"
    directory.mkdir()
    return directory


def plain() -> Delegation:
    """Where cgroups can be made here, without a controller."""
    return find_delegation(())


class TestValues:
    def test_no_limit_needs_no_controller(self) -> None:
        assert Limits().controllers == ()
        assert Limits().settings() == {}

    def test_each_limit_needs_its_own(self) -> None:
        assert Limits(memory=1).controllers == ("memory",)
        assert Limits(pids=1).controllers == ("pids",)
        assert Limits(cpus=1).controllers == ("cpu",)
        assert Limits(memory=1, pids=1, cpus=1).controllers == ("memory", "pids", "cpu")

    def test_memory_is_no_memory_and_swap_besides(self) -> None:
        assert Limits(memory=64 * MIB).settings() == {"memory.max": str(64 * MIB), "memory.swap.max": "0"}

    @pytest.mark.parametrize(("cpus", "quota"), [(1, "100000 100000"), (0.01, "1000 100000"), (2.5, "250000 100000")])
    def test_processors_are_a_quota_of_time(self, cpus: float, quota: str) -> None:
        assert Limits(cpus=cpus).settings() == {"cpu.max": quota}

    def test_a_full_tmpfs_is_less_than_the_memory_that_it_takes(self) -> None:
        """Four of them can be full at once: /tmp, /var/tmp, HOME and /dev/shm."""
        for memory in (64 * MIB, 256 * MIB, GIB, 64 * GIB):
            sizes = TmpfsSizes.within(memory)
            assert 3 * sizes.private + sizes.shm <= memory
        assert TmpfsSizes.within(64 * GIB) == TmpfsSizes(private=GIB, shm=256 * MIB)
        assert TmpfsSizes.within(64 * MIB) == TmpfsSizes(private=16 * MIB, shm=16 * MIB)
        assert TmpfsSizes.within(None).private <= GIB


class TestRefusal:
    @pytest.mark.parametrize("controller", ["memory", "pids", "cpu"])
    def test_it_names_the_controller_and_says_how_to_get_it(self, controller: str) -> None:
        if missing("cgroup2-controllers") is None:
            pytest.skip("the controllers are delegated here")
        with pytest.raises(HostUnfit) as caught:
            find_delegation((controller,))
        assert controller in f"{caught.value.what} {caught.value.remedy}" or "not mounted" in caught.value.what
        assert "delegated" in caught.value.what or "without cgroup v2" in caught.value.what
        assert any(way in caught.value.remedy for way in ("Delegate=yes", "unified_cgroup_hierarchy", "mount it"))

    def test_a_controller_that_no_kernel_has_is_refused(self) -> None:
        with pytest.raises(HostUnfit, match=r"unicorn|not mounted|does not show"):
            find_delegation(("unicorn",))

    def test_one_that_version_1_holds_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "cgroup.controllers").write_text("cpu io\n")
        monkeypatch.setattr(module, "_of_version_1", lambda: {"memory"})
        refused = module._refusal(tmp_path, ("memory",))
        assert refused is not None
        assert str(refused).startswith("host: no limit without a delegated cgroup v2 controller")
        assert "does not have memory" in refused.what
        assert "cgroup v1 holds memory" in refused.remedy

    @needs("root", "setpriv", "cgroup2")
    def test_a_cgroup_of_others_is_not_delegated(self) -> None:
        script = "from agenthost.limits import find_delegation; find_delegation(())"
        command = ["setpriv", "--reuid=61001", "--clear-groups", "python3", "-c", script]
        environment = {"PYTHONPATH": str(Path(module.__file__).parent.parent), "PATH": "/usr/bin:/bin"}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd="/")
        if "ModuleNotFoundError" in ran.stderr:
            pytest.skip("another user cannot read the sources here")
        assert "is not delegated to this user" in ran.stderr
        assert "systemd-run --user --scope -p Delegate=yes" in ran.stderr

    def test_systemd_marks_what_it_delegates(self, open_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("cgroup.controllers", "cgroup.procs", "cgroup.subtree_control"):
            (open_dir / name).write_text("memory\n")
        monkeypatch.setattr(module, "_systemd_runs", lambda: True)
        refused = module._refusal(open_dir, ("memory",))
        assert refused is not None
        assert "not delegated" in refused.what
        os.setxattr(open_dir, "user.delegate", b"1")
        assert module._refusal(open_dir, ("memory",)) is None


@needs("cgroup2")
class TestCgroups:
    def test_a_session_has_a_leaf_for_its_views_and_one_for_its_environment(self, session_directory: Path) -> None:
        with limited("s-0123", session_directory, Limits(), plain()) as cgroup:
            assert cgroup is not None
            assert {path.name for path in cgroup.path.iterdir() if path.is_dir()} == {VIEW, ENVIRONMENT}
            assert (session_directory / module.RECORD).read_text() == f"{cgroup.path}\n"
        assert not cgroup.path.exists()
        assert list(session_directory.iterdir()) == []

    def test_a_process_enters_by_its_pid(self, session_directory: Path, sleeper: subprocess.Popen[bytes]) -> None:
        with limited("s-0123", session_directory, Limits(), plain()) as cgroup:
            assert cgroup is not None
            with cgroup.entrance(ENVIRONMENT) as fd:
                os.write(fd, str(sleeper.pid).encode())
            assert (cgroup.path / ENVIRONMENT / "cgroup.procs").read_text() == f"{sleeper.pid}\n"

    def test_what_is_left_in_it_is_killed_in_the_end(
        self, session_directory: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        with limited("s-0123", session_directory, Limits(), plain()) as cgroup:
            assert cgroup is not None
            with cgroup.entrance(VIEW) as fd:
                os.write(fd, str(sleeper.pid).encode())
        assert sleeper.wait(10) == -9
        assert not cgroup.path.exists()

    def test_what_a_killed_daemon_left_is_removed_and_named(
        self, session_directory: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        base = plain()
        path = base.base / "agenthost-s-0123-left"
        cgroup = SessionCgroup.make(path, base, {})
        (session_directory / module.RECORD).write_text(f"{path}\n")
        with cgroup.entrance(VIEW) as fd:
            os.write(fd, str(sleeper.pid).encode())
        assert remove_left(session_directory) == path
        assert sleeper.wait(10) == -9
        assert not path.exists()
        assert remove_left(session_directory) is None

    def test_nothing_else_is_removed_whatever_the_record_says(
        self, session_directory: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        other = plain().base / "agenthost-other-left"
        cgroup = SessionCgroup.make(other, plain(), {})
        try:
            with cgroup.entrance(VIEW) as fd:
                os.write(fd, str(sleeper.pid).encode())
            for path in (other, plain().base, "/", "", "\0"):
                (session_directory / module.RECORD).write_text(f"{path}\n")
                assert remove_left(session_directory) is None
            assert other.exists()
            assert sleeper.poll() is None
        finally:
            cgroup.remove()

    def test_what_is_in_a_cgroup_makes_room_before_controllers_are_handed_on(
        self, sleeper: subprocess.Popen[bytes]
    ) -> None:
        base = plain().base / f"test-room-{os.getpid()}"
        base.mkdir()
        try:
            (base / "cgroup.procs").write_text(str(sleeper.pid))
            module._make_room(base)
            assert (base / "cgroup.procs").read_text() == ""
            assert (base / "agenthost-daemon/cgroup.procs").read_text() == f"{sleeper.pid}\n"
        finally:
            sleeper.kill()
            sleeper.wait()
            (base / "agenthost-daemon").rmdir()
            base.rmdir()

    def test_a_limit_that_cannot_be_set_leaves_nothing(self, session_directory: Path) -> None:
        before = set(plain().base.iterdir())
        delegation = Delegation(plain().base, ())
        if missing("cgroup2-controllers") is None:
            delegation = Delegation(plain().base, ("unicorn",))
        with (
            pytest.raises(HostUnfit, match="the limits cannot be set"),
            limited("s-0123", session_directory, Limits(memory=64 * MIB), delegation),
        ):
            raise AssertionError("it was entered")
        assert set(plain().base.iterdir()) == before
        assert list(session_directory.iterdir()) == []


@needs("cgroup2-controllers")
class TestControllers:
    def limits(self) -> Limits:
        return Limits(memory=64 * MIB, pids=20, cpus=0.5)

    def test_the_limits_are_the_kernels(self, session_directory: Path) -> None:
        limits = self.limits()
        with limited("s-0123", session_directory, limits, find_delegation(limits.controllers)) as cgroup:
            assert cgroup is not None
            read = {name: (cgroup.path / name).read_text().strip() for name in ("memory.max", "pids.max", "cpu.max")}
            assert read == {"memory.max": str(64 * MIB), "pids.max": "20", "cpu.max": "50000 100000"}
            assert (cgroup.path / VIEW / "memory.oom.group").read_text() == "1\n"
            assert (cgroup.path / ENVIRONMENT / "memory.oom.group").read_text() == "0\n"
        assert not cgroup.path.exists()

    def test_memory_that_ran_out_is_attributed_to_its_leaf(self, session_directory: Path) -> None:
        limits = self.limits()
        with limited("s-0123", session_directory, limits, find_delegation(limits.controllers)) as cgroup:
            assert cgroup is not None
            script = "import sys; sys.stdin.read(1); x = bytearray(200 << 20)"
            process = subprocess.Popen(["python3", "-c", script], stdin=subprocess.PIPE)
            with cgroup.entrance(VIEW) as fd:
                os.write(fd, str(process.pid).encode())
            process.communicate(b"x", timeout=60)
            assert process.returncode == -9
            # Some kernels count the first one of a group twice.
            assert cgroup.oom_kills(VIEW) >= 1
            assert cgroup.oom_kills(ENVIRONMENT) == 0
            assert cgroup.used()["oom_kills"] == cgroup.oom_kills(VIEW)

    def test_processes_beyond_the_limit_are_refused(self, session_directory: Path) -> None:
        limits = self.limits()
        with limited("s-0123", session_directory, limits, find_delegation(limits.controllers)) as cgroup:
            assert cgroup is not None
            script = "read x; for i in $(seq 40); do sleep 5 & done; wait"
            process = subprocess.Popen(
                ["bash", "-c", script], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            with cgroup.entrance(ENVIRONMENT) as fd:
                os.write(fd, str(process.pid).encode())
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.close()
            deadline = time.monotonic() + 30
            while not cgroup.used()["forks_refused"]:
                assert int((cgroup.path / "pids.current").read_text()) <= 20
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.kill()
            process.wait()
            assert cgroup.used().get("pids_peak", 20) <= 20

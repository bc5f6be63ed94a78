"""Each check of agenthost.doctor, shown a host that lacks something: what it says, and what it advises."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agenthost import doctor
from agenthost.doctor import Finding, Outcome, Patient, Verdict
from agenthost.linux.syscalls import filesystem_type
from tests.needs import needs

pytestmark = needs("linux")

WHOLE = "22 1 0:20 / /proc rw,nosuid,nodev,noexec,relatime shared:13 - proc proc rw\n"
BINFMT = "30 22 0:27 / /proc/sys/fs/binfmt_misc rw,relatime shared:14 - autofs systemd-1 rw\n"
MASKED = "31 22 0:5 /null /proc/kcore rw,nosuid - devtmpfs udev rw\n"
ELSEWHERE = "32 1 0:20 / /run/whole-proc rw - proc proc rw\n"


def shown(proc: Path, **files: str) -> Path:
    """A /proc with these files; `__` in a name is a slash."""
    for name, text in files.items():
        path = proc / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return proc


@pytest.fixture
def rootless(tmp_path: Path) -> Patient:
    return Patient(state_dir=tmp_path / "state", rootless=True, proc=tmp_path / "proc")


@pytest.fixture
def root(tmp_path: Path) -> Patient:
    return Patient(state_dir=tmp_path / "state", rootless=False, proc=tmp_path / "proc")


def failure(verdict: Verdict) -> str:
    assert verdict.outcome is Outcome.FAILURE
    assert verdict.remedy
    return verdict.what


def warning(verdict: Verdict) -> str:
    assert verdict.outcome is Outcome.WARNING
    assert verdict.remedy
    return verdict.what


class TestKernel:
    @pytest.mark.parametrize("check", [doctor.check_openat2, doctor.check_mount_api, doctor.check_pidfd])
    def test_a_call_that_is_there_is_there(self, rootless: Patient, check: doctor.Check) -> None:
        assert check(rootless).outcome is Outcome.OK

    @pytest.mark.parametrize(
        ("error", "outcome"), [(errno.ENOSYS, Outcome.FAILURE), (errno.EBADF, Outcome.OK), (errno.EPERM, Outcome.OK)]
    )
    def test_only_enosys_says_that_a_call_is_absent(self, error: int, outcome: Outcome) -> None:
        def act() -> None:
            raise OSError(error, os.strerror(error))

        verdict = doctor._present(act, "openat2", "5.6")
        assert verdict.outcome is outcome
        assert (outcome is Outcome.OK) == (verdict.remedy == "")

    def test_memory_files_need_no_setting_of_the_kernel(self, root: Patient, rootless: Patient) -> None:
        assert "by the system call filter" in doctor.check_memfd(root).what
        assert doctor.check_memfd(rootless).outcome is Outcome.OK
        shown(root.proc, sys__vm__memfd_noexec="0\n")
        assert "vm.memfd_noexec" in doctor.check_memfd(root).what

    def test_an_overlay_that_is_not_loaded_can_be_loaded_by_root_alone(self, root: Patient, rootless: Patient) -> None:
        shown(root.proc, filesystems="nodev\ttmpfs\n\text4\n")
        assert warning(doctor.check_overlay(root)) == failure(doctor.check_overlay(rootless))
        shown(root.proc, filesystems="nodev\ttmpfs\nnodev\toverlay\n")
        assert doctor.check_overlay(rootless).outcome is Outcome.OK


class TestNamespaces:
    def test_none_allowed(self, root: Patient, rootless: Patient) -> None:
        shown(root.proc, sys__user__max_user_namespaces="0\n")
        assert "max_user_namespaces" in failure(doctor.check_user_namespaces(root))
        assert "max_user_namespaces" in failure(doctor.check_user_namespaces(rootless))

    def test_debians_switch(self, rootless: Patient) -> None:
        shown(rootless.proc, sys__kernel__unprivileged_userns_clone="0\n")
        assert "unprivileged_userns_clone" in failure(doctor.check_user_namespaces(rootless))

    @needs("root")
    def test_root_without_its_capability(self, root: Patient) -> None:
        shown(root.proc, self__status="Name:\tx\nCapEff:\t00000000a80425fb\n")
        assert failure(doctor.check_privileges(root)) == "this root has no CAP_SYS_ADMIN"
        shown(root.proc, self__status="Name:\tx\nCapEff:\t000001ffffffffff\n")
        assert doctor.check_privileges(root).outcome is Outcome.OK

    @pytest.mark.parametrize(
        ("mounts", "outcome"),
        [
            (WHOLE, Outcome.OK),
            (WHOLE + BINFMT, Outcome.OK),  # hides nothing
            (WHOLE + MASKED, Outcome.FAILURE),
            (WHOLE + MASKED + ELSEWHERE, Outcome.OK),
        ],
    )
    def test_a_masked_proc(self, rootless: Patient, mounts: str, outcome: Outcome) -> None:
        shown(rootless.proc, self__mountinfo=mounts)
        assert doctor.check_proc(rootless).outcome is outcome

    def test_a_masked_proc_is_no_matter_for_root_of_the_host(self, root: Patient) -> None:
        shown(root.proc, self__mountinfo=WHOLE + MASKED, self__uid_map="         0          0 4294967295\n")
        assert doctor.check_proc(root).outcome is Outcome.OK
        shown(root.proc, self__uid_map="         0     100000      65536\n")
        assert "/proc/kcore" in failure(doctor.check_proc(root))


class TestPlaces:
    def test_a_state_directory_that_can_be_made(self, rootless: Patient) -> None:
        assert doctor.check_state(rootless).outcome is Outcome.OK
        assert not rootless.state_dir.exists()

    def test_one_that_is_open_to_others(self, rootless: Patient) -> None:
        rootless.state_dir.mkdir()
        rootless.state_dir.chmod(0o755)
        assert "open to others" in failure(doctor.check_state(rootless))
        rootless.state_dir.chmod(0o700)
        assert doctor.check_state(rootless).outcome is Outcome.OK

    def test_one_that_would_lie_below_a_file(self) -> None:
        assert "cannot be" in failure(doctor.check_state(Patient(state_dir=Path("/etc/passwd/state"))))

    def test_one_on_a_network_filesystem(self, rootless: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
        here = filesystem_type(rootless.state_dir.parent)
        monkeypatch.setattr(doctor, "_NETWORK", {here: "NFS"})
        assert "on a network filesystem (NFS)" in warning(doctor.check_state(rootless))

    def test_the_type_of_a_filesystem_is_the_kernels(self) -> None:
        assert filesystem_type("/proc") == 0x9FA0  # PROC_SUPER_MAGIC
        with pytest.raises(FileNotFoundError, match="statfs"):
            filesystem_type("/no/such/place")

    def test_a_workspace_that_no_view_can_have(self, tmp_path: Path) -> None:
        for place in ("/", "/proc", str(tmp_path / "none"), str(tmp_path)):
            verdict = doctor.check_workspace(Patient(state_dir=tmp_path / "state", workspace=Path(place)))
            assert failure(verdict)

    def test_one_that_it_can_have(self, tmp_path: Path) -> None:
        (tmp_path / "work").mkdir()
        patient = Patient(state_dir=tmp_path / "state", workspace=tmp_path / "work")
        assert doctor.check_workspace(patient).outcome is Outcome.OK


class TestTheRest:
    def test_a_core_dump_that_is_piped(self, rootless: Patient) -> None:
        shown(rootless.proc, sys__kernel__core_pattern="|/usr/lib/systemd/systemd-coredump %P %u\n")
        assert "/usr/lib/systemd/systemd-coredump" in warning(doctor.check_core_pattern(rootless))
        shown(rootless.proc, sys__kernel__core_pattern="core\n")
        assert doctor.check_core_pattern(rootless).outcome is Outcome.OK

    def test_codex_that_is_hidden_unpinned_or_a_script(self, tmp_path: Path) -> None:
        script = tmp_path / "codex"
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
        for path in (tmp_path / "none", script, Path("/bin/true")):
            assert str(path.resolve()) in failure(doctor.check_codex(Patient(state_dir=tmp_path, codex=path)))

    def test_a_warning_does_not_make_a_host_unfit(self) -> None:
        well = Finding("one", Verdict(Outcome.OK, "well"))
        warned = Finding("two", Verdict(Outcome.WARNING, "so", "so"))
        failed = Finding("three", Verdict(Outcome.FAILURE, "not", "do"))
        assert doctor.fit([well, warned])
        assert not doctor.fit([well, failed, warned])

"""`agenthost doctor` on hosts that can, and on hosts that were broken for it. contracts/doctor.md."""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from agenthost import doctor
from tests.leaks import Held
from tests.needs import ROOT, needs
from tests.unprivileged import Unprivileged

pytestmark = [needs("linux", "libseccomp"), pytest.mark.slow]

NO_VIEW: Final = 3


def examined(process: subprocess.CompletedProcess[bytes]) -> dict[str, dict[str, str]]:
    """The findings by check, once they are what the contract says, and so is the exit status."""
    assert process.stderr == b""
    value: dict[str, Any] = json.loads(process.stdout)
    schema = json.loads((ROOT / "contracts" / "doctor.schema.json").read_text())
    jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)
    failures = [finding for finding in value["checks"] if finding["outcome"] == "failure"]
    assert value["fit"] == (not failures)
    assert process.returncode == (NO_VIEW if failures else 0)
    return {finding["check"]: finding for finding in value["checks"]}


def failures(findings: dict[str, dict[str, str]]) -> set[str]:
    return {name for name, finding in findings.items() if finding["outcome"] == "failure"}


def run(*arguments: str | Path, home: Path, before: Sequence[str] = ()) -> subprocess.CompletedProcess[bytes]:
    """As the caller."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [*before, sys.executable, "-m", "agenthost", "doctor", *map(str, arguments)]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, check=False, timeout=100)


def run_as(
    user: Unprivileged, *arguments: str | Path, before: Sequence[str] = (), as_root: Sequence[str] = ()
) -> subprocess.CompletedProcess[bytes]:
    """As a user without privileges, in what `before` makes of the host as that user, and `as_root` before that."""
    command = [*before, *user.agenthost("doctor", *map(str, arguments))]
    if not as_root:
        return user.run(command, timeout_s=100)
    drop = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "--inh-caps=-all"]
    return subprocess.run(
        [*as_root, *drop, *command],
        cwd=user.home,
        env=user.environment(),
        capture_output=True,
        check=False,
        timeout=100,
    )


def in_mounts(script: str) -> list[str]:
    """A mount namespace in which root has done this first."""
    return ["unshare", "--mount", "/bin/sh", "-c", f'{script} && exec "$@"', "sh"]


class TestAHostThatCan:
    @needs("root")
    def test_a_host_that_can(self, codex_171: Path, open_dir: Path) -> None:
        findings = examined(run("--json", "--codex", codex_171, home=open_dir))
        assert failures(findings) == set()
        assert list(findings) == ["linux", *doctor.CHECKS]

    def test_a_view_is_really_made(self, unprivileged: Unprivileged, workspace: Path) -> None:
        findings = examined(run_as(unprivileged, "--json", "--workspace", unprivileged.own(workspace)))
        assert failures(findings) == set()
        assert findings["view"]["what"] == "a view was made, and /.oac/codex/codex ran in it"
        assert sorted(path.name for path in workspace.iterdir()) == [".git", "README.md"]

    def test_a_line_a_check_with_cause_and_remedy(self, unprivileged: Unprivileged) -> None:
        done = run_as(unprivileged, "--codex", "/no/codex")
        assert done.returncode == NO_VIEW
        lines = done.stdout.decode().splitlines()
        assert [line.split()[1] for line in lines] == ["linux", *doctor.CHECKS]
        for line in lines:
            assert re.fullmatch(r"ok {7}\S+ +[^;]+|(warning|FAILURE) {2}\S+ +.+; .+", line), line

    def test_json_says_the_same(self, unprivileged: Unprivileged) -> None:
        findings = examined(run_as(unprivileged, "--json"))
        lines = run_as(unprivileged).stdout.decode().splitlines()
        assert [line.split()[1] for line in lines] == list(findings)
        assert [line.split()[0].lower() for line in lines] == [finding["outcome"] for finding in findings.values()]

    @pytest.mark.usefixtures("no_leaks")
    @needs("root")
    def test_nothing_is_left(self, open_dir: Path) -> None:
        before = Held.now()
        temporary = Path(tempfile.gettempdir())
        found = set(temporary.glob("agenthost-doctor-*"))
        run("--state-dir", open_dir / "state", home=open_dir)
        assert list(open_dir.iterdir()) == []
        assert before.left_behind() == []
        assert set(temporary.glob("agenthost-doctor-*")) <= found

    def test_the_catalogue_is_run_on_this_machine(self, unprivileged: Unprivileged) -> None:
        done = run_as(unprivileged, "--json", "--attack")
        assert done.returncode == 0, done.stdout
        examined(done)
        attacks = json.loads(done.stdout)["attacks"]
        assert len({attack["id"] for attack in attacks}) >= 80
        assert {attack["place"] for attack in attacks} == {"view", "environment"}
        assert [attack for attack in attacks if not attack["held"]] == []


class TestABrokenHost:
    def test_without_codex_there_is_no_view(self, unprivileged: Unprivileged) -> None:
        findings = examined(run_as(unprivileged, "--json", "--codex", "/no/codex"))
        assert failures(findings) == {"codex"}
        assert findings["view"]["what"].endswith("oac-init ran in it")

    def test_without_user_namespaces(self, unprivileged: Unprivileged) -> None:
        within = ["unshare", "--user", "--map-current-user", "--keep-caps", "/bin/sh", "-c"]
        none = 'echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --ambient-caps=-all --inh-caps=-all "$@"'
        findings = examined(run_as(unprivileged, "--json", before=[*within, none, "sh"]))
        assert failures(findings) == {"user-namespaces", "view"}
        assert "max_user_namespaces is 0" in findings["user-namespaces"]["what"]

    @needs("root")
    def test_user_namespaces_without_privileges(self, unprivileged: Unprivileged) -> None:
        """In a chroot they cannot be made; the kernel has no setting that says so."""
        findings = examined(
            run_as(
                unprivileged,
                "--json",
                as_root=[
                    "unshare",
                    "--mount",
                    "/bin/sh",
                    "-c",
                    'mount --rbind / /mnt && exec /usr/sbin/chroot /mnt "$@"',
                    "sh",
                ],
            )
        )
        assert {"user-namespaces", "view"} <= failures(findings)
        assert "unshare" in findings["user-namespaces"]["what"]

    @needs("root")
    def test_a_masked_proc(self, unprivileged: Unprivileged) -> None:
        masked = in_mounts("mount --bind /dev/null /proc/kallsyms")
        findings = examined(run_as(unprivileged, "--json", as_root=masked))
        assert failures(findings) == {"proc", "view"}
        assert "/proc is masked (/proc/kallsyms)" in findings["proc"]["what"]
        assert "mount /proc: " in findings["view"]["what"]

    @needs("root")
    def test_without_libseccomp(self, unprivileged: Unprivileged) -> None:
        library = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
        path = re.search(r"libseccomp\.so\.2 .*=> (\S+)", library)
        assert path is not None
        assert ctypes.util.find_library("seccomp")
        hidden = in_mounts(f"mount --bind /dev/null {os.path.realpath(path[1])}")
        findings = examined(run_as(unprivileged, "--json", as_root=hidden))
        assert failures(findings) == {"libseccomp", "view"}
        assert findings["libseccomp"]["remedy"] == "install the package libseccomp2"

    @needs("root", "setpriv")
    def test_root_without_privileges(self, open_dir: Path) -> None:
        before = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
        findings = examined(run("--json", home=open_dir, before=before))
        assert {"privileges", "view"} <= failures(findings)

    def test_a_state_directory_of_somebody_else(self, unprivileged: Unprivileged) -> None:
        findings = examined(run_as(unprivileged, "--json", "--state-dir", "/proc/state"))
        assert failures(findings) == {"state"}

    @needs("root")
    def test_a_view_that_cannot_be_made_is_named_by_its_step(self, unprivileged: Unprivileged) -> None:
        """What no check asks for: /dev has no null that a view could have."""
        gone = in_mounts("mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/zero c 1 5")
        findings = examined(run_as(unprivileged, "--json", as_root=gone))
        assert failures(findings) == {"view"}
        assert "/dev/full" in findings["view"]["what"]

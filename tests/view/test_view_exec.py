"""Nothing runs in a view but the closure and the shims, wherever it comes from and however it is named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.needs import UNPRIVILEGED_UID, as_unprivileged
from tests.view.rig import ENV, Bench, Daemon, Result, Session

pytestmark = pytest.mark.usefixtures("tidy")

PROBE = "/.oac/harness/probe"


def loader() -> str:
    """The dynamic loader that the ABI names."""
    known = (Path("/lib64/ld-linux-x86-64.so.2"), Path("/lib/ld-linux-aarch64.so.1"))
    return str(next(path for path in known if path.exists()).resolve())


def outside(bench: Bench, directory: Path, *args: str) -> Result:
    """The same actions without a view, without privileges: what they do where nothing forbids them."""
    done = subprocess.run(
        as_unprivileged([str(bench.probe), *args]), capture_output=True, text=True, check=False, cwd=directory, env={}
    )
    return Result(done.returncode, done.stdout, done.stderr)


def test_the_closure_runs(session: Session) -> None:
    assert session.run(["spawn", PROBE, "exit", "7"])[f"spawn {PROBE}"] == "exit 7"


def test_a_shim_runs_its_command_in_the_environment(session: Session) -> None:
    assert session.run(["spawn", "/bin/bash", "-c", "exit 7"])["spawn /bin/bash"] == "exit 7"
    assert session.run(["spawn", "/.oac/bin/git", "--version"])["spawn /.oac/bin/git"] == "exit 0"


@pytest.mark.parametrize("program", ["/usr/bin/true", "/bin/true", "/usr/bin/python3", "/bin/sh", "/usr/bin/git"])
def test_a_program_of_the_world_does_not_run(session: Session, program: str) -> None:
    result = session.run(["spawn", program], ["exec", ENV, program, "--version"])
    assert result[f"spawn {program}"] == "!EACCES"
    assert result.status in {0, 2}  # dash knows no --version; it was there and ran, in the environment


def test_the_dynamic_loader_does_not_run(session: Session) -> None:
    result = session.run(["spawn", loader(), "/usr/bin/true"], ["exec", ENV, loader(), "/usr/bin/true"])
    assert result[f"spawn {loader()}"] == "!EACCES"
    assert result.status == 0


@pytest.mark.parametrize("place", ["", "/tmp", "/var/tmp", "/home/agent", "/dev/shm", "/.oac/home", "/.oac/home/tmp"])
def test_a_program_that_was_written_in_the_view_does_not_run(session: Session, place: str) -> None:
    directory = place or str(session.workspace)
    result = session.run(["copies", directory])
    assert result.facts == [
        (f"copy {directory}", "!EACCES"),
        (f"mmap {directory}/probe-copy", "!EPERM"),
        (f"mprotect {directory}/probe-copy", "!EACCES"),
        (f"copy-fd {directory}", "!EACCES"),
        (f"script {directory}", "!EACCES"),
    ]


@pytest.mark.parametrize("place", ["", "/tmp", "/var/tmp", "/home/agent", "/dev/shm"])
def test_the_same_program_runs_in_the_environment(session: Session, place: str) -> None:
    directory = place or str(session.workspace)
    result = session.command(["copies", directory])
    assert result.facts == [
        (f"copy {directory}", "exit 7"),
        (f"mmap {directory}/probe-copy", "ok"),
        (f"mprotect {directory}/probe-copy", "ok"),
        (f"copy-fd {directory}", "exit 7"),
        (f"script {directory}", "exit 0"),
    ]


@pytest.mark.parametrize("place", ["/", "/.oac", "/.oac/bin", "/.oac/harness", "/.oac/run", "/dev", "/usr", "/etc"])
def test_there_is_no_other_place_to_write_a_program_to(session: Session, place: str) -> None:
    assert session.run(["copies", place]).facts == [(f"copy {place}", "!EROFS")]


@pytest.mark.parametrize("program", ["/usr/bin/true", "/etc/passwd", "/usr/lib/os-release"])
def test_no_file_of_the_world_becomes_executable_memory(session: Session, program: str) -> None:
    result = session.run(["mmap", program], ["mprotect", program], ["mmap", PROBE], ["mprotect", PROBE])
    assert result.facts == [
        (f"mmap {program}", "!EPERM"),
        (f"mprotect {program}", "!EACCES"),
        (f"mmap {PROBE}", "ok"),
        (f"mprotect {PROBE}", "ok"),
    ]


def test_no_memory_file_becomes_executable(session: Session) -> None:
    assert session.run(["memfd"]).facts == [
        ("memfd-plain", "!EACCES"),
        ("memfd-exec", "!EACCES"),
        ("memfd-noexec chmod", "!EPERM"),
        ("memfd-noexec", "!EACCES"),
    ]


def test_a_memory_file_is_executable_where_nothing_forbids_it(bench: Bench, session: Session) -> None:
    expected = [
        ("memfd-plain chmod", "ok"),
        ("memfd-plain", "exit 7"),
        ("memfd-exec chmod", "ok"),
        ("memfd-exec", "exit 7"),
        ("memfd-noexec chmod", "!EPERM"),
        ("memfd-noexec", "!EACCES"),
    ]
    assert outside(bench, bench.directory("outside", owner=UNPRIVILEGED_UID), "memfd").facts == expected
    assert session.command(["memfd"]).facts == expected


def test_a_descriptor_that_the_caller_hands_in_does_not_run(bench: Bench, daemon: Daemon, session: Session) -> None:
    """It comes from a mount that allows execution: mount flags say nothing here, Landlock does."""

    def hand_in(path: Path) -> list[tuple[str, str]]:
        answer = daemon.call("hand_in", session=session.id, path=str(path), args=["execute-received"])
        return Result(**answer).facts

    copy = Path(shutil.copy(bench.probe, bench.directory("other")))
    assert hand_in(copy) == [("received execveat", "!EACCES"), ("received execve", "!EACCES")]
    # The closure's own program is allowed, by whatever mount it comes: the control.
    assert hand_in(bench.probe) == [("received execveat", "exit 7"), ("received execve", "exit 7")]


def test_a_descriptor_that_a_command_sends_does_not_run(session: Session) -> None:
    """Through a socket in the shared /tmp, from the environment, where the file is executable."""
    listen = f"{session.workspace}/probe send-self /tmp/give >/dev/null 2>&1 & "
    result = session.run(["spawn", "/bin/bash", "-c", listen], ["execute-received", "/tmp/give"])
    assert result.facts[1:] == [("received execveat", "!EACCES"), ("received execve", "!EACCES")]


def test_a_descriptor_that_a_command_sends_runs_in_the_environment(session: Session) -> None:
    script = f"{session.workspace}/probe send-self /tmp/give & {session.workspace}/probe execute-received /tmp/give"
    assert session.shell(script).facts == [("received execveat", "exit 7"), ("received execve", "exit 7")]


def test_a_link_to_the_closure_runs_and_one_to_the_world_does_not(session: Session) -> None:
    """Codex makes such links to itself in its home."""
    links = {"/.oac/home/tmp/own": PROBE, "/.oac/home/tmp/foreign": "/usr/bin/true"}
    make = [["symlink", target, link] for link, target in links.items()]
    result = session.run(
        *make, *(["spawn", link, "exit", "7"] for link in links), *(["unlink", link] for link in links)
    )
    assert result["spawn /.oac/home/tmp/own"] == "exit 7"
    assert result["spawn /.oac/home/tmp/foreign"] == "!EACCES"


def test_only_closure_and_shims_are_mounted_executable(session: Session, codex_session: Session) -> None:
    def executable(of: Session) -> set[str]:
        return {place for place, (options, _) in of.run(["mounts"]).mounts().items() if "noexec" not in options}

    shims = {"/.oac/bin/git", os.path.realpath("/bin/bash"), os.path.realpath(ENV)}
    assert executable(session) == {"/.oac/harness", *shims}
    assert executable(codex_session) == {"/.oac/codex", *shims}


def test_no_mount_is_shared_with_anything_outside(session: Session) -> None:
    mounts = session.run(["mounts"]).mounts()
    assert [place for place, (_, propagation) in mounts.items() if propagation != "private"] == []
    assert [place for place, (options, _) in mounts.items() if "nosuid" not in options] == []


def test_devices_are_only_in_dev(session: Session) -> None:
    mounts = session.run(["mounts"]).mounts()
    devices = {place for place, (options, _) in mounts.items() if "nodev" not in options}
    nodes = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts")}
    assert devices == {"/dev", *nodes}


def test_only_these_places_are_writable(session: Session) -> None:
    mounts = session.run(["mounts"]).mounts()
    writable = {place for place, (options, _) in mounts.items() if "rw" in options}
    private = {"/tmp", "/var/tmp", "/home/agent", "/dev/shm", "/dev/pts"}
    assert writable == {*private, str(session.workspace), "/.oac/home", "/proc"}


@pytest.mark.parametrize("path", ["/bin/dash", "/bin/sh"])
def test_a_shim_path_of_the_request_runs_in_the_environment(bench: Bench, daemon: Daemon, path: str) -> None:
    session = bench.open(daemon, shim_paths=[path, ENV])
    result = session.run(["spawn", path, "-c", "exit 7"], ["exec", path, "-c", "echo $0 $PATH"])
    session.close()
    assert result[f"spawn {path}"] == "exit 7"
    assert result.stdout.endswith(f"{path} /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n")


def test_a_dynamic_program_in_the_closure_runs_nothing_of_the_world(bench: Bench, daemon: Daemon) -> None:
    """The closure is executable as a whole; its interpreter, which the world would give, is not."""
    directory = bench.directory("closure")
    shutil.copy(bench.probe, directory / "probe")
    shutil.copy("/usr/bin/true", directory / "true")
    session = daemon.open(bench.workspace(), harness=[str(directory), "probe"])
    result = session.run(["spawn", "/.oac/harness/true"])
    session.close()
    assert result["spawn /.oac/harness/true"] == "!EACCES"

"""Masks and shims are not lifted by what is done to what they cover: before, during and between launches."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.needs import require
from tests.view.rig import Bench, Daemon, Refused, Result, Session

OURS = "managed_config.toml/requirements.toml"
"""What stands in the masked /etc/codex."""

LOOK = (
    ["ls", "/etc/codex"],
    ["cat", "/etc/codex/managed_config.toml"],
    ["cat", "/etc/codex/config.toml"],
    ["spawn", "/bin/bash", "-c", "exit 7"],
    ["spawn", "/usr/bin/true"],
)

HOST = """
for place in etc usr; do
    mkdir "$1/$place" "$1/$place/upper" "$1/$place/work"
    mount -t overlay overlay -o "lowerdir=/$place,upperdir=$1/$place/upper,workdir=$1/$place/work" "/$place"
done
touch /etc/agenthost-test-overlay
shift
exec "$@"
"""
"""Starts a daemon on a host whose /etc and /usr can be changed, in a mount namespace of its own, and marks it."""

MARK = "etc/agenthost-test-overlay"
WRONG_PLACE = 9

ACTS = {
    "plants": "mkdir -p /etc/codex; echo planted >/etc/codex/config.toml; echo planted >/etc/codex/managed_config.toml",
    "renames": "mv /etc/codex /etc/away; mkdir /etc/codex; echo planted >/etc/codex/config.toml",
    "binds": "mkdir -p /etc/other; echo planted >/etc/other/config.toml; mount --bind /etc/other /etc/codex",
    "removes": "umount /etc/codex; rm -rf /etc/codex; ln -s /etc/other /etc/codex",
    "replaces-bash": "cp /usr/bin/true /usr/bin/new; mv /usr/bin/new /usr/bin/bash",
    "covers-bash": "mount --bind /usr/bin/true /usr/bin/bash",
    "covers-usr": "mount --bind /usr /usr",
}


def is_masked(result: Result, *, shim: set[str]) -> None:
    """Nothing planted is read and nothing becomes executable; the shim works, or nothing does."""
    assert result["ls /etc/codex"] == OURS
    assert "sandbox_mode" in result["cat /etc/codex/managed_config.toml"]
    assert "planted" not in result.stdout
    assert result["cat /etc/codex/config.toml"] == "!ENOENT"
    assert result["spawn /bin/bash"] in shim
    assert result["spawn /usr/bin/true"] == "!EACCES"


def leave_racer(session: Session, target: str, *names: str) -> None:
    """A process in the environment that changes what is at these names, for as long as the Session is open."""
    assert session.command(["leave-racer", target, *names]).status == 0


def test_a_racer_in_the_environment_lifts_nothing(bench: Bench, daemon: Daemon, rounds: int) -> None:
    """It tries all the time, on what is covered and on the way to it; a launch is made, and looks, again and again."""
    session = bench.open_as_codex(daemon)
    parents = [str(path) for path in session.workspace.parents if len(path.parts) > 1]
    leave_racer(session, "/tmp", "/etc/codex", "/etc", "/bin/bash", "/usr/bin/bash", "/usr", *parents)
    for _ in range(rounds):
        result = session.run(*LOOK, ["stat", str(session.workspace / "probe")])
        is_masked(result, shim={"exit 7"})
        assert result[f"stat {session.workspace}/probe"].endswith(" 755")
    session.close()


def test_the_workspaces_parents_cannot_be_moved(bench: Bench, daemon: Daemon) -> None:
    """Below a private mount they would be the Session's own, rootless."""
    session = bench.open_as_codex(daemon)
    first = session.workspace.parents[-4]  # below /var/tmp
    actions = [["rename", str(path), f"{path}-away"] for path in (first, session.workspace.parent, session.workspace)]
    for result in (session.run(*actions), session.command(*actions)):
        assert {value for _, value in result.facts} <= {"!EBUSY", "!EPERM", "!EACCES", "!EROFS"}
    session.close()


class TestTheHostsRoot:
    """The world's own root, who may do anything to what is covered."""

    @pytest.fixture
    def host(self, bench: Bench) -> Iterator[Daemon]:
        require("root")
        directory = bench.directory("overlays", owner=0)
        before = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", HOST, "sh", str(directory)]
        with bench.daemon(before=before) as daemon:
            # It answers only once the script before it has run: until then its namespace is the machine's own.
            daemon.call("idle")
            yield daemon

    @staticmethod
    def act(pid: int, script: str) -> None:
        """In this process's mount namespace, and nowhere else: in the machine's own it would change the machine."""
        place = Path(f"/proc/{pid}/ns/mnt")
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Judged and entered by one descriptor, so that no other namespace comes between.
            assert os.fstat(fd).st_ino != Path("/proc/self/ns/mnt").stat().st_ino, "the tests' own namespace"
            command = ["nsenter", f"--mount=/proc/self/fd/{fd}", "sh", "-c", f"[ -e /{MARK} ] || exit 9; {script}"]
            done = subprocess.run(command, check=False, capture_output=True, pass_fds=[fd])
        finally:
            os.close(fd)
        assert done.returncode != WRONG_PLACE, "not the place with the overlays"

    def test_it_is_never_done_to_the_machine_itself(self) -> None:
        with pytest.raises(AssertionError, match="the tests' own namespace"):
            self.act(os.getpid(), "true")

    def test_before_during_and_between(self, bench: Bench, host: Daemon) -> None:
        self.act(host.pid, ACTS["plants"])
        session = bench.open_as_codex(host)
        is_masked(session.run(*LOOK), shim={"exit 7"})
        for name in ("renames", "binds", "removes", "replaces-bash", "covers-bash", "covers-usr"):
            running = session.start(["say", "ready"], ["spawn", "/bin/bash", "-c", "read go"], *LOOK)
            running.until("ready")
            self.act(host.pid, ACTS[name])
            host.call("close_stdin", process=running.number)
            # A covered file that is replaced takes what covers it away: then nothing runs there at all.
            during = running.wait()
            facts = [fact for fact in during.facts if fact != ("spawn /bin/bash", "exit 1")]
            assert ("ls /etc/codex", OURS) in facts
            assert "planted" not in during.stdout
            assert ("spawn /usr/bin/true", "!EACCES") in facts
            with suppress(Refused):
                is_masked(session.run(*LOOK), shim={"exit 7", "exit 0", "!EACCES"})
        session.close()


@contextmanager
def exchanging(parent: Path, other: Path) -> Iterator[None]:
    """Somebody on the host puts another directory in the place of `parent`, and it back, all the time."""
    stop = threading.Event()
    away = parent.with_name("away")

    def exchange() -> None:
        while not stop.is_set():
            parent.rename(away)
            other.rename(parent)
            parent.rename(other)
            away.rename(parent)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_another_workspace_is_never_shown_in_its_place(bench: Bench, daemon: Daemon, rounds: int) -> None:
    """A process on the host exchanges the parent all the time: the launch shows the right one, or is refused."""
    workspace = bench.workspace()
    other = bench.directory("other", parent=workspace.parent.parent)
    (bench.workspace(parent=other) / "planted").write_text("x")
    session = bench.open_as_codex(daemon, workspace)
    shown = 0
    with exchanging(workspace.parent, other):
        for _ in range(rounds):
            with suppress(Refused):
                names = session.run(["ls", str(workspace)])[f"ls {workspace}"]
                assert names.split("/") == ["probe"]
                shown += 1
    result = session.run(["ls", str(workspace)])
    session.close()
    assert result[f"ls {workspace}"] == "probe"
    assert shown <= rounds


def test_what_a_build_does_in_its_own_places_stays_possible(bench: Bench, daemon: Daemon) -> None:
    session = bench.open_as_codex(daemon)

    def actions(name: str) -> list[list[str]]:
        return [
            ["mkdir", f"/tmp/{name}"],
            ["write", f"/tmp/{name}/file", "x"],
            ["rename", f"/tmp/{name}/file", f"/tmp/{name}-moved"],
            ["write", f"{session.workspace}/{name}", "x"],
            ["link", f"{session.workspace}/{name}", f"{session.workspace}/{name}-second"],
            ["symlink", name, f"{session.workspace}/{name}-link"],
            ["unlink", f"{session.workspace}/{name}"],
            ["write", "/dev/null", "x"],
            ["write", "/dev/shm/file", "x"],
        ]

    assert {value for _, value in session.run(*actions("view")).facts} == {"ok"}
    assert {value for _, value in session.command(*actions("command")).facts} == {"ok"}
    assert session.shell("(echo said >/dev/stdout) | cat").stdout == "said\n"
    session.close()

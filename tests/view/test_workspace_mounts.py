"""What a workspace may lie on: tmpfs, overlay, submounts, mounts that are read-only.

The mounts are made in a mount namespace of the daemon's own; the machine's are not touched.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.needs import require
from tests.view.rig import Bench, Daemon, Refused, Session

PRIVATE = """
ws=$1 own=$2 base=$3 probe=$4 script=$5
shift 5
eval "$script"
exec "$@"
"""
"""Runs the mounts that a test wants, then the daemon. `own` is the workspace's owner, `base` a directory to use."""

ON_TMPFS = 'mount -t tmpfs -o mode=0755,uid=$own,gid=$own tmpfs "$ws"'
ON_OVERLAY = """
mkdir "$base/lower" "$base/upper" "$base/work"
echo below >"$base/lower/from-below"
chown -R $own:$own "$base/lower" "$base/upper"
mount -t overlay -o "lowerdir=$base/lower,upperdir=$base/upper,workdir=$base/work" overlay "$ws"
"""
SUBMOUNTS = """
mkdir "$base/other" "$ws/bound" "$ws/tmpfs"
chown $own:$own "$base/other" "$ws/bound" "$ws/tmpfs"
mount --bind "$base/other" "$ws/bound"
mount -t tmpfs -o mode=0755,uid=$own,gid=$own tmpfs "$ws/tmpfs"
mkdir "$ws/tmpfs/deeper"
chown $own:$own "$ws/tmpfs/deeper"
mount -t tmpfs -o ro,mode=0755,uid=$own,gid=$own tmpfs "$ws/tmpfs/deeper"
"""
UNMAPPABLE_BELOW = """
mkdir "$ws/processes"
chown $own:$own "$ws/processes"
mount -t proc proc "$ws/processes"
"""
READ_ONLY = 'mount --bind "$ws" "$ws" && mount -o remount,bind,ro "$ws"'
NOSUID_NOEXEC = 'mount --bind "$ws" "$ws" && mount -o remount,bind,noexec,nosuid "$ws"'


@dataclass(frozen=True, slots=True)
class Placed:
    """A daemon with mounts of its own, and a workspace that it sees."""

    daemon: Daemon
    workspace: Path
    base: Path

    @property
    def inside(self) -> Path:
        """The workspace as the daemon sees it, from here."""
        return Path(f"/proc/{self.daemon.pid}/root{self.workspace}")


@contextmanager
def placed(bench: Bench, script: str, *, owner: int | None = None) -> Iterator[Placed]:
    require("root")
    workspace = bench.workspace(owner=owner)
    base = bench.directory("mounts", owner=bench.mode.owner if owner is None else owner)
    own = str(bench.mode.owner if owner is None else owner)
    values = [str(workspace), own, str(base), str(bench.probe), script]
    before = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", PRIVATE, "sh", *values]
    with bench.daemon(before=before) as daemon:
        yield Placed(daemon, workspace, base)


class TestWhatItLiesOn:
    def test_a_tmpfs(self, bench: Bench) -> None:
        for owner in (0, 1000, 4242) if bench.mode.root else (bench.mode.owner,):
            with placed(bench, ON_TMPFS, owner=owner) as place:
                session = bench.open(place.daemon, place.workspace)
                assert session.run(["write", "by-view", "x"], ["ls", "."])["ls ."] == "by-view"
                session.shell("echo y >by-command")
                session.close()
                owners = {path.name: path.stat().st_uid for path in place.inside.iterdir()}
                assert owners == {"by-view": owner, "by-command": owner}
            assert [path.name for path in place.workspace.iterdir()] == ["probe"]

    def test_an_overlay(self, bench: Bench) -> None:
        """The kernel maps no ids there: the owner can use it without root, and root is told so before anything runs."""
        with placed(bench, ON_OVERLAY) as place:
            if bench.mode.root:
                with pytest.raises(Refused) as caught:
                    bench.open(place.daemon, place.workspace)
                assert caught.value.type == "LaunchFailed"
                assert f"{place.workspace} is a mount (overlay)" in caught.value.what
                assert "run agenthost as the owner (uid 1000)" in caught.value.remedy
                assert list((place.daemon.state / "sessions").iterdir()) == []
                return
            session = bench.open(place.daemon, place.workspace)
            result = session.run(["cat", "from-below"], ["write", "by-view", "x"])
            session.shell("echo y >>from-below")
            session.close()
            assert [value for _, value in result.facts] == ["below\n", "ok"]
            assert (place.inside / "from-below").read_text() == "below\ny\n"
            assert (place.base / "lower/from-below").read_text() == "below\n"

    def test_submounts_come_along_and_belong_to_the_owner(self, bench: Bench) -> None:
        with placed(bench, SUBMOUNTS) as place:
            session = bench.open(place.daemon, place.workspace)
            actions = [
                ["write", "bound/x", "x"],
                ["write", "tmpfs/x", "x"],
                ["write", "tmpfs/deeper/x", "x"],
                ["stat", "tmpfs/deeper"],
            ]
            result = session.run(*actions)
            executed = [session.run(["exec", path]) for path in ("./probe", "bound/x")]
            session.shell("echo y >>bound/x; echo y >>tmpfs/x")
            session.close()
            uid = session.uid
            assert [value for _, value in result.facts] == ["ok", "ok", "!EROFS", f"{uid} {uid} 755"]
            assert [result.facts[0][1] for result in executed] == ["!EACCES", "!EACCES"]
            assert (place.base / "other/x").read_text() == "xy\n"
            assert (place.inside / "tmpfs/x").stat().st_uid == bench.mode.owner

    def test_a_submount_that_takes_no_map_is_named(self, bench: Bench) -> None:
        with placed(bench, UNMAPPABLE_BELOW) as place:
            if bench.mode.root:
                with pytest.raises(Refused) as caught:
                    bench.open(place.daemon, place.workspace)
                assert f"{place.workspace}/processes is a mount (proc)" in caught.value.what
                assert "unmount it" in caught.value.remedy
                return
            session = bench.open(place.daemon, place.workspace)
            assert session.run(["write", "x", "x"])["write x"] == "ok"
            session.close()

    def test_what_is_mounted_later_is_not_seen(self, bench: Bench) -> None:
        with placed(bench, ON_TMPFS) as place:
            session = bench.open(place.daemon, place.workspace)
            running = session.start(["say", "ready"], ["wait"], ["ls", "later"], stdin=None)
            running.until("ready")
            namespace = ["nsenter", f"--mount=/proc/{place.daemon.pid}/ns/mnt"]
            later = f"{place.workspace}/later"
            subprocess.run(
                [*namespace, "sh", "-ec", f"mkdir {later}; mount -t tmpfs tmpfs {later}; : >{later}/x"], check=True
            )
            running.stop()
            assert session.shell("ls later").stdout == ""
            session.close()


class TestReadOnly:
    def checks(self, bench: Bench, session: Session, error: str) -> None:
        """Reading, running commands and everything outside it works; nothing in it changes."""
        result = session.run(
            ["ls", "."],
            ["write", "new", "x"],
            ["write", "probe", "x"],
            ["unlink", "probe"],
            ["write", "/tmp/x", "x"],
            ["write", "/.oac/home/tmp/x", "x"],
        )
        assert [value for _, value in result.facts] == ["probe", error, *[result.facts[2][1]], error, "ok", "ok"]
        assert result.facts[2][1].startswith("!")
        assert session.shell("cat probe | head -c 4 | tail -c 3; pwd").stdout == f"ELF{session.workspace}\n"
        assert session.shell("echo x >new").status != 0
        assert session.shell("./probe say runs").stdout.endswith("runs\n")

    def test_one_on_a_read_only_mount(self, bench: Bench) -> None:
        with placed(bench, READ_ONLY) as place:
            for opening in (bench.open, bench.open_as_codex):
                session = opening(place.daemon, place.workspace)
                self.checks(bench, session, "!EROFS")
                session.close()

    @pytest.mark.usefixtures("tidy")
    def test_one_that_its_owner_may_not_write(self, bench: Bench, daemon: Daemon) -> None:
        workspace = bench.workspace()
        (workspace / "probe").chmod(0o555)
        workspace.chmod(0o555)
        session = bench.open(daemon, workspace)
        self.checks(bench, session, "!EACCES")
        session.close()
        assert [path.name for path in workspace.iterdir()] == ["probe"]

    def test_flags_of_its_mount_stay(self, bench: Bench) -> None:
        """What the host forbids on the mount, a command may not do either."""
        with placed(bench, NOSUID_NOEXEC) as place:
            session = bench.open(place.daemon, place.workspace)
            assert session.shell("./probe say runs").status == 126
            assert session.run(["write", "x", "x"])["write x"] == "ok"
            session.close()

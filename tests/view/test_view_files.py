"""Which files a view shows, who may write them, and whose they are on disk."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.needs import needs, require
from tests.view.rig import ENV, Bench, Daemon, Session

pytestmark = pytest.mark.usefixtures("tidy")

OURS = "managed_config.toml/requirements.toml"
"""What stands in the masked /etc/codex."""

MASKED_HOST = """
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" /etc
mkdir /etc/codex
echo 'planted = true' >/etc/codex/config.toml
echo 'planted = true' >/etc/codex/managed_config.toml
shift
exec "$@"
"""
"""Starts a daemon on a host that has an /etc/codex, in a mount namespace of its own."""


@contextmanager
def a_place_on_the_host(bench: Bench, parent: str) -> Iterator[Path]:
    """A new empty directory right below `parent`, with a name that nobody else has."""
    if not os.access(parent, os.W_OK):
        pytest.skip(f"this user cannot make a directory in {parent}")
    directory = Path(tempfile.mkdtemp(prefix="agenthost-test-", dir=parent))
    try:
        directory.chmod(0o755)
        bench.give(directory)
        yield directory
    finally:
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


class TestMask:
    def test_etc_codex_holds_our_file_and_nothing_else(self, codex_session: Session) -> None:
        managed = "/etc/codex/managed_config.toml"
        result = codex_session.run(["ls", "/etc/codex"], ["cat", managed], ["ls", "/etc"])
        assert result["ls /etc/codex"] == OURS
        assert "sandbox_mode" in result[f"cat {managed}"]
        assert "passwd" in result["ls /etc"].split("/")

    def test_it_cannot_be_changed_or_moved_from_inside(self, codex_session: Session) -> None:
        result = codex_session.run(
            ["write", "/etc/codex/config.toml", "x"],
            ["write", "/etc/codex/managed_config.toml", "x"],
            ["unlink", "/etc/codex/managed_config.toml"],
            ["rename", "/etc/codex", "/etc/other"],
            ["rename", "/etc", "/other"],
        )
        assert [value for _, value in result.facts] == ["!EROFS"] * 5

    def test_the_environment_cannot_plant_one(self, codex_session: Session) -> None:
        result = codex_session.command(
            ["mkdir", "/etc/codex"], ["write", "/etc/codex/config.toml", "x"], ["ls", "/.oac"]
        )
        assert [value for _, value in result.facts] == ["!EROFS", "!ENOENT", "programs"]

    def test_without_codex_nothing_is_masked_in(self, session: Session) -> None:
        assert session.run(["ls", "/etc/codex"])["ls /etc/codex"] == "!ENOENT"

    @needs("root")
    def test_that_of_the_host_is_not_seen(self, bench: Bench) -> None:
        directory = bench.directory("overlay", owner=0)
        for name in ("upper", "work"):
            (directory / name).mkdir()
        before = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", MASKED_HOST, "sh", str(directory)]
        with bench.daemon(before=before) as daemon:
            host = Path(f"/proc/{daemon.pid}/root/etc/codex")
            session = bench.open_as_codex(daemon)
            result = session.run(["ls", "/etc/codex"], ["cat", "/etc/codex/config.toml"])
            managed = session.run(["cat", "/etc/codex/managed_config.toml"]).stdout
            outside = session.command(["ls", "/etc/codex"])
            assert sorted(path.name for path in host.iterdir()) == ["config.toml", "managed_config.toml"]
        assert result["ls /etc/codex"] == OURS
        assert result["cat /etc/codex/config.toml"] == "!ENOENT"
        assert "planted" not in managed
        assert outside["ls /etc/codex"] == "!ENOENT"


class TestClosure:
    def test_it_is_read_only(self, session: Session) -> None:
        probe = "/.oac/harness/probe"
        result = session.run(
            ["ls", "/.oac/harness"],
            ["write", "/.oac/harness/new", "x"],
            ["write", probe, "x"],
            ["unlink", probe],
            ["rename", probe, "/.oac/harness/other"],
            ["chmod", "0700", probe],
        )
        assert [value for _, value in result.facts] == ["probe", *["!EROFS"] * 5]

    def test_a_shim_cannot_be_replaced(self, session: Session) -> None:
        result = session.run(
            ["write", "/.oac/bin/git", "x"],
            ["unlink", "/.oac/bin/git"],
            ["rename", "/.oac/bin/git", "/.oac/bin/other"],
            ["write", "/usr/bin/bash", "x"],
            ["unlink", "/usr/bin/bash"],
            ["ls", "/.oac/bin"],
        )
        assert [value for _, value in result.facts] == ["!EROFS"] * 5 + ["git"]

    def test_the_environment_does_not_see_it(self, session: Session) -> None:
        assert session.command(["ls", "/.oac"])["ls /.oac"] == "!ENOENT"


class TestHome:
    def test_it_is_writable_and_the_sessions(self, session: Session) -> None:
        result = session.run(["write", "/.oac/home/tmp/x", "hello"], ["stat", "/.oac/home"], ["ls", "/.oac/home"])
        assert result["write /.oac/home/tmp/x"] == "ok"
        assert result["stat /.oac/home"] == f"{session.uid} {session.uid} 700"
        assert result["ls /.oac/home"] == "codex/tmp"
        on_disk = session.home / "tmp" / "x"
        assert (on_disk.read_text(), on_disk.stat().st_uid) == ("hello", session.uid)

    def test_the_files_of_the_launch_are_read_only(self, codex_session: Session) -> None:
        config = "/.oac/home/codex/config.toml"
        result = codex_session.run(
            ["write", config, "x"],
            ["unlink", config],
            ["rename", config, "/.oac/home/codex/other"],
            ["write", "/.oac/home/codex/new", "x"],
            ["rename", "/.oac/home/codex/new", config],
            ["chmod", "0777", config],
            ["cat", config],
        )
        assert [value for _, value in result.facts[:6]] == ["!EROFS", "!EBUSY", "!EBUSY", "ok", "!EBUSY", "!EROFS"]
        assert "127.0.0.1:17101" in result[f"cat {config}"]

    def test_no_other_directory_takes_the_place_of_theirs(self, codex_session: Session) -> None:
        """rename(2) minds a mount point, and not that one lies below what it moves."""
        result = codex_session.run(
            ["rename", "/.oac/home/codex", "/.oac/home/moved"],
            ["rename", "/.oac/home/codex", "/.oac/home/tmp/moved"],
            ["mkdir", "/.oac/home/codex"],
            ["write", "/.oac/home/codex/config.toml", "x"],
            ["rename", "/.oac/home", "/.oac/other"],
            ["rename", "/.oac/home/tmp", "/.oac/home/moved"],
            ["rename", "/.oac/home/moved", "/.oac/home/tmp"],
        )
        assert [value for _, value in result.facts] == ["!EBUSY", "!EBUSY", "!EEXIST", "!EROFS", "!EROFS", "ok", "ok"]

    def test_files_move_from_directory_to_directory(self, session: Session) -> None:
        """Landlock forbids it unless told otherwise; Codex archives its threads so."""
        result = session.run(
            ["mkdir", "/.oac/home/codex/one"],
            ["mkdir", "/.oac/home/codex/two"],
            ["write", "/.oac/home/codex/one/file", "x"],
            ["rename", "/.oac/home/codex/one/file", "/.oac/home/codex/two/file"],
            ["link", "/.oac/home/codex/two/file", "/.oac/home/codex/one/link"],
            ["rename", "/.oac/home/codex/one", "/.oac/home/codex/two/one"],
            ["cat", "/.oac/home/codex/two/one/link"],
        )
        assert [value for _, value in result.facts] == [*["ok"] * 6, "x"]

    def test_what_codex_reads_as_its_configuration_does_not_outlive_a_launch(self, codex_session: Session) -> None:
        """Read-only in the view, or gone before the next one: what a later release may read, too."""
        names = ("auth.json", ".env", "environments.toml", "AGENTS.override.md", "of-a-later-release.toml")
        planted = codex_session.run(*(["write", f"/.oac/home/codex/{name}", "planted"] for name in names))
        found = codex_session.run(*(["cat", f"/.oac/home/codex/{name}"] for name in names))
        assert {value for _, value in planted.facts} <= {"ok", "!EROFS"}
        assert planted.facts[-1][1] == "ok"
        assert found.facts[-1][1] == "!ENOENT"
        assert "planted" not in found.stdout

    def test_two_launches_see_the_same_home_and_tmp(self, session: Session) -> None:
        places = ("/.oac/home/tmp/kept", "/tmp/kept", "/home/agent/kept", "/var/tmp/kept")
        session.run(*(["write", place, "from the first"] for place in places))
        second = session.run(*(["cat", place] for place in places))
        assert [value for _, value in second.facts] == ["from the first"] * 4

    def test_two_sessions_share_none_of_it(self, bench: Bench, daemon: Daemon, session: Session) -> None:
        places = ("/.oac/home/tmp/secret", "/tmp/secret", "/home/agent/secret", "/var/tmp/secret", "/dev/shm/secret")
        assert [value for _, value in session.run(*(["write", place, "x"] for place in places)).facts] == ["ok"] * 5
        other = bench.open(daemon)
        found = other.run(*(["cat", place] for place in places))
        other.close()
        assert [value for _, value in found.facts] == ["!ENOENT"] * 5


class TestWorld:
    def test_the_host_is_not_in_it(self, bench: Bench, daemon: Daemon, session: Session) -> None:
        top = bench.base.name
        places = ("/home", "/root", "/var", "/run", "/srv", "/opt", "/mnt", "/boot", "/sys", str(daemon.state))
        result = session.run(
            *(["ls", place] for place in places), ["ls", "/var/tmp"], ["ls", "/tmp"], ["cat", "/etc/shadow"]
        )
        assert [value for _, value in result.facts[:10]] == ["agent", "!ENOENT", "tmp", "", *["!ENOENT"] * 6]
        assert top in result["ls /var/tmp"].split("/")  # on the way to the workspace, with nothing else in it
        assert set(result["ls /tmp"].split("/")) & {path.name for path in Path("/tmp").iterdir()} <= {"kept"}
        assert result["cat /etc/shadow"] == "!ENOENT"

    def test_it_is_read_only(self, session: Session) -> None:
        places = ("/new", "/usr/new", "/etc/new", "/etc/passwd", "/dev/new", "/run/new", "/var/new", "/home/new")
        result = session.run(*(["write", place, "x"] for place in places), ["write", "/tmp/new", "x"])
        assert [value for _, value in result.facts] == ["!EROFS"] * 8 + ["ok"]

    @pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "/home/agent"])
    def test_view_and_environment_see_each_others_private_files(self, session: Session, place: str) -> None:
        session.run(["write", f"{place}/from-view", "by the view"])
        there = session.command(["cat", f"{place}/from-view"], ["write", f"{place}/from-environment", "by a command"])
        here = session.run(["cat", f"{place}/from-environment"])
        assert there[f"cat {place}/from-view"] == "by the view"
        assert here[f"cat {place}/from-environment"] == "by a command"

    def test_devices_work(self, session: Session) -> None:
        result = session.run(
            ["write", "/dev/null", "x"],
            ["write", "/dev/full", "x"],
            ["cat", "/dev/null"],
            ["ls", "/dev"],
            ["ls", "/dev/pts"],
        )
        assert [value for _, value in result.facts[:3]] == ["ok", "!ENOSPC", ""]
        names = "fd/full/null/ptmx/pts/random/shm/stderr/stdin/stdout/tty/urandom/zero"
        assert (result["ls /dev"], result["ls /dev/pts"]) == (names, "ptmx")

    def test_a_full_tmp_is_an_error_and_no_more(self, session: Session) -> None:
        result = session.run(["fill", "/dev/shm/big", "300"], ["write", "/dev/shm/after", "x"])
        assert result["fill /dev/shm/big"] == "!ENOSPC"
        assert result["filled /dev/shm/big"] == "256"
        assert result["write /dev/shm/after"] == "ok"

    def test_bind_ro_shows_a_file_and_a_directory(self, bench: Bench, daemon: Daemon) -> None:
        shown = bench.directory("shown")
        (shown / "inside").write_text("in the directory")
        file = bench.directory("single") / "file"
        file.write_text("the file")
        paths = [str(shown), str(file)]
        session = bench.open(daemon, bind_ro=paths)
        actions = [
            ["cat", f"{shown}/inside"],
            ["cat", str(file)],
            ["write", f"{shown}/new", "x"],
            ["write", str(file), "x"],
        ]
        results = [session.run(*actions), session.command(*actions)]
        session.close()
        for result in results:
            assert [value for _, value in result.facts] == ["in the directory", "the file", "!EROFS", "!EROFS"]


class TestWorkspace:
    def owners(self, bench: Bench) -> list[int]:
        return [0, 1000, 4242] if bench.mode.root else [bench.mode.uid]

    def test_files_belong_to_its_owner_on_disk(self, bench: Bench, daemon: Daemon) -> None:
        for owner in self.owners(bench):
            workspace = bench.workspace(owner=owner)
            session = bench.open(daemon, workspace)
            view = session.run(["write", "by-view", "x"], ["mkdir", "made"], ["stat", "by-view"], ["stat", "."])
            command = session.command(["write", "by-command", "x"], ["stat", "by-command"], ["write", "by-view", "y"])
            session.close()
            uid = session.uid if bench.mode.root else owner
            assert [value for _, value in view.facts] == ["ok", "ok", f"{uid} {uid} 644", f"{uid} {uid} 755"]
            assert [value for _, value in command.facts] == ["ok", f"{uid} {uid} 644", "ok"]
            found = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in workspace.iterdir()}
            assert found == dict.fromkeys(("probe", "by-view", "made", "by-command"), (owner, owner))

    @needs("root")
    def test_those_of_others_stay_theirs(self, bench: Bench, daemon: Daemon) -> None:
        workspace = bench.workspace()
        for owner in (0, 4242):
            (workspace / str(owner)).write_text("x")
            os.chown(workspace / str(owner), owner, owner)
        session = bench.open(daemon, workspace)
        result = session.run(
            ["stat", "0"],
            ["stat", "4242"],
            ["write", "0", "y"],
            ["write", "4242", "y"],
            ["chmod", "0777", "0"],
            ["chown", "0", "probe"],
        )
        session.close()
        unknown = "65534 65534 644"
        shown = ["0 0 644", "4242 4242 644"] if bench.mode.root else [unknown, unknown]
        refused = "!EPERM" if bench.mode.root else "!EINVAL"
        assert [value for _, value in result.facts] == [*shown, "!EACCES", "!EACCES", "!EPERM", refused]

    def test_a_file_of_the_sessions_own_uid_on_disk_is_nobodys(self, bench: Bench, daemon: Daemon) -> None:
        """It would otherwise be taken for the owner's."""
        require("root")
        workspace = bench.workspace()
        session = bench.open(daemon, workspace)
        (workspace / "strange").write_text("x")
        os.chown(workspace / "strange", session.uid, session.uid)
        result = session.run(["stat", "strange"], ["write", "strange", "y"])
        session.close()
        if bench.mode.root:
            assert [value for _, value in result.facts] == ["65534 65534 644", "!EACCES"]
        else:
            assert [value for _, value in result.facts] == [f"{session.uid} {session.uid} 644", "ok"]

    def test_it_is_as_it_was_but_for_what_the_turn_did(self, bench: Bench, daemon: Daemon) -> None:
        workspace = bench.workspace()
        session = bench.open(daemon, workspace)
        session.run(["write", "made", "x"])
        session.command(["unlink", "made"])
        session.close()
        assert [path.name for path in workspace.iterdir()] == ["probe"]

    def test_a_link_to_it_is_resolved_once(self, bench: Bench, daemon: Daemon) -> None:
        workspace = bench.workspace()
        link = bench.directory("links") / "link"
        link.symlink_to(workspace)
        session = bench.open(daemon, link)
        link.unlink()
        link.symlink_to("/etc")
        result = session.run(["facts"], ["write", "made", "x"])
        opened = next(event for event in session.events() if event["type"] == "session.opened")
        session.close()
        assert session.workspace == workspace
        assert (result["cwd"], (workspace / "made").read_text()) == (str(workspace), "x")
        assert (opened["workspace"], opened["asked"]) == (str(workspace), str(link))

    def test_another_directory_in_its_place_is_refused(self, bench: Bench, daemon: Daemon) -> None:
        workspace = bench.workspace()
        session = bench.open(daemon, workspace)
        workspace.rename(workspace.with_name("moved"))
        bench.workspace(parent=workspace.parent)
        with pytest.raises(Exception, match="another file has taken its place"):
            session.run(["say", "hello"])
        session.close()

    @pytest.mark.parametrize(
        "name",
        [
            "with space",
            "quo'te\"s",
            "new\nline",
            "back\\slash",
            "-dash",
            "ümlaut",
            os.fsdecode(b"not-\xff-utf8"),
            "co:lon,comma",
        ],
    )
    def test_its_name_may_be_anything(self, bench: Bench, daemon: Daemon, name: str) -> None:
        workspace = bench.workspace(name)
        session = bench.open(daemon, workspace)
        view = session.run(["facts"], ["write", "by-view", "x"])
        command = session.command(["facts"], ["write", str(workspace / "by-command"), "x"])
        session.close()
        assert (view["cwd"], command["cwd"]) == (str(workspace), str(workspace))
        assert {path.name for path in workspace.iterdir()} == {"probe", "by-view", "by-command"}

    @pytest.mark.parametrize(
        "parent", ["/tmp", "/var/tmp", "/home", "/usr/local/src", "/srv", "/opt", "~", "/etc", "/run", "/var/lib"]
    )
    def test_it_may_lie_in(self, bench: Bench, daemon: Daemon, parent: str) -> None:
        if parent == "~":
            parent = "/root" if bench.mode.root else str(bench.directory("home", owner=bench.mode.uid))
        with a_place_on_the_host(bench, parent) as workspace:
            session = bench.open(daemon, workspace)
            view = session.run(["write", "by-view", "x"], ["ls", "."], ["ls", str(workspace.parent)])
            command = session.run(["exec", ENV, "sh", "-c", f"cat by-view && echo y >{workspace}/by-command && pwd"])
            session.close()
            assert view["ls ."] == "by-view"
            assert workspace.name in view[f"ls {workspace.parent}"].split("/")
            assert command.stdout == f"x{workspace}\n"
            assert sorted(path.name for path in workspace.iterdir()) == ["by-command", "by-view"]
            assert {path.stat().st_uid for path in workspace.iterdir()} == {
                bench.mode.owner if os.geteuid() == 0 else os.geteuid()
            }

    def test_one_below_a_directory_that_only_its_owner_enters(self, bench: Bench, daemon: Daemon) -> None:
        """The view needs no search permission above: the workspace is mounted."""
        parent = bench.directory("closed", owner=bench.mode.uid)
        workspace = bench.workspace(parent=parent)
        parent.chmod(0o700)
        session = bench.open(daemon, workspace)
        result = session.run(["write", "made", "x"])
        session.close()
        assert result.facts == [("write made", "ok")]

    def test_modes_follow_the_callers_umask_in_view_and_environment(self, bench: Bench, daemon: Daemon) -> None:
        workspace = bench.workspace()
        session = bench.open(daemon, workspace)
        session.run(["umask", "027"], ["write", "by-view", "x"])
        session.command(["write", "by-command", "x"], before=[["umask", "027"]])
        session.close()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in workspace.iterdir() if path.name != "probe"}
        assert modes == {"by-view": 0o640, "by-command": 0o640}

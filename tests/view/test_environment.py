"""The local environment: what a command sees of the host, who it is, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import psutil
import pytest

from tests.view.rig import ENV, Bench, Daemon, Result, Session, eventually

pytestmark = pytest.mark.usefixtures("tidy")

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OWN = {"HOME=/home/agent", f"PATH={PATH}", "LANG=C.UTF-8"}


@pytest.fixture(scope="module")
def facts(session: Session) -> Result:
    return session.command(["facts"])


def commands_running(daemon: Daemon, name: str) -> list[str]:
    return [command for command in daemon.children().values() if command == name]


class TestWho:
    def test_a_command_runs_as_the_sessions_user_without_privileges(self, session: Session, facts: Result) -> None:
        sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        assert facts["uid"] == f"{session.uid} {session.uid} {session.uid}"
        assert facts["gid"] == f"{session.uid} {session.uid} {session.uid}"
        assert {name: facts[name] for name in sets} == dict.fromkeys(sets, "0000000000000000")
        assert (facts["NoNewPrivs"], facts["Seccomp"], facts["core"]) == ("1", "2", "0 0")

    def test_it_leads_a_session_and_ignores_no_signal(self, facts: Result) -> None:
        assert (facts["leader"], facts["tty"]) == ("1", "!ENXIO")
        assert (facts["SigIgn"], facts["SigBlk"]) == ("0000000000000000", "0000000000000000")
        assert facts["descriptors"] == "0 1 2"

    def test_its_environment_is_the_environments_own(self, facts: Result) -> None:
        assert set(facts.all("env")) == OWN

    def test_declared_variables_are_forwarded_and_no_others(self, session: Session) -> None:
        before = [
            ["setenv", "TERM", "dumb"],
            ["setenv", "SECRET", "x"],
            ["setenv", "LD_PRELOAD", "/x"],
            ["setenv", "LANG", "de"],
        ]
        assert set(session.command(["facts"], before=before).all("env")) == OWN | {"TERM=dumb"}

    def test_it_has_a_name_of_its_own(self, session: Session, facts: Result) -> None:
        assert facts["hostname"] == "environment"
        assert session.shell("id -un; echo ~").stdout == "agent\n/home/agent\n"


class TestWhere:
    def test_the_working_directory_is_the_harness_s(self, session: Session) -> None:
        (session.workspace / "below").mkdir(exist_ok=True)
        result = session.run(["cd", "below"], ["exec", ENV, "pwd"])
        assert result.stdout.endswith(f"{session.workspace}/below\n")

    def test_a_directory_that_it_does_not_have_is_said(self, session: Session) -> None:
        result = session.run(["cd", "/.oac/home/tmp"], ["exec", ENV, "pwd"])
        assert result.status == 126
        assert result.stderr == "agenthost: cannot enter /.oac/home/tmp: No such file or directory\n"

    def test_umask_and_nice_are_the_harness_s(self, session: Session) -> None:
        result = session.command(["facts"], before=[["umask", "027"], ["nice", "5"]])
        assert (result["Umask"], result["nice"]) == ("0027", "5")

    def test_it_sees_of_the_host_its_programs_and_nothing_else(self, daemon: Daemon, session: Session) -> None:
        places = (
            "/home",
            "/root",
            "/var",
            "/run",
            "/srv",
            "/opt",
            "/mnt",
            "/boot",
            "/sys",
            "/media",
            str(daemon.state),
        )
        result = session.command(*(["ls", place] for place in places), ["ls", "/"], ["ls", "/usr"])
        found = [value for name, value in result.facts if name.removeprefix("ls ") in places]
        assert found == ["agent", "!ENOENT", "tmp", "", *["!ENOENT"] * 7]
        links = {name for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32") if os.path.lexists(f"/{name}")}
        assert set(result["ls /"].split("/")) == {"dev", "etc", "home", "proc", "run", "tmp", "usr", "var", *links}
        assert set(result["ls /usr"].split("/")) == {path.name for path in Path("/usr").iterdir()}

    def test_its_etc_tells_nothing_of_the_hosts_users(self, session: Session) -> None:
        result = session.command(
            ["cat", "/etc/passwd"],
            ["cat", "/etc/shadow"],
            ["cat", "/etc/hostname"],
            ["cat", "/etc/hosts"],
            ["ls", "/etc"],
        )
        passwd = [line.split(":") for line in result["cat /etc/passwd"].splitlines()]
        assert [(entry[0], entry[5]) for entry in passwd] == [("root", "/"), ("agent", "/home/agent")]
        assert result["cat /etc/shadow"] == "!ENOENT"
        assert result["cat /etc/hostname"] == "environment\n"
        assert os.uname().nodename not in result["cat /etc/hosts"].split()
        assert {"sudoers", "ssh", "machine-id", "resolv.conf", "cron.d"}.isdisjoint(result["ls /etc"].split("/"))

    def test_only_these_places_are_writable(self, session: Session) -> None:
        mounts = session.command(["mounts"]).mounts()
        writable = {place for place, (options, _) in mounts.items() if "rw" in options}
        private = {"/tmp", "/var/tmp", "/home/agent", "/dev/shm", "/dev/pts", "/proc"}
        assert writable == {*private, str(session.workspace)}
        assert [place for place, (_, propagation) in mounts.items() if propagation != "private"] == []
        assert [place for place, (options, _) in mounts.items() if "nosuid" not in options] == []

    def test_a_set_user_id_program_gives_nothing(self, session: Session) -> None:
        programs = [path for path in ("/usr/bin/su", "/usr/bin/passwd") if Path(path).exists()]
        assert all(Path(path).stat().st_mode & stat.S_ISUID for path in programs)
        for program in programs:
            script = f"{program} --help >/dev/null; grep -h ^CapEff /proc/self/status"
            assert session.shell(script).stdout == "CapEff:\t0000000000000000\n"

    def test_its_private_tmp_is_not_the_hosts(self, session: Session) -> None:
        session.command(["write", "/tmp/agenthost-view-test-marker", "x"])
        assert not Path("/tmp/agenthost-view-test-marker").exists()


class TestProcesses:
    def test_it_sees_no_process_of_the_host(self, session: Session) -> None:
        script = 'for d in /proc/[0-9]*; do printf "%s " "$(cat $d/comm)"; done'
        names = session.shell(script).stdout.split()
        assert set(names) <= {"oac-init", "bash", "cat", "probe"}
        assert names[0] == "oac-init"

    def test_another_command_is_seen_and_can_be_signalled(self, session: Session) -> None:
        assert session.shell("sleep 60 & kill $!; wait $!; echo $?").stdout == "143\n"

    @pytest.mark.parametrize("name", ["environ", "mem", "root", "cwd", "fd", "maps"])
    def test_the_first_process_is_closed(self, session: Session, name: str) -> None:
        assert session.command(["cat", f"/proc/1/{name}"])[f"cat /proc/1/{name}"] == "!EACCES"

    @pytest.mark.parametrize("status", [0, 1, 7, 126, 127, 128, 255])
    def test_its_exit_status_is_mirrored(self, session: Session, status: int) -> None:
        assert session.shell(f"exit {status}").status == status

    @pytest.mark.parametrize(
        "number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT, signal.SIGUSR1, 34, 64]
    )
    def test_its_signal_is_mirrored(self, session: Session, number: int) -> None:
        result = session.run(["spawn", ENV, str(session.workspace / "probe"), "die", str(int(number))])
        assert result[f"spawn {ENV}"] == f"signal {int(number)}"

    def test_a_program_that_is_not_there_is_127(self, session: Session) -> None:
        assert session.run(["exec", ENV, "no-such-program-here"]).status == 127

    def test_background_commands_end_with_the_launch_that_made_them(self, daemon: Daemon, session: Session) -> None:
        """The shim's connection closes, and with it goes the process group of its command."""
        running = session.start(["spawn", "/bin/bash", "-c", "echo ready; exec sleep 987"])
        running.until("ready")
        eventually(lambda: commands_running(daemon, "sleep 987") == ["sleep 987"], "the command did not start")
        running.stop()
        running.wait()
        eventually(lambda: not commands_running(daemon, "sleep 987"), "a command outlived its Harness")

    def test_a_command_in_a_session_of_its_own_ends_with_the_session(self, bench: Bench, daemon: Daemon) -> None:
        """As a service that a command starts: it stays for the next launch, and no longer than the Session."""
        session = bench.open(daemon)
        session.shell("setsid sleep 986 >/dev/null 2>&1 </dev/null &")
        eventually(lambda: commands_running(daemon, "sleep 986") == ["sleep 986"], "the command did not stay")
        session.close()
        assert commands_running(daemon, "sleep 986") == []

    def test_thousands_of_processes_that_ignore_every_signal_end_with_the_session(
        self, bench: Bench, daemon: Daemon
    ) -> None:
        session = bench.open(daemon)
        script = f"{session.workspace}/probe fork-many 2000 >/tmp/out 2>&1; cat /tmp/out"
        result = session.shell(script)
        many = len(daemon.children())
        session.close()
        assert result.facts == [("forked", "2000"), ("fork", "ok")]
        assert many >= 2000
        assert len(daemon.children()) < 10

    def test_a_command_that_closes_its_descriptors_runs(self, session: Session) -> None:
        result = session.run(["close", "0"], ["exec", ENV, "sh", "-c", "[ -e /proc/self/fd/0 ] || echo closed"])
        assert result.stdout == "closed\n"

    def test_many_commands_at_once_each_get_their_own_status(self, session: Session) -> None:
        assert session.run(["at-once", "/bin/bash", "100"])["wrong"] == "0"

    def test_short_commands_one_after_the_other_do_not_end_the_environment(self, session: Session) -> None:
        """Each ends while the broker may still hold its copy of the connection."""
        for _ in range(20):
            result = session.run(*(["spawn", "/bin/bash", "-c", f"exit {code}"] for code in range(10)))
            assert [value for _, value in result.facts] == [f"exit {code}" for code in range(10)]


class TestItsEnd:
    def test_commands_get_255_when_the_environment_was_ended_from_outside(self, bench: Bench, daemon: Daemon) -> None:
        others = set(daemon.inits())
        session = bench.open(daemon)
        [init] = set(daemon.inits()) - others
        running = session.start(
            ["spawn", "/bin/bash", "-c", "echo ready; sleep 60"], ["spawn", "/bin/bash", "-c", "exit 0"]
        )
        running.until("ready")
        psutil.Process(init).kill()
        result = running.wait()
        after = session.run(["exec", "/bin/bash", "-c", "exit 0"])
        session.close()
        assert [value for name, value in result.facts if name == "spawn /bin/bash"] == ["exit 255", "exit 255"]
        assert after.status == 255
        assert f"environment of Session {session.id} has ended; open the Session again" in after.stderr

    def test_the_session_can_be_opened_again_after_that(self, bench: Bench, daemon: Daemon) -> None:
        others = set(daemon.inits())
        session = bench.open(daemon)
        [init] = set(daemon.inits()) - others
        psutil.Process(init).kill()
        session.close()
        again = bench.open(daemon, session.workspace, session=session.id)
        status = again.shell("exit 5").status
        again.close()
        assert status == 5

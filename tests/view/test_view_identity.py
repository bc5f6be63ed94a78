"""Who the Harness is in a view: its user, its privileges, its descriptors, its variables, its processes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from agenthost.lease import UID_RANGE
from tests.view.rig import Bench, Daemon, Result, Session

pytestmark = pytest.mark.usefixtures("tidy")

NO_CAPABILITIES = "0000000000000000"
PROXY = "http://127.0.0.1:17100"
VARIABLES = {
    "PATH": "/.oac/bin",
    "HOME": "/.oac/home",
    "TMPDIR": "/.oac/home/tmp",
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
}


@pytest.fixture(scope="module")
def facts(session: Session) -> Result:
    return session.run(["facts"])


def test_the_probe_refuses_to_run_as_root_outside_a_view(bench: Bench) -> None:
    if os.geteuid() == 0:
        done = subprocess.run([bench.probe, "say", "hello"], capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (99, b"")


def test_its_uid_is_the_sessions_alone(bench: Bench, session: Session, facts: Result) -> None:
    uid = session.uid if bench.mode.root else bench.mode.uid
    assert facts["uid"] == f"{uid} {uid} {uid}"
    assert facts["gid"] == f"{uid} {uid} {uid}"
    assert (uid in UID_RANGE) == bench.mode.root


@pytest.mark.skipif(os.geteuid() != 0, reason="an unprivileged user cannot put its own groups away")
def test_it_is_in_no_group(facts: Result) -> None:
    assert facts["groups"] == ""


def test_it_has_no_capability_and_cannot_get_one(facts: Result) -> None:
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    assert {name: facts[name] for name in sets} == dict.fromkeys(sets, NO_CAPABILITIES)
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"


def test_it_leads_a_session_of_its_own_without_a_terminal(facts: Result) -> None:
    assert facts["leader"] == "1"
    assert facts["ppid"] == "1"
    assert facts["tty"] == "!ENXIO"


def test_it_has_the_descriptors_0_to_2_and_no_other(facts: Result) -> None:
    assert facts["descriptors"] == "0 1 2"
    assert [facts[f"kind {fd}"] for fd in range(3)] == ["pipe", "pipe", "pipe"]


def test_no_signal_is_ignored_or_blocked(facts: Result) -> None:
    assert (facts["SigIgn"], facts["SigBlk"]) == ("0000000000000000", "0000000000000000")


def test_it_dumps_no_core(facts: Result) -> None:
    assert facts["core"] == "0 0"


def test_it_starts_in_the_workspace_with_the_usual_umask(session: Session, facts: Result) -> None:
    assert facts["cwd"] == str(session.workspace)
    assert facts["Umask"] == "0022"
    assert facts["nice"] == "0"


def test_its_host_name_is_not_the_hosts(facts: Result) -> None:
    assert facts["hostname"] == "view"


def test_its_environment_is_closed(facts: Result) -> None:
    assert sorted(facts.all("env")) == sorted(f"{name}={value}" for name, value in VARIABLES.items())


def test_codex_gets_its_own_variables_besides(codex_session: Session) -> None:
    own = {"CODEX_HOME": "/.oac/home/codex", "DISABLE_TELEMETRY": "1"}
    expected = sorted(f"{name}={value}" for name, value in (VARIABLES | own).items())
    assert sorted(codex_session.run(["facts"]).all("env")) == expected


def test_no_variable_of_the_daemon_is_in_view_or_environment(bench: Bench) -> None:
    bench.mode.environment["PLANTED"] = "planted-in-the-daemon"
    try:
        with bench.daemon() as daemon:
            session = bench.open(daemon)
            seen = session.run(["facts"], ["cat", "/proc/self/environ"]).stdout
            seen += session.command(["facts"], ["cat", "/proc/self/environ"], ["cat", "/proc/1/environ"]).stdout
            planted = Path(f"/proc/{daemon.pid}/environ").read_bytes()  # the control
    finally:
        del bench.mode.environment["PLANTED"]
    assert b"PLANTED=planted-in-the-daemon" in planted
    assert "PLANTED" not in seen
    assert "CapEff" in seen


def test_it_sees_no_process_but_its_own(session: Session) -> None:
    names = session.run(["ls", "/proc"])["ls /proc"].split("/")
    own = [name for name in names if name.isdigit()]
    assert len(own) == 1
    assert own != ["1"]
    assert sorted(set(names) - set(own)) == ["self", "thread-self"]


@pytest.mark.parametrize("name", ["environ", "mem", "root", "cwd", "fd", "ns/mnt", "status", "maps"])
def test_the_first_process_is_closed(session: Session, name: str) -> None:
    result = session.run(["cat", f"/proc/1/{name}"], ["cat", "/proc/self/stat"])
    assert result[f"cat /proc/1/{name}"] == "!ENOENT"
    assert "(probe)" in result["cat /proc/self/stat"]


def test_no_signal_from_inside_ends_the_first_process(session: Session) -> None:
    result = session.run(
        ["try", "kill_init", "stop_init", "kill_init_pidfd"], ["exec", "/usr/bin/env", "echo", "alive"]
    )
    assert result.tried() == {"kill_init": "ok", "stop_init": "ok", "kill_init_pidfd": "ok"}
    assert result.stdout.endswith("alive\n")


def test_it_can_signal_its_own_processes(session: Session) -> None:
    assert session.run(["die", str(signal.SIGUSR1)]).status == 128 + signal.SIGUSR1


def test_two_sessions_do_not_share_a_uid(bench: Bench, daemon: Daemon, session: Session) -> None:
    other = bench.open(daemon)
    uids = {session.uid, other.uid}
    other.close()
    assert len(uids) == (2 if bench.mode.root else 1)

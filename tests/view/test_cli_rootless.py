"""`agenthost run` for a user without privileges: the same turn, the same summary. contracts/launch.md, L55."""

from __future__ import annotations

import re

from tests.conftest import MakeWorkspace
from tests.needs import needs
from tests.unprivileged import Unprivileged
from tests.view.rig import eventually

pytestmark = needs("linux", "user-namespaces")


def test_the_demo_runs_in_a_users_own_checkout(unprivileged: Unprivileged, make_workspace: MakeWorkspace) -> None:
    workspace = make_workspace("theirs")
    unprivileged.own(workspace)
    process = unprivileged.run(unprivileged.agenthost("run", "--scripted", "demo", "Show it"), cwd=workspace)
    text = process.stdout.decode()
    assert process.returncode == 0, process.stderr.decode()
    assert "finished, exit status 0" in text
    made = re.findall(r"\n  \+ (\S+) +added", text)
    assert made
    assert {(workspace / name).stat().st_uid for name in made} == {unprivileged.uid}


def test_without_user_namespaces_there_is_one_error_and_nothing_left(
    unprivileged: Unprivileged, make_workspace: MakeWorkspace
) -> None:
    workspace = make_workspace("theirs")
    unprivileged.own(workspace)
    command = unprivileged.agenthost("run", "--scripted", "demo", "Show it")
    # In a user namespace of its own, where a limit on them may be set: it touches nobody else.
    limit = 'echo 1 > /proc/sys/user/max_user_namespaces; exec unshare --user --map-user="$0" --map-group="$0" "$@"'
    limited = ["unshare", "--user", "--map-root-user", "/bin/sh", "-c", limit, str(unprivileged.uid)]
    process = unprivileged.run([*limited, *command], cwd=workspace)
    assert (process.returncode, process.stdout) == (125, b""), process.stderr.decode()
    assert re.fullmatch(r"agenthost: host: [^\n]+user namespaces[^\n]+\n", process.stderr.decode()), process.stderr


def test_another_process_of_the_user_reads_neither_environment_nor_memory(
    unprivileged: Unprivileged, make_workspace: MakeWorkspace
) -> None:
    workspace = make_workspace("theirs")
    unprivileged.own(workspace)
    script = workspace.parent / "slow.json"
    script.write_text('{"steps": [{"say": "first", "delay_ms": 60000}]}')
    script.chmod(0o644)
    command = unprivileged.agenthost(
        "launch", "--scripted", str(script), "--", "exec", "--skip-git-repo-check", "hello"
    )
    process = unprivileged.start(command, cwd=workspace, env={"CANARY": "for-this-process-alone"})
    try:
        events = unprivileged.home / ".local/state/agenthost/sessions"
        eventually(
            lambda: any("view.started" in path.read_text() for path in events.glob("*/events.jsonl")), "a live view"
        )
        look = f"! cat /proc/{process.pid}/environ && ! head -c 1 /proc/{process.pid}/mem && cat /proc/self/environ"
        looked = unprivileged.run(["/bin/sh", "-c", look])
        assert looked.returncode == 0, looked.stdout
        assert looked.stderr.count(b"Permission denied") == 2
    finally:
        process.terminate()
        process.communicate()

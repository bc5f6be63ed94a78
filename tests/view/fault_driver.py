"""A daemon whose builder runs under tests/view/faults.c: one Session and one launch for each line of stdin.

    {"process": P, "number": N, "errno": E}  ->  {"error": {...}} or {"status", "stdout"}; "calls", "failed", "left"

It imports nothing from the tests: an unprivileged user cannot read them where they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final

from agenthost.errors import AgentHostError
from agenthost.session import AgentHost, Harness, SessionRequest

PATIENCE_S: Final = 20.0


def descendants() -> set[int]:
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                state, parent = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found: set[int] = set()
    wave = {os.getpid()}
    while wave:
        wave = {pid for pid, parent in parents.items() if parent in wave} - found
        found |= wave
    return found


def reap_orphans() -> None:
    """This process may be the first one of its pid namespace, whose business that is."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


def held(state: Path) -> tuple[set[int], set[str], int, list[str]]:
    """Descendants, mounts, the number of descriptors, and what lies in the state directory."""
    names = [] if not state.exists() else sorted(str(path.relative_to(state)) for path in state.glob("attach/*"))
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return descendants(), mounts, len(list(Path("/proc/self/fd").iterdir())), names


async def one(state: Path, workspace: str, harness: Harness, actions: list[str]) -> dict[str, Any]:
    async with AgentHost(state) as host:
        request = SessionRequest(workspace=Path(workspace), harness=harness, session="faulty", grace_s=1.0)
        async with host.open(request) as session:
            process = await session.launch(actions)
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.close()
            stdout, stderr = await asyncio.gather(process.stdout.read(), process.stderr.read())
            return {
                "status": await process.wait(),
                "stdout": stdout.decode("latin-1"),
                "stderr": stderr.decode("latin-1"),
            }


async def tried(state: Path, workspace: str, harness: Harness, actions: list[str]) -> dict[str, Any]:
    try:
        return await asyncio.wait_for(one(state, workspace, harness, actions), PATIENCE_S)
    except AgentHostError as error:
        return {"error": {"type": type(error).__name__, "what": error.what, "remedy": error.remedy}}
    except TimeoutError:
        return {"error": {"type": "hang", "what": f"nothing within {PATIENCE_S:.0f} s", "remedy": ""}}
    except BaseException:  # noqa: BLE001 - told to the test, which fails by it
        return {"error": {"type": "defect", "what": traceback.format_exc(), "remedy": ""}}


def main(
    state_name: str, workspace: str, directory: str, binary: str, faults: str, scratch: str, *actions: str
) -> None:
    state, log, python = Path(state_name), Path(scratch, "calls"), Path(scratch, "python")
    interpreter = sys.executable
    held(state)
    for line in sys.stdin:
        fault = json.loads(line)
        log.write_bytes(b"")
        words = [faults, fault["process"], fault["number"], fault["errno"], log, interpreter]
        python.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
        python.chmod(0o755)
        sys.executable = str(python)
        before = held(state)
        answer = asyncio.run(tried(state, workspace, Harness(Path(directory), binary), list(actions)))
        deadline = time.monotonic() + PATIENCE_S
        while (after := held(state)) != before and time.monotonic() < deadline:
            time.sleep(0.005)
            reap_orphans()
        reap_orphans()
        answer["left"] = [] if after == before else [repr(before), repr(after)]
        lines = log.read_text().splitlines()
        answer["failed"] = [line for line in lines if line.startswith("failed ")]
        answer["calls"] = [] if fault["number"] else [line for line in lines if not line.startswith("failed ")]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

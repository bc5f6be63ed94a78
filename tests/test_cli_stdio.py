"""Descriptors, signals, start-up and the scripted model alone. contracts/launch.md, L13, L21, L22, L60."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

import pytest

from agenthost.cli.signals import FORWARDED

ROOT: Final = Path(__file__).resolve().parent.parent

RECEIVER: Final = """
import asyncio, signal, sys
from agenthost.cli.signals import Signals

class Receiver:
    def __init__(self):
        self.got = []
    def send_signal(self, sig):
        self.got.append(int(sig))
        print("got", int(sig), flush=True)

async def main(forward):
    with Signals() as signals:
        receiver = Receiver()
        try:
            print("starting", flush=True)
            if not forward:
                await asyncio.sleep(60)
            with signals.forwarded_to(receiver):
                print("forwarding", flush=True)
                while len(receiver.got) < 2:
                    await asyncio.sleep(0.01)
            print("ended", flush=True)
            await asyncio.sleep(0.2)
            return 0
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            print("cleaned up", flush=True)
            return 128 + signals.ended_by

sys.exit(asyncio.run(main(sys.argv[1] == "forward")))
"""


def start(*command: str, cwd: Path) -> subprocess.Popen[str]:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(cwd)}
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


@pytest.mark.parametrize("number", FORWARDED, ids=lambda number: number.name)
def test_a_signal_reaches_the_harness_once_each_time(number: signal.Signals, tmp_path: Path) -> None:
    with start(sys.executable, "-c", RECEIVER, "forward", cwd=tmp_path) as process:
        assert [said(process), said(process)] == ["starting", "forwarding"]
        for _ in range(2):
            process.send_signal(number)
            assert said(process) == f"got {number.value}"
        assert said(process) == "ended"
        process.send_signal(number)  # during the end, which is bounded by itself
        assert process.wait(30) == 0


@pytest.mark.parametrize("number", FORWARDED, ids=lambda number: number.name)
def test_before_the_harness_the_first_signal_ends_the_start_up_and_the_second_does_not_disturb_the_clean_up(
    number: signal.Signals, tmp_path: Path
) -> None:
    with start(sys.executable, "-c", RECEIVER, "wait", cwd=tmp_path) as process:
        assert said(process) == "starting"
        process.send_signal(number)
        process.send_signal(number)
        assert said(process) == "cleaned up"
        assert process.wait(30) == 128 + number.value


def test_a_signal_ignored_at_the_start_stays_ignored(tmp_path: Path) -> None:
    shell = ["/bin/sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", sys.executable, "-c", RECEIVER, "forward"]
    with start(*shell, cwd=tmp_path) as process:
        assert [said(process), said(process)] == ["starting", "forwarding"]
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            process.send_signal(number)
        assert [said(process), said(process)] in (["got 15", "got 3"], ["got 3", "got 15"])
        assert said(process) == "ended"
        assert process.wait(30) == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_descriptor_is_dev_null_and_no_later_file_takes_its_place(closed: str, tmp_path: Path) -> None:
    code = (
        "import os; from agenthost.cli.stdio import complete_descriptors; complete_descriptors(); "
        "fd = os.open('log', os.O_CREAT | os.O_WRONLY); "
        "os.write(fd, ' '.join(os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2) if n != fd).encode())"
    )
    shell = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code]
    environment = {"PYTHONPATH": str(ROOT)}
    subprocess.run(shell, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, capture_output=True, check=True)
    targets = (tmp_path / "log").read_text().split()
    assert len(targets) == 3
    assert targets.count(os.devnull) == closed.count("&-")
    assert str(tmp_path / "log") not in targets


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import agenthost.cli.main", {"asyncio", "agenthost.session", "agenthost.gateway"}),
        ("import agenthost.cli.main, agenthost.cli.launch", {"aiohttp", "rich", "tomlkit", "elftools"}),
        ("import agenthost.cli.codex", {"aiohttp", "rich", "tomlkit", "elftools"}),
        ("import agenthost.cli.run", {"aiohttp", "rich", "tomlkit", "elftools"}),
        ("import agenthost.cli.declare", {"aiohttp", "rich", "asyncio"}),
    ],
)
def test_a_command_loads_only_what_it_needs(statement: str, absent: set[str]) -> None:
    code = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    environment = {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert absent & set(process.stdout.split()) == set()


def test_the_scripted_model_alone_serves_whoever_holds_its_key_and_ends_with_0(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text(json.dumps({"steps": [{"say": "hello"}]}))
    with start(sys.executable, "-m", "agenthost", "scripted-model", "script.json", cwd=tmp_path) as process:
        url, key = said(process), said(process)
        body = json.dumps({"model": "m", "input": [], "stream": True}).encode()
        request = urllib.request.Request(f"{url}/responses", body, {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        assert refused.value.code == 401
        refused.value.close()
        request.add_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert b"hello" in answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_port_in_use_is_one_error(tmp_path: Path) -> None:
    with start(sys.executable, "-m", "agenthost", "scripted-model", "demo", cwd=tmp_path) as first:
        port = said(first).rpartition(":")[2].partition("/")[0]
        with start(sys.executable, "-m", "agenthost", "scripted-model", "demo", "--port", port, cwd=tmp_path) as second:
            assert second.wait(30) == 125
            assert second.stderr is not None
            assert second.stderr.read().startswith("agenthost: request: ")
        first.terminate()
        assert first.wait(30) == 0

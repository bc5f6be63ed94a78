"""Things that go well once, done until what they leave behind would show.

Sizes: SOAK_KILLS (500), SOAK_VIEWS (200), SOAK_MINUTES (3); for each mode, root and rootless. Every daemon that is
killed here is a child of this process, started by it and not waited for yet, so its pid is nobody else's.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.leaks import Held, left_in_state
from tests.needs import needs
from tests.soak.conftest import Size
from tests.soak.machine import Machine, Weight, left_over, namespaces_below
from tests.view.rig import Bench, Daemon, Refused, Session, eventually

pytestmark = [pytest.mark.timeout(0), needs("linux")]

Figures = Callable[..., None]

SESSIONS: Final = 5
"""Sessions that the killed daemons take turns at: each finds what another one left of it."""

FILES_OF_A_SESSION: Final = 40
"""Descriptors that a daemon needs for a Session with a live view, at the very most."""

RSS_GROWTH_KIB: Final = 8 * 1024
DESCRIPTOR_GROWTH: Final = 0


def end_by_kill(daemon: Daemon) -> None:
    """SIGKILL to the daemon alone. It is our child and was not waited for, so the pid cannot have passed on."""
    assert os.getpgid(daemon.pid) == os.getpgid(0)
    daemon.kill()


def one_killed(bench: Bench, state: Path, workspace: Path, name: str, moment_s: float) -> None:
    daemon = Daemon(bench.mode, state)
    try:
        deadline = time.monotonic() + moment_s
        opening = daemon.begin(
            "open",
            request={"workspace": str(workspace), "session": name, "harness": bench.harness()},
            as_codex=None,
        )
        if random.random() < 0.5:
            # Half of them come to a launch, if the moment is late enough.
            with suppress(Refused):
                session = Session(daemon, daemon.finish(opening)["session"], workspace)
                session.start(["exec", "/bin/bash", "-c", "sleep 1000 & sleep 1000"], stdin="")
        time.sleep(max(0.0, deadline - time.monotonic()))
    finally:
        end_by_kill(daemon)


def test_daemons_that_are_killed_at_any_moment_leave_nothing(bench: Bench, size: Size, figures: Figures) -> None:
    state, workspace = bench.state(), bench.workspace()
    before, held = Machine.now(), Held.now()
    started = time.monotonic()
    with bench.daemon(state) as daemon:
        bench.open(daemon, workspace, session="soak-0").run(["say", "hello"])
    span = (time.monotonic() - started) * 1.5
    began = time.monotonic()
    for number in range(size.kills):
        one_killed(bench, state, workspace, f"soak-{number % SESSIONS}", random.uniform(0, span))
        if number % 25 == 24:
            assert left_over(held) == []
    seconds = time.monotonic() - began
    assert left_over(held) == []
    with bench.daemon(state) as daemon:
        for number in range(SESSIONS):
            session = bench.open(daemon, workspace, session=f"soak-{number}")
            assert session.run(["say", "hello"]).status == 0
            session.close()
    assert left_in_state(state) == []
    assert [path.name for path in workspace.iterdir()] == ["probe"]
    assert left_over(held) == []
    figures(
        f"killed daemons, {bench.mode.name}",
        kills=size.kills,
        seconds=round(seconds, 1),
        moment=f"0 to {span:.2f} s",
        left=0,
        **Machine.now().since(before),
    )


def test_many_views_at_once_live_and_leave_nothing(bench: Bench, size: Size, figures: Figures) -> None:
    files = size.views * FILES_OF_A_SESSION
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < files:
        pytest.skip(f"this user may not open {files} files: set SOAK_VIEWS lower")
    before, held = Machine.now(), Held.now()
    workspace = bench.workspace()
    with bench.daemon(before=["prlimit", f"--nofile={files}:{files}"]) as daemon:
        warm = bench.open(daemon, workspace)
        warm.run(["say", "hello"])
        warm.close()
        idle = Weight.of(daemon.pid)
        times, sessions, running = [], [], []
        for _ in range(size.views):
            began = time.monotonic()
            session = bench.open(daemon, workspace)
            sessions.append(session)
            running.append(session.start(["say", "ready"], ["wait"]))
            times.append(time.monotonic() - began)
        for live in running:
            live.until("ready")
        full, loaded = Weight.of(daemon.pid), Machine.now()
        namespaces = len(namespaces_below(daemon.pid))
        assert len(daemon.inits()) == 2 * size.views
        if bench.mode.root:
            assert len({session.uid for session in sessions}) == size.views
        began = time.monotonic()
        stops = [daemon.begin("stop", process=live.number) for live in running]
        for stop in stops:
            daemon.finish(stop)
        stopped = time.monotonic() - began
        for live in running:
            live.wait()
        for session in sessions:
            session.close()
        eventually(lambda: Weight.of(daemon.pid).children == idle.children, "children are left")
        assert Weight.of(daemon.pid).descriptors <= idle.descriptors + DESCRIPTOR_GROWTH
        assert [path.name for path in (daemon.state / "attach").iterdir()] == []
        after = Weight.of(daemon.pid)
    assert left_over(held) == []
    figures(
        f"views at once, {bench.mode.name}",
        views=size.views,
        median_open_and_launch=f"{statistics.median(times) * 1000:.1f} ms",
        last=f"{times[-1] * 1000:.1f} ms",
        all_stopped_in=f"{stopped:.2f} s",
        namespaces_at_once=namespaces,
        daemon_rss=f"{idle.rss_kib} -> {full.rss_kib} -> {after.rss_kib} KiB",
        daemon_descriptors=f"{idle.descriptors} -> {full.descriptors} -> {after.descriptors}",
        slab_per_view=f"{(loaded.slab_kib - before.slab_kib) // size.views} KiB",
        **Machine.now().since(before),
    )


def one_launch(bench: Bench, daemon: Daemon, workspace: Path, number: int) -> None:
    """In turns: an exit status, a command, a stop, a signal, a Session that is closed with its view alive."""
    session = bench.open(daemon, workspace)
    match number % 5:
        case 0:
            assert session.run(["exit", "7"]).status == 7
        case 1:
            assert session.shell("echo hello; exit 3").stdout == "hello\n"
        case 2:
            running = session.start(["say", "ready"], ["wait"])
            running.until("ready")
            running.stop()
            running.wait()
        case 3:
            running = session.start(["say", "ready"], ["wait"])
            running.until("ready")
            running.signal(9)
            assert running.wait().status == 137
        case _:
            running = session.start(["say", "ready"], ["wait"])
            running.until("ready")
            session.close()
            running.wait()
            return
    session.close()


def test_launches_one_after_another_weigh_nothing(bench: Bench, size: Size, figures: Figures) -> None:
    before, held = Machine.now(), Held.now()
    workspace = bench.workspace()
    with bench.daemon() as daemon:
        for number in range(50):
            one_launch(bench, daemon, workspace, number)
        eventually(lambda: Weight.of(daemon.pid).children == 1, "more than the builder is left")
        first, builder = Weight.of(daemon.pid), Weight.of(daemon.builder())
        launches, began = 0, time.monotonic()
        while time.monotonic() - began < size.minutes * 60:
            one_launch(bench, daemon, workspace, launches)
            launches += 1
        seconds = time.monotonic() - began
        eventually(lambda: Weight.of(daemon.pid).children == 1, "more than the builder is left")
        last, last_builder = Weight.of(daemon.pid), Weight.of(daemon.builder())
        figures(
            f"launches, {bench.mode.name}",
            launches=launches,
            minutes=f"{seconds / 60:.2f}",
            each=f"{seconds / launches * 1000:.1f} ms",
            daemon_rss=f"{first.rss_kib} -> {last.rss_kib} KiB",
            builder_rss=f"{builder.rss_kib} -> {last_builder.rss_kib} KiB",
            daemon_descriptors=f"{first.descriptors} -> {last.descriptors}",
            builder_descriptors=f"{builder.descriptors} -> {last_builder.descriptors}",
            **Machine.now().since(before),
        )
        assert last.descriptors <= first.descriptors + DESCRIPTOR_GROWTH
        assert last_builder.descriptors <= builder.descriptors + DESCRIPTOR_GROWTH
        assert last.rss_kib <= first.rss_kib + RSS_GROWTH_KIB
        assert last_builder.rss_kib <= builder.rss_kib + RSS_GROWTH_KIB
        assert [path.name for path in (daemon.state / "attach").iterdir()] == []
    assert [path.name for path in workspace.iterdir()] == ["probe"]
    assert left_over(held) == []

"""The builder: trees of a few mounts, and what is left when a step of one fails."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from agenthost.errors import HostUnfit, LaunchFailed
from agenthost.launcher.builder import Start
from agenthost.launcher.client import Init, Launcher
from agenthost.launcher.mounts import Bind, Content, Directory, Identity, MountStep, Overlay, Private
from agenthost.launcher.wire import (
    BuildRequest,
    ForgetRequest,
    check_reply,
    parse_request,
    reply_failure,
    reply_ok,
)
from agenthost.layout import SHIM_SOCKET, ViewPath
from agenthost.programs import static_program
from agenthost.wire import SetupFlag
from tests.launcher_rig import WORLD, in_world, launching, output, setup, shell
from tests.needs import needs

pytestmark = [needs("root"), pytest.mark.usefixtures("no_leaks")]


class TestTrees:
    def test_private_mounts_are_shared_within_a_session_until_it_is_forgotten(self) -> None:
        async def test(launcher: Launcher, init: Init) -> None:
            await output(init, shell("echo kept >/tmp/file"))
            for session, found in (("one", "kept\n"), ("two", "absent\n")):
                other = await launcher.build(session, WORLD, setup())
                assert (await output(other, shell("cat /tmp/file 2>/dev/null || echo absent")))[0] == found
                await other.aclose()
            await launcher.forget("one")
            again = await launcher.build("one", WORLD, setup())
            assert (await output(again, shell("cat /tmp/file 2>/dev/null || echo absent")))[0] == "absent\n"
            assert (await output(init, shell("cat /tmp/file")))[0] == "kept\n"  # a tree that lives keeps its own
            await again.aclose()

        in_world(test)

    def test_content_is_what_was_given(self) -> None:
        etc = Content(
            "etc",
            ViewPath("/etc"),
            {"a/b": b"text", "c": b""},
            {"link": "a/b"},
            ("empty", "deep/er"),
        )

        async def test(_: Launcher, init: Init) -> None:
            said, _end = await output(
                init, shell("cd /etc; cat a/b; echo; find . | sort; readlink link; touch c 2>&1 || echo $?")
            )
            lines = said.splitlines()
            assert lines[0] == "text"
            assert lines[1:9] == [".", "./a", "./a/b", "./c", "./deep", "./deep/er", "./empty", "./link"]
            assert (lines[9], lines[-1]) == ("a/b", "1")

        in_world(test, (*WORLD, etc))

    def test_an_opaque_directory_hides_what_lies_below_whatever_happens_there(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        (tmp_path / "codex").mkdir()
        (tmp_path / "codex" / "planted").write_text("x")
        (tmp_path / "shown").write_text("shown")
        (tmp_path / "secret").write_text("secret")
        below = Bind(str(tmp_path), ViewPath("/etc"))
        overlay = Overlay("m", ViewPath("/etc"), below, {"codex": {"ours": b"ours"}}, {"secret": b""})

        async def test(_: Launcher, init: Init) -> None:
            look = "ls /etc/codex; cat /etc/codex/ours /etc/shown /etc/secret"
            assert (await output(init, shell(look)))[0] == "ours\noursshown"
            (tmp_path / "codex").rename(tmp_path / "away")
            (tmp_path / "codex").mkdir()
            (tmp_path / "codex" / "config.toml").write_text("x")
            (tmp_path / "secret").unlink()
            (tmp_path / "secret").write_text("again")
            assert (await output(init, shell(look)))[0] == "ours\noursshown"

        in_world(test, (*WORLD, overlay))

    @pytest.mark.parametrize(
        ("step", "says"),
        [
            (Bind("/no/such/source", ViewPath("/x")), "bind /no/such/source (ro,noexec) at /x: "),
            (Bind("/usr", ViewPath("/x"), identity=Identity(1, 1)), "another file has taken its place"),
            (Bind("/proc/self/exe", ViewPath("/x")), "bind /proc/self/exe (ro,noexec) at /x: "),
            (Directory(ViewPath("/usr/no-such-directory")), "directory at /usr/no-such-directory: "),
            (Overlay("o", ViewPath("/x"), Bind("/no/such", ViewPath("/x"))), "overlay masking"),
            (Private("p", ViewPath("/usr/no-such-directory")), "/usr/no-such-directory: No such file or directory"),
            (Bind("/etc/passwd", ViewPath("/usr/bin")), "/usr/bin: Invalid argument"),
            (Bind("/etc", ViewPath("/usr/bin/env")), "/usr/bin/env: Invalid argument"),
        ],
    )
    def test_a_step_that_fails_is_named_and_nothing_is_left(self, step: MountStep, says: str) -> None:
        async def main() -> None:
            async with launching() as launcher:
                children = set(psutil.Process().children(recursive=True))
                for _ in range(3):
                    with pytest.raises(LaunchFailed) as failed:
                        await launcher.build("one", [*WORLD, step], setup())
                    assert says in failed.value.what
                good = await launcher.build("one", WORLD, setup())
                assert (await output(good, shell("echo well")))[0] == "well\n"
                await good.aclose()
                await _settle(lambda: set(psutil.Process().children(recursive=True)) <= children)

        asyncio.run(main())

    def test_a_link_on_the_way_to_a_source_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("/etc")

        async def main() -> None:
            async with launching() as launcher:
                for source in ("link", "link/ssl"):
                    with pytest.raises(LaunchFailed, match="Too many levels of symbolic links"):
                        await launcher.build("one", [Bind(str(tmp_path / source), ViewPath("/x"))], setup())

        asyncio.run(main())

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"seccomp": b""}, "install the seccomp filter: Invalid argument"),
            ({"seccomp": b"\xff" * 16}, "install the seccomp filter: Invalid argument"),
            ({"ports": tuple(range(20000, 20065))}, "open more listeners than there is room for: "),
            ({"ports": (20000, 20000)}, "open a listener of the gateway: Address already in use"),
            ({"hostname": b"x" * 100}, "set the host name: Invalid argument"),
            ({"flags": SetupFlag.LANDLOCK, "executables": (b"/no/such",)}, "/no/such: No such file or directory"),
        ],
    )
    def test_a_step_of_init_that_fails_is_named_and_nothing_is_left(
        self, changes: dict[str, object], says: str
    ) -> None:
        async def main() -> None:
            async with launching() as launcher:
                children = set(psutil.Process().children(recursive=True))
                with pytest.raises(LaunchFailed, match=re.escape(says)):
                    await launcher.build("one", WORLD, replace(setup(), **changes))  # type: ignore[arg-type]
                await _settle(lambda: set(psutil.Process().children(recursive=True)) <= children)

        asyncio.run(main())

    def test_listeners_are_made_inside_and_handed_out(self) -> None:
        async def main() -> None:
            async with launching() as launcher:
                init = await launcher.build("one", WORLD, setup(ports=(20001, 20002)), shim_socket=SHIM_SOCKET)
                assert [listener.getsockname() for listener in init.listeners] == [
                    ("127.0.0.1", 20001),
                    ("127.0.0.1", 20002),
                ]
                assert init.shim_listener is not None
                connect = (
                    "bash -c 'exec 3<>/dev/tcp/127.0.0.1/20001 && echo hello >&3 && read -r line <&3 && echo $line'"
                )
                init.listeners[0].setblocking(False)
                answering = asyncio.create_task(_answer(init))
                assert (await output(init, shell(connect)))[0] == "answer\n"
                assert await answering == b"hello\n"
                await init.aclose()

        asyncio.run(main())


async def _answer(init: Init) -> bytes:
    loop = asyncio.get_running_loop()
    connection, _ = await loop.sock_accept(init.listeners[0])
    with connection:
        asked = await loop.sock_recv(connection, 100)
        await loop.sock_sendall(connection, b"answer\n")
    return asked


async def _settle(check: Callable[[], bool]) -> None:
    for _ in range(500):
        if check():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("something is left")


class TestBuilder:
    def test_its_mounts_are_nobody_elses(self) -> None:
        async def main() -> None:
            before = Path("/proc/self/mountinfo").read_text()
            async with launching() as launcher:
                init = await launcher.build("one", WORLD, setup())
                assert Path("/proc/self/mountinfo").read_text() == before
                await init.aclose()

        asyncio.run(main())

    def test_it_says_why_it_cannot_start(self) -> None:
        async def main() -> None:
            with pytest.raises(HostUnfit, match="No such file or directory"):
                await Launcher.start(init=static_program("oac-init"), attach=Path("/no/such"), rootless=False)

        asyncio.run(main())

    def test_when_it_has_ended_trees_live_on_and_new_ones_are_refused(self) -> None:
        async def test(launcher: Launcher, init: Init) -> None:
            [builder] = [
                process for process in psutil.Process().children() if "launcher.builder" in " ".join(process.cmdline())
            ]
            builder.kill()
            for _ in range(2):
                with pytest.raises(LaunchFailed, match="the builder has ended"):
                    await launcher.build("one", WORLD, setup())
            assert (await output(init, shell("echo alive")))[0] == "alive\n"
            await launcher.forget("one")

        in_world(test)

    def test_a_caller_that_gives_up_does_not_get_the_next_one_its_answer(self) -> None:
        """Requests are answered in order: one that nobody waits for any more must not shift the others."""

        async def test(launcher: Launcher, _: Init) -> None:
            for delay in (0.0, 0.0002, 0.001, 0.003, 0.01):
                given_up = asyncio.create_task(launcher.build("one", WORLD, setup(), shim_socket=SHIM_SOCKET))
                await asyncio.sleep(delay)
                given_up.cancel()
                for result in await asyncio.gather(given_up, return_exceptions=True):
                    if isinstance(result, Init):
                        await result.aclose()
                init = await launcher.build("one", WORLD, setup())
                assert init.shim_listener is None
                assert (await output(init, shell("echo mine")))[0] == "mine\n"
                await init.aclose()

        in_world(test)

    def test_twenty_trees_at_once(self) -> None:
        async def test(launcher: Launcher, _: Init) -> None:
            inits = await asyncio.gather(*(launcher.build(f"s{n}", WORLD, setup()) for n in range(20)))
            said = await asyncio.gather(*(output(init, shell("echo $$")) for init in inits))
            assert [text for text, _ in said] == ["2\n"] * 20
            await asyncio.gather(*(init.aclose() for init in inits))

        in_world(test)


class TestWire:
    def test_requests_survive_it(self) -> None:
        build = BuildRequest("one", WORLD, setup(), SHIM_SOCKET)
        assert parse_request(build.body()) == build
        assert parse_request(replace(build, shim_socket=None).body()) == replace(build, shim_socket=None)
        assert parse_request(ForgetRequest("one").body()) == ForgetRequest("one")

    def test_what_is_no_request_is_an_error(self) -> None:
        for body in (b"{}", b"[]", b'{"do": "else"}', b'{"do": "forget"}', b"null"):
            with pytest.raises(ValueError):
                parse_request(body)

    def test_replies(self) -> None:
        check_reply(reply_ok())
        with pytest.raises(LaunchFailed) as caught:
            check_reply(reply_failure("step", "reason", "remedy"))
        assert (caught.value.what, caught.value.remedy) == ("step: reason", "remedy")

    def test_start_survives_it(self) -> None:
        start = Start(init="/a b/oac-init", attach=os.fsdecode(b"/\xff"), rootless=True)
        assert Start.parse(start.body()) == start

    def test_a_failed_launch_says_the_kernels_word(self) -> None:
        assert LaunchFailed.at("step", errno.EPERM, "do").what == "step: Operation not permitted"

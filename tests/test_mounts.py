"""Mount steps as values: they survive the wire, and each can be read by a person."""

from __future__ import annotations

import json
import os

from hypothesis import given
from hypothesis import strategies as st

from agenthost.launcher.mounts import (
    Bind,
    Content,
    Devices,
    Directory,
    Identity,
    IdMap,
    Link,
    MountStep,
    Overlay,
    Private,
    dump,
    load,
    table,
    to_json,
)
from agenthost.layout import ViewPath

names = st.binary(min_size=1, max_size=20).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"n")))
"""Whatever a file can be called."""

targets = names.map(lambda name: ViewPath(f"/{name}"))
sources = names.map(lambda name: f"/{name}")
numbers = st.integers(0, (1 << 32) - 2)
identities = st.builds(Identity, device=st.integers(0, 1 << 63), inode=st.integers(0, 1 << 63))
files = st.dictionaries(names, st.binary(max_size=50), max_size=3)

binds = st.builds(
    Bind,
    source=sources,
    target=targets,
    readonly=st.booleans(),
    executable=st.booleans(),
    identity=st.none() | identities,
    idmap=st.none() | st.builds(IdMap, disk_uid=numbers, disk_gid=numbers, uid=numbers, gid=numbers),
)
contents = st.builds(
    Content,
    name=names,
    target=targets,
    files=files,
    links=st.dictionaries(names, names, max_size=3),
    directories=st.lists(names, max_size=3).map(tuple),
)
steps = st.one_of(
    binds,
    contents,
    st.builds(Private, name=names, target=targets, executable=st.booleans(), mode=st.integers(0, 0o7777)),
    st.builds(
        Overlay,
        name=names,
        target=targets,
        below=binds | contents,
        opaque=st.dictionaries(names, files, max_size=2),
        files=files,
    ),
    st.builds(Devices, target=targets, executable=st.booleans(), shm_size=numbers),
    st.builds(Link, target=targets, text=names),
    st.builds(Directory, target=targets),
)


@given(st.lists(steps, max_size=6).map(tuple))
def test_what_was_dumped_is_loaded(given_steps: tuple[MountStep, ...]) -> None:
    assert load(dump(given_steps)) == given_steps


@given(st.lists(steps, max_size=6).map(tuple))
def test_it_survives_the_wire_whatever_the_names_are(given_steps: tuple[MountStep, ...]) -> None:
    wire = to_json(dump(given_steps))
    assert wire.isascii()
    assert load(json.loads(wire)) == given_steps


@given(st.lists(steps, max_size=6))
def test_the_table_has_a_line_for_each_in_order(given_steps: list[MountStep]) -> None:
    lines = table(given_steps)
    assert [target for target, _ in lines] == [step.target for step in given_steps]
    assert all(description for _, description in lines)


def test_a_description_says_what_can_be_done_there() -> None:
    described = table(
        [
            Bind("/usr", ViewPath("/usr")),
            Bind("/srv/w", ViewPath("/srv/w"), readonly=False),
            Bind("/opt/codex", ViewPath("/.oac/codex"), executable=True),
            Private("tmp", ViewPath("/tmp"), size=1 << 20),
            Content("etc", ViewPath("/etc"), files={"passwd": b"", "group": b""}),
            Overlay("m", ViewPath("/etc"), Bind("/etc", ViewPath("/etc")), {"codex": {}}, {"secret": b""}),
            Devices(),
            Link(ViewPath("/bin"), "usr/bin"),
            Directory(ViewPath("/run")),
        ]
    )
    assert described == [
        ("/usr", "bind /usr (ro,noexec)"),
        ("/srv/w", "bind /srv/w (rw,noexec)"),
        ("/.oac/codex", "bind /opt/codex (ro)"),
        ("/tmp", "private tmp (rw,noexec, 1 MiB)"),
        ("/etc", "content etc (ro,noexec, 2 files)"),
        ("/etc", "overlay masking codex, secret (ro,noexec) of bind /etc (ro,noexec)"),
        ("/dev", "devices"),
        ("/bin", "link to usr/bin"),
        ("/run", "directory"),
    ]


def test_a_bind_is_read_only_and_not_executable_unless_said() -> None:
    step = Bind("/a", ViewPath("/a"))
    assert (step.readonly, step.executable, Private("x", ViewPath("/x")).executable) == (True, False, False)

"""`is_static_elf` and its reasons, on programs built by the real compiler and on what a hostile hand makes of them."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

from agenthost.elf import MAX_DYNAMIC, MAX_READ, is_static_elf, why_not_static
from tests.needs import needs

pytestmark = needs("linux", "gcc")

PROGRAM = "int main(void) { return 0; }\n"

E_TYPE, E_MACHINE, E_ENTRY, E_PHOFF, E_PHENTSIZE, E_PHNUM = 16, 18, 24, 32, 54, 56
P_TYPE, P_OFFSET, P_FILESZ = 0, 8, 32
PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3


class Builder:
    """Builds programs, and files from the bytes of programs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "program.c").write_text(PROGRAM)

    def compile(self, name: str, *flags: str) -> Path:
        path = self.directory / name
        command = ["gcc", "-o", str(path), *flags, str(self.directory / "program.c")]
        subprocess.run(command, check=True, capture_output=True)
        return path

    def file(self, name: str, data: bytes, mode: int = 0o755) -> Path:
        path = self.directory / name
        path.write_bytes(data)
        path.chmod(mode)
        return path

    def patched(self, source: Path, name: str, *patches: tuple[int, str, int]) -> Path:
        data = bytearray(source.read_bytes())
        for offset, form, value in patches:
            struct.pack_into(form, data, offset, value)
        return self.file(name, bytes(data))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("elf"))


@pytest.fixture(scope="module")
def static(build: Builder) -> Path:
    return build.compile("static", "-static", "-no-pie")


@pytest.fixture(scope="module")
def static_pie(build: Builder) -> Path:
    return build.compile("static-pie", "-static-pie", "-fPIE")


@pytest.fixture(scope="module")
def dynamic(build: Builder) -> Path:
    return build.compile("dynamic", "-pie", "-fPIE")


def header_of(path: Path, kind: int) -> int:
    """Where in the file the first program header of this kind lies."""
    data = path.read_bytes()
    offset, count = struct.unpack_from("<Q", data, E_PHOFF)[0], struct.unpack_from("<H", data, E_PHNUM)[0]
    found = [offset + 56 * i for i in range(count) if struct.unpack_from("<I", data, offset + 56 * i)[0] == kind]
    return int(found[0])


def test_a_static_program_is_static(static: Path) -> None:
    assert why_not_static(static) is None
    assert is_static_elf(str(static))


def test_a_static_pie_is_static(static_pie: Path) -> None:
    assert why_not_static(static_pie) is None


@needs("musl")
def test_what_musl_links_statically_is_static(build: Builder) -> None:
    path = build.directory / "musl"
    subprocess.run(["musl-gcc", "-o", str(path), "-static", str(build.directory / "program.c")], check=True)
    assert why_not_static(path) is None


def test_a_link_to_a_static_program_is_static(build: Builder, static: Path) -> None:
    link = build.directory / "link"
    link.symlink_to(static)
    assert is_static_elf(link)


def test_a_stripped_program_without_section_headers_is_static(build: Builder, static: Path) -> None:
    assert is_static_elf(build.patched(static, "no-sections", (40, "<Q", 0), (60, "<I", 0)))


def test_a_dynamic_program_names_its_interpreter(dynamic: Path) -> None:
    assert why_not_static(dynamic) == "is dynamic: it asks for an interpreter (PT_INTERP)"


def test_needed_libraries_alone_make_a_program_dynamic(build: Builder, dynamic: Path) -> None:
    path = build.patched(dynamic, "no-interp", (header_of(dynamic, PT_INTERP), "<I", 0))
    assert why_not_static(path) == "is dynamic: it needs shared libraries (DT_NEEDED)"


def test_an_interpreter_alone_makes_a_program_dynamic(build: Builder, dynamic: Path) -> None:
    path = build.patched(dynamic, "no-dynamic", (header_of(dynamic, PT_DYNAMIC), "<I", 0))
    assert why_not_static(path) == "is dynamic: it asks for an interpreter (PT_INTERP)"


def test_a_shared_library_without_dependencies_is_no_program(build: Builder) -> None:
    library = build.compile("library.so", "-shared", "-nostdlib", "-fPIC")
    library.chmod(0o755)
    assert why_not_static(library) == "is an ELF file that is not a program (no entry point)"


def test_an_object_file_is_no_program(build: Builder) -> None:
    path = build.compile("object.o", "-c")
    path.chmod(0o755)
    assert why_not_static(path) == "is an ELF file that is not a program"


@pytest.mark.parametrize(
    ("name", "patch", "reason"),
    [
        ("32-bit", (4, "<B", 1), "is not a 64-bit ELF file"),
        ("no-class", (4, "<B", 0), "is not a 64-bit ELF file"),
        ("big-endian", (5, "<B", 2), "is not a little-endian ELF file"),
        ("core", (E_TYPE, "<H", 4), "is an ELF file that is not a program"),
        ("strange-type", (E_TYPE, "<H", 0xBEEF), "is an ELF file that is not a program"),
        ("no-entry", (E_ENTRY, "<Q", 0), "is an ELF file that is not a program (no entry point)"),
        ("no-headers", (E_PHNUM, "<H", 0), "is a corrupt ELF file (program header table)"),
        ("many-headers", (E_PHNUM, "<H", 0xFFFF), "is a corrupt ELF file (program header table)"),
        ("wide-headers", (E_PHENTSIZE, "<H", 57), "is a corrupt ELF file (program header table)"),
        ("far-headers", (E_PHOFF, "<Q", 2**64 - 1), "is truncated: its program header table lies outside the file"),
    ],
)
def test_a_wrong_header_is_refused_with_its_reason(
    build: Builder, static: Path, name: str, patch: tuple[int, str, int], reason: str
) -> None:
    assert why_not_static(build.patched(static, name, patch)) == reason


@pytest.mark.parametrize("machine", [3, 8, 40, 183, 243, 0xFFFF])
def test_a_foreign_architecture_is_refused(build: Builder, static: Path, machine: int) -> None:
    own = struct.unpack_from("<H", static.read_bytes(), E_MACHINE)[0]
    reason = why_not_static(build.patched(static, f"machine-{machine}", (E_MACHINE, "<H", machine)))
    assert (reason is None) if machine == own else ("another architecture" in str(reason))


def test_nothing_to_load_is_refused(build: Builder, static: Path) -> None:
    data = bytearray(static.read_bytes())
    offset, count = struct.unpack_from("<Q", data, E_PHOFF)[0], struct.unpack_from("<H", data, E_PHNUM)[0]
    for i in range(count):
        struct.pack_into("<I", data, offset + 56 * i, 0)
    assert why_not_static(build.file("no-load", bytes(data))) == "has nothing to load (no PT_LOAD)"


@pytest.mark.parametrize(
    ("name", "field", "value", "reason"),
    [
        ("far", P_OFFSET, 2**64 - 8, "is truncated: its dynamic section lies outside the file"),
        ("beyond", P_OFFSET, 2**62, "is truncated: its dynamic section lies outside the file"),
        ("large", P_FILESZ, MAX_DYNAMIC + 1, "has a dynamic section too large to look through"),
        ("enormous", P_FILESZ, 2**64 - 1, "has a dynamic section too large to look through"),
        ("none", P_FILESZ, 0, "is a corrupt ELF file (dynamic section without an end)"),
        ("cut", P_FILESZ, 16, "is a corrupt ELF file (dynamic section without an end)"),
    ],
)
def test_a_hostile_dynamic_section_is_refused(
    build: Builder, static_pie: Path, name: str, field: int, value: int, reason: str
) -> None:
    at = header_of(static_pie, PT_DYNAMIC) + field
    assert why_not_static(build.patched(static_pie, f"dynamic-{name}", (at, "<Q", value))) == reason


def test_a_second_dynamic_section_cannot_hide_the_first(build: Builder, dynamic: Path) -> None:
    spare = header_of(dynamic, PT_INTERP)  # comes before PT_DYNAMIC: turned into an empty dynamic section
    data = bytearray(dynamic.read_bytes())
    struct.pack_into("<IIQQQQQQ", data, spare, PT_DYNAMIC, 4, len(data), 0, 0, 16, 16, 8)
    data += bytes(16)  # DT_NULL
    assert why_not_static(build.file("two-dynamic", bytes(data))) == "is a corrupt ELF file (several dynamic sections)"


def test_every_truncation_of_the_headers_is_refused(build: Builder, static: Path) -> None:
    data = static.read_bytes()
    end = struct.unpack_from("<Q", data, E_PHOFF)[0] + 56 * struct.unpack_from("<H", data, E_PHNUM)[0]
    for size in [*range(70), *range(70, end, 37), end - 1]:
        reason = str(why_not_static(build.file("cut", data[:size])))
        assert reason.startswith(("is empty", "is not an ELF", "is truncated")), size


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"#!/bin/sh\nexit 0\n", "is a script"),
        (b"MZ" + bytes(100), "is not an ELF file"),
        (b"\x7fELF", "is truncated: it is shorter than an ELF header"),
        (b"\x7fELF\x02\x01\x01" + bytes(200), "is an ELF file of another architecture"),
    ],
)
def test_what_is_no_program_is_named(build: Builder, data: bytes, reason: str) -> None:
    assert str(why_not_static(build.file("other", data))).startswith(reason)


def test_a_file_without_an_executable_bit_is_refused(build: Builder, static: Path) -> None:
    assert why_not_static(build.file("plain", static.read_bytes(), 0o644)) == "has no executable bit"


def test_a_huge_sparse_file_is_judged_at_once_and_by_its_headers(build: Builder, static: Path) -> None:
    path = build.file("huge", static.read_bytes())
    os.truncate(path, 1 << 40)
    before = time.monotonic()
    assert is_static_elf(path)
    empty = build.file("huge-empty", b"")
    os.truncate(empty, 1 << 40)
    assert why_not_static(empty) == "is not an ELF file"
    assert time.monotonic() - before < 5.0


def test_at_most_the_promised_bytes_are_read(
    build: Builder, static: Path, static_pie: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    pread = os.pread

    def counting(fd: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = pread(fd, size, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    for path in (static, static_pie):
        read = 0
        assert is_static_elf(path)
        assert 0 < read <= MAX_READ
    # As many dynamic sections as there can be program headers, each as large as is looked at.
    hostile = bytearray(static_pie.read_bytes())
    struct.pack_into("<Q", hostile, E_PHOFF, len(hostile))
    struct.pack_into("<H", hostile, E_PHNUM, 1170)
    load = struct.pack("<IIQQQQQQ", PT_LOAD, 5, 0, 0, 0, 4096, 4096, 4096)
    entries = struct.pack("<qQ", 24, 0) * (MAX_DYNAMIC // 16 - 1) + bytes(16)
    dynamic = struct.pack("<IIQQQQQQ", PT_DYNAMIC, 6, len(hostile) + 1170 * 56, 0, 0, MAX_DYNAMIC, MAX_DYNAMIC, 8)
    hostile += load + dynamic * 1169 + entries
    read = 0
    many = build.file("many-dynamic", bytes(hostile))
    assert why_not_static(many) == "is a corrupt ELF file (several dynamic sections)"
    assert read <= MAX_READ


def test_nothing_that_is_no_regular_file_blocks_or_is_opened(build: Builder) -> None:
    fifo = build.directory / "fifo"
    os.mkfifo(fifo, 0o755)
    assert why_not_static(fifo) == "is a FIFO, not a regular file"
    assert why_not_static(build.directory) == "is a directory, not a regular file"
    assert why_not_static("/dev/zero") == "is a character device, not a regular file"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(build.directory / "socket"))
        assert why_not_static(build.directory / "socket") == "is a socket, not a regular file"


def test_paths_that_lead_nowhere_are_refused(build: Builder, static: Path) -> None:
    dangling = build.directory / "dangling"
    dangling.symlink_to("nowhere")
    loop = build.directory / "loop"
    loop.symlink_to("loop")
    assert why_not_static(dangling) == "cannot be opened (No such file or directory)"
    assert why_not_static(loop) == "cannot be opened (Too many levels of symbolic links)"
    assert why_not_static(static / "below") == "cannot be opened (Not a directory)"
    assert why_not_static("/x" * 5000) == "cannot be opened (File name too long)"
    assert why_not_static("a\0b") == "cannot be opened (not a path)"
    assert not is_static_elf("")


def test_no_damage_to_the_headers_raises(build: Builder, static_pie: Path) -> None:
    original = static_pie.read_bytes()
    chance = random.Random(20261130)
    target = header_of(static_pie, PT_DYNAMIC)
    at = struct.unpack_from("<Q", original, target + P_OFFSET)[0]
    for _ in range(600):
        data = bytearray(original[: at + 1024])
        for _ in range(chance.randint(1, 6)):
            where = chance.choice((chance.randrange(64), chance.randrange(64, 700), at + chance.randrange(512)))
            data[where] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        is_static_elf(build.file("damaged", bytes(data)))


@pytest.mark.parametrize("release", ["codex_163", "codex_171"])
def test_the_pinned_codex_is_static(release: str, request: pytest.FixtureRequest) -> None:
    codex: Path = request.getfixturevalue(release)
    assert why_not_static(codex) is None
    assert why_not_static(codex.parent / "codex-code-mode-host") is None

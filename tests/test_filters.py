"""Both compiled filters on both architectures, run by an interpreter: what the kernel would say to each call.

tests/test_seccomp.py has the kernel itself say it for this machine's architecture.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

import pytest

from agenthost.errors import HostUnfit
from agenthost.launcher.filters import environment_filter, view_filter
from agenthost.linux.seccomp import ARCHITECTURES, compile_filter
from tests import bpf
from tests.needs import needs

pytestmark = needs("linux", "libseccomp")

# fmt: off
NUMBERS: Final[dict[str, tuple[int | None, int | None]]] = {
    "clone3": (435, 435), "openat2": (437, 437), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "setns": (308, 268), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "quotactl": (179, 60), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "syslog": (103, 116), "lookup_dcookie": (212, 18),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "clone": (56, 220), "unshare": (272, 97), "socket": (41, 198), "socketpair": (53, 199),
    "prlimit64": (302, 261), "ioctl": (16, 29), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "mknod": (133, None), "mknodat": (259, 33), "creat": (85, None), "open": (2, None),
    "openat": (257, 56), "memfd_create": (319, 279), "personality": (135, 92), "getpid": (39, 172), "read": (0, 63),
    "execve": (59, 221), "exit_group": (231, 94), "mmap": (9, 222), "kill": (62, 129), "bind": (49, 200),
    "futex": (202, 98), "execveat": (322, 281), "clock_gettime": (228, 113),
}
# fmt: on
"""Numbers on x86-64 (asm/unistd_64.h) and on aarch64 (asm-generic/unistd.h); None where the call is not there."""

I386: Final = 0x40000003  # AUDIT_ARCH_I386
ARM: Final = 0x40000028  # AUDIT_ARCH_ARM
X32: Final = 0x40000000
HIGH: Final = 0xDEAD_BEEF_0000_0000
"""The upper half of a register where the kernel looks at the lower one only."""

ABSENT: Final = (
    *("clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open"),
    *("userfaultfd", "keyctl", "add_key", "request_key"),
)
FORBIDDEN: Final = (
    *("setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount"),
    *("fspick", "mount_setattr", "open_by_handle_at", "name_to_handle_at", "quotactl", "swapon", "swapoff", "acct"),
    *("kexec_load", "init_module", "finit_module", "delete_module", "reboot", "syslog", "lookup_dcookie"),
)
FORBIDDEN_IN_VIEW: Final = ("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd")
NEVER_TOUCHED: Final = ("getpid", "read", "execve", "exit_group", "mmap", "kill", "bind", "futex", "execveat")
NAMESPACES: Final = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
MODES: Final = (
    ("chmod", 1),
    ("fchmod", 1),
    ("fchmodat", 2),
    ("fchmodat2", 2),
    ("mknod", 1),
    ("mknodat", 2),
    ("creat", 1),
)
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
O_CREAT, O_TMPFILE = 0o100, 0o20000000

Answer = Callable[..., int]
"""The errno of a call, by name or number, and its arguments; 0 where it is let through."""


def answers_of(code: bytes, architecture: str) -> Answer:
    token = ARCHITECTURES[architecture]
    column = list(ARCHITECTURES).index(architecture)

    def answer(call: str | int, *arguments: int, by: int = token) -> int:
        number = call if isinstance(call, int) else NUMBERS[call][column]
        if number is None:
            pytest.fail(f"{call} is not a call of {architecture}")
        verdict = bpf.verdict(code, number, arguments, architecture=by)
        if verdict == bpf.ALLOW:
            return 0
        assert verdict & 0xFFFF0000 == bpf.ERRNO, hex(verdict)
        return verdict & 0xFFFF

    return answer


def exists(name: str, architecture: str) -> bool:
    return NUMBERS[name][list(ARCHITECTURES).index(architecture)] is not None


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=[view_filter, environment_filter], ids=["view", "environment"])
def answer(request: pytest.FixtureRequest, architecture: str) -> Answer:
    return answers_of(request.param(architecture), architecture)


@pytest.fixture
def in_view(architecture: str) -> Answer:
    return answers_of(view_filter(architecture), architecture)


@pytest.fixture
def in_environment(architecture: str) -> Answer:
    return answers_of(environment_filter(architecture), architecture)


def test_this_machines_filter_is_the_one_for_its_architecture() -> None:
    machine = os.uname().machine
    assert view_filter() == view_filter(machine)
    assert environment_filter() == environment_filter(machine)


def test_there_is_no_filter_for_another_architecture() -> None:
    with pytest.raises(HostUnfit, match="no filter for riscv64"):
        compile_filter([], "riscv64")


def test_a_filter_is_short_enough_for_the_kernel(architecture: str) -> None:
    assert len(view_filter(architecture)) // 8 < 4096  # BPF_MAXINSNS


@pytest.mark.parametrize("compiled", [view_filter, environment_filter], ids=["view", "environment"])
@pytest.mark.parametrize("number", [0, 1, 39, 59, 101, 165, 272, 308, 435, 512, 520, 521, 547])
def test_a_call_of_the_x32_table_is_absent(compiled: Callable[[str], bytes], number: int) -> None:
    answer = answers_of(compiled("x86_64"), "x86_64")
    assert answer(X32 | number) == errno.ENOSYS
    assert answer(0xFFFFFFFF) in (0, errno.ENOSYS)  # no call has it


class TestBothFilters:
    def test_what_every_program_needs_is_let_through(self, answer: Answer) -> None:
        assert [name for name in NEVER_TOUCHED if answer(name) != 0] == []

    @pytest.mark.parametrize("name", ABSENT)
    def test_a_call_that_is_absent(self, answer: Answer, name: str) -> None:
        assert {answer(name, *[value] * 6) for value in (0, 1, 0xFFFFFFFF, HIGH)} == {errno.ENOSYS}

    @pytest.mark.parametrize("name", FORBIDDEN)
    def test_a_call_that_is_forbidden(self, answer: Answer, name: str) -> None:
        assert {answer(name, *[value] * 6) for value in (0, 1, 0xFFFFFFFF, HIGH)} == {errno.EPERM}

    def test_a_call_of_another_table_is_absent(self, answer: Answer, architecture: str) -> None:
        others = {I386, ARM, *ARCHITECTURES.values()} - {ARCHITECTURES[architecture]}
        assert {answer(number, by=other) for other in others for number in range(500)} == {errno.ENOSYS}

    @pytest.mark.parametrize("flag", NAMESPACES)
    @pytest.mark.parametrize("besides", [0, 17, 0x400, 0x3D0F00, HIGH])
    def test_no_namespace_is_made(self, answer: Answer, flag: int, besides: int) -> None:
        assert answer("clone", flag | besides) == errno.EPERM
        assert answer("unshare", flag | besides) == errno.EPERM

    def test_no_time_namespace_is_made(self, answer: Answer) -> None:
        assert answer("unshare", 0x80) == errno.EPERM
        assert answer("unshare", HIGH | 0x80) == errno.EPERM

    def test_processes_and_threads_are_made(self, answer: Answer) -> None:
        """fork, vfork and pthread_create as the libcs call them."""
        assert [answer("clone", flags) for flags in (17, 0x01200011, 0x4111, 0x3D0F00)] == [0, 0, 0, 0]
        assert answer("unshare", 0x400) == 0

    @pytest.mark.parametrize("call", ["socket", "socketpair"])
    def test_four_socket_families_and_no_other(self, answer: Answer, call: str) -> None:
        allowed = [family for family in [*range(256), 1 << 31, 0xFFFFFFFF] if answer(call, family, 1, 0) == 0]
        assert allowed == [UNIX, INET, INET6, NETLINK]
        assert {answer(call, HIGH | family) for family in range(64)} == {errno.EAFNOSUPPORT}

    @pytest.mark.parametrize("command", [0x5412, 0x541C])
    def test_no_input_is_put_into_a_terminal(self, answer: Answer, command: int) -> None:
        assert answer("ioctl", 0, command) == errno.EPERM
        assert answer("ioctl", HIGH, HIGH | command) == errno.EPERM
        assert answer("ioctl", command, 0x5413) == 0  # TIOCGWINSZ

    @pytest.mark.parametrize(("name", "index"), MODES)
    def test_no_set_user_id_bit(self, answer: Answer, architecture: str, name: str, index: int) -> None:
        if not exists(name, architecture):
            assert architecture == "aarch64"  # where libcs use the calls with a directory descriptor alone
            return
        before = [0] * index
        for mode in (0o4755, 0o4000, 0o7777, HIGH | 0o4000):
            assert answer(name, *before, mode) == errno.EPERM
        for mode in (0o3777, 0o755, 0):
            assert answer(name, *before, mode) == 0

    @pytest.mark.parametrize(("name", "at"), [("open", 1), ("openat", 2)])
    @pytest.mark.parametrize("creating", [O_CREAT, O_TMPFILE, O_CREAT | 0o2, HIGH | O_CREAT])
    def test_no_set_user_id_file_is_opened_into_being(
        self, answer: Answer, architecture: str, name: str, at: int, creating: int
    ) -> None:
        if not exists(name, architecture):
            assert architecture == "aarch64"  # where libcs use the calls with a directory descriptor alone
            return
        before = [0] * at
        assert answer(name, *before, creating, 0o4755) == errno.EPERM
        assert answer(name, *before, creating, HIGH | 0o4000) == errno.EPERM
        assert answer(name, *before, creating, 0o755) == 0
        assert answer(name, *before, 0, 0o4755) == 0  # the mode means nothing here

    def test_init_gets_no_limit(self, answer: Answer) -> None:
        assert answer("prlimit64", 1, 7) == errno.EPERM
        assert answer("prlimit64", HIGH | 1, 7) == errno.EPERM
        assert answer("prlimit64", 0, 7) == answer("prlimit64", 2, 7) == 0


class TestViewAlone:
    @pytest.mark.parametrize("name", FORBIDDEN_IN_VIEW)
    def test_nothing_is_traced(self, in_view: Answer, in_environment: Answer, name: str) -> None:
        assert in_view(name) == in_view(name, *[HIGH] * 6) == errno.EPERM
        assert in_environment(name) == 0

    @pytest.mark.parametrize("flags", [0, 1, 2, 3, 0x10, 0x15, HIGH, HIGH | 0x7])
    def test_a_memory_file_must_be_sealed_against_execution(
        self, in_view: Answer, in_environment: Answer, flags: int
    ) -> None:
        assert in_view("memfd_create", 0, flags) == errno.EACCES
        assert in_view("memfd_create", 0, flags | 8) == 0
        assert in_environment("memfd_create", 0, flags) == 0

    @pytest.mark.parametrize("persona", [0x0400000, 0x0440000, HIGH | 0x0400000])
    def test_nothing_readable_becomes_executable(self, in_view: Answer, in_environment: Answer, persona: int) -> None:
        assert in_view("personality", persona) == errno.EPERM
        assert in_view("personality", 0) == in_view("personality", 0x0040000) == 0
        assert in_environment("personality", persona) == 0


class TestInterpreter:
    """It must not be more lenient than the kernel is."""

    @pytest.mark.parametrize(
        "instructions",
        [
            [],
            [(0x20, 0, 0, 0)],  # no return
            [(0x20, 0, 0, 64), (0x06, 0, 0, 0)],  # a load behind the data
            [(0x20, 0, 0, 2), (0x06, 0, 0, 0)],  # one that is not aligned
            [(0x05, 0, 0, 9), (0x06, 0, 0, 0)],  # a jump behind the end
        ],
    )
    def test_what_the_kernel_refuses_is_invalid(self, instructions: list[tuple[int, int, int, int]]) -> None:
        code = b"".join(bpf.INSTRUCTION.pack(*instruction) for instruction in instructions)
        with pytest.raises(bpf.InvalidFilter):
            bpf.verdict(code, 0, architecture=0)

    def test_registers_and_jumps(self) -> None:
        code = b"".join(
            bpf.INSTRUCTION.pack(*instruction)
            for instruction in (
                (0x20, 0, 0, 16),  # A = lower half of the first argument
                (0x54, 0, 0, 0xF0),  # A &= 0xF0
                (0x02, 0, 0, 3),  # M[3] = A
                (0x61, 0, 0, 3),  # X = M[3]
                (0x20, 0, 0, 20),  # A = its upper half
                (0x1D, 0, 1, 0),  # A == X?
                (0x06, 0, 0, 1),
                (0x06, 0, 0, 2),
            )
        )
        assert bpf.verdict(code, 0, [0x0000_0030_0000_0031], architecture=0) == 1
        assert bpf.verdict(code, 0, [0x0000_0031_0000_0031], architecture=0) == 2

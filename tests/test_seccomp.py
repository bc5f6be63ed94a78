"""The compiled filters, in the kernel: each rule fails with its errno, and its neighbours do not.

A filter is for life, so each check runs in a process of its own, which installs it and makes bare system calls. None of
the calls here does harm where the filter lets it through: arguments are such that the kernel itself refuses.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from agenthost.errors import HostUnfit
from agenthost.launcher.filters import environment_filter, view_filter
from agenthost.linux import seccomp
from agenthost.linux.seccomp import Argument, Compare, Rule, compile_filter
from tests.needs import needs

pytestmark = needs("linux")

INSTRUCTION = struct.Struct("<HBBI")
HIGH = 0xDEAD_0000_0000_0000
"""The upper half of a register where the kernel looks at the lower one only."""

CALL = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
code, calls = json.load(sys.stdin)
code = bytes.fromhex(code)
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))
program = Program(len(code) // 8, code)
assert libc.prctl(38, 1, 0, 0, 0) == 0
if code:
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
answers = []
for number, *arguments in calls:
    child = os.fork()
    if child == 0:
        result = libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(argument) for argument in arguments))
        os._exit(0 if result >= 0 else ctypes.get_errno())
    _, status = os.waitpid(child, 0)
    answers.append(os.waitstatus_to_exitcode(status))
json.dump(answers, sys.stdout)
"""


def number_of(name: str) -> int:
    number: int = seccomp._library().seccomp_syscall_resolve_name(name.encode())
    assert number >= 0, name
    return number


def call(code: bytes, calls: Sequence[tuple[str | int, Sequence[int]]]) -> list[int]:
    """The errno of each call under the filter; 0 where it succeeded."""
    numbered = [[name if isinstance(name, int) else number_of(name), *arguments] for name, arguments in calls]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CALL],
        input=json.dumps([code.hex(), numbered]),
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[int] = json.loads(done.stdout)
    return answers


def one(rules: Iterable[Rule], name: str | int, *arguments: int) -> int:
    return call(compile_filter(rules), [(name, arguments)])[0]


class TestCompiling:
    def test_nothing_forbidden_is_everything_allowed(self) -> None:
        assert one([], "getpid") == 0

    def test_a_rule_fails_with_its_errno(self) -> None:
        rules = [Rule("getpid", errno.ENOSYS), Rule("getppid", errno.ENOTTY)]
        assert one(rules, "getpid") == errno.ENOSYS
        assert one(rules, "getppid") == errno.ENOTTY
        assert one(rules, "gettid") == 0

    def test_a_call_may_be_given_by_number(self) -> None:
        assert one([Rule(number_of("getpid"))], "getpid") == errno.EPERM

    def test_it_is_an_array_of_instructions(self) -> None:
        code = compile_filter([Rule("getpid")])
        assert len(code) % INSTRUCTION.size == 0
        assert 4 < len(code) // INSTRUCTION.size < 4096  # BPF_MAXINSNS

    def test_a_call_that_nobody_knows_is_an_error(self) -> None:
        with pytest.raises(OSError, match="no_such_call"):
            compile_filter([Rule("no_such_call")])

    def test_the_same_rules_are_the_same_filter(self) -> None:
        rules = [Rule("getpid"), Rule("dup", arguments=(Argument(0, Compare.EQUAL, 7),))]
        assert compile_filter(rules) == compile_filter(rules)

    def test_without_the_library_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(name: str, **_: Any) -> None:
            raise OSError(name)

        monkeypatch.setattr("ctypes.CDLL", missing)
        with pytest.raises(HostUnfit, match=r"libseccomp\.so\.2 is not installed; install the package libseccomp2"):
            compile_filter([])


class TestArguments:
    """With dup(2) of a descriptor that is not open: EBADF where the filter lets it through."""

    @pytest.mark.parametrize(
        ("compare", "value", "hit", "miss"),
        [
            (Compare.EQUAL, 500, (500,), (499, 501)),
            (Compare.NOT_EQUAL, 500, (499, 501), (500,)),
            (Compare.LESS, 500, (499, 300), (500, 501)),
            (Compare.GREATER, 500, (501, 900), (499, 500)),
        ],
    )
    def test_comparisons(self, compare: Compare, value: int, hit: tuple[int, ...], miss: tuple[int, ...]) -> None:
        rule = Rule("dup", arguments=(Argument(0, compare, value),))
        answers = call(compile_filter([rule]), [("dup", (fd,)) for fd in (*hit, *miss)])
        assert answers == [errno.EPERM] * len(hit) + [errno.EBADF] * len(miss)

    def test_masked_bits(self) -> None:
        rule = Rule("dup", arguments=(Argument(0, Compare.MASKED_EQUAL, 0x300, 0x100),))
        answers = call(compile_filter([rule]), [("dup", (fd,)) for fd in (0x100, 0x1FF, 0x200, 0x300, 0x400)])
        assert answers == [errno.EPERM, errno.EPERM, *[errno.EBADF] * 3]

    def test_all_64_bits_are_compared_unless_masked(self) -> None:
        """Why the rules of the launcher mask: the kernel drops the upper half of an int."""
        whole = Rule("dup", arguments=(Argument(0, Compare.EQUAL, 500),))
        low = Rule("dup", arguments=(Argument(0, Compare.MASKED_EQUAL, 0xFFFFFFFF, 500),))
        assert one([whole], "dup", HIGH | 500) == errno.EBADF
        assert one([low], "dup", HIGH | 500) == errno.EPERM

    def test_all_conditions_of_a_rule_must_hold(self) -> None:
        both = (Argument(0, Compare.EQUAL, 500), Argument(1, Compare.EQUAL, 600))
        answers = call(compile_filter([Rule("dup2", arguments=both)]), [("dup2", (500, 600)), ("dup2", (500, 601))])
        assert answers == [errno.EPERM, errno.EBADF]

    def test_one_of_several_rules_must_hold(self) -> None:
        rules = [Rule("dup", arguments=(Argument(0, Compare.EQUAL, fd),)) for fd in (500, 600)]
        answers = call(compile_filter(rules), [("dup", (fd,)) for fd in (500, 600, 700)])
        assert answers == [errno.EPERM, errno.EPERM, errno.EBADF]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 alone has two more system call tables")
def test_the_x32_table_is_not_there() -> None:
    assert one([], 0x40000000 | number_of("getpid")) == errno.ENOSYS


ABSENT = ("clone3", "openat2", "io_uring_setup", "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key")
FORBIDDEN = (
    *("setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount"),
    *("fspick", "mount_setattr", "open_by_handle_at", "name_to_handle_at", "quotactl", "swapon", "acct", "reboot"),
    *("init_module", "finit_module", "delete_module", "kexec_load", "syslog"),
)
NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x80)
ALLOWED_FAMILIES = (1, 2, 10, 16)


@pytest.fixture(params=["view", "environment"])
def code(request: pytest.FixtureRequest) -> bytes:
    return view_filter() if request.param == "view" else environment_filter()


class TestBothFilters:
    def test_calls_that_are_absent_or_forbidden(self, code: bytes) -> None:
        answers = call(code, [(name, (0, 0, 0, 0, 0)) for name in (*ABSENT, *FORBIDDEN)])
        assert answers == [errno.ENOSYS] * len(ABSENT) + [errno.EPERM] * len(FORBIDDEN)

    def test_no_namespace_is_made_by_unshare(self, code: bytes) -> None:
        flags = [value for flag in NAMESPACES for value in (flag, HIGH | flag, flag | 0x400)]
        assert call(code, [("unshare", (flag,)) for flag in flags]) == [errno.EPERM] * len(flags)
        assert call(code, [("unshare", (0x400,)), ("unshare", (0,))]) == [0, 0]  # CLONE_FILES

    def test_no_namespace_is_made_by_clone(self, code: bytes) -> None:
        """Without CLONE_VM a clone is a fork; the child falls through and exits as the parent does."""
        flags = [value | 17 for flag in NAMESPACES[:-1] for value in (flag, HIGH | flag)]
        assert call(code, [("clone", (flag, 0, 0, 0, 0)) for flag in flags]) == [errno.EPERM] * len(flags)
        assert call(code, [("clone", (17, 0, 0, 0, 0))]) == [0]

    def test_four_socket_families_and_no_other(self, code: bytes) -> None:
        families = [*range(64), 200, 0xFFFF, HIGH | 40]
        answers = call(code, [("socket", (family, 0xBAD, 0)) for family in families])
        passed = [family for family, answer in zip(families, answers, strict=True) if answer != errno.EAFNOSUPPORT]
        assert passed == list(ALLOWED_FAMILIES)

    def test_no_input_is_put_into_a_terminal(self, code: bytes) -> None:
        commands = [0x5412, 0x541C, HIGH | 0x5412, HIGH | 0x541C]
        assert call(code, [("ioctl", (999, command, 0)) for command in commands]) == [errno.EPERM] * 4
        assert call(code, [("ioctl", (999, 0x5413, 0))]) == [errno.EBADF]  # TIOCGWINSZ

    def test_no_set_user_id_bit(self, code: bytes) -> None:
        dirfd = 999
        creating, temporary = os.O_CREAT, os.O_TMPFILE
        with_bit: list[tuple[str | int, tuple[int, ...]]] = [
            ("fchmod", (999, 0o4755)),
            ("fchmod", (999, HIGH | 0o4000)),
            ("fchmodat", (dirfd, 0, 0o4755)),
            (452, (dirfd, 0, 0o4755, 0)),
            ("mknodat", (dirfd, 0, 0o104755, 0)),
            ("openat", (dirfd, 0, creating, 0o4755)),
            ("openat", (dirfd, 0, temporary, 0o4755)),
        ]
        without: list[tuple[str | int, tuple[int, ...]]] = [
            ("fchmod", (999, 0o3755)),
            ("fchmodat", (dirfd, 0, 0o1777)),
            ("mknodat", (dirfd, 0, 0o100755, 0)),
            ("openat", (dirfd, 0, creating, 0o755)),
            ("openat", (dirfd, 0, 0, 0o4755)),  # the mode means nothing without O_CREAT
        ]
        assert call(code, with_bit) == [errno.EPERM] * len(with_bit)
        assert {errno.EBADF, errno.EFAULT} >= set(call(code, without))

    def test_init_gets_no_limit(self, code: bytes) -> None:
        assert call(code, [("prlimit64", (pid, 7, 0, 0)) for pid in (1, HIGH | 1, 0)]) == [errno.EPERM, errno.EPERM, 0]


class TestViewAlone:
    CALLS: tuple[tuple[str, tuple[int, ...]], ...] = (
        *((name, (0, 0, 0, 0, 0)) for name in ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd")),
        ("personality", (0x0400000,)),
        ("personality", (HIGH | 0x0400008,)),
    )

    def test_nothing_is_traced_or_made_readable_as_executable(self) -> None:
        assert call(view_filter(), self.CALLS) == [errno.EPERM] * len(self.CALLS)
        assert errno.EPERM not in call(environment_filter(), self.CALLS)

    def test_a_memory_file_must_be_sealed_against_execution(self) -> None:
        calls = [("memfd_create", (0, flags)) for flags in (0, 1, 2, 0x10, HIGH)]
        assert call(view_filter(), calls) == [errno.EACCES] * len(calls)
        assert call(view_filter(), [("memfd_create", (0, 8))]) == [errno.EFAULT]
        assert set(call(environment_filter(), calls)) <= {errno.EFAULT, errno.EINVAL, errno.EACCES}

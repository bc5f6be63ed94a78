"""Which system calls fail in a view and in an environment, and with which errno; what must work beside them does."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.needs import UNPRIVILEGED_UID, as_unprivileged
from tests.view.rig import Bench, Result, Session

pytestmark = pytest.mark.usefixtures("tidy")

NAMESPACES = ("user", "mount", "pid", "net", "ipc", "uts", "cgroup")
FAMILIES = (
    *("unspecified", "ax25", "ipx", "appletalk", "x25", "packet", "key", "rds", "llc", "can", "tipc", "bluetooth"),
    *("rxrpc", "phonet", "alg", "nfc", "vsock", "kcm", "qipcrtr", "smc", "xdp", "beyond", "vsock_high"),
)
EVERYWHERE = {
    **{f"unshare_{name}": "EPERM" for name in (*NAMESPACES, "time", "user_high")},
    **{f"clone_{name}": "EPERM" for name in NAMESPACES},
    # clone3 passes its flags in memory: it is not there, and libcs use clone.
    "clone_plain": "ok",
    "unshare_files": "ok",
    "clone3_plain": "ENOSYS",
    "set_namespace": "EPERM",
    **dict.fromkeys(("mount_tmpfs", "remount_exec", "bind_mount", "unmount", "pivot", "change_root"), "EPERM"),
    **dict.fromkeys(("tree_clone", "tree_clone_attr", "tree_move", "tree_attributes"), "EPERM"),
    **dict.fromkeys(("fs_open", "fs_config", "fs_mount", "fs_pick", "name_to_handle", "open_by_handle"), "EPERM"),
    "open_two": "ENOSYS",
    "trace_init": "EPERM",
    "limit_init": "EPERM",
    "kill_init": "ok",
    "stop_init": "ok",
    "kill_init_pidfd": "ok",
    **{f"socket_{name}": "EAFNOSUPPORT" for name in FAMILIES},
    "socketpair_vsock": "EAFNOSUPPORT",
    "socket_unix": "ok",
    "socket_inet": "ok",
    "socket_inet6": "ok",
    "socket_netlink": "ok",
    "socket_raw": "EPERM",
    **dict.fromkeys(("key_control", "key_add", "key_request", "bpf_call", "user_faults", "perf"), "ENOSYS"),
    **dict.fromkeys(("io_uring", "io_uring_enter", "io_uring_register"), "ENOSYS"),
    "terminal_size": "ok",
    "terminal_input": "EPERM",
    "terminal_input_high": "EPERM",
    "terminal_linux": "EPERM",
    "chmod_plain": "ok",
    "make_fifo": "ok",
    "make_character": "EPERM",
    "make_block": "EPERM",
    **dict.fromkeys(("fchmod_setuid", "fchmodat_setuid", "fchmodat2_setuid", "openat_setuid"), "EPERM"),
    **dict.fromkeys(("tmpfile_setuid", "mknodat_setuid", "set_capability"), "EPERM"),
    **dict.fromkeys(("set_uid", "set_gid", "set_groups", "raise_core", "set_host_name", "kernel_log"), "EPERM"),
    **dict.fromkeys(("restart", "account", "swap", "load_module", "load_kernel", "quota"), "EPERM"),
    "map_zero": "EPERM",
    "map_anonymous": "ok",
    "memfd_sealed": "ok",
}
X86_64 = {
    **dict.fromkeys(("chmod_setuid", "creat_setuid", "open_setuid", "mknod_setuid"), "EPERM"),
    "call_i386": "ENOSYS",
    "call_x32": "ENOSYS",
}
IN_A_VIEW = {
    **dict.fromkeys(("trace_me", "read_memory", "write_memory", "take_descriptor", "compare_processes"), "EPERM"),
    **dict.fromkeys(("init_root", "init_cwd", "init_memory", "init_environment", "init_descriptors"), "ENOENT"),
    "init_namespace": "ENOENT",
    "proc_sys": "ENOENT",
    "memfd_plain": "EACCES",
    "memfd_executable": "EACCES",
    # To ask (0xffffffff) has the bit of READ_IMPLIES_EXEC too.
    "read_implies_exec": "EPERM",
    "read_implies_exec_32": "EPERM",
    "ask_personality": "EPERM",
}
IN_AN_ENVIRONMENT = {
    **dict.fromkeys(("trace_me", "read_memory", "write_memory", "take_descriptor"), "ok"),
    **dict.fromkeys(("init_root", "init_cwd", "init_memory", "init_environment", "init_descriptors"), "EACCES"),
    "compare_processes": "EPERM",
    "init_namespace": "EACCES",
    "proc_sys": "EACCES",
    **dict.fromkeys(("memfd_plain", "memfd_executable", "read_implies_exec", "read_implies_exec_32"), "ok"),
    "ask_personality": "ok",
}
"""Debuggers and just-in-time compilers work there."""


ROOTLESS = {"set_uid": "EINVAL", "set_gid": "EINVAL"}
"""0 is no user of the namespace."""


def everywhere(session: Session) -> dict[str, str]:
    machine = X86_64 if os.uname().machine == "x86_64" else {}
    return EVERYWHERE | machine | ({} if session.daemon.mode.root else ROOTLESS)


def test_in_a_view(session: Session) -> None:
    assert session.run(["cd", "/tmp"], ["try"]).tried() == everywhere(session) | IN_A_VIEW


def test_in_an_environment(session: Session) -> None:
    assert session.command(["cd", "/tmp"], ["try"]).tried() == everywhere(session) | IN_AN_ENVIRONMENT


@pytest.mark.parametrize(
    "name",
    [
        *("unshare_user", "clone_user", "clone3_plain", "socket_vsock", "open_two", "trace_me", "memfd_plain"),
        *("read_implies_exec", "fchmod_setuid", "name_to_handle"),
    ],
)
def test_the_attempt_succeeds_where_nothing_forbids_it(bench: Bench, name: str) -> None:
    directory = bench.directory("outside", owner=UNPRIVILEGED_UID)
    command = as_unprivileged([str(bench.probe), "try", name])
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=directory, env={})
    assert Result(0, done.stdout, done.stderr).tried() == {name: "ok"}

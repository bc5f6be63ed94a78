"""Makes the mounts of a tree from its steps. Runs in the builder.

Private mounts and content are made once a Session, attached below a directory that only the builder's mount namespace
sees, and cloned into each tree: an attached mount can be cloned on every kernel, a detached one only since Linux 6.15.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from agenthost.launcher.mounts import (
    Bind,
    Content,
    Devices,
    Directory,
    IdMap,
    Link,
    MountStep,
    Overlay,
    Private,
)
from agenthost.launcher.pieces import (
    NO_LINKS,
    clone_of,
    closing,
    devpts,
    ground_of,
    listen,
    make_directory,
    make_file,
    make_link,
    make_whiteout,
    put,
    remove_tree,
    tmpfs,
    unmappable,
    write_files,
)
from agenthost.layout import ViewPath
from agenthost.linux import privileges
from agenthost.linux.fdpass import close_fds
from agenthost.linux.idmap import single_owner
from agenthost.linux.syscalls import (
    AT_EMPTY_PATH,
    AT_RECURSIVE,
    MNT_DETACH,
    MOUNT_ATTR_IDMAP,
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOEXEC,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MS_PRIVATE,
    OPEN_TREE_CLONE,
    fsconfig_create,
    fsconfig_set_flag,
    fsconfig_set_string,
    fsmount,
    fsopen,
    mount_setattr,
    move_mount,
    open_tree,
    openat2,
    umount2,
)

_NODES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS: Final = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_TERMINALS: Final = "terminals"
_INERT: Final = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV


class StepFailed(Exception):
    """A step could not be made."""

    def __init__(self, step: str, reason: str, remedy: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.reason = reason
        self.remedy = remedy


class Tree:
    """Detached mounts: the root, and what is attached to it, in order. Owns every descriptor."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.mounts: list[tuple[ViewPath, int]] = []
        self._listener: int | None = None

    def set_listener(self, fd: int) -> None:
        self._listener = fd

    def release_listener(self) -> tuple[int, ...]:
        """The shim listener, when there is one; the caller owns it."""
        taken, self._listener = self._listener, None
        return () if taken is None else (taken,)

    def close(self) -> None:
        close_fds([self.root, *(fd for _, fd in self.mounts), *self.release_listener()])


class Forge:
    """Makes trees. `attach` is an existing empty directory; `spawn_user_namespace` starts `oac-init userns`."""

    def __init__(self, attach: str, *, rootless: bool, spawn_user_namespace: Callable[[int], int]) -> None:
        self._rootless = rootless
        self._spawn_user_namespace = spawn_user_namespace
        self._user_namespaces: dict[tuple[str, IdMap], int] = {}
        base = tmpfs(0, mode=0o700, size=64 << 20)
        with closing(os.open(attach, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)) as at:
            move_mount(base, at)
        self._base = base
        self._made: dict[tuple[str, str], int] = {}
        self._devices = self._make_devices()

    def forget(self, session: str) -> None:
        """Ends the private mounts of a Session; trees that live keep theirs."""
        for key in [key for key in self._made if key[0] == session]:
            os.close(self._made.pop(key))
            with contextlib.suppress(OSError):
                # Only a private mount is one; content is a directory, and says EINVAL.
                umount2(f"/proc/self/fd/{self._base}/{session}/{key[1]}", MNT_DETACH)
        with contextlib.suppress(FileNotFoundError):
            remove_tree(self._base, session)
        for mapped in [mapped for mapped in self._user_namespaces if mapped[0] == session]:
            os.close(self._user_namespaces.pop(mapped))

    @contextlib.contextmanager
    def tree(self, session: str, steps: Sequence[MountStep], shim_socket: ViewPath | None) -> Iterator[Tree]:
        """The mounts of `steps`. Raises `StepFailed`, with nothing left over."""
        tree = Tree(tmpfs(_INERT | MOUNT_ATTR_NOEXEC, mode=0o755, size=1 << 20))
        try:
            grounds: list[tuple[ViewPath, int | None]] = [(ViewPath("/"), tree.root)]
            make_directory(tree.root, "proc")
            for step in steps:
                try:
                    self._apply(tree, session, step, grounds)
                except OSError as error:
                    raise StepFailed(f"{step.describe()} at {step.target}", *_explain(error)) from error
            if shim_socket is not None:
                tree.set_listener(listen(tree.root, shim_socket))
            mount_setattr(tree.root, set_=MOUNT_ATTR_RDONLY, recursive=False)
            yield tree
        finally:
            tree.close()

    def _apply(self, tree: Tree, session: str, step: MountStep, grounds: list[tuple[ViewPath, int | None]]) -> None:
        ground, name = ground_of(grounds, step.target)
        match step:
            case Link(_, text):
                put(ground, name, partial(make_link, text))
            case Directory():
                put(ground, name, make_directory)
            case Bind():
                fd = self._bind(session, step)
                self._attach(tree, step, fd, grounds, None)
            case Private():
                fd = self._private(session, step)
                self._attach(tree, step, fd, grounds, self._made[session, step.name])
            case Content():
                made = self._content(session, step)
                fd = clone_of(made, _INERT | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_RDONLY)
                self._attach(tree, step, fd, grounds, made)
            case Overlay():
                self._attach(tree, step, self._overlay(session, step), grounds, None)
            case Devices():
                self._attach(tree, step, clone_of(self._devices, MOUNT_ATTR_NOSUID | MOUNT_ATTR_RDONLY), grounds, None)
                noexec = 0 if step.executable else MOUNT_ATTR_NOEXEC
                tree.mounts.append((ViewPath(f"{step.target}/pts"), self._terminals(session)))
                shm = tmpfs(_INERT | noexec, mode=0o1777, size=step.shm_size)
                tree.mounts.append((ViewPath(f"{step.target}/shm"), shm))

    def _attach(
        self,
        tree: Tree,
        step: MountStep,
        fd: int,
        grounds: list[tuple[ViewPath, int | None]],
        own_ground: int | None,
    ) -> None:
        """Adds a mount to the tree, and makes the file or directory that it covers where that is ours to make."""
        tree.mounts.append((step.target, fd))
        ground, name = ground_of(grounds, step.target)
        directory = stat.S_ISDIR(os.fstat(fd).st_mode)
        if ground is not None:
            put(ground, name, make_directory if directory else make_file)
        grounds.append((step.target, own_ground))

    def _bind(self, session: str, step: Bind) -> int:
        with closing(openat2(0, step.source, os.O_PATH, resolve=NO_LINKS)) as source:
            if step.identity is not None:
                found = os.fstat(source)
                if (found.st_dev, found.st_ino) != (step.identity.device, step.identity.inode):
                    raise StepFailed(step.describe(), "another file has taken its place", "start again")
            fd = open_tree(source, "", OPEN_TREE_CLONE | AT_EMPTY_PATH | AT_RECURSIVE)
        attributes = _INERT | (MOUNT_ATTR_RDONLY if step.readonly else 0)
        attributes |= 0 if step.executable else MOUNT_ATTR_NOEXEC
        try:
            if step.idmap is None:
                mount_setattr(fd, set_=attributes, propagation=MS_PRIVATE)
            else:
                self._map_ids(session, step, fd, attributes, step.idmap)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _map_ids(self, session: str, step: Bind, fd: int, attributes: int, idmap: IdMap) -> None:
        """All of the mounts or none: one that stayed unmapped would show other owners than the rest."""
        namespace = self._user_namespace(session, idmap)
        try:
            mount_setattr(fd, set_=attributes | MOUNT_ATTR_IDMAP, propagation=MS_PRIVATE, userns_fd=namespace)
        except OSError as error:
            # EINVAL: a filesystem without id-mapped mounts. EPERM: a mount that has a map already.
            if error.errno not in (errno.EINVAL, errno.EPERM):
                raise
            place, filesystem = unmappable(step.source, namespace) or (step.source, "unknown filesystem")
            raise StepFailed(
                f"{step.describe()} at {step.target}",
                f"{place} is a mount ({filesystem}) that cannot show its owner's files as the Session's"
                f" (mount_setattr: {error.strerror})",
                f"run agenthost as the owner (uid {idmap.disk_uid}), unmount it, or use a workspace on ext4, xfs, btrfs"
                " or tmpfs",
            ) from error

    def _user_namespace(self, session: str, idmap: IdMap) -> int:
        """The Session's, whose uid no other has: kept until it ends."""
        if (session, idmap) not in self._user_namespaces:
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            with here:
                with there:
                    pid = self._spawn_user_namespace(there.fileno())
                if here.recv(1) != b"\0":
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "make a user namespace for an id map")
                privileges.write_proc(f"/proc/{pid}/uid_map", single_owner(idmap.disk_uid, idmap.uid))
                privileges.write_proc(f"/proc/{pid}/gid_map", single_owner(idmap.disk_gid, idmap.gid))
                namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
                self._user_namespaces[session, idmap] = namespace
        return self._user_namespaces[session, idmap]

    def _private(self, session: str, step: Private) -> int:
        def make() -> int:
            return tmpfs(_INERT, mode=step.mode, size=step.size, uid=step.uid, gid=step.gid)

        fd = self._mounted(session, step.name, make)
        return clone_of(fd, _INERT | (0 if step.executable else MOUNT_ATTR_NOEXEC))

    def _terminals(self, session: str) -> int:
        """One devpts for all trees of the Session: a terminal of the Harness has its name in the environment too."""
        fd = self._mounted(session, _TERMINALS, devpts)
        return clone_of(fd, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC)

    def _content(self, session: str, step: Content) -> int:
        def fill(place: int) -> None:
            for name in step.directories:
                put(place, name, make_directory)
            for name, text in step.links.items():
                put(place, name, partial(make_link, text))
            write_files(place, step.files)

        return self._filled(session, step.name, fill)

    def _overlay(self, session: str, step: Overlay) -> int:
        def fill(place: int) -> None:
            for name, files in step.opaque.items():
                put(place, name, make_directory)
                with closing(openat2(place, name, os.O_RDONLY | os.O_DIRECTORY, resolve=NO_LINKS)) as directory:
                    write_files(directory, files)
            write_files(place, step.files)

        def wipe(place: int) -> None:
            # A whiteout ends the search for what lies below it. The opaque attribute would say the same, but a tmpfs
            # has had attributes of an unprivileged user's own only since Linux 6.6.
            for name in step.opaque:
                put(place, name, make_whiteout)

        top = self._filled(session, step.name, fill)
        middle = self._filled(session, f"{step.name}-whiteouts", wipe)
        with contextlib.ExitStack() as stack:
            match step.below:
                case Bind(source):
                    below = stack.enter_context(closing(openat2(0, source, os.O_PATH, resolve=NO_LINKS)))
                case Content() as content:
                    below = self._content(session, content)
            fs = stack.enter_context(closing(fsopen("overlay")))
            if self._rootless:
                # Implies the two that follow (overlayfs documentation, "User xattr").
                fsconfig_set_flag(fs, "userxattr")
            else:
                # What the world says in its own xattrs must not lead anywhere.
                fsconfig_set_string(fs, "redirect_dir", "nofollow")
                fsconfig_set_string(fs, "metacopy", "off")
            fsconfig_set_string(fs, "lowerdir", ":".join(f"/proc/self/fd/{layer}" for layer in (top, middle, below)))
            fsconfig_create(fs)
            return fsmount(fs, _INERT | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_RDONLY)

    def _mounted(self, session: str, name: str, make: Callable[[], int]) -> int:
        """A mount of the Session's own, made and attached on first use."""
        key = session, name
        if key not in self._made:
            with self._new_place(session, name) as place:
                fd = make()
                try:
                    move_mount(fd, place)
                except BaseException:
                    os.close(fd)
                    raise
            os.close(place)
            self._made[key] = fd
        return self._made[key]

    def _filled(self, session: str, name: str, fill: Callable[[int], None]) -> int:
        """A directory of the Session's own, filled on first use: whole, or not there."""
        key = session, name
        if key not in self._made:
            with self._new_place(session, name) as place:
                fill(place)
            self._made[key] = place
        return self._made[key]

    @contextlib.contextmanager
    def _new_place(self, session: str, name: str) -> Iterator[int]:
        place = self._session_place(session, name)
        try:
            yield place
        except BaseException:
            os.close(place)
            remove_tree(self._base, f"{session}/{name}")
            raise

    def _session_place(self, session: str, name: str) -> int:
        """A new empty directory for one private mount or content of a Session."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(session, 0o755, dir_fd=self._base)
        with closing(os.open(session, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._base)) as parent:
            os.mkdir(name, 0o755, dir_fd=parent)
            return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)

    def _make_devices(self) -> int:
        os.mkdir("devices", 0o755, dir_fd=self._base)
        with closing(os.open("devices", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._base)) as at:
            fd = tmpfs(MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, mode=0o755, size=1 << 20)
            move_mount(fd, at)
        for name in _NODES:
            # Rootless, mknod(2) is not allowed: the host's own nodes are bound.
            make_file(fd, name)
            with closing(open_tree(-100, f"/dev/{name}", OPEN_TREE_CLONE)) as node:
                mount_setattr(node, set_=MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, propagation=MS_PRIVATE)
                with closing(os.open(name, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=fd)) as target:
                    move_mount(node, target)
        for name, text in _DEVICE_LINKS.items():
            os.symlink(text, name, dir_fd=fd)
        make_directory(fd, "pts")
        make_directory(fd, "shm")
        return fd


def _explain(error: OSError) -> tuple[str, str]:
    reason = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    return reason, "see 'agenthost doctor'"

"""The catalogue's places: files, processes and sockets outside, what is ours inside, and what could be executed.

`{name}` in an action stands for a part of the runner's `Scene`.
"""

from __future__ import annotations

from typing import Final

from agenthost.attack.attack import Attack, Where

_HOST: Final = "files of the host and of others"
_OTHER: Final = "processes of others"
_NETWORK: Final = "network"
_FIXED: Final = "masks and shims"
_EXECUTION: Final = "execution"
_OURS: Final = "broker and init"
_ENV: Final = "/usr/bin/env"


def _place(
    id_: str,
    group: str,
    tries: str,
    action: tuple[str, ...],
    outcome: str | Where,
    *,
    fact: str | None = None,
    alone: bool = False,
) -> Attack:
    """One action, whose fact has its name and its first argument unless another one is told."""
    where = Where.of(outcome)
    return Attack(
        id=id_,
        group=group,
        tries=tries,
        actions=(action,),
        fact=" ".join(action[:2]) if fact is None else fact,
        view=where.view,
        environment=where.environment,
        alone=alone,
    )


_FILES: Final = (
    _place("host-secret", _HOST, "reads a file of the host that everybody may read", ("cat", "{secret}"), "ENOENT"),
    _place("host-shadow", _HOST, "reads /etc/shadow", ("cat", "/etc/shadow"), "ENOENT"),
    _place("host-root-home", _HOST, "lists /root", ("ls", "/root"), "ENOENT"),
    _place("host-run", _HOST, "lists /run, where services have their sockets", ("ls", "/run"), ""),
    _place("host-sys", _HOST, "lists /sys", ("ls", "/sys"), "ENOENT"),
    _place("host-machine-id", _HOST, "reads the machine's id", ("cat", "/etc/machine-id"), "ENOENT"),
    _place("daemon-state", _HOST, "lists the state directory", ("ls", "{state}"), "ENOENT"),
    _place("daemon-events", _HOST, "writes to its own event log", ("write", "{events}", "x"), "ENOENT"),
    _place("daemon-environ", _HOST, "reads the daemon's environment", ("cat", "/proc/{daemon}/environ"), "ENOENT"),
    _place("daemon-root", _HOST, "goes out through the daemon's root", ("ls", "/proc/{daemon}/root"), "ENOENT"),
    _place("other-home", _HOST, "lists another Session's home", ("ls", "{other_home}"), "ENOENT"),
    _place("other-workspace", _HOST, "lists another Session's workspace", ("ls", "{other_workspace}"), "ENOENT"),
    _place("other-tmp", _HOST, "reads what another Session has in /tmp", ("cat", "/tmp/secret"), "ENOENT"),
    _place("other-var-tmp", _HOST, "reads what another Session has in /var/tmp", ("cat", "/var/tmp/secret"), "ENOENT"),
    _place("other-shm", _HOST, "reads what another Session has in /dev/shm", ("cat", "/dev/shm/secret"), "ENOENT"),
    _place("other-terminal", _HOST, "looks for another Session's terminals", ("ls", "/dev/pts"), "ptmx"),
    _place("device-memory", _HOST, "opens /dev/mem", ("cat", "/dev/mem"), "ENOENT"),
    _place("device-log", _HOST, "opens /dev/kmsg", ("cat", "/dev/kmsg"), "ENOENT"),
    _place("device-disk", _HOST, "opens a disk", ("cat", "/dev/{disk}"), "ENOENT"),
    _place("device-kvm", _HOST, "opens /dev/kvm", ("cat", "/dev/kvm"), "ENOENT"),
    _place("device-fuse", _HOST, "opens /dev/fuse", ("cat", "/dev/fuse"), "ENOENT"),
    _place("home-from-environment", _HOST, "lists the Session's home", ("ls", "/.oac/home"), Where(None, "ENOENT")),
)

_WHO: Final = {"daemon": "the daemon", "other": "a process of another Session"}
_PROCESSES: Final = tuple(
    _place(f"{who}-{what}", _OTHER, f"{tries} {name}", (f"pid-{what}", f"{{{who}}}"), outcome, fact=f"pid-{what}")
    for who, name in _WHO.items()
    for what, tries, outcome in (
        ("signal", "signals", "ESRCH"),
        ("group", "signals the group of", "ESRCH"),
        ("open", "opens a pidfd of", "ESRCH"),
        ("trace", "traces", Where("EPERM", "ESRCH")),
        ("memory", "reads the memory of", Where("EPERM", "ESRCH")),
        ("limit", "reads the limits of", "ESRCH"),
        ("priority", "slows down", "ESRCH"),
    )
)


def _connect(id_: str, tries: str, address: str, port: str, outcome: str) -> Attack:
    return _place(id_, _NETWORK, tries, ("connect", address, port), outcome, fact=f"connect {address} {port}")


_SOCKETS: Final = (
    _connect("host-loopback", "connects to a service on the host's loopback", "127.0.0.1", "{port}", "ECONNREFUSED"),
    Attack(
        id="other-gateway",
        group=_NETWORK,
        tries="connects to another Session's model listener",
        # Until its own gateway has started, which is before the first command, its own listener's queue takes it.
        actions=(("spawn", "/bin/bash", "-c", "true"), ("connect", "127.0.0.1", "17101")),
        fact="connect 127.0.0.1 17101",
        view="ECONNREFUSED",
        environment="ECONNREFUSED",
    ),
    _connect("metadata", "connects to the cloud's metadata service", "169.254.169.254", "80", "ENETUNREACH"),
    _connect("private-address", "connects to a private address", "10.0.0.1", "53", "ENETUNREACH"),
    _connect("internet", "connects to the internet", "192.0.2.1", "443", "ENETUNREACH"),
    _connect("internet-six", "connects to the internet by IPv6", "2001:db8::1", "443", "ENETUNREACH"),
    _place(
        "host-abstract", _NETWORK, "connects to an abstract socket of the host", ("unix", "{abstract}"), "ECONNREFUSED"
    ),
    _place("host-unix", _NETWORK, "connects to a socket in the host's files", ("unix", "{socket}"), "ENOENT"),
    _place(
        "broker-from-command", _NETWORK, "connects to the broker", ("unix", "/.oac/run/broker"), Where(None, "ENOENT")
    ),
)

_RENAMES: Final = (
    ("etc-codex", "/etc/codex", Where("ENOENT|EROFS", "ENOENT|EROFS")),
    ("etc", "/etc", "EROFS|EBUSY"),
    ("usr", "/usr", "EROFS|EBUSY"),
    ("bash", "/usr/bin/bash", "EROFS|EBUSY"),
    ("workspace-parent", "{parent}", "EBUSY|EPERM"),
    ("workspace", "{workspace}", "EROFS|EBUSY"),
    ("oac", "/.oac", "EROFS|EBUSY"),
    ("proc", "/proc", "EROFS|EBUSY"),
)
_LIFTS: Final = (
    *(
        _place(f"rename-{n}", _FIXED, f"renames {path}", ("rename", path, f"{path}-away"), outcome)
        for n, path, outcome in _RENAMES
    ),
    _place("remove-bash", _FIXED, "removes the shim over /bin/bash", ("unlink", "/bin/bash"), "EROFS|EBUSY"),
    _place("write-bash", _FIXED, "writes to /bin/bash", ("write", "/bin/bash", "x"), "EROFS"),
    _place(
        "link-over-usr",
        _FIXED,
        "puts a link into /usr",
        ("symlink", "/tmp", "/usr/link"),
        "EROFS",
        fact="symlink /usr/link",
    ),
    _place("plant-etc-codex", _FIXED, "makes /etc/codex", ("mkdir", "/etc/codex"), "EROFS"),
    _place("write-passwd", _FIXED, "writes to /etc/passwd", ("write", "/etc/passwd", "x"), "EROFS"),
    _place("write-closure", _FIXED, "writes into the closure", ("write", "/.oac/harness/x", "x"), Where("EROFS")),
    _place("write-shim", _FIXED, "writes to the shim git", ("write", "/.oac/bin/git", "x"), Where("EROFS")),
    _place("remove-broker", _FIXED, "removes the broker's socket", ("unlink", "/.oac/run/broker"), Where("EROFS")),
)

_COPIES: Final = ("{workspace}", "/tmp", "/home/agent", "/dev/shm", "/.oac/home/tmp")
_PROGRAMS: Final = (
    _place("run-world", _EXECUTION, "executes a program of the world", ("spawn", "/usr/bin/true"), Where("EACCES")),
    _place(
        "run-loader", _EXECUTION, "executes the dynamic loader", ("spawn", "{loader}", "/usr/bin/true"), Where("EACCES")
    ),
    _place("map-world", _EXECUTION, "maps a program of the world", ("mmap", "/usr/bin/true"), Where("EPERM")),
    *(
        _place(
            f"run-copy-{n}",
            _EXECUTION,
            f"executes its own copy in {path}",
            ("copies", path),
            Where("EACCES"),
            fact=fact,
        )
        for n, path in enumerate(_COPIES)
        for fact in (f"copy {path}",)
    ),
    _place(
        "map-copy",
        _EXECUTION,
        "maps its own copy as a program",
        ("copies", "/tmp"),
        Where("EPERM"),
        fact="mmap /tmp/probe-copy",
    ),
    _place(
        "protect-copy",
        _EXECUTION,
        "makes its mapped copy executable",
        ("copies", "/tmp"),
        Where("EACCES"),
        fact="mprotect /tmp/probe-copy",
    ),
    Attack(
        id="map-received",
        group=_EXECUTION,
        tries="maps a program that a command hands it open, which stays possible",
        actions=(
            ("spawn", "/bin/bash", "-c", "{program} send-self /tmp/attack-give >/dev/null 2>&1 &"),
            ("map-received", "/tmp/attack-give"),
        ),
        fact="received mmap",
        view="ok",
    ),
    Attack(
        id="run-received",
        group=_EXECUTION,
        tries="executes a program that a command hands it open",
        actions=(
            ("spawn", "/bin/bash", "-c", "{program} send-self /tmp/attack-run >/dev/null 2>&1 &"),
            ("execute-received", "/tmp/attack-run"),
        ),
        fact="received execveat",
        view="EACCES",
    ),
    _place(
        "run-copy-descriptor",
        _EXECUTION,
        "executes its copy by a descriptor",
        ("copies", "/tmp"),
        Where("EACCES"),
        fact="copy-fd /tmp",
    ),
    _place(
        "run-script",
        _EXECUTION,
        "executes a script for a program that may run",
        ("copies", "/tmp"),
        Where("EACCES"),
        fact="script /tmp",
    ),
    _place("run-memfd", _EXECUTION, "executes a sealed memory file", ("memfd",), Where("EACCES"), fact="memfd-noexec"),
    _place(
        "protect-world",
        _EXECUTION,
        "makes a mapped file of the world executable",
        ("mprotect", "/etc/passwd"),
        Where("EACCES"),
    ),
)

_FRAMES: Final = (
    ("garbage", "bytes that are no frame", "closed"),
    ("endless", "a frame of 4 GiB", "closed"),
    ("as-daemon", "a frame that only the daemon sends", "closed"),
    ("as-builder", "a frame that only the builder sends", "closed"),
    ("signal-first", "a signal before any command", "closed"),
    ("cut-off", "an invocation that is cut off", "closed"),
    ("foreign-program", "an invocation of what is no shim", "failed 126"),
    ("main-command", "an invocation that would end the environment with it", "exited 7"),
    ("unknown-flags", "an invocation with every unknown flag", "exited 7"),
    ("no-descriptors", "an invocation without its descriptors", "failed 126"),
    ("many-descriptors", "an invocation with 250 descriptors", "closed"),
    ("outside-cwd", "an invocation in a directory that the environment has not", "failed 126"),
)
_SIGNALS: Final = (
    ("everybody", "9", "2", "the signal for everybody in the environment"),
    ("nobody", "0", "0", "signal 0"),
    ("beyond", "65", "0", "a signal beyond the last one"),
    ("negative", "0xffffffff", "0", "signal -1"),
    ("scope", "9", "0xffffffff", "a scope that does not exist"),
)
_HOSTILE: Final = (
    *(
        _place(f"frames-{kind}", _OURS, f"sends the broker {what}", ("frames", kind), Where(outcome))
        for kind, what, outcome in _FRAMES
    ),
    *(
        _place(
            f"signal-{n}",
            _OURS,
            f"sends init {what}",
            ("signal-frame", number, scope),
            Where("closed"),
            fact=f"signal-frame {number} {scope}",
        )
        for n, number, scope, what in _SIGNALS
    ),
    _place(
        "broker-answers", _OURS, "is served after all that, and so is everybody", ("frames", "valid"), Where("exited 7")
    ),
    *(
        _place(
            f"held-{n}",
            _OURS,
            f"hands the home into the environment, where a command {what} it",
            ("exec-with-directory", "/.oac/home/codex", _ENV, "{program}", "use-directory", "config.toml"),
            Where("EACCES"),
            fact=f"held {n}",
            alone=True,
        )
        for n, what in (("create", "writes to"), ("link", "makes links in"), ("directory", "makes directories in"))
    ),
)

PLACES_AND_PROGRAMS: Final[tuple[Attack, ...]] = (*_FILES, *_PROCESSES, *_SOCKETS, *_LIFTS, *_PROGRAMS, *_HOSTILE)

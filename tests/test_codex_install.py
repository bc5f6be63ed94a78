"""Which Codex is found, behind links and launchers, and which of them gets a view."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agenthost.codex import discover_view, install
from agenthost.codex.digests import MEMORY, SETTLED_NS, Digests
from agenthost.codex.install import Install, check_unchanged, discover
from agenthost.codex.releases import Release, pinned
from agenthost.errors import NoView
from tests.needs import needs

pytestmark = needs("linux", "gcc")

MACHINE = os.uname().machine
NOT_SETTLED = "a file that changed just now is not remembered"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(params=["codex_163", "codex_171"])
def codex(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


Compile = Callable[[Path, str], Path]


@pytest.fixture
def compile_static(tmp_path: Path) -> Compile:
    """Makes a static program of C statements at a path."""

    def compiled(path: Path, statements: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        source = tmp_path / "program.c"
        source.write_text(
            "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n#include <fcntl.h>\nextern char **environ;\n"
            f"int main(int argc, char **argv) {{ (void)argc; (void)argv; {statements} return 0; }}\n"
        )
        subprocess.run(["gcc", "-static", "-o", str(path), str(source)], check=True, capture_output=True)
        return path

    return compiled


def pin(monkeypatch: pytest.MonkeyPatch, binary: Path, release: str = "1.2.3", host: Path | None = None) -> None:
    """Makes a program of ours a pinned release, so that what follows the pin can be seen."""
    own = hashlib.sha256(binary.read_bytes()).hexdigest()
    other = "0" * 64 if host is None else hashlib.sha256(host.read_bytes()).hexdigest()
    monkeypatch.setattr(install, "pinned", lambda machine: {own: Release(release, own, other)})


def refused(explicit: Path | None, environ: dict[str, str] | None = None) -> NoView:
    with pytest.raises(NoView) as caught:
        discover(explicit, environ or {}, state_dir=Path("/nonexistent"))
    assert caught.value.remedy
    return caught.value


def vendored(binary: Path, vendor: Path) -> None:
    """Puts the programs into a vendor tree, without copying 370 MB."""
    (vendor / f"{MACHINE}-unknown-linux-musl").mkdir(parents=True)
    (vendor / f"{MACHINE}-unknown-linux-musl" / "bin").symlink_to(binary.parent)


def test_a_pinned_release_is_recognised(codex: Path, state: Path) -> None:
    found = discover(codex, {}, state_dir=state)
    assert (found.binary, found.directory, found.origin, found.found) == (codex, codex.parent, "--codex", codex)
    assert found.code_mode_host == codex.parent / "codex-code-mode-host"
    row = next(row for row in pinned(MACHINE).values() if row.release == found.release)
    assert dict(found.digests) == {"codex": row.codex, "codex-code-mode-host": row.code_mode_host}


def test_the_pinned_releases_are_those_of_the_design() -> None:
    for machine in ("x86_64", "aarch64"):
        rows = pinned(machine)
        assert {row.release for row in rows.values()} == {"0.163.0", "0.171.0"}
        assert all(key == row.codex and len(row.code_mode_host) == 64 for key, row in rows.items())
    assert pinned("riscv64") == {}


def test_links_are_followed_to_the_program(codex: Path, tmp_path: Path, state: Path) -> None:
    (tmp_path / "inner").symlink_to(codex)
    (tmp_path / "outer").symlink_to("inner")
    found = discover(tmp_path / "outer", {}, state_dir=state)
    assert (found.found, found.binary, found.directory) == (tmp_path / "outer", codex, codex.parent)


def test_the_first_that_names_something_decides(
    codex_163: Path, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The extra, as a package that is found on the path of modules; importing it would be an error.
    package = tmp_path / "site" / "codex_cli_bin"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "bin").symlink_to(codex_163.parent)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "codex").symlink_to(codex_163)
    environ = {"PATH": f"/nonexistent:{tmp_path / 'bin'}", "AGENTHOST_CODEX": str(codex_163)}
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.delitem(sys.modules, "codex_cli_bin", raising=False)

    def origin(explicit: Path | None) -> str:
        return discover(explicit, environ, state_dir=state).origin

    assert origin(codex_163) == "--codex"
    assert origin(None) == "AGENTHOST_CODEX"
    environ["AGENTHOST_CODEX"] = ""
    assert origin(None) == "codex_cli_bin"
    monkeypatch.setattr(sys, "path", [])
    assert origin(None) == "PATH"
    environ["AGENTHOST_CODEX"] = "/nonexistent/codex"
    assert "AGENTHOST_CODEX" in refused(None, environ).what


def test_no_codex_at_all_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [])
    error = refused(None, {"PATH": str(tmp_path)})
    assert error.what == "no Codex found (--codex, AGENTHOST_CODEX, the extra 'codex', PATH)"
    assert refused(None, {}).what == error.what


def test_a_relative_entry_of_path_is_not_searched(
    codex_163: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    (tmp_path / "codex").symlink_to(codex_163)
    monkeypatch.chdir(tmp_path)
    assert refused(None, {"PATH": ".::"}).what.startswith("no Codex found")


@pytest.mark.parametrize("above", ["lib/node_modules/@openai/codex", "pnpm/store/node_modules/@openai/codex"])
@pytest.mark.parametrize("inside", [False, True])
def test_npms_launcher_leads_to_its_program(
    codex_171: Path, tmp_path: Path, state: Path, above: str, inside: bool
) -> None:
    package = tmp_path / above
    (package / "bin").mkdir(parents=True)
    (package / "package.json").write_text(json.dumps({"name": "@openai/codex", "version": "0.171.0"}))
    script = package / "bin" / "codex.js"
    script.write_text("#!/usr/bin/env node\n")
    script.chmod(0o755)
    modules = package / "node_modules" if inside else package.parent.parent
    platform = modules / "@openai" / ("codex-linux-x64" if MACHINE == "x86_64" else "codex-linux-arm64")
    vendored(codex_171, platform / "vendor")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "codex").symlink_to(script)
    found = discover(tmp_path / "bin" / "codex", {}, state_dir=state)
    assert (found.found, found.binary, found.release) == (tmp_path / "bin" / "codex", codex_171, "0.171.0")


def test_npms_launcher_with_its_own_vendor_tree_leads_to_its_program(
    codex_171: Path, tmp_path: Path, state: Path
) -> None:
    package = tmp_path / "package"
    (package / "bin").mkdir(parents=True)
    (package / "package.json").write_text(json.dumps({"name": "@openai/codex"}))
    (package / "bin" / "codex.js").write_text("#!/usr/bin/env node\n")
    vendored(codex_171, package / "vendor")
    assert discover(package / "bin" / "codex.js", {}, state_dir=state).binary == codex_171


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "other"}', "[" * 100_000])
def test_npms_launcher_without_its_program_is_named(tmp_path: Path, text: str) -> None:
    script = tmp_path / "package" / "bin" / "codex.js"
    script.parent.mkdir(parents=True)
    script.write_text("#!/usr/bin/env node\n")
    (tmp_path / "package" / "package.json").write_text(text)
    assert "is npm's launcher and its program is not installed" in refused(script).what


def test_a_program_that_is_not_static_gets_no_view(tmp_path: Path) -> None:
    script = tmp_path / "codex"
    script.write_text("#!/bin/sh\ntouch ran\n")
    script.chmod(0o755)
    assert refused(script).what == f"{script} is a script"
    assert "PT_INTERP" in refused(Path("/bin/sh")).what
    assert "is a directory" in refused(tmp_path).what
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "is a FIFO" in refused(fifo).what
    dangling = tmp_path / "dangling"
    dangling.symlink_to("nowhere")
    assert "No such file" in refused(dangling).what
    assert "cannot be found" in refused(Path("a\0b")).what


def test_a_program_that_is_not_pinned_gets_no_view(compile_static: Compile, tmp_path: Path) -> None:
    binary = compile_static(tmp_path / "package" / "bin" / "codex", 'puts("codex-cli 0.163.0");')
    assert refused(binary).what == f"{binary} is not a pinned release"
    (tmp_path / "package" / "codex-package.json").write_text('{"version": "0.164.0"}')
    assert refused(binary).what == f"{binary} is not a pinned release (its package says 0.164.0)"


def test_a_program_that_is_not_pinned_is_never_run(compile_static: Compile, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    refused(compile_static(tmp_path / "codex", f'creat("{mark}", 0600);'))
    assert not mark.exists()


def test_the_version_is_asked_for_in_a_closed_run(
    compile_static: Compile, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    binary = compile_static(
        tmp_path / "codex",
        f'FILE *f = fopen("{said}", "w"); for (char **e = environ; *e; e++) fprintf(f, "%s\\n", *e);'
        'char cwd[99]; fprintf(f, "%s %s %d %d\\n", getcwd(cwd, 99), argv[1], getchar(), getsid(0) == getpid());'
        'fclose(f); puts("codex-cli 1.2.3");',
    )
    pin(monkeypatch, binary)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert discover(binary, {}, state_dir=state).release == "1.2.3"
    assert sorted(said.read_text().splitlines()) == ["/ --version -1 1", "CODEX_HOME=/dev/null", "HOME=/dev/null"]


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        ('puts("codex-cli 1.2.4");', "codex-cli 1.2.4"),
        ("", ""),
        ('for (;;) puts("x");', "does not stop talking"),
        ("for (;;) pause();", "gave no answer in time"),
        ('puts("codex-cli 1.2.3"); fflush(stdout); close(1); for (;;) pause();', "gave no answer in time"),
        ('if (!fork()) for (;;) pause(); puts("codex-cli 1.2.3");', "gave no answer in time"),
    ],
)
def test_a_program_that_calls_itself_something_else_gets_no_view(
    compile_static: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statements: str, said: str
) -> None:
    binary = compile_static(tmp_path / "codex", statements)
    pin(monkeypatch, binary)
    monkeypatch.setattr(install, "VERSION_SECONDS", 0.5)
    before = time.monotonic()
    assert refused(binary).what == f"{binary} has the digest of 1.2.3 and says {said!r}"
    assert time.monotonic() - before < 30


def test_a_code_mode_host_joins_only_when_it_is_beside_it_and_static(
    compile_static: Compile, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = compile_static(tmp_path / "bin" / "codex", 'puts("codex-cli 1.2.3");')
    host = tmp_path / "bin" / "codex-code-mode-host"
    elsewhere = compile_static(tmp_path / "elsewhere", "")
    pin(monkeypatch, binary, host=elsewhere)

    def beside() -> Path | None:
        return discover(binary, {}, state_dir=state).code_mode_host

    assert beside() is None
    host.symlink_to(elsewhere)
    assert beside() is None
    host.unlink()
    host.write_text("#!/bin/sh\n")
    host.chmod(0o755)
    assert beside() is None
    elsewhere.rename(host)
    assert beside() == host
    assert set(discover(binary, {}, state_dir=state).digests) == {"codex", "codex-code-mode-host"}
    host.chmod(0o644)
    assert beside() is None


def test_a_code_mode_host_of_another_release_gets_no_view(
    compile_static: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = compile_static(tmp_path / "bin" / "codex", 'puts("codex-cli 1.2.3");')
    host = compile_static(tmp_path / "bin" / "codex-code-mode-host", "")
    pin(monkeypatch, binary)
    assert refused(binary).what == f"{host} is not the one of 1.2.3"


@pytest.mark.parametrize("name", ["codex", "codex-code-mode-host"])
def test_a_program_that_was_exchanged_is_noticed(
    compile_static: Compile, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    binary = compile_static(tmp_path / "bin" / "codex", 'puts("codex-cli 1.2.3");')
    host = compile_static(tmp_path / "bin" / "codex-code-mode-host", "")
    pin(monkeypatch, binary, host=host)
    found = discover(binary, {}, state_dir=state)
    check_unchanged(found)
    path = tmp_path / "bin" / name
    path.chmod(0o700)  # says nothing about what it is
    check_unchanged(found)
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(NoView, match="is not the file any more that it was"):
        check_unchanged(found)
    path.write_bytes(content)
    with pytest.raises(NoView) as caught:
        check_unchanged(found)
    assert caught.value.what.startswith(str(path))


def test_on_another_system_there_is_no_view(codex_163: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert refused(codex_163).what == "not Linux"


def test_discover_view_gives_the_declaration(codex: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    view = discover_view(codex)
    assert view.local_exec == ("/.oac/codex/codex", "/.oac/codex/codex-code-mode-host")
    monkeypatch.setenv("AGENTHOST_CODEX", str(codex))
    assert discover_view() == view


def settle(path: Path) -> None:
    """Waits until the file's last change is old enough to be trusted."""
    deadline = path.stat().st_ctime_ns + SETTLED_NS
    while time.time_ns() <= deadline:
        time.sleep(0.05)


def digest_of(digests: Digests, path: Path) -> str:
    fd = os.open(path, os.O_RDONLY)
    try:
        return digests.sha256(fd)
    finally:
        os.close(fd)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_bytes(b"one" * 1000)
    return path


def remember(state: Path, program: Path) -> str:
    digests = Digests(state)
    digest = digest_of(digests, program)
    digests.save()
    return digest


def test_a_digest_is_remembered_once_the_file_has_settled(state: Path, program: Path) -> None:
    assert remember(state, program) == hashlib.sha256(b"one" * 1000).hexdigest()
    assert not (state / MEMORY).exists(), NOT_SETTLED
    settle(program)
    remember(state, program)
    assert (state / MEMORY).stat().st_mode & 0o777 == 0o600
    # What is remembered is what answers: a wrong memory would be believed, so only its owner may write it.
    text = (state / MEMORY).read_text()
    (state / MEMORY).write_text(text.replace(hashlib.sha256(b"one" * 1000).hexdigest(), "f" * 64))
    assert remember(state, program) == "f" * 64


def test_a_file_that_changed_is_read_again_even_with_its_old_times_and_size(state: Path, program: Path) -> None:
    settle(program)
    remember(state, program)
    times = (program.stat().st_atime_ns, program.stat().st_mtime_ns)
    program.write_bytes(b"two" * 1000)
    os.utime(program, ns=times)
    assert remember(state, program) == hashlib.sha256(b"two" * 1000).hexdigest()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', "[" * 100_000])
def test_a_broken_memory_is_an_empty_one(state: Path, program: Path, text: str) -> None:
    (state / MEMORY).write_text(text)
    assert remember(state, program) == hashlib.sha256(b"one" * 1000).hexdigest()


def test_a_memory_that_others_can_write_is_not_used(state: Path, program: Path, tmp_path: Path) -> None:
    settle(program)
    remember(state, program)
    (state / MEMORY).write_text(
        (state / MEMORY).read_text().replace(hashlib.sha256(b"one" * 1000).hexdigest(), "f" * 64)
    )
    for mode in (0o770, 0o707):
        state.chmod(mode)
        assert remember(state, program) != "f" * 64
    state.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(state)
    assert remember(link, program) != "f" * 64
    assert remember(state, program) == "f" * 64


def test_an_install_describes_itself(codex: Path, state: Path) -> None:
    found: Install = discover(codex, {}, state_dir=state)
    dump = json.loads(json.dumps(found.to_json()))
    assert dump["binary"] == str(codex)
    assert set(dump) == {"found", "origin", "binary", "release", "digests"}

"""`agenthost declare`: one object, or the one reason why there is none. contracts/launch.md, L06."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import jsonschema
import pytest

from agenthost import discover_view
from agenthost.codex.plan import treatment_of_home
from agenthost.declaration import Mount, View
from tests.needs import needs

ROOT: Final = Path(__file__).resolve().parent.parent


def declare(*arguments: str | Path, home: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {"PATH": str(home), "HOME": str(home), "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "agenthost", "declare", *map(str, arguments)]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, check=False, timeout=60)


def checked(process: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    value: dict[str, object] = json.loads(process.stdout)
    schema = json.loads((ROOT / "contracts" / "declaration.schema.json").read_text())
    jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)
    return value


MACHINE: Final = os.uname().machine


def installed(codex: Path, style: str, base: Path) -> Path:
    """What a user would name, for an install of this style that leads to the real program."""
    match style:
        case "itself":
            return codex
        case "links":
            (base / "inner").symlink_to(codex)
            (base / "codex").symlink_to("inner")
            return base / "codex"
        case "npm":
            # A script launcher, and the program in a vendor tree beside it; `codex` in the path of programs is a link.
            package = base / "lib" / "node_modules" / "@openai" / "codex"
            (package / "bin").mkdir(parents=True)
            (package / "package.json").write_text('{"name": "@openai/codex"}')
            (package / "bin" / "codex.js").write_text("#!/usr/bin/env node\n")
            vendor = package / "vendor" / f"{MACHINE}-unknown-linux-musl"
            vendor.mkdir(parents=True)
            (vendor / "bin").symlink_to(codex.parent)
            (base / "codex").symlink_to(package / "bin" / "codex.js")
            return base / "codex"
    raise ValueError(style)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def version(codex: Path) -> str:
    environment = {"CODEX_HOME": os.devnull}
    said = subprocess.run([codex, "--version"], env=environment, capture_output=True, check=True, text=True).stdout
    return said.removeprefix("codex-cli ").rstrip("\n")


@pytest.fixture(params=["163", "171"])
def codex(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(f"codex_{request.param}")
    return path


@pytest.mark.parametrize("style", ["itself", "links", "npm"])
def test_a_pinned_codex_is_one_object_that_loads_back(codex: Path, style: str, tmp_path: Path) -> None:
    named = installed(codex, style, tmp_path)
    process = declare("--format", "json", "--codex", named, home=tmp_path)
    assert (process.returncode, process.stderr) == (0, b"")
    value = checked(process)
    view = View.from_json(value["view"])
    assert view == discover_view(codex)
    assert view.closure == (Mount(codex.parent, "codex"),)
    assert view.to_json() == value["view"]
    assert value["home"] == treatment_of_home()
    stands_for = value["codex"]
    assert isinstance(stands_for, dict)
    assert (stands_for["found"], stands_for["origin"], stands_for["binary"]) == (str(named), "--codex", str(codex))
    assert stands_for["release"] == version(codex)
    names = ("codex", "codex-code-mode-host")
    assert stands_for["digests"] == {name: digest(codex.parent / name) for name in names}


@pytest.mark.parametrize("style", ["itself", "links", "npm"])
def test_a_pinned_codex_is_a_table_for_people(codex: Path, style: str, tmp_path: Path) -> None:
    named = installed(codex, style, tmp_path)
    process = declare(home=tmp_path, AGENTHOST_CODEX=str(named))
    assert (process.returncode, process.stderr) == (0, b"")
    text = process.stdout.decode()
    release = version(codex)
    for part in (
        f"codex         {release} (by AGENTHOST_CODEX)\n              {codex}\n",
        f"closure       /.oac/codex  <-  {codex.parent}\n",
        "local exec    /.oac/codex/codex\n              /.oac/codex/codex-code-mode-host\n",
        "shims         git\n",
        "shim paths    /bin/bash\n",
        "masks         /etc/codex  (empty directory)\n",
        f"{digest(codex)}  codex\n",
        "home written  codex/config.toml codex/AGENTS.md\n",
        "codex/.env codex/auth.json",
        "home kept     codex/sessions/",
    ):
        assert part in text
    assert (f"found as {named}" in text) == (style != "itself")
    assert max(map(len, text.splitlines())) <= 120 + len(str(named)) + len(str(codex))


WITHOUT_A_VIEW: Final = {
    "absent": "cannot be found",
    "dangling": "cannot be found",
    "script": "is a script",
    "dynamic": "PT_INTERP",
    "directory": "is a directory",
    "fifo": "is a FIFO",
    "text": "executable",
    "empty": "empty",
    "unpinned": "is not a pinned release",
    "npm-without-program": "its program is not installed",
}


def without_a_view(name: str, base: Path) -> Path:
    codex = base / "codex"
    match name:
        case "dangling":
            codex.symlink_to("nowhere")
        case "script":
            codex.write_text("#!/bin/sh\n")
            codex.chmod(0o755)
        case "dynamic":
            return Path(os.path.realpath("/bin/ls"))
        case "directory":
            codex.mkdir()
        case "fifo":
            os.mkfifo(codex, 0o755)
        case "text":
            codex.write_text("text")
        case "empty":
            codex.touch(0o755)
        case "unpinned":
            source = base / "codex.c"
            source.write_text("int main(void) { return 0; }\n")
            subprocess.run(["gcc", "-static", "-o", codex, source], check=True)
        case "npm-without-program":
            (base / "bin").mkdir()
            (base / "bin" / "codex.js").write_text("#!/usr/bin/env node\n")
            return base / "bin" / "codex.js"
    return codex


@needs("linux", "gcc")
@pytest.mark.parametrize("name", WITHOUT_A_VIEW)
def test_what_gets_no_view_says_why_and_is_3(name: str, tmp_path: Path) -> None:
    codex = without_a_view(name, tmp_path)
    process = declare("--format", "json", "--codex", codex, home=tmp_path)
    assert (process.returncode, process.stderr) == (3, b"")
    value = checked(process)
    assert set(value) == {"view", "reason", "remedy"}
    assert value["view"] is None
    assert str(codex) in str(value["reason"])
    assert WITHOUT_A_VIEW[name] in str(value["reason"])
    table = declare("--codex", codex, home=tmp_path)
    assert (table.returncode, table.stderr) == (3, b"")
    assert table.stdout.decode() == f"no view: {value['reason']}; {value['remedy']}\n"


@needs("linux")
def test_without_any_codex_the_reason_says_where_it_was_looked_for(tmp_path: Path) -> None:
    # The extra is a package of the interpreter: one that sees no packages has none.
    command = [sys.executable, "-S", "-m", "agenthost", "declare", "--format", "json"]
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=60)
    assert (process.returncode, process.stderr) == (3, b"")
    assert checked(process)["reason"] == "no Codex found (--codex, AGENTHOST_CODEX, the extra 'codex', PATH)"


def test_on_another_system_there_is_no_view(tmp_path: Path) -> None:
    # The system is the one thing that cannot be had here; everything below it is real.
    code = "import sys; sys.platform = 'darwin'; from agenthost.cli.main import main; sys.exit(main(['declare']))"
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=60)
    assert (process.returncode, process.stderr) == (3, b"")
    assert process.stdout.startswith(b"no view: not Linux; ")

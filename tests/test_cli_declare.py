"""`agenthost declare`: one object, or the one reason why there is none. contracts/launch.md, L06."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import jsonschema
import pytest

from agenthost.declaration import View
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


def test_a_pinned_codex_is_one_object_that_loads_back(codex_163: Path, tmp_path: Path) -> None:
    process = declare("--format", "json", "--codex", codex_163, home=tmp_path)
    assert (process.returncode, process.stderr) == (0, b"")
    value = checked(process)
    view = View.from_json(value["view"])
    assert view.closure[0].source == codex_163.parent
    assert view.to_json() == value["view"]


def test_a_pinned_codex_is_a_table_for_people(codex_163: Path, tmp_path: Path) -> None:
    process = declare(home=tmp_path, AGENTHOST_CODEX=str(codex_163))
    assert (process.returncode, process.stderr) == (0, b"")
    text = process.stdout.decode()
    for part in ("codex       0.163.0 (by AGENTHOST_CODEX)", f"/.oac/codex  <-  {codex_163.parent}", "shims       git"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 120 + len(str(codex_163))


@needs("linux")
@pytest.mark.parametrize("name", ["absent", "script", "dynamic"])
def test_what_gets_no_view_says_why_and_is_3(name: str, tmp_path: Path) -> None:
    codex = tmp_path / name
    if name == "script":
        codex.write_text("#!/bin/sh\n")
        codex.chmod(0o755)
    elif name == "dynamic":
        codex = Path(os.path.realpath("/bin/ls"))
    process = declare("--format", "json", "--codex", codex, home=tmp_path)
    assert (process.returncode, process.stderr) == (3, b"")
    value = checked(process)
    assert value["view"] is None
    assert str(codex) in str(value["reason"])
    table = declare("--codex", codex, home=tmp_path)
    assert (table.returncode, table.stderr) == (3, b"")
    assert table.stdout.decode() == f"no view: {value['reason']}; {value['remedy']}\n"


def test_on_another_system_there_is_no_view(tmp_path: Path) -> None:
    # The system is the one thing that cannot be had here; everything below it is real.
    code = "import sys; sys.platform = 'darwin'; from agenthost.cli.main import main; sys.exit(main(['declare']))"
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=60)
    assert (process.returncode, process.stderr) == (3, b"")
    assert process.stdout.startswith(b"no view: not Linux; ")

"""What is installed is whole: the static programs, the contracts, the types; and it is built from the sdist alone."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import agenthost
from agenthost.elf import is_static_elf
from tests.needs import ROOT, needs

pytestmark = [needs("linux", "compiler", "make"), pytest.mark.slow]

AWKWARD = 'it\'s a "tree"'
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and the wheel that was built from it, of a tree in an awkward place."""
    base = tmp_path_factory.mktemp("packaging")
    source = base / AWKWARD
    shutil.copytree(ROOT, source, ignore=LEFT_OUT)
    out = base / "dist"
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(out)], cwd=source, check=True, capture_output=True)
    return out


def test_the_sdist_holds_what_builds_and_checks_it(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = {
        "LICENSE",
        "Makefile",
        "README.md",
        "contracts/codex-releases.json",
        "scripts/build-shims.sh",
        "scripts/constraints.txt",
        "setup.py",
        "shims/Makefile",
        "shims/init.c",
        "shims/shim.c",
        "shims/wire.h",
        "tests/conftest.py",
    }
    assert tracked <= names
    assert not [name for name in names if name.endswith(("oac-shim", "oac-init", "oac-attack", ".o", ".pyc"))]


def test_the_wheel_holds_the_programs_and_the_contracts(built: Path, tmp_path: Path) -> None:
    (path,) = built.glob("*.whl")
    assert path.name.startswith(f"agenthost-{agenthost.__version__}-py3-none-linux_")
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        assert {"agenthost/py.typed", "agenthost/contracts/codex-releases.json"} <= names
        assert not [name for name in names if name.startswith(("tests/", "shims/", "scripts/"))]
        for program in ("agenthost/bin/oac-shim", "agenthost/bin/oac-init", "agenthost/bin/oac-attack"):
            mode = archive.getinfo(program).external_attr >> 16
            assert stat.S_IMODE(mode) == 0o755
            extracted = Path(archive.extract(program, tmp_path))
            extracted.chmod(mode)  # zipfile leaves it out, installers do not
            assert is_static_elf(extracted)
        source = built.parent / AWKWARD
        modules = {str(module.relative_to(source)) for module in (source / "agenthost").rglob("*.py")}
        assert {name for name in names if name.endswith(".py")} == modules

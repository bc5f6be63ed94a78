"""The part of the build that pyproject.toml cannot say: static programs and contracts go into the package.

`agenthost/bin/{oac-shim,oac-init,oac-attack}` are compiled from shims/ by scripts/build-shims.sh, as by `make shims`.
`agenthost/contracts/` holds the contract files that the installed program reads. An editable install builds the
programs into the source tree (git-ignored) and reads the repository's own contracts/.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
PROGRAMS = ("oac-shim", "oac-init", "oac-attack")
CONTRACTS = ("codex-releases.json", "declaration.schema.json")


class BuildStatic(Command):
    """Puts the static programs and the contracts beside the package's modules."""

    description = "build the static programs of shims/ and copy the contracts"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []
    editable_mode = False  # setuptools sets it (setuptools.command.build.SubCommand)
    build_lib: str | None = None

    def initialize_options(self) -> None:
        self.build_lib = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        package = self._package()
        if sys.platform == "linux":
            programs = package / "bin"
            subprocess.run(["/bin/sh", str(ROOT / "scripts" / "build-shims.sh"), str(programs)], cwd=ROOT, check=True)
        if not self.editable_mode:
            contracts = package / "contracts"
            contracts.mkdir(parents=True, exist_ok=True)
            for name in CONTRACTS:
                shutil.copyfile(ROOT / "contracts" / name, contracts / name)

    def get_source_files(self) -> list[str]:
        sources = [path for path in sorted((ROOT / "shims").rglob("*")) if path.is_file()]
        sources += [ROOT / "contracts" / name for name in CONTRACTS]
        return [str(path.relative_to(ROOT)) for path in sources]

    def get_outputs(self) -> list[str]:
        package = self._package()
        programs = [package / "bin" / name for name in PROGRAMS] if sys.platform == "linux" else []
        contracts = [] if self.editable_mode else [package / "contracts" / name for name in CONTRACTS]
        return [str(path) for path in programs + contracts]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def _package(self) -> Path:
        if self.editable_mode:
            return ROOT / "agenthost"
        assert self.build_lib is not None, "finalize_options comes first"  # noqa: S101 - for the type checker
        return Path(self.build_lib) / "agenthost"


class PlatformDistribution(Distribution):
    """One that fits no other platform, although it has no extension module."""

    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """The programs are static, so a wheel fits every Python 3 of its platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


build.sub_commands = [*build.sub_commands, ("build_static", None)]

setup(distclass=PlatformDistribution, cmdclass={"build_static": BuildStatic, "bdist_wheel": PlatformWheel})

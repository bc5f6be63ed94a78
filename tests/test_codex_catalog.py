"""The model catalog of the host install, and whether a model has a choice of verbosity."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import pytest

from agenthost.codex import catalog
from agenthost.codex.catalog import ModelChoice, choose, knows_verbosity, read_catalog
from agenthost.codex.install import Install, discover
from agenthost.errors import NoView, UnsupportedOperation
from tests.needs import needs
from tests.responses_server import ResponsesServer

pytestmark = needs("linux", "gcc")

CATALOG = b'{"models": [{"slug": "able", "support_verbosity": true}, {"slug": "unable", "support_verbosity": false}]}'

Fake = Callable[[str], Install]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """An install whose program does these C statements."""

    def make(statements: str) -> Install:
        (tmp_path / "bin").mkdir(exist_ok=True)
        binary, source = tmp_path / "bin" / "codex", tmp_path / "program.c"
        source.write_text(
            "#include <dirent.h>\n#include <stdio.h>\n#include <string.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
            "#include <sys/prctl.h>\nextern char **environ;\n"
            f"int main(int argc, char **argv) {{ (void)argc; (void)argv; {statements} return 0; }}\n"
        )
        subprocess.run(["gcc", "-static", "-o", binary, source], check=True, capture_output=True)
        return Install(
            found=binary,
            origin="--codex",
            binary=binary,
            directory=binary.parent,
            release="1.2.3",
            code_mode_host=None,
            digests=MappingProxyType({}),
        )

    return make


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where scratch directories are made; it is empty again afterwards."""
    path = tmp_path / "scratch"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def printing(text: bytes) -> str:
    return f"puts({json.dumps(text.decode())});"


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.fixture(params=["codex_163", "codex_171"])
def codex(request: pytest.FixtureRequest, tmp_path: Path) -> Install:
    return discover(request.getfixturevalue(request.param), {}, state_dir=tmp_path)


def test_the_real_catalog_is_read_and_leaves_nothing(codex: Install, scratch: Path) -> None:
    before = time.monotonic()
    found = json.loads(read_catalog(codex))
    assert time.monotonic() - before < catalog.PROBE_SECONDS
    assert {"gpt-5.5", "gpt-6-sol"} <= {model["slug"] for model in found["models"]}
    assert list(scratch.iterdir()) == []
    assert children() == []


@pytest.mark.parametrize("verbosity", ["low", "high"])
def test_a_choice_that_the_real_catalog_knows(codex: Install, verbosity: catalog.Verbosity) -> None:
    for model in ("gpt-5.5", "gpt-5.5-2026-01-01", "vendor/gpt-5.5"):
        choice = choose(codex, model, verbosity)
        assert (choice.model, choice.verbosity) == (model, verbosity)
        assert choice.catalog == read_catalog(codex)


def test_a_choice_that_the_real_catalog_does_not_know_names_the_model(codex: Install) -> None:
    for model in ("some-model", "a/b/gpt-5.5", "gpt", "GPT-5.5"):
        with pytest.raises(UnsupportedOperation) as caught:
            choose(codex, model, "low")
        assert caught.value.what == f"the model {model!r} has no choice of verbosity in Codex {codex.release}"


def test_the_look_up_is_the_one_of_the_real_codex(codex: Install, tmp_path: Path) -> None:
    """What is said to have a choice gets it in the request, and nothing else does."""
    names = ["gpt-5.5", "gpt-5.5x", "gpt", "GPT-5.5", "ven-dor_1/gpt-5.5-x", "my.vendor/gpt-5.5", "a/b/gpt-5.5"]
    names += ["/gpt-5.5", "vendor/", " /gpt-5.5", "ä/gpt-5.5"]
    models = {model["slug"]: model["support_verbosity"] for model in json.loads(read_catalog(codex))["models"]}
    home = tmp_path / "home"
    home.mkdir()
    for name in names:
        with ResponsesServer() as server:
            provider = f'{{name="o",base_url="{server.url}",wire_api="responses"}}'
            options = ["-c", f"model={json.dumps(name)}", "-c", 'model_verbosity="low"']
            options += [
                "-c",
                'model_provider="o"',
                "-c",
                f"model_providers.o={provider}",
                "-c",
                "analytics.enabled=false",
            ]
            subprocess.run(
                [codex.binary, *options, "exec", "--json", "--skip-git-repo-check", "hello"],
                cwd=tmp_path,
                env={"PATH": "/usr/bin:/bin", "HOME": str(home), "CODEX_HOME": str(home), "TMPDIR": str(tmp_path)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=60,
                check=True,
            )
        sent = server.requests[0].json.get("text") == {"verbosity": "low"}
        assert sent == knows_verbosity(models, name), name


def test_the_longest_slug_decides() -> None:
    models = {"m": True, "m-large": False, "m-large-2": True}
    found = {name: knows_verbosity(models, name) for name in ("m", "mx", "m-large", "m-large-1", "m-large-2x", "n")}
    assert found == {"m": True, "mx": True, "m-large": False, "m-large-1": False, "m-large-2x": True, "n": False}


def test_one_namespace_is_passed_over_and_the_whole_name_comes_first() -> None:
    models = {"m": True, "vendor/m": False}
    assert not knows_verbosity(models, "vendor/m")
    assert knows_verbosity(models, "other/m")
    for name in ("a/b/m", "/m", "a/", "a.b/m", "a /m", "other/n"):
        assert not knows_verbosity(models, name), name


def test_medium_and_no_choice_need_no_probe(fake: Fake, tmp_path: Path) -> None:
    install = fake(f'fclose(fopen("{tmp_path}/ran", "w"));')
    assert choose(install, "any", "medium") == ModelChoice("any", "medium")
    assert choose(install, None, "medium") == ModelChoice(None, "medium")
    assert choose(install, "any", None) == ModelChoice("any")
    assert not (tmp_path / "ran").exists()


def test_a_choice_without_a_model_is_refused_without_a_probe(fake: Fake, tmp_path: Path) -> None:
    install = fake(f'fclose(fopen("{tmp_path}/ran", "w"));')
    with pytest.raises(UnsupportedOperation, match="without a model"):
        choose(install, None, "high")
    assert not (tmp_path / "ran").exists()


def test_a_model_that_says_so_itself_decides(fake: Fake) -> None:
    install = fake(printing(CATALOG))
    assert choose(install, "able", "low").catalog == CATALOG + b"\n"
    with pytest.raises(UnsupportedOperation, match="'unable'"):
        choose(install, "unable", "low")


def test_it_is_asked_in_a_closed_run_with_gateway_and_placeholder_alone(
    fake: Fake, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    said = tmp_path / "said"
    install = fake(
        f'FILE *f = fopen("{said}", "w"); for (char **e = environ; *e; e++) fprintf(f, "%s\\n", *e);'
        'char cwd[999]; fprintf(f, "%s %s %s %d %d\\n", getcwd(cwd, 999), argv[1], argv[2], getchar(),'
        "getsid(0) == getpid());"
        'DIR *d = opendir(getenv("CODEX_HOME"));'
        'for (struct dirent *n; (n = readdir(d));) fprintf(f, "%s\\n", n->d_name);'
        'char text[4096]; chdir(getenv("CODEX_HOME")); FILE *c = fopen("config.toml", "r");'
        "fwrite(text, 1, fread(text, 1, 4096, c), f); fclose(f);" + printing(CATALOG)
    )
    read_catalog(install)
    told = said.read_text()
    assert "secret" not in told
    lines = told.splitlines()
    assert "/ debug models -1 1" in lines
    assert {line.partition("=")[0] for line in lines if line.partition("=")[0].isidentifier()} == {
        *("PATH", "HOME", "CODEX_HOME", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    }
    assert {line for line in lines if line in {".", ".."} or line.endswith(".toml")} == {".", "..", "config.toml"}
    assert 'base_url = "http://127.0.0.1:17101"' in lines
    assert 'experimental_bearer_token = "placeholder"' in lines
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        ("for (;;) pause();", "gave no answer in time"),
        ("close(1); for (;;) pause();", "gave no answer in time"),
        ('puts("{}"); fflush(stdout); for (;;) pause();', "gave no answer in time"),
        ('if (!fork()) for (;;) pause(); puts("{}");', "gave no answer in time"),
        ('for (;;) fputs("xxxxxxxxxxxxxxxx", stdout);', "does not stop talking"),
        ("return 3;", "ended with status 3"),
        ("abort();", "ended with status -6"),
        ('puts("garbage");', "prints something else"),
        ("", "prints something else"),
        ('puts("[]");', "prints something else"),
        ('puts("{\\"models\\": 1}");', "prints something else"),
        ('puts("{\\"models\\": [{\\"slug\\": 1, \\"support_verbosity\\": true}]}");', "prints something else"),
        ('puts("{\\"models\\": [{\\"slug\\": \\"able\\"}]}");', "prints something else"),
        ("for (int i = 0; i < 100000; i++) putchar(91);", "prints something else"),
        ('puts("\\xff\\xfe");', "prints something else"),
    ],
)
def test_a_program_that_misbehaves_is_an_error_and_leaves_nothing(
    fake: Fake, scratch: Path, monkeypatch: pytest.MonkeyPatch, statements: str, why: str
) -> None:
    install = fake(statements)
    monkeypatch.setattr(catalog, "PROBE_SECONDS", 0.5)
    before = time.monotonic()
    with pytest.raises(NoView) as caught:
        choose(install, "able", "low")
    assert time.monotonic() - before < 30
    assert caught.value.what == f"the model catalog cannot be read: {install.binary} debug models {why}"
    assert children() == []
    assert list(scratch.iterdir()) == []


def test_what_it_forked_is_gone_too(fake: Fake, tmp_path: Path) -> None:
    """Also when the child has let go of the output, so that the answer is complete."""
    install = fake(
        f'if (!fork()) {{ close(1); FILE *f = fopen("{tmp_path}/pid", "w"); fprintf(f, "%d", getpid()); fclose(f);'
        f'for (;;) pause(); }} while (access("{tmp_path}/pid", R_OK)) usleep(1000); usleep(20000);' + printing(CATALOG)
    )
    assert choose(install, "able", "low").catalog is not None
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while (
        Path(f"/proc/{pid}/stat").exists()
        and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    ):
        assert time.monotonic() < deadline, "the forked process lives on"
        time.sleep(0.01)


def test_an_install_that_was_exchanged_is_not_asked(fake: Fake, tmp_path: Path) -> None:
    other = fake(printing(CATALOG))
    (tmp_path / "bin" / "other").write_bytes(other.binary.read_bytes())
    status = other.binary.stat()
    mark = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    judged = Install(
        found=other.binary,
        origin="--codex",
        binary=other.binary,
        directory=other.directory,
        release="1.2.3",
        code_mode_host=None,
        digests=MappingProxyType({}),
        judged=MappingProxyType({other.binary: mark}),
    )
    assert read_catalog(judged) == CATALOG + b"\n"
    (tmp_path / "bin" / "other").rename(other.binary)
    with pytest.raises(NoView, match="not the file any more"):
        read_catalog(judged)

"""Where the API key comes from, and what a file that holds one must be. contracts/launch.md, L40 and L41."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agenthost.cli.options import SessionOptions
from agenthost.cli.provider import LARGEST_KEY, read_key, real_provider
from agenthost.errors import RequestRefused

HERE = Path("/here")


def options(**fields: object) -> SessionOptions:
    return SessionOptions(workspace=HERE, mcp={}, mcp_bearer_env={}, **fields)  # type: ignore[arg-type]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text("sk-file\n")
    return path


def test_the_default_is_openais_key_and_url() -> None:
    provider = real_provider(options(), {"OPENAI_API_KEY": "sk-1"})
    assert provider is not None
    assert (provider.base_url, provider.api_key) == ("https://api.openai.com/v1", "sk-1")
    assert provider.label == "real key from OPENAI_API_KEY"


def test_a_named_variable_and_url_take_their_place() -> None:
    given = options(api_key_env="MY_KEY", provider_url="https://models.example/api")
    provider = real_provider(given, {"OPENAI_API_KEY": "sk-1", "MY_KEY": "sk-2"})
    assert provider is not None
    assert (provider.base_url, provider.api_key) == ("https://models.example/api", "sk-2")


@pytest.mark.parametrize("environ", [{}, {"OPENAI_API_KEY": ""}, {"OPENAI_API_KEY": " \n"}])
def test_no_key_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(RequestRefused, match="OPENAI_API_KEY is not set"):
        real_provider(options(), environ)


def test_another_harness_gets_a_key_only_when_one_is_asked_for(key_file: Path) -> None:
    other = {"harness_dir": Path("/d"), "binary": "b"}
    assert real_provider(options(**other), {"OPENAI_API_KEY": "sk-1"}) is None
    assert real_provider(options(**other, api_key_env="OPENAI_API_KEY"), {"OPENAI_API_KEY": "sk-1"}) is not None
    assert real_provider(options(**other, api_key_file=key_file), {}) is not None


def test_a_key_file_is_read_and_stripped(key_file: Path) -> None:
    provider = real_provider(options(api_key_file=key_file), {})
    assert provider is not None
    assert provider.api_key == "sk-file"
    assert "sk-file" not in repr(provider)


def test_a_key_file_may_be_a_link(key_file: Path) -> None:
    link = key_file.with_name("link")
    link.symlink_to(key_file)
    assert read_key(link) == "sk-file"


def test_a_pipe_delivers_a_key() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"sk-pipe\n")
    os.close(writer)
    assert read_key(Path(f"/proc/self/fd/{reader}")) == "sk-pipe"
    os.close(reader)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_file_open_to_others_is_refused(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(RequestRefused, match="open to others") as caught:
        read_key(key_file)
    assert caught.value.remedy == f"run: chmod 600 {key_file}"


def test_a_key_file_of_another_user_is_refused(key_file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(key_file, 61001, 61001)
    with pytest.raises(RequestRefused, match="another user"):
        read_key(key_file)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"x" * (LARGEST_KEY + 1)])
def test_a_file_that_holds_no_key_is_refused(key_file: Path, content: bytes) -> None:
    key_file.write_bytes(content)
    with pytest.raises(RequestRefused):
        read_key(key_file)


@pytest.mark.parametrize("content", [b"two words", b"caf\xc3\xa9", b"a\nb"])
def test_a_file_with_more_than_a_key_is_refused_and_never_shown(key_file: Path, content: bytes) -> None:
    key_file.write_bytes(content)
    with pytest.raises(RequestRefused) as caught:
        real_provider(options(api_key_file=key_file), {})
    assert content.decode() not in str(caught.value)


@pytest.mark.parametrize("name", ["absent", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestRefused):
        read_key(tmp_path / name)


def test_a_device_and_a_fifo_that_nobody_writes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agenthost.cli.provider.PATIENCE_S", 0.2)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for path in (Path(os.devnull), fifo):
        with pytest.raises(RequestRefused):
            read_key(path)

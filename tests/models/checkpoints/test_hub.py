"""Without a network: the hub's cache, or one line at once; a network that is only slow is left to the hub's own library."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from diffusionlens.models import load_model
from diffusionlens.models.checkpoints import hub
from tests.models.files import refused

NAME = "test_vit.r160_in1k"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 10)
    monkeypatch.setattr(hub, "_AGAIN", 0.0)
    for name in ("https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return tmp_path / "cache"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No name is known; the names that were asked for."""
    names: list[str] = []

    def nobody(name: str, *_: object, **__: object) -> None:
        names.append(name)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", nobody)
    return names


def test_weights_that_are_nowhere_are_refused_after_two_questions(asked: list[str]) -> None:
    """The hub's library alone would ask some twenty times, with pauses of up to eight seconds."""
    line = refused(f"timm:{NAME}", "huggingface.co can't be reached: Name or service not known")
    assert "not in the cache either" in line
    assert "?pretrained=false" in line
    assert asked == ["huggingface.co"] * 2
    assert not constants.HF_HUB_OFFLINE


def test_weights_in_the_cache_load_without_a_network(own_cache: Path, asked: list[str]) -> None:
    torch.manual_seed(3)
    model = timm.create_model("test_vit", pretrained=False)
    folder = own_cache / f"models--timm--{NAME}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    save_file(model.state_dict(), snapshot / "model.safetensors")
    opened = load_model(f"timm:{NAME}")
    assert torch.equal(opened.model.cls_token, model.cls_token)
    assert asked == ["huggingface.co"] * 2


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A hub that takes calls, and never says a word: as slow as can be."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield server


def test_a_hub_that_takes_the_call_is_waited_for(listener: socket.socket) -> None:
    assert hub.why_unreachable() is None
    listener.accept()[0].close()


def test_a_closed_door_and_silence(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    listener.close()
    assert hub.why_unreachable() == "127.0.0.1 can't be reached: Connection refused"

    def silence(*_: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr("socket.socket.connect", silence)
    assert hub.why_unreachable() == "127.0.0.1 does not answer within 10 s; HF_HUB_ETAG_TIMEOUT=60 waits longer"


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://localhost:abc",
        "http://localhost:99999",
        "http://a..b",
        "http://[::1",
        "localhost:1",
        "",
        "ftp://hub",
        "http://",
    ],
)
def test_an_address_that_is_none(endpoint: str, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    refused(f"timm:{NAME}", re.escape(f"HF_ENDPOINT '{endpoint}' is no address; wanted one like https://"))
    assert asked == []


def test_behind_a_proxy_nothing_is_known(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert hub.why_unreachable() is None
    assert asked == []

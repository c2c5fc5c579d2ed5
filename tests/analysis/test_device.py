"""A device that is not there, and memory that is not enough, are one line that says what to do."""

import errno

import numpy as np
import pytest
import torch

from diffusionlens import check, load_model, measure, probe
from diffusionlens.analysis.device import refuse_too_large, resolve_device
from diffusionlens.analysis.processes import Processes
from diffusionlens.errors import InputError
from diffusionlens.memory import enough_memory, free_memory

MODEL = "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that claims to have two GPUs; nothing is put on them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)


@pytest.mark.parametrize(
    "name", ["meta", "cuda:99", "cuda:-1", "cuda:x", "CUDA", "tpu", "", "cpu:7", "xpu", "cuda:1:2"]
)
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(InputError) as error:
        resolve_device(name)
    assert f"--device {name} can't be used: this machine and this torch have cpu" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("two_gpus")
def test_the_devices_that_are_there_are_named() -> None:
    with pytest.raises(InputError, match=r"have cpu, cuda:0, cuda:1$"):
        resolve_device("cuda:2")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda")
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.usefixtures("two_gpus")
def test_several_processes_share_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [resolve_device("auto", Processes(rank, 3)) for rank in range(3)]
    assert taken == [torch.device(f"cuda:{place}") for place in (0, 1, 0)]
    monkeypatch.setenv("LOCAL_RANK", "1")  # the third process, on the second machine
    assert resolve_device("cuda", Processes(3, 4)) == torch.device("cuda:1")
    assert resolve_device("cuda:0", Processes(3, 4)) == torch.device("cuda:0")  # asked for by name


@pytest.mark.usefixtures("two_gpus")
def test_a_device_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices\nare busy")

    monkeypatch.setattr(torch, "zeros", broken)
    with pytest.raises(InputError, match=r"cuda:1 is there and can't be used \(CUDA error: all .* are busy\)"):
        resolve_device("cuda:1")


SHORTAGES = [
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has"),
    torch.AcceleratorError("CUDA error: out of memory", 2),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
    np._core._exceptions._ArrayMemoryError((10**9,), np.dtype(float)),  # type: ignore[attr-defined]
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]


@pytest.mark.parametrize("shortage", SHORTAGES, ids=lambda error: type(error).__name__)
def test_a_model_that_runs_out_of_memory(shortage: Exception) -> None:
    backbone = load_model(MODEL)
    forward, calls = backbone.model.forward_features, iter(range(99))

    def hungry(images: torch.Tensor) -> torch.Tensor:
        if len(images) > 1 and next(calls) > 0:  # not at once: in the second batch
            raise shortage
        return forward(images)

    backbone.model.forward_features = hungry
    with pytest.raises(InputError) as error:
        measure(backbone, "scenes:?n=9", batch_size=3, layers="last", analyses="norms")
    message = str(error.value)
    assert message.startswith(
        "not enough memory for 3 pictures of 64 x 64 at a time on cpu; give a smaller --batch-size"
    )
    assert "\n" not in message


def test_other_errors_stay_what_they_are() -> None:
    for other in (RuntimeError("shape mismatch"), OSError(errno.ENOENT, "No such file"), ZeroDivisionError()):
        with pytest.raises(type(other)) as error, enough_memory("x", "y"):
            raise other
        assert error.value is other


def test_apples_gpus_are_taken_only_when_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not tested here, and torch has given wrong numbers on them without saying so."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(InputError, match=r"this torch have cpu, mps$"):
        resolve_device("tpu")


@pytest.mark.parametrize("command", ["measure", "check", "probe"])
def test_pictures_beyond_reason_are_refused_before_they_are_made(command: str) -> None:
    calls = {
        "measure": lambda size: measure(MODEL, "scenes:?n=2", size=size),
        "check": lambda size: check([MODEL], size=size),
        "probe": lambda size: probe("segmentation", MODEL, "scenes:?n=2", "scenes:?n=2&seed=1", size=size),
    }
    with pytest.raises(InputError, match="size 8192x8192 makes 262144 patches for a; wanted 65536 at most"):
        calls[command]("8192")


def test_attention_maps_that_do_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1 + 16 tokens and 3 heads: weights and logits, 2 * 3 * 17 * 17 numbers of 4 bytes."""
    backbone = load_model(MODEL)
    needed = 2 * 3 * 17 * 17 * 4
    monkeypatch.setattr("diffusionlens.analysis.device.free_memory", lambda _: needed - 1)
    with pytest.raises(InputError, match="attention maps of one picture take"):
        refuse_too_large(backbone, (64, 64), torch.device("cpu"), attention=True)
    refuse_too_large(backbone, (64, 64), torch.device("cpu"), attention=False)
    monkeypatch.setattr("diffusionlens.analysis.device.free_memory", lambda _: needed)
    refuse_too_large(backbone, (64, 64), torch.device("cpu"), attention=True)


def test_free_memory_of_this_machine() -> None:
    free = free_memory(torch.device("cpu"))
    assert free is None or 2**20 < free < 2**50
    assert free_memory(torch.device("meta")) is None

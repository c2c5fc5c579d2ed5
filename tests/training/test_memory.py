"""A network or a batch that is too large is one line that says what to do."""

from pathlib import Path

import pytest
import torch

from diffusionlens.errors import InputError
from diffusionlens.training import loop
from diffusionlens.training.train import train
from tests.training.tiny import DATA, TINY, tiny


def test_a_shortage_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 7 GiB")

    monkeypatch.setattr(loop, "train_step", hungry)
    with pytest.raises(InputError) as caught:
        train("tiny_scenes_softmax", DATA, tmp_path / "run", settings=tiny("run.accumulate=2"))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("not enough memory for 8 pictures at a time on cpu; compute the batch in more parts")
    assert "--set run.accumulate=4" in message
    assert f"the last good checkpoint is {tmp_path / 'run' / 'checkpoints' / 'last.pt'} (step 0)" in message


def test_networks_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 40000000000 bytes")

    monkeypatch.setattr("diffusionlens.training.train.build_learner", hungry)
    with pytest.raises(InputError, match="not enough memory for the networks of vit_tiny_patch16_224 on cpu; choose a"):
        train("tiny_scenes_softmax", DATA, tmp_path / "run", settings=TINY)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("head.out_dim=1000000000000", "wanted a number up to 16777216"),
        ("crops.global_size=100000", "wanted a number up to 4096"),
        ("crops.local_count=1000000000", "wanted a number up to 256"),
        ("model.options={depth: 900000}", "depth=900000 .* is beyond any ViT"),
        ("model.options={embed_dim: 1e18}", "is beyond any ViT"),
        ("run.workers=100000", "wanted a number up to 1024"),
    ],
)
def test_networks_beyond_reason(setting: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        train("tiny_scenes_softmax", DATA, tmp_path / "run", settings=tiny(setting))
    assert not (tmp_path / "run").exists()

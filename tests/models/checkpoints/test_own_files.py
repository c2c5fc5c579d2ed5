"""Files of our own: written, opened, written again."""

from pathlib import Path

from diffusionlens import load_model
from diffusionlens.models import build, save_model


def test_a_file_of_ours_may_be_read_by_whom_other_new_files_may(tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", build("vit_tiny_patch16_224", img_size=32, depth=1))
    (tmp_path / "plain").touch()
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_model_from_our_file_is_saved_again(tmp_path: Path) -> None:
    model = build("vit_tiny_patch16_224", img_size=32, depth=1, attention="entmax15")
    save_model(tmp_path / "first.safetensors", model)
    backbone = load_model(str(tmp_path / "first.safetensors"))
    save_model(tmp_path / "second.safetensors", backbone)
    assert (tmp_path / "second.safetensors").read_bytes() == (tmp_path / "first.safetensors").read_bytes()

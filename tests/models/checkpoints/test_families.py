"""One ViT, saved under every family's names and in every wrapping, must load as the same network."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from diffusionlens.capture import capture
from diffusionlens.errors import InputError
from diffusionlens.models import load_model

State = dict[str, torch.Tensor]
WIDTH, DEPTH, SIZE = 64, 2, 32


def vit(**options: Any) -> nn.Module:
    """A small ViT with weights large enough that every one of them matters."""
    torch.manual_seed(0)
    settings = {"img_size": SIZE, "patch_size": 8, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": 1, "num_classes": 0}
    model = VisionTransformer(**(settings | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def tokens_of(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model.forward_features(images)  # type: ignore[operator]


def assert_same(path: Path, model: nn.Module, query: str = "") -> Any:
    images = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(3))
    backbone = load_model(f"{path}{query}")
    backbone.set_size((SIZE, SIZE))
    trace = capture(backbone, images)
    tokens = trace.tokens(backbone.depth)
    parts = [tokens.registers, tokens.flat_patches]
    found = torch.cat(parts if tokens.cls is None else [tokens.cls[:, None], *parts], 1)
    torch.testing.assert_close(found, tokens_of(model, images), rtol=1e-5, atol=1e-5)
    return backbone


def rename(state: State, *rules: tuple[str, str]) -> State:
    renamed = {}
    for key, value in state.items():
        for old, new in rules:
            key = key.replace(old, new)
        renamed[key] = value
    return renamed


def prefixed(state: State, prefix: str) -> State:
    return {prefix + key: value for key, value in state.items()}


def head() -> State:
    return {"head.mlp.0.weight": torch.randn(8, WIDTH), "head.last_layer.weight_g": torch.randn(4, 1)}


def unfolded(model: nn.Module) -> State:
    """A register model as DINOv2 has it: CLS and its position apart, a table with a place for CLS."""
    state = dict(model.state_dict())
    place = torch.randn(1, 1, WIDTH)
    state["cls_token"] = state["cls_token"] - place
    state["pos_embed"] = torch.cat([place, state["pos_embed"]], 1)
    return rename(state, ("reg_token", "register_tokens")) | {"mask_token": torch.zeros(1, WIDTH)}


def split_qkv(state: State, names: str) -> State:
    """Fused projections -> Hugging Face's three."""
    result = {}
    for key, value in state.items():
        if ".attn.qkv." in key:
            for name, part in zip(("query", "key", "value"), value.chunk(3), strict=True):
                result[key.replace(".attn.qkv.", f".{names}.{name}.")] = part
        else:
            result[key] = value
    return result


def hf_dinov2(model: nn.Module) -> State:
    state = unfolded(model) if "reg_token" in model.state_dict() else dict(model.state_dict())
    state.pop("mask_token", None)
    state = split_qkv(state, "attention.attention")
    state = rename(
        state,
        ("blocks.", "encoder.layer."),
        ("attn.proj.", "attention.output.dense."),
        ("ls1.gamma", "layer_scale1.lambda1"),
        ("ls2.gamma", "layer_scale2.lambda1"),
        ("patch_embed.proj.", "embeddings.patch_embeddings.projection."),
        ("pos_embed", "embeddings.position_embeddings"),
        ("cls_token", "embeddings.cls_token"),
        ("register_tokens", "embeddings.register_tokens"),
    )
    state = {("layernorm" + key[4:] if key.startswith("norm.") else key): value for key, value in state.items()}
    return prefixed(state, "dinov2.") | {
        "dinov2.embeddings.mask_token": torch.zeros(1, WIDTH),
        "classifier.weight": torch.ones(2, 2),
    }


def hf_vit(model: nn.Module) -> State:
    state = split_qkv(dict(model.state_dict()), "attention.attention")
    state = rename(
        state,
        ("blocks.", "encoder.layer."),
        ("attn.proj.", "attention.output.dense."),
        ("mlp.fc1.", "intermediate.dense."),
        ("mlp.fc2.", "output.dense."),
        ("norm1.", "layernorm_before."),
        ("norm2.", "layernorm_after."),
        ("patch_embed.proj.", "embeddings.patch_embeddings.projection."),
        ("pos_embed", "embeddings.position_embeddings"),
        ("cls_token", "embeddings.cls_token"),
    )
    state = {("layernorm" + key[4:] if key.startswith("norm.") else key): value for key, value in state.items()}
    return prefixed(state, "vit.") | {"vit.pooler.dense.weight": torch.randn(4, 4)}


PLAIN: dict[str, tuple[dict[str, Any], Callable[[nn.Module], Any], str]] = {
    "DINO backbone": ({}, lambda m: m.state_dict(), "DINO or timm"),
    "timm, state_dict, with a head": (
        {},
        lambda m: {"state_dict": {**m.state_dict(), "head.weight": torch.ones(3, WIDTH)}, "epoch": 3},
        "DINO or timm",
    ),
    "compiled and wrapped": ({}, lambda m: prefixed(dict(m.state_dict()), "module._orig_mod.module."), "DINO or timm"),
    "timm registers": ({"reg_tokens": 3, "no_embed_class": True}, lambda m: m.state_dict(), "timm with registers"),
    "timm without CLS": (
        {"class_token": False, "global_pool": "avg", "fc_norm": False},
        lambda m: m.state_dict(),
        "timm without CLS",
    ),
    "DINOv2 hub": ({"init_values": 1e-5}, lambda m: {**m.state_dict(), "mask_token": torch.zeros(1, WIDTH)}, "DINOv2"),
    "DINOv2 hub with registers": ({"init_values": 1e-5, "reg_tokens": 4, "no_embed_class": True}, unfolded, "DINOv2"),
    "DINOv2 training": (
        {"init_values": 1e-5},
        lambda m: {
            "teacher": prefixed({k.replace("blocks.", "blocks.0."): v for k, v in m.state_dict().items()}, "backbone.")
            | {"dino_head.mlp.0.weight": torch.ones(2, 2)}
        },
        "DINOv2",
    ),
    "Hugging Face DINOv2": ({"init_values": 1e-5}, hf_dinov2, "Hugging Face DINOv2"),
    "Hugging Face DINOv2 with registers": (
        {"init_values": 1e-5, "reg_tokens": 4, "no_embed_class": True},
        hf_dinov2,
        "Hugging Face DINOv2",
    ),
    "Hugging Face ViT": ({}, hf_vit, "Hugging Face ViT"),
    "no bias, QK norm, pre-norm": (
        {
            "qkv_bias": False,
            "qk_norm": True,
            "pre_norm": True,
            "norm_layer": partial(nn.LayerNorm, eps=1e-5),
        },  # as CLIP
        lambda m: m.state_dict(),
        "DINO or timm",
    ),
}


@pytest.mark.parametrize("name", list(PLAIN))
@pytest.mark.parametrize("half", [False, True])
def test_every_family(name: str, half: bool, tmp_path: Path) -> None:
    options, layout, family = PLAIN[name]
    model = vit(**options)
    if half:  # stored in float16, computed in float32: exact on weights that float16 can hold
        model.load_state_dict({key: value.half().float() for key, value in model.state_dict().items()})
        if "register" in name and "timm" not in name:
            pytest.skip("the sum of CLS and its position is not exact in float16")
    content = layout(model)
    if half:
        content = _halved(content)
    path = tmp_path / "weights.pth"
    torch.save(content, path)
    backbone = assert_same(path, model)
    assert backbone.origin.family == family
    assert backbone.origin.sha256 is not None


def _halved(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _halved(value) for key, value in content.items()}
    return content.half() if isinstance(content, torch.Tensor) else content


def test_dino_training_file_with_arguments(tmp_path: Path) -> None:
    teacher, student = vit(), vit()
    with torch.no_grad():
        student.norm.weight.mul_(2)
    content = {
        "student": prefixed({**prefixed(dict(student.state_dict()), "backbone."), **head()}, "module."),
        "teacher": {**prefixed(dict(teacher.state_dict()), "backbone."), **head()},
        "optimizer": {"state": {}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "epoch": 80,
        "args": argparse.Namespace(arch="vit_small", patch_size=8),
        "dino_loss": {"center": torch.zeros(1, 4)},
    }
    path = tmp_path / "checkpoint.pth"
    torch.save(content, path)
    backbone = assert_same(path, teacher)
    assert (backbone.origin.branch, backbone.origin.epoch) == ("teacher", 80)
    assert "head.mlp.0.weight" in dict(backbone.origin.dropped)
    assert "optimizer" in dict(backbone.origin.dropped)
    assert assert_same(path, student, "?branch=student").origin.branch == "student"


def test_flat_file_with_both_branches(tmp_path: Path) -> None:
    teacher, student = vit(), vit(depth=1)
    content = prefixed(dict(teacher.state_dict()), "teacher.backbone.") | prefixed(
        dict(student.state_dict()), "student.backbone."
    )
    torch.save(content, tmp_path / "flat.pth")
    assert_same(tmp_path / "flat.pth", teacher)
    assert assert_same(tmp_path / "flat.pth", student, "?branch=student").depth == 1


@pytest.mark.parametrize(
    "pair",
    [
        ("target_encoder", "encoder"),
        ("momentum_encoder", "base_encoder"),
        ("state_dict_ema", "state_dict"),
        ("model_ema", "model"),
        ("ema", "model"),
    ],
)
@pytest.mark.parametrize("flat", [False, True])
def test_a_moving_average_is_the_teacher(pair: tuple[str, str], flat: bool, tmp_path: Path) -> None:
    """I-JEPA, MoCo v3, timm and DeiT call it so: as dictionaries, or before the names (MoCo v3)."""
    networks = dict(zip(pair, (vit(), vit(depth=1)), strict=True))
    content: dict[str, Any] = {"epoch": 3}
    for name, network in networks.items():
        own = dict(network.state_dict()) | head()
        content |= prefixed(own, f"module.{name}.") if flat else {name: prefixed(own, "module.")}
    path = tmp_path / "w.pth.tar"
    torch.save({"state_dict": content} if flat else content, path)
    backbone = assert_same(path, networks[pair[0]])
    assert (backbone.label, backbone.origin.branch) == ("w", "teacher")
    assert assert_same(path, networks[pair[1]], "?branch=student").origin.branch == "student"


def test_what_only_pretraining_needs_is_dropped(tmp_path: Path) -> None:
    """iBOT's mask token, MAE's mask token and decoder; a weight that merely begins like them is not."""
    model = vit()
    state, block = dict(model.state_dict()), prefixed(dict(model.blocks[0].state_dict()), "decoder_blocks.0.")  # type: ignore[index]
    ibot = state | {"masked_embed": torch.zeros(1, WIDTH)}
    mae = state | block | {"mask_token": torch.zeros(1, 1, 8), "decoder_pos_embed": torch.zeros(1, 17, 8)}
    mae |= {f"decoder_{name}.weight": torch.zeros(8, 8) for name in ("embed", "norm", "pred")}
    for content in (ibot, mae):
        torch.save({"model": content}, tmp_path / "w.pth")
        dropped = dict(assert_same(tmp_path / "w.pth", model).origin.dropped)
        assert dropped == dict.fromkeys(content.keys() - state.keys(), "used in pretraining only")
    refused(state | {"decoderless.weight": torch.zeros(1)}, tmp_path, "decoderless.weight")


def test_swiglu(tmp_path: Path) -> None:
    from timm.layers import SwiGLUPacked

    model = vit(mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, init_values=1e-5, mlp_ratio=2.0)
    state = rename(dict(model.state_dict()), ("mlp.fc1.", "mlp.w12."), ("mlp.fc2.", "mlp.w3."))
    torch.save(state, tmp_path / "giant.pth")
    assert_same(tmp_path / "giant.pth", model)


@pytest.mark.parametrize("bias", [False, True])
def test_dinov3(bias: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Eva(
        img_size=SIZE, patch_size=8, embed_dim=WIDTH, depth=DEPTH, num_heads=1, num_classes=0, qkv_bias=bias, init_values=1e-5,
        num_reg_tokens=4, use_rot_pos_emb=True, use_abs_pos_emb=False, rope_type="dinov3", rope_temperature=100,
        rope_rotate_half=True, use_fc_norm=False, global_pool="token", norm_layer=partial(nn.LayerNorm, eps=1e-5),
    ).eval()  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    state: State = {}
    for key, value in model.state_dict().items():
        if key.endswith("q_bias"):
            fused = torch.cat([value, torch.zeros(WIDTH), model.state_dict()[key.replace("q_bias", "v_bias")]])
            state[key.replace("q_bias", "qkv.bias")] = fused
            state[key.replace("q_bias", "qkv.bias_mask")] = torch.ones(3 * WIDTH)
        elif not key.endswith("v_bias"):
            state[key] = value
    state = rename(state, ("reg_token", "storage_tokens"), ("gamma_1", "ls1.gamma"), ("gamma_2", "ls2.gamma"))
    state |= {"mask_token": torch.zeros(1, WIDTH), "rope_embed.periods": torch.ones(16)}
    torch.save(state, tmp_path / "dinov3.pth")
    backbone = assert_same(tmp_path / "dinov3.pth", model)
    assert backbone.registers == 4


def test_torchvision(tmp_path: Path) -> None:
    """Against torchvision's own network."""
    from torchvision.models import VisionTransformer as Theirs

    torch.manual_seed(0)
    theirs = Theirs(image_size=SIZE, patch_size=8, num_layers=DEPTH, num_heads=1, hidden_dim=WIDTH, mlp_dim=96).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    backbone = load_model(str(tmp_path / "vit.pth"))
    assert backbone.origin.family == "torchvision"
    assert ("heads.head.weight", "head") in backbone.origin.dropped
    images = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(3))
    backbone.set_size((SIZE, SIZE))
    tokens = capture(backbone, images).tokens(DEPTH)
    assert tokens.cls is not None
    with torch.inference_mode():
        patches = theirs._process_input(images)
        expected = theirs.encoder(torch.cat([theirs.class_token.expand(2, -1, -1), patches], 1))
    torch.testing.assert_close(torch.cat([tokens.cls[:, None], tokens.flat_patches], 1), expected, rtol=1e-4, atol=1e-5)


def test_safetensors(tmp_path: Path) -> None:
    model = vit()
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, tmp_path / "a.safetensors")
    assert_same(tmp_path / "a.safetensors", model)


# --- what must not load ---------------------------------------------------------------------------------------------


def refused(content: Any, tmp_path: Path, message: str, query: str = "") -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(InputError, match=message) as caught:
        load_model(f"{tmp_path / 'w.pth'}{query}")
    assert "\n" not in str(caught.value)


def test_a_missing_weight_is_an_error(tmp_path: Path) -> None:
    state = dict(vit().state_dict())
    del state["blocks.1.mlp.fc1.weight"]
    refused(state, tmp_path, r"lacks 1 weights of the backbone \(blocks.1.mlp.fc1.weight\)")


def test_an_unknown_weight_in_the_backbone_is_an_error(tmp_path: Path) -> None:
    refused(
        {**vit().state_dict(), "blocks.0.gate.weight": torch.ones(2)}, tmp_path, r"blocks.0.gate.weight.*\?timm=NAME"
    )


def test_two_models_in_one(tmp_path: Path) -> None:
    refused({**vit().state_dict(), "norm.weight": torch.ones(3)}, tmp_path, "the file mixes two models")


def test_nan(tmp_path: Path) -> None:
    state = dict(vit().state_dict())
    state["blocks.0.attn.proj.weight"] = state["blocks.0.attn.proj.weight"] * torch.nan
    refused(state, tmp_path, "blocks.0.attn.proj.weight has values that are NaN")


def test_not_a_vit(tmp_path: Path) -> None:
    refused({"conv1.weight": torch.ones(2, 3, 7, 7)}, tmp_path, "holds no ViT backbone")
    refused([1, 2], tmp_path, "holds a list")
    refused({}, tmp_path, "holds no ViT backbone")


def test_branch_that_is_not_there(tmp_path: Path) -> None:
    refused(dict(vit().state_dict()), tmp_path, "has no branch 'student'", "?branch=student")
    refused({"teacher": dict(vit().state_dict())}, tmp_path, "has no branch 'student'", "?branch=student")
    refused(dict(vit().state_dict()), tmp_path, "wanted one of teacher, student", "?branch=head")


def test_other_branches_are_named(tmp_path: Path) -> None:
    """A third network (DINOv3 keeps a Gram teacher) is left out by name beside a teacher, and named where there is none."""
    teacher, gram = vit(), dict(vit(depth=1).state_dict())
    torch.save({"teacher": teacher.state_dict(), "gram_teacher": gram}, tmp_path / "w.pth")
    assert ("gram_teacher", "not the chosen network") in assert_same(tmp_path / "w.pth", teacher).origin.dropped
    refused({"ema": gram, "gram_teacher": gram}, tmp_path, r"several networks \(ema, gram_teacher\)")


def test_heads_must_be_known(tmp_path: Path) -> None:
    model = vit(embed_dim=48, num_heads=3)
    refused(dict(model.state_dict()), tmp_path, r"add \?heads=N")
    assert_same(tmp_path / "w.pth", model, "?heads=3")
    refused(dict(model.state_dict()), tmp_path, "5 heads do not divide the width 48", "?heads=5")
    refused(dict(model.state_dict()), tmp_path, "wanted a whole number", "?heads=x")


def test_grid_that_is_not_square(tmp_path: Path) -> None:
    model = vit(img_size=(32, 56))
    torch.save(model.state_dict(), tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"no square grid; add \?img_size=HxW"):
        load_model(str(tmp_path / "w.pth"))
    assert load_model(f"{tmp_path / 'w.pth'}?img_size=32x56").grid == (4, 7)

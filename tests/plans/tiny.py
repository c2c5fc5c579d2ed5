"""A plan of a moment, and two models for it: what the tests of reports share."""

from pathlib import Path

import torch

from diffusionlens.models.build import build
from diffusionlens.models.checkpoints.own_format import save_model

DATA = "scenes:?n=10&seed=1&size=32"
TRAIN = "train=scenes:?n=12&size=32"
PLAN = """
title: Tiny
about: A moment.
data:
  pictures: {what: pictures with boxes, needs: [boxes], example: "scenes:?n=8"}
  dense: {what: pictures with masks, needs: [masks], train: true, many: true, example: "scenes:?n=8"}
sections:
  pib: {kind: measure, title: Point-in-Box, data: pictures, analyses: [pib, pca], figures: [pib_by_layer, pca_maps]}
  similarity: {kind: measure, title: "Alike?", data: pictures, analyses: [similarity], figures: [], differences: true}
  heads:
    kind: probe
    title: Heads
    data: dense
    task: segmentation
    tokens: patch
    seeds: 2
    options: {iterations: 5, points: 16, rates: [0.003]}
    figures: [probe_by_layer]
    by_layer: false
  gain:
    kind: probe
    title: Gain
    data: dense
    task: segmentation
    tokens: patch,cls+patch
    layers: last
    seeds: 2
    options: {iterations: 5, points: 16, rates: [0.003]}
    figures: [gain_bars]
  look: {kind: explorer, title: Look inside, data: pictures, pictures: 2, layers: last}
  main:
    kind: table
    title: Main table
    published: main
    columns:
      - {section: pib, metric: pib, title: PiB (%)}
      - {section: heads, metric: miou, token: patch, title: mIoU (%)}
"""


def write_plan(folder: Path) -> Path:
    """The plan as a file."""
    (folder / "tiny.yaml").write_text(PLAN)
    return folder / "tiny.yaml"


def write_models(folder: Path) -> list[str]:
    """Two untrained models of two blocks, as MODEL strings."""
    found = []
    for place, name in enumerate(("one", "two_b")):
        torch.manual_seed(place)
        model = build(
            "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=0
        )
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        save_model(folder / f"{name}.safetensors", model)
        found.append(f"{name}={folder / name}.safetensors")
    return found

"""Heads trained side by side are the heads that torch would train one by one."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from diffusionlens.analysis.probes.geometry.points import mix_at
from diffusionlens.analysis.probes.heads.kinds import KINDS, LayerTokens, partners, with_partner
from diffusionlens.analysis.probes.heads.linear import LayerHeads
from diffusionlens.analysis.probes.heads.optimizer import SideBySide, schedule_factor

CPU = torch.device("cpu")


def tokens(batch: int = 3, grid: tuple[int, int] = (2, 3), width: int = 4, seed: int = 0) -> LayerTokens:
    generator = torch.Generator().manual_seed(seed)
    cls = torch.randn(batch, width, generator=generator) * 3 + 1
    return with_partner(cls, torch.randn(batch, *grid, width, generator=generator) * 2 - 1)


def concatenated(seen: LayerTokens, kind: str) -> torch.Tensor:
    """What DINOv2's head would get: [B,channels,h,w], vectors repeated at every place."""
    patches = seen.patches.permute(0, 3, 1, 2)
    side = {"cls": seen.cls, "shuffled_cls+patch": seen.shuffled_cls, "mean+patch": seen.patches.mean((1, 2))}
    side["cls+patch"] = seen.cls
    if kind == "patch":
        return patches
    wide = side[kind][:, :, None, None].expand_as(patches)
    return wide if kind == "cls" else torch.cat([wide, patches], 1)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("batch_norm", [True, False])
def test_every_head_is_torchs_own(optimizer: str, batch_norm: bool) -> None:
    """BatchNorm2d and Conv2d on concatenated maps, torch's optimiser, gradient clipping and schedule: the same outputs."""
    rates, clip, outputs = (1e-2, 3e-2), 0.5, 5
    heads = LayerHeads(KINDS, 4, outputs, len(rates), 7, batch_norm=batch_norm, device=CPU)
    ours = SideBySide(
        heads.parameters, torch.tensor(rates), 0.1, optimizer=optimizer, clip=clip, kinds=heads.rows_of_kinds()
    )
    theirs = {}
    for place, kind in enumerate(KINDS):
        for number, rate in enumerate(rates):
            channels = concatenated(tokens(), kind).shape[1]
            layers = [nn.BatchNorm2d(channels)] * batch_norm + [nn.Conv2d(channels, outputs, 1)]
            model = nn.Sequential(*layers)
            start = heads.parameters["patch_weight"][0, 0] if kind != "cls" else torch.zeros(outputs, 0)
            if kind != "patch":
                start = torch.cat([heads.parameters["side_weight"][0, 0], start], 1)
            with torch.no_grad():
                model[-1].weight.copy_(start[:, :, None, None])
                model[-1].bias.zero_()
            kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
            more = {"momentum": 0.9} if optimizer == "sgd" else {}
            theirs[place, number] = (model, kinds[optimizer](model.parameters(), lr=rate, weight_decay=0.1, **more))
    for step in range(6):
        seen = tokens(seed=step)
        target = torch.randint(outputs, (3, 2, 3), generator=torch.Generator().manual_seed(step))
        found = heads(seen, seen.patches.flatten(1, 2), training=True)
        factor = schedule_factor(step, 6, 2, "poly")
        labels = target.flatten(1)[:, :, None, None].expand(found.shape[:-1])
        loss = functional.cross_entropy(found.reshape(-1, outputs), labels.reshape(-1), reduction="none")
        ours.step(loss.view(18, -1).mean(0).sum(), factor)
        for (_, number), (model, stepper) in theirs.items():
            kind = KINDS[_]
            stepper.param_groups[0]["lr"] = rates[number] * factor
            stepper.zero_grad()
            functional.cross_entropy(model(concatenated(seen, kind)), target).backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            stepper.step()
    seen = tokens(seed=99)
    found = heads(seen, seen.patches.flatten(1, 2)).detach()
    for (place, number), (model, _) in theirs.items():
        expected = model.eval()(concatenated(seen, KINDS[place])).flatten(2).transpose(1, 2)
        torch.testing.assert_close(found[:, :, place, number], expected, rtol=1e-4, atol=1e-5)
    chosen = heads.select([1, 0, 1, 0, 1])
    torch.testing.assert_close(
        chosen(seen, seen.patches.flatten(1, 2))[:, :, :, 0],
        torch.stack([found[:, :, place, rate] for place, rate in enumerate([1, 0, 1, 0, 1])], 2),
    )
    again = LayerHeads(KINDS, 4, outputs, 1, 1, batch_norm=batch_norm, device=CPU)
    again.load(chosen.state())
    torch.testing.assert_close(again(seen, seen.patches.flatten(1, 2)), chosen(seen, seen.patches.flatten(1, 2)))


def test_mixtures_are_those_of_bilinear_upsampling() -> None:
    grid = torch.randn(2, 3, 5, 4)
    fine = functional.interpolate(grid.permute(0, 3, 1, 2), size=(11, 8), mode="bilinear").permute(0, 2, 3, 1)
    rows, columns = torch.meshgrid((torch.arange(11) + 0.5) / 11, (torch.arange(8) + 0.5) / 8, indexing="ij")
    mixed = mix_at(grid, rows.reshape(1, -1).expand(2, -1), columns.reshape(1, -1).expand(2, -1))
    torch.testing.assert_close(mixed, fine.reshape(2, -1, 4), rtol=1e-5, atol=1e-5)


def test_schedules() -> None:
    assert [round(schedule_factor(step, 4, 0, "poly"), 6) for step in range(4)] == [1, 0.75, 0.5, 0.25]
    assert schedule_factor(2, 4, 0, "cosine") == pytest.approx(0.5)
    assert schedule_factor(0, 10, 5, "poly") == pytest.approx(1e-6)
    assert schedule_factor(5, 10, 5, "poly") == 0.5
    assert schedule_factor(0, 1, 0, "poly") == 1


def test_no_picture_is_its_own_partner() -> None:
    for count in (2, 3, 17):
        other = partners(count, 5)
        assert sorted(other) == list(range(count))
        assert all(place != partner for place, partner in enumerate(other))
    assert partners(1, 0) == [0]

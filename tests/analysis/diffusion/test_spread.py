"""Spread against its closed form on planted tokens."""

import torch

from diffusionlens.analysis.diffusion.background import RINGS, ring_masks, rings
from diffusionlens.analysis.diffusion.spread import responses, ring_means
from tests.analysis.planted import PATCH, planted_batch, planted_trace

GRID = (8, 8)


def test_a_share_of_the_object_gives_the_response_that_geometry_says() -> None:
    """Background b + s o against b + s o', all orthogonal: cosine 1 / (1 + s^2); another picture's b' + s o': 0."""
    b, o, other_b, other_o = torch.eye(4)
    share = 0.5
    tokens = {
        name: (first + share * second).expand(2, 65, 4).clone()
        for name, first, second in (("own", b, o), ("swapped", b, other_o), ("other", other_b, other_o))
    }
    traces = {name: planted_trace({0: 3 * value}, GRID) for name, value in tokens.items()}
    box = torch.tensor([12.0, 12, 20, 20])
    thing = planted_batch(1, GRID, [box[None]]).samples[0]
    masks = ring_masks(rings(thing, box, GRID, PATCH))[None].expand(2, -1, -1, -1)
    own = traces["own"]
    swapped, other = (
        ring_means(responses(own, traces[name], 0, [0, 1], "raw"), masks) for name in ("swapped", "other")
    )
    there = masks[0].flatten(1).any(1)
    torch.testing.assert_close(swapped[:, there], torch.full_like(swapped[:, there], share**2 / (1 + share**2)))
    torch.testing.assert_close(other[:, there], torch.ones_like(other[:, there]))
    assert swapped[:, ~there].isnan().all()
    assert (~there).sum() == 1
    assert not there[list(RINGS).index("ring 5+")]


def test_tiny_responses_are_not_rounded_away() -> None:
    token = torch.ones(1, 65, 4)
    nearly = token.clone()
    nearly[..., 0] += 1e-4
    trace, changed = (planted_trace({0: value}, GRID) for value in (token, nearly))
    found = responses(trace, changed, 0, [0], "raw").double()
    exact = 1 - torch.cosine_similarity(token[0, 0].double(), nearly[0, 0].double(), dim=0)
    torch.testing.assert_close(found.mean(), exact, rtol=1e-2, atol=0)

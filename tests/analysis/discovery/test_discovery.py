"""LOST and TokenCut against plain implementations and planted objects; the attention mask against a count by hand."""

import numpy as np
import pytest
import torch

from diffusionlens import measure
from diffusionlens.analysis.discovery.attention_mask import best_head_jaccard, mass_masks
from diffusionlens.analysis.discovery.corloc import in_pixels, localised
from diffusionlens.analysis.discovery.lost import component_box, lost_box
from diffusionlens.analysis.discovery.tokencut import all_alike, second_eigenvector, tokencut_box
from diffusionlens.models import build
from diffusionlens.models.backbone import Origin
from diffusionlens.models.timm_adapter import backbone_of

GRID = (9, 11)
OBJECT = (2, 3, 6, 8)


def planted(seed: int, noise: float = 0.2) -> np.ndarray:
    """Keys [h*w, D] of an object at `OBJECT` before a background, whose products are negative with each other."""
    rng = np.random.default_rng(seed)
    axis = np.zeros(12)
    axis[0] = 1
    keys = np.tile(-axis, (*GRID, 1))
    keys[OBJECT[0] : OBJECT[2], OBJECT[1] : OBJECT[3]] = axis
    return (keys + noise * rng.normal(size=keys.shape)).reshape(-1, 12)


@pytest.mark.parametrize("seed", range(5))
def test_both_find_a_planted_object(seed: int) -> None:
    assert lost_box(planted(seed), GRID) == OBJECT
    assert tokencut_box(planted(seed), GRID) == OBJECT


def slow_lost(keys: np.ndarray, expansion: int) -> tuple[int, int, int, int]:
    """LOST by the paper's text, patch by patch, with a flood fill of its own."""
    count = len(keys)
    degree = [sum(float(keys[i] @ keys[j]) > 0 for j in range(count) if j != i) for i in range(count)]
    order = sorted(range(count), key=lambda place: (degree[place], place))
    seed = order[0]
    kin = [place for place in order[:expansion] if keys[seed] @ keys[place] > 0]
    inside = {place for place in range(count) if sum(keys[place] @ keys[other] for other in kin) > 0}
    return flood(inside, seed)


def flood(inside: set[int], seed: int) -> tuple[int, int, int, int]:
    reached, waiting = {seed}, [seed]
    while waiting:
        row, column = divmod(waiting.pop(), GRID[1])
        for r, c in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            place = r * GRID[1] + c
            if 0 <= r < GRID[0] and 0 <= c < GRID[1] and place in inside and place not in reached:
                reached.add(place)
                waiting.append(place)
    rows, columns = zip(*(divmod(place, GRID[1]) for place in reached), strict=True)
    return min(rows), min(columns), max(rows) + 1, max(columns) + 1


@pytest.mark.parametrize("expansion", [5, 100])
def test_lost_is_that_of_a_plain_implementation(expansion: int) -> None:
    for seed in range(10):
        keys = planted(seed, noise=1.0)
        assert lost_box(keys, GRID, expansion) == slow_lost(keys, expansion)


def test_tokencut_solves_the_symmetric_form_of_its_eigenproblem() -> None:
    """The relaxed cut written as the second largest eigenvector of D^-1/2 A D^-1/2, and a flood fill of its own."""
    for seed in range(5):
        keys = planted(seed, noise=0.6)
        unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
        edges = np.where(unit @ unit.T > 0.2, 1.0, 1e-5)
        root = edges.sum(1) ** -0.5
        theirs = root * np.linalg.eigh(root[:, None] * edges * root)[1][:, -2]
        own = second_eigenvector(keys, 0.2)
        np.testing.assert_allclose(own * np.sign(own @ theirs), theirs, atol=1e-9 + 1e-6 * np.abs(theirs).max())
        vector = theirs if (theirs > theirs.mean())[np.abs(theirs).argmax()] else -theirs
        inside = set(np.flatnonzero(vector > vector.mean()).tolist())
        assert tokencut_box(keys, GRID) == flood(inside, int(np.abs(theirs).argmax()))


def test_a_seed_outside_its_own_mask_is_a_box_of_one_patch() -> None:
    assert component_box(np.zeros(GRID, bool), 13) == (1, 2, 2, 3)
    assert lost_box(np.zeros((99, 4)), GRID) == (0, 0, 1, 1)


def test_corloc_counts_any_box_from_one_half() -> None:
    box = in_pixels((0, 0, 2, 4), (10, 5))
    assert box.tolist() == [0, 0, 20, 20]
    assert localised(box, torch.tensor([[0.0, 0, 20, 40]]))
    assert not localised(box, torch.tensor([[0.0, 0, 20, 40.1]]))
    assert localised(box, torch.tensor([[90.0, 90, 99, 99], [0, 0, 20, 20]]))
    assert not localised(box, torch.zeros(0, 4))


def test_attention_masks_keep_the_mass_and_the_best_head_counts() -> None:
    attention = torch.tensor([[[0.5, 0.3], [0.15, 0.05]], [[0.05, 0.15], [0.3, 0.5]]])
    masks = mass_masks(attention)
    # upwards: .05, .20, .50, 1: above .4 are the two largest
    assert masks[0].tolist() == [[True, True], [False, False]]
    assert masks[1].tolist() == [[False, False], [True, True]]
    truth = torch.zeros(4, 4, dtype=torch.int64)
    truth[:2, :2] = 3
    truth[:2, 2:] = 255
    assert best_head_jaccard(masks, truth) == pytest.approx(0.5)
    assert best_head_jaccard(masks, truth, ignore_void=True) == pytest.approx(1.0)
    assert best_head_jaccard(masks, torch.zeros(4, 4, dtype=torch.int64)) is None


def test_in_a_measurement_batches_change_nothing() -> None:
    model, data = "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=64", "scenes:?n=12&size=64"
    torch.manual_seed(0)
    tables = [
        measure(model, data, analyses="discovery", batch_size=size).measurement.results  # type: ignore[union-attr]
        for size in (12, 5)
    ]
    assert list(tables[0]["metric"]) == [
        "corloc_lost",
        "corloc_tokencut",
        "corloc_whole",
        "lost_whole",
        "uncut",
        "jaccard_attention",
    ]
    assert (tables[0]["n"] == 12).all()
    np.testing.assert_allclose(tables[0]["value"], tables[1]["value"], atol=1e-5)


def test_registers_take_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOST sees a key for every patch and for nothing else."""
    model = build("vit_tiny_patch16_224", registers=4, img_size=64, depth=2)
    backbone = backbone_of("r", model, Origin("r", "timm", "r"))
    seen: list[tuple[int, ...]] = []

    def watched(keys: np.ndarray, grid: tuple[int, int], expansion: int) -> tuple[int, int, int, int]:
        seen.append((*keys.shape, *grid))
        return lost_box(keys, grid, expansion)

    monkeypatch.setattr("diffusionlens.analysis.discovery.diagnostic.lost_box", watched)
    assert measure(backbone, "scenes:?n=2&size=64", analyses="discovery") is not None
    assert seen == [(16, 192, 4, 4)] * 2


def test_what_data_lack_is_named() -> None:
    found = measure(
        "timm:vit_tiny_patch16_224?pretrained=false&img_size=64",
        "scenes:?n=3&size=64",
        analyses="discovery,norms",
        layers="3",
    )
    assert found is not None
    reasons = {entry["what"]: entry["reason"] for entry in found.measurement.manifest["left_out"]}
    assert "last layer" in reasons["discovery"]


def test_a_vector_common_to_all_keys_leaves_nothing_to_cut() -> None:
    """It changes no attention, since weights ignore a shift of a row's logits, but makes LOST's box the whole picture."""
    keys = np.random.default_rng(0).normal(size=(20, 8))
    assert not all_alike(keys, 0.2)
    assert all_alike(keys + 20, 0.2)
    assert lost_box(keys + 20, (4, 5)) == (0, 0, 4, 5)
    queries = np.random.default_rng(1).normal(size=(20, 8))
    weights = [torch.softmax(torch.from_numpy(queries @ one.T), -1) for one in (keys, keys + 20)]
    torch.testing.assert_close(weights[0], weights[1])


def test_rounding_does_not_choose_tokencuts_seed() -> None:
    """Two objects of which every patch is like its own kind alone: all of a kind's entries are equal, and tie for the seed."""
    keys = np.zeros((6, 10, 3))
    keys[..., 0] = 1
    keys[1:3, 1:3], keys[4:6, 7:9] = [0, 1, 0], [0, 0, 1]
    flat = keys.reshape(-1, 3)
    wanted = tokencut_box(flat, (6, 10))
    for seed in range(20):
        noise = 1 + 1e-9 * np.random.default_rng(seed).normal(size=flat.shape)
        assert tokencut_box(flat * noise, (6, 10)) == wanted


def test_a_box_that_is_the_whole_picture_is_counted() -> None:
    """Keys that all share a large vector: every product is positive."""
    found = measure("shipped:mini_softmax_seed0", "scenes:?n=6&size=64", analyses="discovery")
    assert found is not None
    values = found.measurement.results.set_index("metric")["value"]
    assert values["lost_whole"] >= 50
    assert any("LOST's box is the whole picture, which finds nothing" in one.text for one in found.findings)

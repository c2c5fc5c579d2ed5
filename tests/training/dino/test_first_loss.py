"""Where the loss of an untrained network starts: not quite at ln K, and where then."""

import math

import numpy as np
import pytest
import torch
from scipy.special import gammaln, ive
from torch import nn

from diffusionlens.data import open_data
from diffusionlens.training.build import build_learner
from diffusionlens.training.checkpoints.checkpoint import seed_everything
from diffusionlens.training.dino.head import DINOHead
from diffusionlens.training.dino.loss import CenterStart, DINOLoss
from diffusionlens.training.ranks import Ranks
from diffusionlens.training.recipe import Recipe
from diffusionlens.training.recipe_files import read_recipe
from diffusionlens.training.views.loader import load_views
from diffusionlens.training.views.sampler import BatchPlan, RunSampler
from diffusionlens.training.views.views import make_cut, make_prepare

CPU = torch.device("cpu")
BATCH, PROTOTYPES, DRAWS = 32, 2**14, 8


def bottlenecks(recipe: Recipe) -> torch.Tensor:
    """What the untrained network makes of the first batch before the last layer: unit vectors [V,B,bottleneck]."""
    seed_everything(0, 0, 0)
    student = build_learner(recipe, Ranks(CPU), fresh=True).student
    source = open_data(f"scenes:?n={BATCH}&size=64")
    batch = next(load_views(source, make_cut(recipe), RunSampler(BatchPlan(BATCH, BATCH, 0), 0, 1), 0, CPU))
    with torch.no_grad():
        return torch.stack(
            [
                nn.functional.normalize(student.head.mlp(student.features(view)), dim=-1)  # type: ignore[operator, union-attr]
                for view in make_prepare(recipe, CPU)(batch)
            ]
        )


def log_mean_exp(dimensions: int, length: np.ndarray) -> np.ndarray:
    """ln E exp(<w,u>) over unit vectors w of all directions, |u| = length: the constant of von Mises and Fisher."""
    order = dimensions / 2 - 1
    return gammaln(order + 1) + order * np.log(2 / length) + np.log(ive(order, length)) + length


def above_ln_k(
    z: np.ndarray, center: np.ndarray, student_temperature: float, temperature: float
) -> tuple[float, float]:
    """By how much the loss of many random prototypes lies above ln K for a teacher without a choice, and how much of that the
    teacher's choice takes back."""
    size = z.shape[-1]
    above = float(log_mean_exp(size, np.array(1 / student_temperature)))
    pairs = []
    for i in range(2):
        u = (z[i] - center) / temperature
        length = np.linalg.norm(u, axis=-1)
        mean = (
            u / length[:, None] * (ive(size / 2, length) / ive(size / 2 - 1, length))[:, None]
        )  # of w under the teacher
        pairs += [(mean * z[v]).sum(-1).mean() / student_temperature for v in range(len(z)) if v != i]
    return above, float(np.mean(pairs))


@pytest.mark.parametrize(("start", "temperature"), [("first_batch", 0.04), ("first_batch", 0.1), ("zero", 0.1)])
def test_the_demos_loss_starts_where_its_temperatures_put_it(start: CenterStart, temperature: float) -> None:
    """Untrained, scores are cosines with random directions. Student: sharpened by 1/.1 in 48 dimensions, they are far enough
    from uniform to cost 1.0 nats. Teacher: it takes back what its views have in common with the student's; with a centre that
    starts at the first batch's mean that is less than half, since the mean holds what all pictures have in common.
    """
    recipe = read_recipe("tiny_scenes_softmax", settings=[f"batch_size={BATCH}"])
    assert (recipe.loss.center_start, recipe.teacher.warmup_temperature) == ("first_batch", 0.04)
    z, s = bottlenecks(recipe), recipe.loss.student_temperature
    center = z[:2].mean((0, 1)) if start == "first_batch" else torch.zeros(z.shape[-1])
    alone, taken_back = above_ln_k(z.double().numpy(), center.double().numpy(), s, temperature)
    found = []
    for seed in range(DRAWS):
        torch.manual_seed(seed)
        head = DINOHead(8, PROTOTYPES, bottleneck=z.shape[-1])
        with torch.no_grad():
            scores = head.last_layer(z.flatten(0, 1))
            loss, _ = DINOLoss(PROTOTYPES, s, center_start=start)(scores, scores[: 2 * BATCH], temperature)
        found.append(float(loss) - math.log(PROTOTYPES))
    # Of the heads' draws four standard errors; and the mean over K prototypes by the teacher's weights, a ratio of two means,
    # has a relative bias of about exp(variance of its logits) / K.
    variance = float(((z[:2] - center) / temperature).square().sum(-1).mean()) / z.shape[-1]
    tolerance = 4 * np.std(found, ddof=1) / math.sqrt(DRAWS) + taken_back * math.exp(variance) / PROTOTYPES
    assert tolerance < 0.25
    assert np.mean(found) == pytest.approx(alone - taken_back, abs=tolerance)
    assert alone == pytest.approx(
        1 / 48 / (2 * 0.1**2), abs=0.03
    )  # to the first order in 1/48, as docs/training.md has it
    if (start, temperature) == ("first_batch", 0.04):
        assert 0.1 < alone - taken_back < 0.6  # above ln K, and not at it

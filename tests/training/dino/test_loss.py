"""The loss against equations 1 to 4 of the DINO paper, term by term in float64."""

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from scipy.stats import entropy
from torch import Tensor, distributed

from diffusionlens.errors import InputError
from diffusionlens.training.dino.loss import DINOLoss


def scores(views: int, batch: int, k: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(views * batch, k, generator=torch.Generator().manual_seed(seed)) * scale


def by_the_paper(student: Tensor, teacher: Tensor, center: np.ndarray, batch: int, temperature: float) -> float:
    """The sum over pairs of different views, spelled out."""
    s = student.double().numpy().reshape(-1, batch, student.shape[1])
    t = teacher.double().numpy().reshape(2, batch, student.shape[1])
    terms = [
        -(softmax((t[i] - center) / temperature, axis=-1) * log_softmax(s[v] / 0.1, axis=-1)).sum(-1).mean()
        for i in range(2)
        for v in range(len(s))
        if v != i
    ]
    assert len(terms) == 2 * (len(s) - 1)
    return float(np.mean(terms))


def test_loss_and_centre_over_several_steps() -> None:
    loss, center = DINOLoss(50), np.zeros(50)
    for step, temperature in enumerate([0.04, 0.055, 0.07]):
        student, teacher = scores(10, 3, 50, step), scores(2, 3, 50, 100 + step, 0.3)
        value, found = loss(student, teacher, temperature)
        assert float(value) == pytest.approx(by_the_paper(student, teacher, center, 3, temperature), rel=1e-5)
        targets = softmax((teacher.double().numpy() - center) / temperature, axis=-1)
        assert float(found["teacher_entropy"]) == pytest.approx(entropy(targets.mean(0)), rel=1e-4)
        assert float(found["sample_entropy"]) == pytest.approx(entropy(targets, axis=-1).mean(), rel=1e-4)
        assert float(found["kl"]) == pytest.approx(float(value) - entropy(targets, axis=-1).mean(), rel=1e-4)
        center = 0.9 * center + 0.1 * teacher.double().numpy().mean(0)
        np.testing.assert_allclose(loss.center[0].numpy(), center, atol=1e-7)
        assert float(found["center_norm"]) == pytest.approx(np.linalg.norm(center), rel=1e-5)
    assert float(found["kl"]) > 0


def test_the_gradient_is_the_difference_of_distributions() -> None:
    """d loss / d s_v = (p_v - mean of the teachers' q that v is compared with) x weight / student temperature."""
    student, teacher = scores(4, 3, 20).requires_grad_(), scores(2, 3, 20, 1)
    DINOLoss(20)(student, teacher.requires_grad_(), 0.05)[0].backward()
    p = softmax(student.detach().double().numpy() / 0.1, axis=-1).reshape(4, 3, 20)
    q = softmax(teacher.detach().double().numpy() / 0.05, axis=-1).reshape(2, 3, 20)
    wanted = np.stack([sum(p[v] - q[i] for i in range(2) if i != v) for v in range(4)]) / 0.1 / (2 * 3 * 3)
    np.testing.assert_allclose(student.grad.reshape(4, 3, 20).numpy(), wanted, atol=1e-6)  # type: ignore[union-attr]
    assert teacher.grad is None


def test_two_global_views_alone() -> None:
    student, teacher = scores(2, 3, 20), scores(2, 3, 20, 1)
    value, _ = DINOLoss(20)(student, teacher, 0.04)
    assert float(value) == pytest.approx(by_the_paper(student, teacher, np.zeros(20), 3, 0.04), rel=1e-5)


def test_uniform_outputs_are_ln_k() -> None:
    value, found = DINOLoss(65536)(torch.zeros(10, 65536), torch.zeros(2, 65536), 0.04)
    assert float(value) == pytest.approx(math.log(65536), rel=1e-5)
    assert float(found["teacher_entropy"]) == pytest.approx(math.log(65536), rel=1e-5)
    assert abs(float(found["kl"])) < 1e-4


def test_half_precision_scores_are_used_in_float32() -> None:
    student, teacher = scores(4, 2, 30, scale=20).half(), scores(2, 2, 30, 1, 20).half()
    with torch.autocast("cpu", torch.bfloat16):
        value, _ = (loss := DINOLoss(30))(student, teacher, 0.04)
    assert value.dtype == loss.center.dtype == torch.float32
    assert float(value) == pytest.approx(by_the_paper(student, teacher, np.zeros(30), 2, 0.04), rel=1e-5)


def test_a_batch_in_parts_moves_the_centre_once() -> None:
    student, teacher = scores(3, 4, 20), scores(2, 4, 20, 1)
    whole, parts = DINOLoss(20), DINOLoss(20)
    value, _ = whole(student, teacher, 0.04)
    views_s, views_t = student.unflatten(0, (3, 4)), teacher.unflatten(0, (2, 4))
    values = [
        parts(views_s[:, part].flatten(0, 1), views_t[:, part].flatten(0, 1), 0.04, update_center=last)[0]
        for part, last in [(slice(0, 1), False), (slice(1, 4), True)]
    ]
    assert float(value) == pytest.approx(float(values[0]) / 4 + float(values[1]) * 3 / 4, rel=1e-6)
    torch.testing.assert_close(parts.center, whole.center)


def test_a_centre_started_at_the_first_batch() -> None:
    student, teacher = scores(4, 3, 20), scores(2, 3, 20, 1) + 2
    loss = DINOLoss(20, center_start="first_batch")
    mean = teacher.double().numpy().mean(0)
    value, _ = loss(student, teacher, 0.04)
    assert float(value) == pytest.approx(by_the_paper(student, teacher, mean, 3, 0.04), rel=1e-5)
    np.testing.assert_allclose(loss.center[0].numpy(), mean, atol=1e-6)
    # A resumed run does not start it again.
    resumed = DINOLoss(20, center_start="first_batch")
    resumed.load_state_dict(loss.state_dict())
    resumed(student, -teacher, 0.04)
    np.testing.assert_allclose(resumed.center[0].numpy(), 0.9 * mean - 0.1 * mean, atol=1e-6)


def test_what_is_no_loss() -> None:
    with pytest.raises(InputError, match="wanted a temperature above 0"):
        DINOLoss(10, student_temperature=0)
    with pytest.raises(ValueError, match="no whole views"):
        DINOLoss(10)(torch.zeros(7, 10), torch.zeros(4, 10), 0.04)


def test_the_centre_is_the_mean_over_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of six pictures here; the other process's part of the sums and counts is added as all_reduce would."""
    student, teacher = scores(4, 6, 20), scores(2, 6, 20, 1) + 1
    here, there = (teacher.unflatten(0, (2, 6))[:, own].flatten(0, 1) for own in (slice(0, 2), slice(2, 6)))
    calls: list[int] = []

    def all_reduce(own: Tensor) -> None:
        calls.append(len(own))
        own += torch.cat([there.sum(0), torch.tensor([8.0])])

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    loss = DINOLoss(20, center_start="first_batch")
    for momentum_steps in (1, 2):
        value, _ = loss(student.unflatten(0, (4, 6))[:, :2].flatten(0, 1), here, 0.04)
        np.testing.assert_allclose(loss.center[0].numpy(), teacher.double().numpy().mean(0), atol=1e-6)
        assert calls == [21] * (1 + momentum_steps)
    own = student.unflatten(0, (4, 6))[:, :2].flatten(0, 1)
    assert float(value) == pytest.approx(by_the_paper(own, here, teacher.double().numpy().mean(0), 2, 0.04), rel=1e-5)

"""The threshold of 1.5-entmax rows, and rows and their gradients from it, in plain PyTorch: any device, float32 and float64.

With z = scores / 2 and m = max z, a row is p = relu(z - m - tau)^2, where tau in [-1, 0) makes it sum to 1. The sum minus 1 is
convex and falling in tau, so each step has a Newton bound on the left of the root; the quadratic that is exact for the
present support lands beyond it or on it. Between the two bounds the iteration can't fail, and it needs no sort (the
threshold's definition: Peters, Niculae and Martins, ACL 2019, arXiv 1905.05702).
"""

import torch
from torch import Tensor

_MAX_STEPS = 64  # bisection alone would end here; the rows ever tried took six


def tolerance(dtype: torch.dtype) -> float:
    """|sum - 1| at which one more Newton step, whose error is the square of it, is exact in `dtype`."""
    return 1e-8 if dtype == torch.float64 else 1e-4


def probabilities_(halved: Tensor, scratch: Tensor) -> tuple[Tensor, Tensor]:
    """Turns rows of halved scores into p, in place.

    Args:
        halved: scores / 2, [...,n], n >= 1. `scratch`: two tensors of its shape, stacked: [2,...,n]; overwritten.

    Returns:
        m and tau, each [...,1]: p = relu(halved - m - tau)^2. A row with NaN or +inf is NaN, and so is its tau; a row of
        -inf everywhere is 0, with m = 0 and tau = -1.
    """
    lifted, signs = scratch
    largest = halved.amax(-1, keepdim=True)
    empty = largest == -torch.inf
    largest = torch.where(empty, 0.0, largest)
    halved.sub_(largest)  # tau alone is subtracted from here on: m + tau as one number would round where m is large
    tau = torch.full_like(largest, -1.0)
    low, high = tau.clone(), torch.zeros_like(tau)
    stop = tolerance(halved.dtype)
    for step in range(_MAX_STEPS):
        torch.sub(halved, tau, out=lifted).clamp_min_(0)
        first = lifted.sum(-1, keepdim=True)
        second = torch.linalg.vector_norm(lifted, dim=-1, keepdim=True).square_()
        excess = second - 1
        newton = tau + excess / (2 * first)
        # NaN compares as false, so that rows with NaN are not waited for; nor are rows without a key.
        if step and not bool(((excess.abs() > stop) & ~empty).any()):
            break
        support = torch.sign(lifted, out=signs).sum(-1, keepdim=True)  # count_nonzero takes four times as long
        root = (first * first - support * excess).clamp_min_(0).sqrt_()
        quadratic = tau + excess / (first + root)
        left = excess >= 0
        low = torch.maximum(low, torch.where(left, newton, quadratic))
        high = torch.where(left, high, torch.minimum(high, tau))
        tau = torch.where(left, torch.where(quadratic < high, quadratic, 0.5 * (low + high)), low)
    tau = torch.where(empty, -1.0, newton)
    halved.sub_(tau).clamp_min_(0).square_()
    return largest, tau


def gradients_(halved: Tensor, grad: Tensor, largest: Tensor, tau: Tensor, scratch: Tensor) -> None:
    """In place: `halved` becomes p, and `grad` of p becomes the gradient of the (unhalved) scores.

    With u = sqrt(p): u * (grad - sum(u * grad) / sum(u)); 0 outside the support and in one-hot rows.
    """
    lifted, products = scratch
    torch.sub(halved, largest, out=lifted).sub_(tau).clamp_min_(0)
    total = lifted.sum(-1, keepdim=True)
    torch.mul(lifted, grad, out=products)
    # A row without any key has total 0, and sums of nothing: the quotient is then 0. NaN stays NaN.
    mean = products.sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total)
    grad.sub_(mean).mul_(lifted)
    torch.mul(lifted, lifted, out=halved)

"""The threshold of an entmax-1.5 row: sum_j relu(z_j - tau)^2 = 1 for z = (s - max s) / 2, tau in [-1, 0).

One pass over a row at any tau gives the support k, the sum of roots u = relu(z - tau) and the sum of weights u^2. Two steps use
it: Newton's, which lands at or left of the solution from either side and so can't fail, and the quadratic one, which is exact for
the current support, lands right of the solution from the left and left of it from the right, and so brackets it. No sort.

`PTX` is False in Triton's interpreter, which has no inline assembly and reduces with a custom function element by element.
"""

import triton
import triton.language as tl


@triton.jit
def roots(scores, threshold, PTX: tl.constexpr):
    """u = relu(scores - threshold); 0 where that is NaN. In a row solved or left of it u <= 1, so saturation is the relu."""
    if PTX:
        return tl.inline_asm_elementwise(
            "add.sat.f32 $0, $1, $2;", "=f,f,f", [scores, -threshold], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.maximum(scores - threshold, 0.0)


@triton.jit
def scaled_roots(products, half_scale, offset, PTX: tl.constexpr):
    """u = relu(half_scale * products + offset), 0 where that is NaN; at most 1 up to rounding, as above."""
    if PTX:
        return tl.inline_asm_elementwise(
            "fma.rn.sat.f32 $0, $1, $2, $3;",
            "=f,f,f,f",
            [products, half_scale, offset],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        return tl.maximum(products * half_scale + offset, 0.0)


@triton.jit
def larger(a, b):
    """The larger of both, NaN if one is: unlike `tl.max`, which passes a NaN by."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest(scores, PTX: tl.constexpr):
    """Maximum of every row, NaN for a row that holds one."""
    if PTX:
        return tl.reduce(scores, 1, larger)
    else:
        invalid = tl.sum((scores != scores).to(tl.int32), 1) > 0
        return tl.where(invalid, float("nan"), tl.max(scores, 1))


@triton.jit
def is_finite(value):
    """Neither NaN nor infinite."""
    return tl.abs(value) < float("inf")


@triton.jit
def quadratic_step(tau, low, high, support, root_sum, weight_sum):
    """The quadratic's tau, the next tau (bisection where the former leaves the bracket), and the bracket low, high."""
    excess = weight_sum - 1.0
    left = excess >= 0.0
    step = excess / (root_sum + tl.sqrt(tl.maximum(root_sum * root_sum - support * excess, 0.0)))
    quadratic = tau + step
    low = tl.maximum(low, tl.where(left, tau + excess / (2.0 * root_sum), quadratic))
    high = tl.where(left, high, tl.minimum(high, tau))
    following = tl.where(left, tl.where(quadratic < high, quadratic, 0.5 * (low + high)), low)
    return quadratic, following, low, high


@triton.jit
def newton_step(tau, root_sum, weight_sum):
    """The next tau: at or left of the solution, never below -1, where a row of one key has it exactly."""
    return tl.maximum(tau + (weight_sum - 1.0) / (2.0 * root_sum), -1.0)


@triton.jit
def row_threshold(maximum, tau):
    """What the backward keeps of a row: maximum + tau; NaN for a row with a NaN or +inf score, +inf for a row of -inf only."""
    regular = tl.where(maximum == float("-inf"), float("inf"), float("nan"))
    return tl.where(is_finite(maximum), maximum + tau, regular)

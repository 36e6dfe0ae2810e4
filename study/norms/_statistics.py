"""Statistics per channel and what is done with them, built on the framework's fused kernels.

Shapes: x is N×C or N×C×H×W in any memory format, every statistic is C; n = N·H·W values stand behind each.
Everything is differentiable twice. Half-precision inputs are summed in float32.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def channel_affine(x: Tensor, mean: Tensor | None, factor: Tensor, shift: Tensor | None) -> Tensor:
    """Return (x − mean)·factor + shift per channel, with gradients to all four, in fused passes.

    The evaluation kernel of batch normalisation does it: with variance 1 and ε = 0 it is this map, and its
    backward pass sums the gradients of factor and shift on the way. It has no gradient to its mean, so that
    one takes the way over the shift, whose value stays as it is.
    """
    if mean is None:
        centre = torch.zeros_like(factor)
    else:
        centre = mean.detach()
        if mean.requires_grad:
            correction = factor * (centre - mean)
            shift = correction if shift is None else shift + correction
    return F.batch_norm(x, centre, torch.ones_like(centre), factor, shift, False, 0.0, 0.0)


class _Moments(torch.autograd.Function):
    """x → mean and biased variance per channel, in one fused pass; the gradient is one fused pass too."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(x.dtype, torch.float32)
        unused = torch.zeros(2, x.shape[1], dtype=dtype, device=x.device)
        mean, var = torch.batch_norm_update_stats(x, unused[0], unused[1], 1.0)
        return mean, var

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], output[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, mean = ctx.saved_tensors
        n = x.numel() // x.shape[1]
        return channel_affine(x, mean, grads[1] * (2 / n), grads[0] / n)


class _AbsoluteMean(torch.autograd.Function):
    """d → mean of |d| per channel."""

    @staticmethod
    def forward(d: Tensor) -> Tensor:
        return _Moments.forward(d.abs())[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (d,) = ctx.saved_tensors
        return channel_affine(d.sign(), None, grads[0] / (d.numel() // d.shape[1]), None)


class _AbsoluteMax(torch.autograd.Function):
    """d → largest |d| per channel; the gradient is shared evenly among the values that attain it."""

    @staticmethod
    def forward(d: Tensor) -> Tensor:
        return _rows(d.abs()).amax(0).to(torch.promote_types(d.dtype, torch.float32))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        d, largest = ctx.saved_tensors
        shape = (-1, *[1] * (d.dim() - 2))
        attained = (d.abs() == largest.view(shape)).to(d.dtype)
        factor = grads[0] / _rows(attained).sum(0)
        return channel_affine(attained * d.sign(), None, factor, None)


def moments(x: Tensor, center: bool, scale: bool, order: float) -> tuple[Tensor | None, Tensor | None]:
    """Return mean (None unless `center`) and squared deviation of order p (None unless `scale`), each C.

    The deviation is taken from the mean, or from 0 without `center`; biased: with p = 2 it is the variance
    with 1/n, or the mean square. Order 1 is √(π/2)·mean|d| and order ∞ is max|d| / E_n, where E_n is the
    expected largest modulus of n standard Gaussians (`expected_max`, so this constant depends on n): a
    Gaussian then keeps unit variance under every order, up to the few percent by which the largest of n
    values fluctuates, relatively, about 1/E_n².
    """
    if order == 2:
        mean, var = _Moments.apply(x)
        square = var if center else torch.addcmul(var, mean, mean)
        return (mean if center else None), (square if scale else None)
    mean = _Moments.apply(x)[0] if center else None
    if not scale:
        return mean, None
    d = x if mean is None else channel_affine(x, mean, torch.ones_like(mean), None)
    if order == 1:
        return mean, _AbsoluteMean.apply(d).square() * (math.pi / 2)
    return mean, (_AbsoluteMax.apply(d) / expected_max(x.numel() // x.shape[1])).square()


@cache
def expected_max(n: int) -> float:
    """Return E_n, the expected largest modulus of n standard Gaussians, = ∫₀^∞ 1 − erf(t/√2)ⁿ dt.

    E_1 = √(2/π), E_100 = 2.75, E_10000 = 4.03; the familiar √(2·ln n) is only its leading term (4.29 there).
    """
    t = torch.linspace(0, 16, 16_001, dtype=torch.float64)
    return float(torch.trapezoid(1 - torch.erf(t / math.sqrt(2)).pow(n), t))


def _rows(x: Tensor) -> Tensor:
    """Return x as n×C."""
    return x.movedim(1, -1).reshape(-1, x.shape[1])

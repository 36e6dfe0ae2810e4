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
    # The CPU kernel's backward pass takes the strides of an expanded factor for those of a whole vector.
    factor = factor.contiguous()
    return F.batch_norm(x, centre, torch.ones_like(centre), factor, shift, False, 0.0, 0.0)


class _Moments(torch.autograd.Function):
    """x → mean and biased variance per channel, in one fused pass; the gradient is one fused pass too."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        unused = torch.zeros(2, x.shape[1], dtype=_wide(x), device=x.device)
        mean, var = torch.batch_norm_update_stats(x, unused[0], unused[1], 1.0)
        return mean, var

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], output[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, mean = ctx.saved_tensors
        return channel_affine(x, mean, grads[1] * (2 / _size(x)), grads[0] / _size(x))


class _MeanSquare(torch.autograd.Function):
    """x → mean of x² per channel."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _mean(x.square())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return channel_affine(x, None, grads[0] * (2 / _size(x)), None)


class _Deviation(torch.autograd.Function):
    """x → mean μ (0 unless `center`), and mean |x − μ| (order 1) or max |x − μ| (order ∞), per channel.

    At order ∞ the gradient is shared evenly among the values that attain the maximum.
    """

    @staticmethod
    def forward(x: Tensor, center: bool, order: float) -> tuple[Tensor, Tensor]:
        mean = _mean(x) if center else torch.zeros(x.shape[1], dtype=_wide(x), device=x.device)
        modulus = channel_affine(x, mean, torch.ones_like(mean), None).abs_()
        if order == 1:
            return mean, _mean(modulus)
        modulus = modulus.flatten(2).amax(2) if x.dim() > 2 else modulus
        return mean, modulus.amax(0).to(mean.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.center, ctx.order = inputs
        ctx.save_for_backward(x, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        x, mean, deviation = ctx.saved_tensors
        d = channel_affine(x, mean, torch.ones_like(mean), None)
        if ctx.order == 1:
            chosen, factor = d.sign(), grads[1] / _size(x)
        else:
            # Nothing but the extremes survives: |d|/max is 1 for them, and at most 1 − ε/2 for the others.
            largest = deviation.to(d.dtype).clamp_min(torch.finfo(d.dtype).tiny)
            ratio = d / largest.view(-1, *[1] * (x.dim() - 2))
            chosen = F.hardshrink(ratio, 1 - torch.finfo(d.dtype).eps / 2)
            factor = grads[1] / (_mean(chosen.abs()) * _size(x)).clamp_min(1)
        shift = grads[0] / _size(x) - factor * _mean(chosen) if ctx.center else None
        return channel_affine(chosen, None, factor, shift), None, None


def moments(x: Tensor, center: bool, scale: bool, order: float) -> tuple[Tensor | None, Tensor | None]:
    """Return mean (None unless `center`) and squared deviation of order p (None unless `scale`), each C.

    The deviation is taken from the mean, or from 0 without `center`; biased: with p = 2 it is the variance
    with 1/n, or the mean square. Order 1 is √(π/2)·mean|d| and order ∞ is max|d| / E_n, where E_n is the
    expected largest modulus of n standard Gaussians (`expected_max`, so this constant depends on n): a
    Gaussian then keeps unit variance under every order, but for the fluctuation of the largest of n values,
    some percent.
    """
    if not scale:
        return _mean(x), None
    if order == 2:
        if center:
            mean, var = _Moments.apply(x)
            return mean, var
        return None, _MeanSquare.apply(x)
    mean, deviation = _Deviation.apply(x, center, order)
    constant = math.sqrt(math.pi / 2) if order == 1 else 1 / expected_max(_size(x))
    return (mean if center else None), (deviation * constant).square()


@torch.compiler.disable  # type: ignore[untyped-decorator]
@cache
def expected_max(n: int) -> float:
    """Return E_n, the expected largest modulus of n standard Gaussians, = ∫₀^∞ 1 − erf(t/√2)ⁿ dt.

    E_1 = √(2/π), E_100 = 2.75, E_10000 = 4.02. The familiar √(2·ln n) is its leading term, and too large (at
    10⁴ 4.29). Dividing by max/E_n leaves a Gaussian a mean variance of 1.06, 1.02, 1.01 at n = 10², 10³, 10⁴.
    """
    t = torch.linspace(0, 16, 16_001, dtype=torch.float64)
    return float(torch.trapezoid(1 - torch.erf(t / math.sqrt(2)).pow(n), t))


def _mean(x: Tensor) -> Tensor:
    return x.mean([d for d in range(x.dim()) if d != 1], dtype=_wide(x))


def _size(x: Tensor) -> int:
    return x.numel() // x.shape[1]


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)

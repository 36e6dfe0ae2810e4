"""Batch normalisation as Ioffe & Szegedy 2015 (1502.03167) write it: plain formulas, to read and to test by.

Training uses study/norms, which is fast; this is what it must agree with. Shapes: N images, C channels, H×W
locations; x, y and their gradients are N×C or N×C×H×W, everything per channel is C; m = N·H·W values of x
stand behind each mean (§3.2: one mean per feature map, over batch and locations).
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Forward(NamedTuple):
    """What Algorithm 1 computes."""

    y: Tensor
    x_hat: Tensor
    mean: Tensor
    var: Tensor
    """Biased: divided by m."""


class Gradients(NamedTuple):
    """Gradients of the loss."""

    x: Tensor
    gamma: Tensor
    beta: Tensor


class Population(NamedTuple):
    """What Algorithm 2 puts in place of the batch's statistics; `var` is unbiased."""

    mean: Tensor
    var: Tensor


def forward(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Forward:
    """Algorithm 1: normalise by the mini-batch, then scale and shift."""
    mean = _mean(x)
    var = _mean((x - _wide(mean, x)) ** 2)
    x_hat = (x - _wide(mean, x)) / _wide((var + eps).sqrt(), x)
    return Forward(_wide(gamma, x) * x_hat + _wide(beta, x), x_hat, mean, var)


def backward(dy: Tensor, x: Tensor, gamma: Tensor, eps: float) -> Gradients:
    """The chain rule of §3, line by line; `dy` is ∂L/∂y.

    Simplified, ∂L/∂x = γ/√(σ²+ε) · (dy − mean(dy) − x̂·mean(dy·x̂)): its sum over a channel is 0 exactly, and
    its sum weighted by x̂ is 0 as ε → 0.
    """
    m = x.numel() // x.shape[1]
    _, x_hat, mean, var = forward(x, gamma, torch.zeros_like(gamma), eps)
    centred, std = x - _wide(mean, x), (var + eps).sqrt()
    dx_hat = dy * _wide(gamma, x)
    dvar = _sum(dx_hat * centred) * -0.5 * (var + eps) ** -1.5
    dmean = -_sum(dx_hat) / std + dvar * -2 * _mean(centred)
    dx = dx_hat / _wide(std, x) + _wide(dvar, x) * 2 * centred / m + _wide(dmean, x) / m
    return Gradients(dx, _sum(dy * x_hat), _sum(dy))


def running_average(old: Population, x: Tensor, momentum: float) -> Population:
    """Let running averages take a batch: new = (1 − momentum)·old + momentum·batch, the variance unbiased."""
    m = x.numel() // x.shape[1]
    mean = _mean(x)
    var = _mean((x - _wide(mean, x)) ** 2) * m / (m - 1)
    return Population((1 - momentum) * old.mean + momentum * mean, (1 - momentum) * old.var + momentum * var)


def population(batches: Iterable[Tensor]) -> Population:
    """Algorithm 2, step 10: E[x] = mean of μ_B and Var[x] = mean of m/(m−1)·σ²_B, weighted by m.

    The paper's batches have one size. For a whole network this is study.inference.with_population_statistics.
    """
    zero = Population(torch.tensor(0.0), torch.tensor(0.0))
    total, mean, var = 0, torch.tensor(0.0), torch.tensor(0.0)
    for x in batches:
        m = x.numel() // x.shape[1]
        one = running_average(zero, x, 1.0)
        total, mean, var = total + m, mean + m * one.mean, var + m * one.var
    return Population(mean / total, var / total)


def inference(x: Tensor, stats: Population, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    """Algorithm 2, step 11: y = γ/√(Var+ε)·x + (β − γ·E[x]/√(Var+ε))."""
    scale, shift = fold(stats, gamma, beta, eps)
    return _wide(scale, x) * x + _wide(shift, x)


def fold(stats: Population, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the one linear map per channel, (scale, shift), that inference is."""
    scale = gamma / (stats.var + eps).sqrt()
    return scale, beta - scale * stats.mean


@torch.no_grad()
def fold_into_conv(conv: nn.Conv2d, stats: Population, gamma: Tensor, beta: Tensor, eps: float) -> nn.Conv2d:
    """Return one convolution with a bias that equals `conv` followed by inference."""
    scale, shift = fold(stats, gamma, beta, eps)
    one = nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,  # type: ignore[arg-type]
        conv.stride,  # type: ignore[arg-type]
        conv.padding,  # type: ignore[arg-type]
        conv.dilation,  # type: ignore[arg-type]
        conv.groups,
        device=conv.weight.device,
        dtype=conv.weight.dtype,
    )
    assert one.bias is not None
    one.weight.copy_(conv.weight * scale.view(-1, 1, 1, 1))
    one.bias.copy_(shift if conv.bias is None else shift + scale * conv.bias)
    return one


def _sum(x: Tensor) -> Tensor:
    return x.sum([d for d in range(x.dim()) if d != 1])


def _mean(x: Tensor) -> Tensor:
    return _sum(x) / (x.numel() // x.shape[1])


def _wide(per_channel: Tensor, x: Tensor) -> Tensor:
    return per_channel.view(-1, *[1] * (x.dim() - 2))

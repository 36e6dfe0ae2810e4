"""Moments by channel, exact whatever the values' size, in two passes over the values.

Sums are taken about the channel's mean (raw power sums would cancel), within chunks that stay in the cache,
and added up in double precision. Where fourth powers would leave fp32's range, or a value is not finite, the
chunks themselves are double precision: (10³⁸)⁴ still fits.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_VALUES = 2**18
"""Values handled at once: 1 MiB of fp32."""

WIDTH = 64
"""Least length of the inner dimension of channels-last values, so that sums run along vector registers."""

SAFE = (1e-7, 1e8)
"""Ranges of a channel (maximum less minimum) whose fourth powers are ordinary fp32 numbers."""


class Moments(NamedTuple):
    """Per channel (C, float64, on the values' device)."""

    n: int
    """Values per channel."""
    mean: Tensor
    variance: Tensor
    """Biased: the mean squared deviation."""
    skewness: Tensor
    """NaN where the channel is constant."""
    kurtosis: Tensor
    """Not the excess: 3 for a Gaussian; NaN where the channel is constant."""
    zeros: Tensor
    """Share of values that are exactly 0."""
    nonfinite: Tensor
    """Number of NaN and ±∞ (int64); they make the moments of their channel NaN."""


class FirstTwo(NamedTuple):
    """Mean and variance only; fields as in Moments."""

    n: int
    mean: Tensor
    variance: Tensor
    nonfinite: Tensor


@dataclass(frozen=True)
class _Layout:
    """Values so arranged that a chunk of dimension 0 is contiguous and a sum over it is fast."""

    values: Tensor
    """images × C × positions, or rows × (repeats·C)."""
    n: int
    channels: int

    def chunks(self, double: bool) -> list[Tensor]:
        """Return chunks in the precision to compute in."""
        rows = max(1, CHUNK_VALUES // max(1, self.values[:1].numel()))
        kind = torch.float64 if double or self.values.dtype == torch.float64 else torch.float32
        return [c.to(kind) for c in torch.split(self.values, rows)]

    def spread(self, vector: Tensor) -> Tensor:
        """Return a per-channel vector (C) in a shape that broadcasts against a chunk."""
        return (
            vector[:, None] if self.values.dim() == 3 else vector.repeat(self.values.shape[1] // len(vector))
        )

    def total(self, chunk: Tensor) -> Tensor:
        """Return the sums by channel (C, float64) of a chunk."""
        if self.values.dim() == 3:
            return chunk.sum(-1).double().sum(0)
        return chunk.sum(0).double().view(-1, self.channels).sum(0)


def moments(x: Tensor) -> Moments:
    """Return the moments by channel of N×C×H×W values (of N×…×C where they are not 4-dimensional)."""
    layout, mean, double, nonfinite = _prepared(x.detach())
    sums = torch.zeros(5, layout.channels, dtype=torch.float64, device=x.device)
    shift = layout.spread(mean.to(torch.float64 if double else torch.float32))
    for chunk in layout.chunks(double):
        deviation = chunk - shift
        square = deviation * deviation
        sums[0] += layout.total(deviation)
        sums[1] += layout.total(square)
        sums[2] += layout.total(deviation.mul_(square))
        sums[3] += layout.total(square.mul_(square))
        sums[4] += layout.total(deviation.copy_(chunk == 0))
    # m1 is what rounding left of the mean: moments about the shift become moments about the mean.
    m1, m2, m3, m4, zeros = sums / layout.n
    mean = (mean if double else mean.float().double()) + m1
    variance = (m2 - m1**2).clamp_min_(0)
    third = m3 - 3 * m1 * m2 + 2 * m1**3
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    return Moments(layout.n, mean, variance, third / variance**1.5, fourth / variance**2, zeros, nonfinite)


def first_two(x: Tensor) -> FirstTwo:
    """Return mean and variance by channel; `x` as for `moments`."""
    layout, mean, double, nonfinite = _prepared(x.detach())
    sums = torch.zeros(2, layout.channels, dtype=torch.float64, device=x.device)
    shift = layout.spread(mean.to(torch.float64 if double else torch.float32))
    for chunk in layout.chunks(double):
        deviation = chunk - shift
        sums[0] += layout.total(deviation)
        sums[1] += layout.total(deviation.mul_(deviation))
    m1, m2 = sums / layout.n
    mean = (mean if double else mean.float().double()) + m1
    return FirstTwo(layout.n, mean, (m2 - m1**2).clamp_min_(0), nonfinite)


def _prepared(x: Tensor) -> tuple[_Layout, Tensor, bool, Tensor]:
    """Return the layout, the means (C, float64), whether to compute in double, and non-finite counts (C)."""
    layout = _layout(x)
    matrix = layout.values
    total = torch.zeros(layout.channels, dtype=torch.float64, device=x.device)
    for chunk in layout.chunks(double=False):
        total += layout.total(chunk)
    over = (0, 2) if matrix.dim() == 3 else 0
    spans = (torch.amax(matrix, over) - torch.amin(matrix, over)).view(-1, layout.channels).amax(0)
    ordinary = (spans == 0) | ((spans >= SAFE[0]) & (spans <= SAFE[1]))
    double = not bool((ordinary & total.isfinite()).all())
    nonfinite = torch.zeros(layout.channels, dtype=torch.int64, device=x.device)
    if double:
        total.zero_()
        for chunk in layout.chunks(double=True):
            total += layout.total(chunk)
            nonfinite += layout.total((~chunk.isfinite()).double()).long()
    return layout, total / layout.n, double, nonfinite


def _layout(x: Tensor) -> _Layout:
    channels = x.shape[1] if x.dim() == 4 else x.shape[-1]
    n = x.numel() // channels
    if x.dim() == 4 and x.is_contiguous():
        return _Layout(x.flatten(2), n, channels)
    rows = (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).reshape(n, channels)
    repeats = 1
    while repeats * channels < WIDTH and n % (2 * repeats) == 0:
        repeats *= 2
    return _Layout(rows.reshape(n // repeats, repeats * channels), n, channels)

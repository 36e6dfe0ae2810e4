"""A histogram whose bins are fixed, bounded and logarithmic on both sides of zero, read off the bits of fp32.

Two bins an octave: [2^e, 1.5·2^e) and [1.5·2^e, 2^(e+1)), and their mirror images. Magnitudes below 2^LOWEST
(zero among them) share the middle bin, those of 2^HIGHEST and more the outermost ones.
"""

from typing import NamedTuple

import torch
from torch import Tensor

LOWEST, HIGHEST = -40, 60
SIDE = 2 * (HIGHEST - LOWEST) + 1
"""Bins on each side of the middle one: two an octave, and the outermost."""

SAMPLE = 2000
"""Values drawn for statistics that need single values."""


class Histogram(NamedTuple):
    """Counts over 2·SIDE + 1 bins from the most negative to the most positive, and what fits in none."""

    counts: Tensor
    """int64, of finite values."""
    zeros: int
    """Values that are exactly 0 (they are in the middle bin as well)."""
    nonfinite: int
    sample: Tensor
    """At most SAMPLE values (fp32), drawn with replacement; where depends on their number only."""


def edges() -> list[float]:
    """Return the 2·SIDE inner edges, ascending; bin i lies between edges i−1 and i, the outer ones open."""
    positive = [m * 2.0**e for e in range(LOWEST, HIGHEST) for m in (1.0, 1.5)] + [2.0**HIGHEST]
    return [-x for x in reversed(positive)] + positive


def histogram(x: Tensor) -> Histogram:
    """Count values of any shape by bin. A magnitude on an edge belongs to the bin farther from zero."""
    values = _flat(x.detach()).float()
    # The top ten bits of a float are its sign, exponent and first mantissa bit.
    codes = torch.bincount((values.view(torch.int32) >> 22) + 512, minlength=1024).cpu()
    # Shifted arithmetically, positive numbers come to 0…511 (+512), negative ones to −512…−1 (+512).
    positive, negative = codes[512:], codes[:512]
    finite = slice(0, 510)
    nonfinite = int(codes.sum() - positive[finite].sum() - negative[finite].sum())
    counts = torch.zeros(2 * SIDE + 1, dtype=torch.int64)
    bins = _bins()
    counts.index_add_(0, SIDE + bins, positive[finite])
    counts.index_add_(0, SIDE - bins, negative[finite])
    zeros = int(values.numel() - torch.count_nonzero(values))
    draw = torch.Generator().manual_seed(0)
    places = torch.randint(values.numel(), (min(SAMPLE, values.numel()),), generator=draw)
    return Histogram(counts, zeros, nonfinite, values[places.to(values.device)])


def _bins() -> Tensor:
    """Distance from the middle bin of each (exponent, first mantissa bit) code, 0…509."""
    return (torch.arange(510) - 2 * (LOWEST + 127) + 1).clamp(0, SIDE)


def _flat(x: Tensor) -> Tensor:
    """Flatten without a copy where memory is dense in some order; the order does not matter here."""
    return x.as_strided((x.numel(),), (1,)) if _dense(x) else x.reshape(-1)


def _dense(x: Tensor) -> bool:
    return x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))

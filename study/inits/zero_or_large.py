"""Each weight is 0 or large, with Xavier's variance 2/(fan in + fan out) (Bjorck et al. 2018, §5).

A weight is 0 with probability 1 − NONZERO and ±√(variance/NONZERO) otherwise, either sign equally likely.
The variance guarantee is Xavier's; what differs is that few inputs carry each output. The share of non-zero
weights is our choice.
"""

import math

import torch
from torch import Tensor

NONZERO = 0.1
"""Probability that a weight is not 0."""


def fill(weight: Tensor, random: torch.Generator) -> None:
    """Overwrite `weight` in place."""
    area = weight[0, 0].numel()
    variance = 2 / ((weight.shape[0] + weight.shape[1]) * area)
    large = math.sqrt(variance / NONZERO)
    draw = torch.rand(weight.shape, generator=random)
    weight.zero_()
    weight[draw < NONZERO] = large
    weight[draw < NONZERO / 2] = -large

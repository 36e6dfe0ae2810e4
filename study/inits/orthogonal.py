"""Orthogonal (Saxe et al. 2013, 1312.6120): the weight as an out × (in·kh·kw) matrix has orthonormal rows, or
orthonormal columns where it is taller than wide. Mean square 1/max(out, in·kh·kw)."""

import torch
from torch import Tensor, nn


def fill(weight: Tensor, random: torch.Generator) -> None:
    """Overwrite `weight` in place."""
    nn.init.orthogonal_(weight, generator=random)

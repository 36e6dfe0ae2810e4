"""Kaiming (He et al. 2015, 1502.01852, eq. 10), normal: variance 2/fan in, whatever the activation."""

import torch
from torch import Tensor, nn


def fill(weight: Tensor, random: torch.Generator) -> None:
    """Overwrite `weight` in place."""
    nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=random)

"""Xavier (Glorot & Bengio 2010), uniform: variance 2/(fan in + fan out), bounds ±√(6/(fan in + fan out))."""

import torch
from torch import Tensor, nn


def fill(weight: Tensor, random: torch.Generator) -> None:
    """Overwrite `weight` in place."""
    nn.init.xavier_uniform_(weight, generator=random)

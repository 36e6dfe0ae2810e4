"""Xavier (Glorot & Bengio 2010), normal: variance 2/(fan in + fan out). The study's default.

The fans of a convolution count its kernel's area, here and in the other initialisations.
"""

import torch
from torch import Tensor, nn


def fill(weight: Tensor, random: torch.Generator) -> None:
    """Overwrite `weight` in place."""
    nn.init.xavier_normal_(weight, generator=random)

"""A small learnable set for tests, 8×8×1, ten classes: a fixed random pattern per class plus noise."""

import torch
from torch import Tensor

from study.config import DataConfig
from study.data.base import RawSet, Split
from study.seeding import generator

N_CLASSES = 10
N_TRAIN, N_TEST = 512, 256
SIDE = 8
NOISE = 0.5
"""Standard deviation of the noise, in units of the patterns' own."""


def load(config: DataConfig) -> RawSet:
    """Return the set; it is a constant, whatever the run's seed."""
    patterns = torch.randn(N_CLASSES, 1, SIDE, SIDE, generator=generator(0, "synthetic patterns"))
    return RawSet(_split(patterns, N_TRAIN, "train"), _split(patterns, N_TEST, "test"), N_CLASSES)


def _split(patterns: Tensor, n: int, name: str) -> Split:
    labels = torch.arange(n) % N_CLASSES
    noise = torch.randn(n, *patterns.shape[1:], generator=generator(0, "synthetic noise", name))
    # 45 grey levels per deviation: three deviations of pattern and noise together stay inside 0…255.
    grey = 127.5 + 45 * (patterns[labels] + NOISE * noise) / (1 + NOISE**2) ** 0.5
    return Split(grey.round().clamp(0, 255).to(torch.uint8), labels)

"""Which images belong to a split: deterministic, class by class, and independent of a run's seed."""

import torch
from torch import Tensor

from study.seeding import generator

SPLIT_SEED = 0
"""Splits are a property of the data set, so that all runs share them; a run's own seed has no part in it."""


def proportional(counts: list[int], total: int) -> list[int]:
    """Share `total` among classes in proportion to `counts`, by largest remainder (lower class on a tie)."""
    n = sum(counts)
    shares = [c * total // n for c in counts]
    by_remainder = sorted(range(len(counts)), key=lambda k: (-(counts[k] * total % n), k))
    for k in by_remainder[: total - sum(shares)]:
        shares[k] += 1
    return shares


def level(counts: list[int], total: int) -> list[int]:
    """Share `total` among classes as equally as possible; none gets more than its count.

    Where it does not divide evenly, lower classes get one more.
    """
    shares = [0] * len(counts)
    while (missing := total - sum(shares)) > 0:
        open_ = [k for k, c in enumerate(counts) if shares[k] < c]
        for k in open_[:missing]:
            shares[k] += min(counts[k] - shares[k], max(1, missing // len(open_)))
    return shares


def draw(labels: Tensor, quotas: list[int], purpose: str) -> Tensor:
    """Return a mask (bool, N) of `quotas[k]` random images of each class k.

    The order in which a class is drawn depends on (purpose, class) alone, so a smaller quota draws a subset
    of what a larger one draws.
    """
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for k, quota in enumerate(quotas):
        members = torch.nonzero(labels == k).flatten()
        order = torch.randperm(len(members), generator=generator(SPLIT_SEED, purpose, k))
        mask[members[order[:quota]]] = True
    return mask


def class_counts(labels: Tensor, n_classes: int) -> list[int]:
    """Number of images of each class."""
    counts: list[int] = torch.bincount(labels, minlength=n_classes).tolist()
    return counts

"""Between which learning rates training ceases to work, and which to try next. Imports no torch.

A rate is trainable if its run neither diverges nor ends stuck at chance (study.criteria.fate).
"""

import math
from collections.abc import Collection, Mapping
from itertools import pairwise

from study.status import Outcome

RATIO, LOW, HIGH = 2.0, 0.0005, 1.0
"""Of the study's searches. Lower rates are not tried: twelve epochs at 0.0001 hardly leave chance."""


def bracket(fates: Mapping[float, str]) -> tuple[float | None, float | None]:
    """Return the highest trainable rate and the lowest one above which runs fail, from fates by rate.

    The second is the lowest that diverged, or that stayed at chance above one that trains: below all that
    train, to stay at chance is to learn too slowly, which sets no upper limit. The first is the highest below
    the second that trained. Either is None if there is none; where nothing trains, the second is the lowest
    rate that failed in any way.
    """
    trained = [lr for lr, fate in fates.items() if fate == Outcome.TRAINED]
    slow = min(trained, default=-math.inf)
    fails = min(
        (lr for lr, f in fates.items() if f == Outcome.DIVERGED or (f != Outcome.TRAINED and lr > slow)),
        default=None,
    )
    works = max((lr for lr in trained if fails is None or lr < fails), default=None)
    return works, fails


def next_rates(
    fates: Mapping[float, str], ratio: float = RATIO, low: float = LOW, high: float = HIGH
) -> list[float]:
    """Return the rates that bisection tries now; none when the bracket is as narrow as asked for."""
    lowest, highest = snap(low, ratio), snap(high, ratio)
    works, fails = bracket(fates)
    if works is None and fails is None:
        return [lowest, highest]
    if works is None and fails is not None:
        return [lowest] if fails > lowest * (1 + 1e-9) else _unexplored(fates, ratio, highest)
    if works is not None and fails is None:
        return [highest] if works < highest * (1 - 1e-9) else []
    assert works is not None
    assert fails is not None
    if fails / works <= ratio * (1 + 1e-6):
        return []
    middle = snap(math.sqrt(works * fails), ratio)
    return [middle] if works < middle < fails else []


def _unexplored(fates: Mapping[float, str], ratio: float, highest: float) -> list[float]:
    """Return the middle of the widest gap while none trains; none where all are within ratio².

    A run at chance at the lowest rate may have learnt too slowly, so higher ones are tried, up to the
    lowest that diverges.
    """
    end = min([highest, *(lr for lr, outcome in fates.items() if outcome == Outcome.DIVERGED)])
    if end not in fates:
        return [end]
    tried = sorted(lr for lr in fates if lr <= end)
    below, above = max(pairwise(tried), key=lambda gap: gap[1] / gap[0], default=(end, end))
    wide = above / below > ratio**2 * (1 + 1e-4)
    return [snap(math.sqrt(below * above), ratio)] if wide else []


def snap(lr: float, ratio: float) -> float:
    """Return the nearest rate of the grid ratio^k, written with five digits."""
    return float(f"{ratio ** round(math.log(lr) / math.log(ratio)):.5g}")


def narrowed(fates: Mapping[float, str], early: Collection[float]) -> bool:
    """Whether a bracket is as narrow as the study's searches make it, and its lower end trained to its end.

    `early` are the rates whose runs were stopped once they had left chance, which a later divergence could
    belie.
    """
    return not next_rates(fates) and bracket(fates)[0] not in early

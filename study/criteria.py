"""Decisions about a run: diverged, stuck at chance, plateau. Imports no torch."""

import math
from collections.abc import Sequence
from itertools import pairwise

from study.status import Outcome

DIVERGENCE_FACTOR = 1e3
"""By one account Bjorck et al. 2018 call a mini-batch loss beyond 10³ divergence; another says relative to
the start. Neither could be checked against the paper."""

STUCK = "stuck at chance"

CHANCE_ALPHA = 0.01
"""Level of the test that calls a run stuck at chance."""


def diverged(loss: float, initial_loss: float, step: int) -> bool:
    """Whether a training-batch loss ends the run.

    A non-finite loss does at any step; after the first update (step ≥ 1, counting from 0) so does one beyond
    10³·max(1, initial loss). Without BN the initial loss is often in the hundreds, so the absolute rule alone
    would be a hair from false alarms, and the relative rule alone would let small initial losses alarm early.
    """
    if not math.isfinite(loss):
        return True
    return step >= 1 and loss > DIVERGENCE_FACTOR * max(1.0, initial_loss)


def crossed_absolute(loss: float) -> bool:
    """Whether a loss is beyond 10³ (recorded, does not end a run). A non-finite loss is beyond any bound."""
    return not (math.isfinite(loss) and loss <= DIVERGENCE_FACTOR)


def crossed_relative(loss: float, initial_loss: float) -> bool:
    """Whether a loss is beyond 10³ times the initial loss (recorded, does not end a run)."""
    return not (math.isfinite(loss) and loss <= DIVERGENCE_FACTOR * initial_loss)


def stuck_at_chance(correct: int, n: int, chance: float, alpha: float = CHANCE_ALPHA) -> bool:
    """Whether `correct` of `n` predictions could be random guessing, by a one-sided exact binomial test.

    `chance` is the accuracy of the best guess that ignores the image: the share of the most frequent class.
    Stuck means that "accuracy ≤ chance" is not rejected at level `alpha`. Raises ValueError if n < 1.
    """
    if n < 1:
        raise ValueError("stuck_at_chance needs at least one prediction")
    return binomial_tail(correct, n, chance) > alpha


def binomial_tail(k: int, n: int, p: float) -> float:
    """Return P(X ≥ k) of a binomial X(n, p), term by term; importing scipy for it would take 0.3 s."""
    if k <= 0 or p >= 1:
        return 1.0
    if p <= 0 or k > n:
        return 0.0
    if k <= n * p:  # the other tail, so that the terms shrink from the first one on
        return 1.0 - binomial_tail(n - k + 1, n, 1 - p)
    first = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    terms = [math.exp(first + k * math.log(p) + (n - k) * math.log1p(-p))]
    for i in range(k, n):
        terms.append(terms[-1] * (n - i) / (i + 1) * p / (1 - p))
        if terms[-1] <= terms[0] * 1e-17:
            break
    return math.fsum(terms)


def fate_decided(correct: int, n: int, chance: float, evaluations: int) -> bool:
    """Whether an evaluation shows that a network has left chance, so that a search need not train it further.

    What can be decided before the last of `evaluations` (one an epoch), and what cannot:

    - *Diverged* is final at once: training ends there.
    - *Stuck at chance* cannot be decided early: a network may leave chance in its last epoch.
    - *Trained* cannot either, strictly: while the rate is high a network may fall back, or diverge. What an
      early evaluation can show for good is that it has left chance, by the exact binomial test of
      `stuck_at_chance`; at level α divided by the number of evaluations, so that a network that only guesses
      passes any of them with probability at most α.

    A search (study/max_lr.py) therefore lets this steer its bisection only, and trains the run at the lower
    end of the bracket it reports to its end: no verdict that it reports is one that more training could undo.
    """
    return not stuck_at_chance(correct, n, chance, CHANCE_ALPHA / evaluations)


def fate(outcome: str, accuracy: float | None, n: int | None, chance: float | None) -> str | None:
    """Return what a complete run came to: diverged, stuck at chance or trained; None if it cannot be told.

    `outcome` is as recorded; `accuracy` is that of the last evaluation on `n` test images, `chance` the share
    of their most frequent class.
    """
    if outcome == Outcome.DIVERGED:
        return str(outcome)
    if accuracy is None or not 0 <= accuracy <= 1 or not n or chance is None or not 0 <= chance <= 1:
        return None
    return STUCK if stuck_at_chance(round(accuracy * n), n, chance) else str(Outcome.TRAINED)


def improvements(losses: Sequence[float], threshold: float) -> list[int]:
    """Return the epochs (from 0) whose mean training loss is below (1 − threshold) × that of the last such.

    The first epoch with a finite loss is one.
    """
    found, best = [], math.inf
    for epoch, loss in enumerate(losses):
        if loss < (1 - threshold) * best:
            found.append(epoch)
            best = loss
    return found


def plateaus(losses: Sequence[float], patience: int, threshold: float) -> int:
    """Count the plateaus so far: every `patience` epochs in a row without an improvement are one."""
    ends = [-1, *improvements(losses, threshold), len(losses)]
    return sum((b - a - 1) // patience for a, b in pairwise(ends))


def plateau_reached(losses: Sequence[float], patience: int, threshold: float) -> bool:
    """Whether the last `patience` epochs (or more) brought no improvement."""
    last = max(improvements(losses, threshold), default=-1)
    return len(losses) - 1 - last >= patience

"""Intervals, effect sizes and corrections. Every function says which method it is and what n it needs."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from analysis.select import CELL, DIVERGED, FATES, UNDECIDED
from analysis.tidy import groups

LEVEL = 0.95
RESAMPLES = 9999


class Interval(NamedTuple):
    """An estimate with its confidence interval; the bounds are nan where n is too small for one."""

    estimate: float
    low: float
    high: float
    n: int


def proportion(
    k: int, n: int, method: Literal["exact", "wilson"] = "exact", level: float = LEVEL
) -> Interval:
    """Share k/n with its Clopper–Pearson ("exact", the default) or Wilson score interval; n = 0 gives nan.

    Clopper–Pearson never covers less than `level`, at the price of width; with few seeds that is the honest
    side to err on. Wilson's covers `level` on average.
    """
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    bounds = stats.binomtest(k, n).proportion_ci(confidence_level=level, method=method)
    return Interval(k / n, float(bounds.low), float(bounds.high), n)


def bootstrap_mean(values: ArrayLike, level: float = LEVEL, seed: int = 0) -> Interval:
    """Mean of the finite values with its bias-corrected accelerated bootstrap interval (nan below n = 3)."""
    x = _finite(values)
    if len(x) < 3:
        return Interval(float(x.mean()) if len(x) else np.nan, np.nan, np.nan, len(x))
    if np.ptp(x) == 0:  # every resample is the same: the bootstrap knows no spread
        return Interval(float(x[0]), float(x[0]), float(x[0]), len(x))
    found = stats.bootstrap(
        (x,), np.mean, confidence_level=level, n_resamples=RESAMPLES, rng=np.random.default_rng(seed)
    ).confidence_interval
    return Interval(float(x.mean()), float(found.low), float(found.high), len(x))


def mean_t(values: ArrayLike, level: float = LEVEL) -> Interval:
    """Mean of the finite values with Student's t interval (nan below n = 2)."""
    x = _finite(values)
    if len(x) < 2:
        return Interval(float(x.mean()) if len(x) else np.nan, np.nan, np.nan, len(x))
    low, high = (
        stats.t.interval(level, len(x) - 1, loc=x.mean(), scale=stats.sem(x)) if np.ptp(x) else (x[0],) * 2
    )
    return Interval(float(x.mean()), float(low), float(high), len(x))


def standardised_paired(a: ArrayLike, b: ArrayLike) -> float:
    """Cohen's d_z: mean of the paired differences over their standard deviation (nan below two pairs)."""
    d = _finite(np.asarray(a, float) - np.asarray(b, float))
    if len(d) < 2:
        return np.nan
    spread = d.std(ddof=1)
    return float(d.mean() / spread) if spread else float(np.copysign(np.inf, d.mean())) if d.mean() else 0.0


def cliffs_delta(a: ArrayLike, b: ArrayLike) -> float:
    """Cliff's δ = P(a > b) − P(a < b), in [−1, 1]; nan if either is empty.

    It uses ranks only, so a censored outcome takes part as −inf: lower than every observed accuracy.
    """
    x, y = np.asarray(a, float), np.asarray(b, float)
    if not len(x) or not len(y):
        return np.nan
    u = stats.mannwhitneyu(x, y, method="asymptotic").statistic
    return float(2 * u / (len(x) * len(y)) - 1)


def censored_median(values: ArrayLike, n_censored: int) -> float:
    """Median of all runs when `n_censored` of them lie below every observed value; −inf if it falls there."""
    x = np.concatenate([np.full(n_censored, -np.inf), _finite(values)])
    if not len(x):
        return np.nan
    # The lower of the two middle values: −inf and a number have no midpoint.
    return float(np.sort(x)[(len(x) - 1) // 2])


def fate_table(outcomes: pd.DataFrame, method: Literal["exact", "wilson"] = "exact") -> pd.DataFrame:
    """Per cell and fate: k of n complete runs, share, interval, and how many runs are undecided (not in n).

    `outcomes` is analysis.select.outcomes. Long form: setting, norm, lr, fate, k, n, share, low, high,
    n_undecided; a cell without a complete run has n = 0 and no share.
    """
    rows = []
    for (where, norm, lr), runs in groups(outcomes, CELL):
        counts = runs["fate"].value_counts()
        undecided = int(counts.get(UNDECIDED, 0))
        n = len(runs) - undecided
        for fate in FATES:
            k = int(counts.get(fate, 0))
            share = proportion(k, n, method)
            rows.append((where, norm, lr, fate, k, n, share.estimate, share.low, share.high, undecided))
    columns = [*CELL, "fate", "k", "n", "share", "low", "high", "n_undecided"]
    return pd.DataFrame(rows, columns=columns)


def accuracy_table(outcomes: pd.DataFrame, column: str = "last_test") -> pd.DataFrame:
    """Per cell: accuracy over seeds with its interval, next to how many runs it leaves out and why.

    Columns: setting, norm, lr, mean, low, high (Student's t from two observed runs on, cut at 0 and 1),
    median (diverged runs ranked lowest), n (complete runs), n_observed, n_diverged, n_undecided.
    """
    rows = []
    for (where, norm, lr), runs in groups(outcomes, CELL):
        diverged = int((runs["fate"] == DIVERGED).sum())
        undecided = int((runs["fate"] == UNDECIDED).sum())
        values = runs.loc[~runs["fate"].isin([DIVERGED, UNDECIDED]), column]
        mean = mean_t(values)
        low, high = np.clip(mean[1:3], 0.0, 1.0)
        middle = censored_median(values, diverged)
        n = len(runs) - undecided
        rows.append((where, norm, lr, mean.estimate, low, high, middle, n, mean.n, diverged, undecided))
    columns = [*CELL, "mean", "low", "high", "median", "n", "n_observed", "n_diverged", "n_undecided"]
    return pd.DataFrame(rows, columns=columns)


def of_n(observed: int, n: int, diverged: int, undecided: int = 0) -> str:
    """Say what an average leaves out, as "n = 2 of 3, 1 diverged"; the rest was stopped (select.outcomes)."""
    parts = [f"n = {observed}" if observed == n and not undecided else f"n = {observed} of {n + undecided}"]
    parts += [f"{diverged} diverged"] if diverged else []
    stopped = n - observed - diverged
    parts += [f"{stopped} stopped early"] if stopped else []
    parts += [f"{undecided} undecided"] if undecided else []
    return ", ".join(parts)


def seeds_per_cell(outcomes: pd.DataFrame) -> Sequence[int]:
    """Numbers of runs per cell that occur, ascending."""
    return sorted({int(n) for n in outcomes.groupby(CELL, observed=True).size()})


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    x: NDArray[np.float64] = np.asarray(values, float)
    return x[np.isfinite(x)]

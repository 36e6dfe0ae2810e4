"""The tests that claims use: each returns the estimate, its 95% interval and two one-sided p-values.

Exact tests wherever they can decide: with as few seeds as a study can afford, a t test at a corrected level
rests on the normality of its far tails alone. Where there is no exact test (a mean within a margin, a sum of
three cells' means) Welch's is used, with at least as many seeds as the exact tests need.

Power at the least seeds, with normal seeds: four in five from a shift of 3.45 deviations on for two cells
(seven and seven), of 2.05 for pairs (all eleven agree). Smaller effects need more seeds.
"""

import warnings
from collections.abc import Sequence
from math import comb
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats as tests

from analysis import stats

Floats = NDArray[np.float64]


class Evidence(NamedTuple):
    """What an estimator found."""

    estimate: float
    low: float
    high: float
    """95% confidence interval of the estimate, for one claim, uncorrected."""
    p_for: float
    """One-sided p-value against "the claim does not hold"."""
    p_against: float
    """One-sided p-value against "the opposite does not hold"."""
    note: str = ""
    """Why nothing can be decided, if so; then the p-values do not count."""


def nothing(note: str) -> Evidence:
    """No estimate, and why."""
    return Evidence(np.nan, np.nan, np.nan, 1.0, 1.0, note)


def significant(p: float, level: float) -> bool:
    """Whether p ≤ level; exact tests have p-values that equal a level but for rounding."""
    return p <= level * (1 + 1e-9)


def more_often(a: "pd.Series[bool]", b: "pd.Series[bool]") -> Evidence:
    """Is the share of `a` larger than that of `b`? Fisher's exact test.

    The difference's interval combines two Wilson intervals (Newcombe 1998, Stat. Med. 17, method 10).
    """
    k, m, n_a, n_b = int(a.sum()), int(b.sum()), len(a), len(b)
    table = np.array([[k, n_a - k], [m, n_b - m]])
    first, second = stats.proportion(k, n_a, "wilson"), stats.proportion(m, n_b, "wilson")
    d = first.estimate - second.estimate
    low = d - np.hypot(first.estimate - first.low, second.high - second.estimate)
    high = d + np.hypot(first.high - first.estimate, second.estimate - second.low)
    p_for, p_against = (float(tests.fisher_exact(table, alternative=s).pvalue) for s in ("greater", "less"))
    return Evidence(d, float(low), float(high), p_for, p_against)


def larger(a: ArrayLike, b: ArrayLike) -> Evidence:
    """Are the values of `a` larger than those of `b`? Exact Mann–Whitney test; Welch's interval."""
    x, y = np.asarray(a, float), np.asarray(b, float)
    p_for, p_against = _rank_test(x, y), _rank_test(y, x)
    low, high = _welch(x, y)
    return Evidence(float(x.mean() - y.mean()), low, high, p_for, p_against)


def later(a: ArrayLike, b: ArrayLike) -> Evidence:
    """Do values known only to lie between two bounds, (n, 2), tend to be larger in `a`? Gehan's test, exact.

    Of two values one is the larger only if its lower bound is at least the other's upper bound; else they are
    tied, so that neither a finer search nor a wider one makes a difference. Gehan 1965, Biometrika 52, with
    all ways to split the scores. Estimate: difference of the means of the middles, Welch's interval; where
    one bound is infinite the other stands for the middle, so that the difference is at least that large where
    `a` is open upwards or `b` downwards.
    """
    x, y = np.asarray(a, float).reshape(-1, 2), np.asarray(b, float).reshape(-1, 2)
    both = np.concatenate([x, y])
    beats = both[:, None, 0] >= both[None, :, 1]
    scores = beats.sum(axis=1) - beats.sum(axis=0).astype(float)
    p_for, p_against = (_split_test(s * scores, len(x)) for s in (1, -1))
    middle, other = (np.where(np.isfinite(v), v, v[:, ::-1]).mean(axis=1) for v in (x, y))
    if not np.isfinite([*middle, *other]).all():
        return Evidence(np.nan, np.nan, np.nan, p_for, p_against)
    return Evidence(float(middle.mean() - other.mean()), *_welch(middle, other), p_for, p_against)


def above(values: ArrayLike, threshold: float = 0.0) -> Evidence:
    """Do the values, one per seed or pair of runs, lie above a threshold? Exact signed-rank test.

    The estimate is their median, its interval lies between two of them (exact, whatever their distribution).
    Infinite values take part as what they are: beyond all others. A value that is not defined speaks for
    neither side: it counts as one at the threshold. Needs no distribution but, strictly, a symmetric one.
    """
    x = np.asarray(values, float)
    with np.errstate(invalid="ignore"):
        d = np.where(np.isnan(x), 0.0, x - threshold)
    known = np.sort(x[~np.isnan(x)])
    if not len(known):
        return nothing("it is defined for no seed")
    low, high = _median_interval(known)
    return Evidence(_median(known), low, high, _signed_rank(d), _signed_rank(-d))


def times(logarithms: ArrayLike, factor: float = 1.0) -> Evidence:
    """As `above`, for decimal logarithms of ratios and a factor: the estimate is a ratio again."""
    found = above(logarithms, float(np.log10(factor)))
    with np.errstate(over="ignore"):
        estimate, low, high = (float(np.power(10.0, v)) for v in found[:3])
    return found._replace(estimate=estimate, low=low, high=high)


def within(a: ArrayLike, b: ArrayLike, margin: float) -> Evidence:
    """Do the means of `a` and `b` differ by less than `margin`? Two one-sided Welch tests (Schuirmann 1987).

    For: both "difference ≤ −margin" and "difference ≥ margin" are rejected. Against: the difference lies
    beyond the margin on one side; the smaller p-value is doubled, since there are two sides.
    """
    x, y = np.asarray(a, float), np.asarray(b, float)
    d = float(x.mean() - y.mean())
    if len(x) < 2 or len(y) < 2:
        return Evidence(d, np.nan, np.nan, 1.0, 1.0)
    over = _one_sided(x + margin, y, "greater")
    below = _one_sided(x - margin, y, "less")
    beyond = min(_one_sided(x - margin, y, "greater"), _one_sided(x + margin, y, "less"))
    return Evidence(d, *_welch(x, y), max(over, below), min(1.0, 2 * beyond))


def not_worse(a: ArrayLike, b: ArrayLike, margin: float) -> Evidence:
    """Is the mean of `a` at most `margin` below that of `b`? One-sided Welch test (non-inferiority)."""
    x, y = np.asarray(a, float), np.asarray(b, float)
    d = float(x.mean() - y.mean())
    if len(x) < 2 or len(y) < 2:
        return Evidence(d, np.nan, np.nan, 1.0, 1.0)
    p_for, p_against = (_one_sided(x + margin, y, s) for s in ("greater", "less"))
    return Evidence(d, *_welch(x, y), p_for, p_against)


def near(values: ArrayLike, target: float, margin: float) -> Evidence:
    """Does the mean of the values lie within `margin` of a target? Two one-sided t tests, as `within`."""
    x = np.asarray(values, float)
    if np.isnan(x).any() or len(x) < 2:
        return nothing("it is not defined for every seed" if np.isnan(x).any() else "")
    over, below = (_t_test(x, target + s * margin, a) for s, a in ((-1, "greater"), (1, "less")))
    beyond = min(_t_test(x, target + margin, "greater"), _t_test(x, target - margin, "less"))
    middle = stats.mean_t(x)
    return Evidence(middle.estimate, middle.low, middle.high, max(over, below), min(1.0, 2 * beyond))


def combination(values: Sequence[ArrayLike], weights: Sequence[float]) -> Evidence:
    """Is the weighted sum of the cells' means positive? t test with Welch and Satterthwaite's freedom."""
    cells = [np.asarray(v, float) for v in values]
    estimate = float(sum(w * x.mean() for w, x in zip(weights, cells, strict=True)))
    if min(len(x) for x in cells) < 2:
        return Evidence(estimate, np.nan, np.nan, 1.0, 1.0)
    parts = np.array([w**2 * x.var(ddof=1) / len(x) for w, x in zip(weights, cells, strict=True)])
    error = float(np.sqrt(parts.sum()))
    if error < 1e-12:  # no spread at all: it is known exactly
        p_for, p_against = float(estimate <= 0), float(estimate >= 0)
        return Evidence(estimate, estimate, estimate, p_for, p_against)
    freedom = float(parts.sum() ** 2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, cells, strict=True)))
    low, high = tests.t.interval(stats.LEVEL, freedom, loc=estimate, scale=error)
    p_for, p_against = tests.t.sf(estimate / error, freedom), tests.t.cdf(estimate / error, freedom)
    return Evidence(estimate, float(low), float(high), float(p_for), float(p_against))


def every(parts: Sequence[Evidence]) -> Evidence:
    """Do all of several hold? The weakest decides (intersection–union test: no further correction).

    Against: one of them is contradicted, at a level divided by their number.
    """
    weakest = max(parts, key=lambda e: e.p_for)
    against = min(1.0, len(parts) * min(e.p_against for e in parts))
    return weakest._replace(p_against=against, note=next((e.note for e in parts if e.note), ""))


def seeds_for_exact(level: float) -> int:
    """Seeds per cell from which an exact two-sample test of complete separation reaches `level`.

    Both Fisher's (n of n against 0 of n) and Mann–Whitney's (all of one above all of the other) smallest
    one-sided p-value with n and n runs is 1 / C(2n, n).
    """
    n = 1
    while not significant(1 / comb(2 * n, n), level):
        n += 1
    return n


def seeds_for_signs(level: float) -> int:
    """Seeds, or pairs of runs, from which the signed-rank test reaches `level` when all agree: p = 2^−n."""
    n = 1
    while not significant(0.5**n, level):
        n += 1
    return n


def seeds_for_t(level: float) -> int:
    """Seeds per cell for a test that assumes normal means: as many as the exact tests need, at least five.

    A t test could reach any level with two, but then rests on the assumption alone.
    """
    return max(5, seeds_for_exact(level))


def _rank_test(x: Floats, y: Floats) -> float:
    """One-sided Mann–Whitney p-value of "x tends to be larger", exact with ties.

    The p-value is the share of all ways to split the ranks whose sum is at least that of x. (scipy's exact
    method is wrong with ties, which diverged runs bring.)
    """
    return _split_test(tests.rankdata(np.concatenate([x, y])), len(x))


def _split_test(scores: Floats, n: int) -> float:
    """Share of all splits whose first n scores, whole or half numbers, add up to at least what these do.

    The number of ways to choose k scores of a given sum comes from adding one score after the other.
    """
    total = len(scores)
    if total > MOST_EXACT:
        spread = float(np.sqrt(n * (total - n) / total * scores.var(ddof=1)))
        above_mean = float(scores[:n].sum() - n * scores.mean())
        return float(tests.norm.sf(above_mean / spread)) if spread else 1.0
    whole = np.rint(2 * (scores - scores.min())).astype(int)
    ways = np.zeros((n + 1, int(np.sort(whole)[total - n :].sum()) + 1))
    ways[0, 0] = 1.0
    for score in whole:
        ways[1:, score:] += ways[:-1, : ways.shape[1] - score]
    return float(ways[n, int(whole[:n].sum()) :].sum() / ways[n].sum())


MOST_EXACT = 200
"""Runs of both cells up to which a two-sample test is exact; beyond, the sums are all but normal."""


def _signed_rank(d: Floats) -> float:
    """One-sided p-value of "d tends to be positive": Wilcoxon's signed ranks, exact with ties and at any n.

    Zeros carry no rank. The number of sign patterns by sum of positive (doubled, so whole) ranks comes from
    adding one rank after the other.
    """
    d = d[d != 0]
    doubled = np.rint(2 * tests.rankdata(np.abs(d))).astype(int)
    ways = np.zeros(int(doubled.sum()) + 1)
    ways[0] = 1.0
    for rank in doubled:
        ways[rank:] += ways[: len(ways) - rank].copy()
    return float(ways[int(doubled[d > 0].sum()) :].sum() / 2.0 ** len(d))


def _median(ordered: Floats) -> float:
    """Median that survives infinite values: two middle ones that are the same infinity have it as mean."""
    a, b = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(a if a == b else (a + b) / 2)


def _median_interval(ordered: Floats) -> tuple[float, float]:
    """The narrowest pair of order statistics that holds the median with 95%; nan below six values."""
    n = len(ordered)
    outside = int(tests.binom.ppf((1 - stats.LEVEL) / 2, n, 0.5))
    if tests.binom.cdf(outside, n, 0.5) > (1 - stats.LEVEL) / 2:
        outside -= 1
    return (float(ordered[outside]), float(ordered[n - 1 - outside])) if outside >= 0 else (np.nan, np.nan)


def _one_sided(x: Floats, y: Floats, alternative: Any) -> float:
    if _constant(x) and _constant(y):  # no spread at all: the difference is known exactly
        d = x.mean() - y.mean()
        return 0.0 if (d > 0 if alternative == "greater" else d < 0) else 1.0
    return float(_welch_test(x, y, alternative).pvalue)


def _t_test(x: Floats, mean: float, alternative: Any) -> float:
    if _constant(x):
        return 0.0 if (x[0] > mean if alternative == "greater" else x[0] < mean) else 1.0
    return float(tests.ttest_1samp(x, mean, alternative=alternative).pvalue)


def _welch_test(x: Floats, y: Floats, alternative: Any) -> Any:
    with warnings.catch_warnings():
        # One of the two may well be constant: every run of a cell that diverged counts as the same guessing.
        warnings.filterwarnings("ignore", message="Precision loss", category=RuntimeWarning)
        return tests.ttest_ind(x, y, equal_var=False, alternative=alternative)


def _constant(x: Floats) -> bool:
    return bool(np.ptp(x) < 1e-9)


def _welch(x: Floats, y: Floats) -> tuple[float, float]:
    if len(x) < 2 or len(y) < 2:
        return np.nan, np.nan
    if _constant(x) and _constant(y):
        return float(x.mean() - y.mean()), float(x.mean() - y.mean())
    bounds = _welch_test(x, y, "two-sided").confidence_interval(stats.LEVEL)
    return float(bounds.low), float(bounds.high)

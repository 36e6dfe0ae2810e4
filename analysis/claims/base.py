"""What a claim is, the tests claims use, and how a verdict follows from them."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from itertools import combinations
from math import comb
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats as tests

from analysis import select, stats
from analysis.load import Frames

ALPHA = 0.05
"""Family-wise error: the chance that any of the claims is called supported (or contradicted) when all nulls
hold. Each one-sided test runs at ALPHA / number of claims (Bonferroni), so that the level, and with it the
seeds needed, is known before any run."""


class Verdict(StrEnum):
    """What the runs say of a claim."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    UNDETERMINED = "undetermined"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Case:
    """The runs of one setting, on which claims are judged."""

    frames: Frames

    @cached_property
    def outcomes(self) -> pd.DataFrame:
        """analysis.select.outcomes of the complete runs; undecided ones are evidence for nothing."""
        table = select.outcomes(self.frames)
        return table[table["fate"] != select.UNDECIDED]

    def cell(self, norm: str, lr: float) -> pd.DataFrame:
        """Complete runs of a norm at a rate."""
        table = self.outcomes
        return table[(table["norm"].astype("str") == norm) & np.isclose(table["lr"], lr, rtol=1e-9)]


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


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, with all that decides it fixed beforehand."""

    id: str
    sentence: str
    source: str
    cells: tuple[tuple[str, float], ...]
    """(norm, rate) of every cell it needs."""
    estimator: str
    rule: str
    unit: str
    """Of the estimate: "share" or "accuracy"."""
    test: Callable[..., Evidence]
    """Given one frame of outcomes per cell, in the order of `cells`."""
    least_seeds: Callable[[float], int]
    """Seeds per cell that the test needs to be able to decide at a level."""


@dataclass(frozen=True)
class Result:
    """The verdict on a claim and what stands behind it."""

    claim: Claim
    verdict: Verdict
    evidence: Evidence | None
    n: tuple[int, ...]
    """Complete runs per cell."""
    least_seeds: int
    level: float
    scale: str
    run_ids: tuple[str, ...]
    reason: str


def judged(claim: Claim, case: Case, n_claims: int) -> Result:
    """Apply a claim's rule to the runs of one setting."""
    level = ALPHA / n_claims
    least = claim.least_seeds(level)
    cells = [case.cell(norm, lr) for norm, lr in claim.cells]
    n = tuple(len(cell) for cell in cells)
    everything = pd.concat(cells)
    scale = ", ".join(sorted(set(everything["scale"].dropna()) - {""}))
    known: dict[str, Any] = {
        "claim": claim,
        "n": n,
        "least_seeds": least,
        "level": level,
        "scale": scale,
        "run_ids": tuple(everything["run_id"].astype("str")),
    }
    if min(n) == 0:
        named = [f"{norm} at {lr:g}" for (norm, lr), k in zip(claim.cells, n, strict=True) if k == 0]
        return Result(
            verdict=Verdict.NOT_RUN, evidence=None, reason=f"no complete run: {', '.join(named)}", **known
        )
    evidence = claim.test(*cells)
    if min(n) < least:
        reason = f"needs {least} seeds per cell to decide, has {min(n)}"
        return Result(verdict=Verdict.UNDETERMINED, evidence=evidence, reason=reason, **known)
    if evidence.note:
        return Result(verdict=Verdict.UNDETERMINED, evidence=evidence, reason=evidence.note, **known)
    if significant(evidence.p_for, level):
        verdict, reason = Verdict.SUPPORTED, f"p = {evidence.p_for:.2g} ≤ {level:.2g}"
    elif significant(evidence.p_against, level):
        verdict, reason = Verdict.CONTRADICTED, f"p = {evidence.p_against:.2g} ≤ {level:.2g} for the opposite"
    else:
        verdict = Verdict.UNDETERMINED
        reason = (
            f"p = {evidence.p_for:.2g} for it, {evidence.p_against:.2g} for the opposite, level {level:.2g}"
        )
    return Result(verdict=verdict, evidence=evidence, reason=reason, **known)


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


def within(a: ArrayLike, b: ArrayLike, margin: float) -> Evidence:
    """Do the means of `a` and `b` differ by less than `margin`? Two one-sided Welch tests (Schuirmann 1987).

    For: both "difference ≤ −margin" and "difference ≥ margin" are rejected. Against: the difference lies
    beyond the margin on one side; the smaller p-value is doubled, since there are two sides.
    """
    x, y = np.asarray(a, float), np.asarray(b, float)
    d = float(x.mean() - y.mean())
    if len(x) < 2 or len(y) < 2:
        return Evidence(d, np.nan, np.nan, 1.0, 1.0)
    above = _one_sided(x + margin, y, "greater")
    below = _one_sided(x - margin, y, "less")
    beyond = min(_one_sided(x - margin, y, "greater"), _one_sided(x + margin, y, "less"))
    return Evidence(d, *_welch(x, y), max(above, below), min(1.0, 2 * beyond))


def seeds_for_exact(level: float) -> int:
    """Seeds per cell from which an exact two-sample test of complete separation reaches `level`.

    Both Fisher's (n of n against 0 of n) and Mann–Whitney's (all of one above all of the other) smallest
    one-sided p-value with n and n runs is 1 / C(2n, n).
    """
    n = 1
    while not significant(1 / comb(2 * n, n), level):
        n += 1
    return n


def seeds_for_t(level: float) -> int:
    """Seeds per cell for a test that assumes normal means: as many as the exact tests need, at least five.

    A t test could reach any level with two, but then rests on the assumption alone.
    """
    return max(5, seeds_for_exact(level))


def _rank_test(x: "np.ndarray[Any, Any]", y: "np.ndarray[Any, Any]") -> float:
    """One-sided Mann–Whitney p-value of "x tends to be larger": exact, ties included, up to 8 runs a side.

    The p-value is the share of all ways to split the ranks whose sum is at least that of x. (scipy's exact
    method is wrong with ties, which diverged runs bring, and its permutation method a hundred times slower.)
    """
    n, m = len(x), len(y)
    if comb(n + m, n) > MOST_SPLITS:
        return float(tests.mannwhitneyu(x, y, alternative="greater").pvalue)
    ranks = tests.rankdata(np.concatenate([x, y]))
    sums = ranks[_splits(n + m, n)].sum(axis=1)
    return float((sums >= ranks[:n].sum() - 1e-9).mean())


MOST_SPLITS = 20_000


@cache
def _splits(total: int, chosen: int) -> "np.ndarray[Any, Any]":
    """All ways to choose that many of `total` indices, (ways, chosen)."""
    return np.array(list(combinations(range(total), chosen)))


def _one_sided(x: "np.ndarray[Any, Any]", y: "np.ndarray[Any, Any]", alternative: Any) -> float:
    if _constant(x) and _constant(y):  # no spread at all: the difference is known exactly
        d = x.mean() - y.mean()
        return 0.0 if (d > 0 if alternative == "greater" else d < 0) else 1.0
    return float(_welch_test(x, y, alternative).pvalue)


def _welch_test(x: "np.ndarray[Any, Any]", y: "np.ndarray[Any, Any]", alternative: Any) -> Any:
    with warnings.catch_warnings():
        # One of the two may well be constant: every run of a cell that diverged counts as the same guessing.
        warnings.filterwarnings("ignore", message="Precision loss", category=RuntimeWarning)
        return tests.ttest_ind(x, y, equal_var=False, alternative=alternative)


def _constant(x: "np.ndarray[Any, Any]") -> bool:
    return bool(np.ptp(x) < 1e-9)


def _welch(x: "np.ndarray[Any, Any]", y: "np.ndarray[Any, Any]") -> tuple[float, float]:
    if len(x) < 2 or len(y) < 2:
        return np.nan, np.nan
    if _constant(x) and _constant(y):
        return float(x.mean() - y.mean()), float(x.mean() - y.mean())
    bounds = _welch_test(x, y, "two-sided").confidence_interval(stats.LEVEL)
    return float(bounds.low), float(bounds.high)

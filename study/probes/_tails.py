"""How heavy a tail is: Hill's index with a bootstrap interval, its curve, and tests between tails."""

import io
import math
import warnings
from contextlib import redirect_stdout
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RESAMPLES = 1000
HEAVY = 4.0
"""Tails of index 4 or more have a fourth moment: `heavy` means that the interval lies wholly below.

Of 200 samples of 10⁴ values none is heavy for a Gaussian and a Laplace distribution, 90% are for Student's t
with three degrees of freedom, all for Pareto 1.5, and 99.5% for a lognormal: it has all its moments, but at
the threshold that √n values reach it falls like t^−2.8. Its curve, which keeps rising outwards, and `compare`
tell it from a power law.
"""


class Hill(NamedTuple):
    """Tail index of both tails together, about the median."""

    k: int
    """Values beyond the threshold."""
    threshold: float
    tail_index: float
    """Hill's estimate of α in P(|x − median| > t) ~ t^−α; small is heavy."""
    low: float
    high: float
    """95% interval."""
    heavy: bool
    """Whether the interval lies below HEAVY."""
    curve_k: list[int]
    curve_index: list[float]


def deviations(values: Floats) -> Floats:
    """Return |x − median|, descending. Hill's index is not shift-invariant, so the centre goes first."""
    return cast(Floats, np.sort(np.abs(values - np.median(values)))[::-1])


def hill(values: Floats, seed: int = 0) -> Hill | None:
    """Return Hill's index at k = √n; None below 100 finite values or if the deviations do not spread.

    √n keeps the threshold far out as n grows: the shift by the median biases the index by about
    median/threshold. The interval is a bootstrap of the log-excesses, pivoted: Ĥ*/Ĥ stands for Ĥ/H, whose
    distribution does not depend on the index.
    """
    n = len(values)
    if n < 100 or not np.isfinite(values).all():
        return None
    ordered = deviations(values)
    k = math.isqrt(n)
    if not ordered[k] > 0 or ordered[0] == ordered[k]:
        return None
    excesses = np.log(ordered[:k] / ordered[k])
    mean = float(excesses.mean())
    draws = np.random.default_rng(seed).choice(excesses, (RESAMPLES, k)).mean(1) / mean
    low_quantile, high_quantile = np.quantile(draws, [0.025, 0.975])
    low, high = float(low_quantile / mean), float(high_quantile / mean)
    ks, indices = curve(ordered)
    return Hill(k, float(ordered[k]), 1 / mean, low, high, high < HEAVY, ks, indices)


def curve(ordered: Floats, points: int = 16) -> tuple[list[int], list[float]]:
    """Return Hill's index against k, from 10 to n/10 values beyond the threshold; NaN where undefined."""
    ks = np.unique(np.geomspace(10, max(10, len(ordered) // 10), points).astype(int))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(ordered)
        means = np.cumsum(logs)[ks - 1] / ks - logs[ks]
        return [int(k) for k in ks], [float(x) for x in 1 / means]


class TailTest(NamedTuple):
    """Vuong's likelihood ratios beyond Hill's threshold; a positive one speaks for a power law."""

    against_exponential: float
    exponential_p: float
    against_lognormal: float
    lognormal_p: float


def compare(values: Floats) -> TailTest | None:
    """Compare a power law with an exponential and a lognormal tail (library `powerlaw`); None as for hill."""
    import powerlaw  # slow to import, and asked for rarely

    found = hill(values)
    if found is None:
        return None
    tail = deviations(values)[: found.k + 1] / found.threshold
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the library reports how its optimiser fared
        fit = powerlaw.Fit(tail, xmin=1.0, verbose=False)
        ratios = [
            fit.distribution_compare("power_law", x, normalized_ratio=True)
            for x in ("exponential", "lognormal")
        ]
    return TailTest(*(float(x) for pair in ratios for x in pair))

"""What claims about measurements share: one value per run from a probe's table, and the usual comparisons."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims.base import UNTRAINED, Case, Cell, Measure, NotMeasuredError
from analysis.claims.rules import Evidence, above, seeds_for_signs, times
from analysis.figures import _probes as probes
from analysis.tidy import groups

INIT_SWEEP = ("bjorck_init",)
BOTH = (Cell("none"), Cell("bn"))
BARE = (Cell("none"),)

BEFORE_TRAINING: dict[str, Any] = {
    "paired": True,
    "least_seeds": seeds_for_signs,
    "varies": UNTRAINED,
    "sweep": INIT_SWEEP,
}
"""What all claims on untrained networks share. Two norms with one seed start from the same convolutions, so
that runs are compared seed by seed; what only training uses may differ between them."""

SIGNED_RANK = "exact Wilcoxon signed-rank test over seeds, one-sided"
MEDIAN = "median over seeds with an exact interval"


def table(case: Case, probe: str, when: Sequence[str] = ("init",), rate: float | None = None) -> pd.DataFrame:
    """Rows of a probe at some moments, with `seed`, `lr`, `depth` and `scientific`; of every norm.

    Before the first update neither rate nor anything else of UNTRAINED matters: of runs that differ in no
    more, the one with the lowest rate stands for all. `rate` is that of an update (update_path) that is asked
    for, whichever the run's own.
    """
    found = probes.measured(case.frames, probe, when)
    if rate is not None:
        found = found[np.isclose(found["rate"].astype(float), rate, rtol=1e-9)]
        if found.empty:
            raise NotMeasuredError(f"no table of probe '{probe}' is of an update at {rate:g}")
    if tuple(when) == ("init",):
        alike = {text: _before_training(text) for text in found["scientific"].unique()}
        kept = found.assign(alike=found["scientific"].map(alike)).sort_values("lr", kind="stable")
        first = kept.drop_duplicates(["norm", "seed", "alike"])["run_id"]
        found = found[found["run_id"].isin(set(first))]
    return found.reset_index(drop=True)


def _before_training(scientific: str) -> str:
    fields = json.loads(scientific or "{}").items()
    return json.dumps({k: v for k, v in fields if k != "lr" and not k.startswith(UNTRAINED)}, sort_keys=True)


def per_run(rows: pd.DataFrame, value: Callable[[pd.DataFrame], float]) -> pd.DataFrame:
    """Apply `value` to the rows of each run: norm, seed, run_id, lr, scientific (if it is there), value."""
    keys = [k for k in ("norm", "seed", "run_id", "lr", "scientific") if k in rows]
    found = [(*key, float(value(mine))) for key, mine in groups(rows, keys)]
    return pd.DataFrame(found, columns=[*keys, "value"])


def named(found: pd.DataFrame, rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """One value per norm and seed, as a figure computed it, with the run it is of (none but those differ)."""
    runs = rows[["norm", "seed", "run_id", "lr", "scientific"]].drop_duplicates(["norm", "seed"])
    return found.assign(value=found[column])[["norm", "seed", "value"]].merge(runs, on=["norm", "seed"])


def logarithm(values: Any) -> "probes.Floats":
    """Decimal logarithm: of zero −∞, of ∞ ∞, of what is negative or not defined NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: probes.Floats = np.log10(np.asarray(values, float))
    return found


def from_logs(rows: pd.DataFrame, value: Callable[[pd.DataFrame], Any]) -> pd.DataFrame:
    """As per_run, of the mean decimal logarithm of the values (a geometric mean over layers)."""
    return per_run(rows, lambda mine: float(np.mean(logarithm(value(mine)))))


def difference(a: pd.DataFrame, b: pd.DataFrame) -> Evidence:
    """Is the value of `a` above that of `b`, seed by seed?"""
    return above(_less(a, b))


def ratio(factor: float = 1.0) -> Callable[[pd.DataFrame, pd.DataFrame], Evidence]:
    """Is `a` more than `factor` times `b`, seed by seed? Their values are decimal logarithms."""
    return lambda a, b: times(_less(a, b), factor)


def alone(threshold: float = 0.0) -> Callable[[pd.DataFrame], Evidence]:
    """Does the value lie above a threshold?"""
    return lambda a: above(a["value"], threshold)


def alone_times(factor: float = 1.0) -> Callable[[pd.DataFrame], Evidence]:
    """Is the ratio, whose decimal logarithm is the value, above a factor?"""
    return lambda a: times(a["value"], factor)


def _less(a: pd.DataFrame, b: pd.DataFrame) -> "probes.Floats":
    """Differences of values, NaN where both are the same infinity."""
    with np.errstate(invalid="ignore"):
        d: probes.Floats = a["value"].to_numpy(float) - b["value"].to_numpy(float)
    return d


def column(probe: str, name: str, layer: int | None = None, logs: bool = False) -> Measure:
    """Measure: a column of a probe's table at a layer of the paper (None: the mean over its layers)."""

    def measure(case: Case) -> pd.DataFrame:
        rows = table(case, probe)
        if layer is not None:
            rows = probes.at_layer(rows, layer)
        return from_logs(rows, lambda r: r[name]) if logs else per_run(rows, lambda r: float(r[name].mean()))

    return measure


def below(threshold: float = 0.0) -> Callable[[pd.DataFrame], Evidence]:
    """Does the value lie below a threshold?"""
    return lambda a: _opposite(above(a["value"], threshold))


def below_times(factor: float = 1.0) -> Callable[[pd.DataFrame], Evidence]:
    """Is the ratio, whose decimal logarithm is the value, below a factor?"""
    return lambda a: _opposite(times(a["value"], factor))


def _opposite(found: Evidence) -> Evidence:
    return found._replace(p_for=found.p_against, p_against=found.p_for)

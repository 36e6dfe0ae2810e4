"""How far one may step along the gradient (Bjorck et al. 2018, §3, App. K, Figs 3 and 25)."""

import numpy as np
import pandas as pd

from analysis.claims.base import UNTRAINED, Case, Cell, Claim
from analysis.claims.measured import MEDIAN, SIGNED_RANK, logarithm, per_run, ratio, table
from analysis.claims.rules import seeds_for_signs
from analysis.figures._loss_lines import improves
from analysis.tidy import each

HIGH, LOW = 0.1, 0.0001
"""Rates of Figs 3 and 25: with BN and without."""

LATER = (4, 7)
"""Mini-batches of Fig 25 after the first."""

PAST, FAR = 1.05, 10.0
"""Loss over its start between which growth is compared."""


def _first(case: Case) -> pd.DataFrame:
    """Rows of the first mini-batch: at init where that was measured, else just before the first update."""
    rows = table(case, "loss_along_gradient", ("init", "first"))
    rows = rows[rows["step"] == 0].sort_values(["when", "lr"], ascending=[False, True], kind="stable")
    return rows.drop_duplicates(["norm", "seed"])


def _improves(rows: pd.DataFrame) -> float:
    """log₁₀ of the largest step that still helps; −∞ where none does."""
    return float(logarithm(np.nan_to_num(improves(next(each(rows))), nan=0.0)))


def _first_range(case: Case) -> pd.DataFrame:
    return per_run(_first(case), _improves)


def _later_range(case: Case) -> pd.DataFrame:
    """Mean log₁₀ over mini-batches 4 and 7; −∞ for a run that had diverged by then."""
    rows = table(case, "loss_along_gradient", ("first",))
    reached = rows.groupby("run_id")["step"].transform("max") >= max(LATER) - 1
    gone = set(case.frames.runs.loc[case.frames.runs["outcome"] == "diverged", "run_id"].astype("str"))
    rows = rows[reached | rows["run_id"].isin(gone)]

    def mean(run: pd.DataFrame) -> float:
        batches = [run[run["step"] == b - 1] for b in LATER]
        return float(np.mean([_improves(b) if len(b) else -np.inf for b in batches]))

    return per_run(rows, mean)


def _steepness(rows: pd.DataFrame) -> float:
    """log₁₀ of the power of α with which the loss over its start (less 1) grows from PAST to FAR.

    Linear growth has power 1; −∞ where it never passes FAR, NaN where it never passes PAST.
    """
    run = next(each(rows))
    past, far = (float("nan") if pd.isna(v) else float(v) for v in (run.past_1_05, run.past_10))
    if np.isnan(past):
        return float("nan")
    if np.isnan(far):
        return float("-inf")
    span = np.log(far / past)
    return float(logarithm(np.log((FAR - 1) / (PAST - 1)) / span if span > 0 else np.inf))


def _growth(case: Case) -> pd.DataFrame:
    return per_run(_first(case), _steepness)


SWEEPS = ("loss_along_gradient", "bjorck_init")

CLAIMS = (
    Claim(
        id="first_step_may_be_larger_with_bn",
        sentence="On the first mini-batch, larger steps along the gradient still lower the loss with batch "
        "normalisation.",
        source="§3, Fig 3",
        cells=(Cell("bn"), Cell("none")),
        estimator=f"largest step size tried that lowers the same batch's loss, bn over none; {MEDIAN}",
        rule=f"{SIGNED_RANK} (the paper: over a far broader range)",
        unit="times",
        test=ratio(),
        least_seeds=seeds_for_signs,
        measure=_first_range,
        paired=True,
        varies=UNTRAINED,
        sweep=SWEEPS,
        figures=("bjorck_fig03", "bjorck_fig25"),
    ),
    Claim(
        id="later_steps_may_be_larger_with_bn",
        sentence=(
            "On mini-batches 4 and 7 as well, larger steps lower the loss with batch normalisation (trained "
            "at 0.1) than without (at 0.0001)."
        ),
        source="§3, App. K, Figs 3 and 25",
        cells=(Cell("bn", HIGH), Cell("none", LOW)),
        estimator=(
            "largest step size tried that lowers the same batch's loss, geometric mean over mini-batches 4 "
            f"and 7, bn over none; after divergence no step does; {MEDIAN}"
        ),
        rule=f"{SIGNED_RANK} (the paper: over a far broader range)",
        unit="times",
        test=ratio(),
        least_seeds=seeds_for_signs,
        measure=_later_range,
        paired=True,
        sweep=("loss_along_gradient",),
        figures=("bjorck_fig25",),
    ),
    Claim(
        id="loss_grows_more_steeply_without_bn",
        sentence="On the first mini-batch, the loss grows more steeply with the step size without batch "
        "normalisation, once a step is too large.",
        source="§3, Fig 3",
        cells=(Cell("none"), Cell("bn")),
        estimator=(
            f"power of the step size with which the excess loss grows between {PAST:g} and {FAR:g} times its "
            f"start (1: linearly), none over bn; {MEDIAN}"
        ),
        rule=SIGNED_RANK + " (the paper: seemingly exponential against linear)",
        unit="times",
        test=ratio(),
        least_seeds=seeds_for_signs,
        measure=_growth,
        paired=True,
        varies=UNTRAINED,
        sweep=SWEEPS,
        figures=("bjorck_fig03", "bjorck_fig25"),
    ),
)

"""Which parts of BN matter (Bjorck et al. 2018, App. F, Fig 13, Table 2), and BN on top alone (App. E).

Variants are compared at their best rate, as in the paper (the rate is chosen on the test set, for all alike).
"""

from typing import Any

import numpy as np
import pandas as pd

from analysis import select
from analysis.claims.base import Case, Cell, Claim, Measure, NotMeasuredError
from analysis.claims.bjorck.rates import HIGH, LOW, MARGIN, last_test
from analysis.claims.rules import (
    Evidence,
    combination,
    larger,
    more_often,
    seeds_for_exact,
    seeds_for_t,
    within,
)
from analysis.tidy import groups

TOP = 0.03
"""Rate of BN on top in App. E."""

VARIANTS = ("bn", "bn_no_affine", "bn_affine_only", "bn_no_mean", "bn_no_var")
AT_HIGHEST, BELOW = "the highest rate that does not diverge", "the best lower rate"


def best_of(*cells: Cell) -> Measure:
    """Measure: last-epoch test accuracy at each seed's best rate, among those that all cells have."""
    return lambda case: select.best_by_seed(pd.concat([case.cell(cell) for cell in cells]))


def _more_accurate(a: pd.DataFrame, b: pd.DataFrame) -> Evidence:
    return larger(a["value"], b["value"])


def _equally_accurate(a: pd.DataFrame, b: pd.DataFrame) -> Evidence:
    found = within(a["value"], b["value"], MARGIN)
    guessing = "one of them is at chance even at its best rate: networks that learnt nothing would agree"
    stuck = any((cell["fate"] == select.TRAINED).mean() <= 0.5 for cell in (a, b))
    return found._replace(note=guessing if stuck else "")


def _highest_against_lower(case: Case) -> pd.DataFrame:
    """Per seed, mean over variants: accuracy at the highest rate that does not diverge, and best below.

    Both values of a seed come from the same start, so that they move together: the rank test, which takes
    them as independent, errs towards deciding nothing. The best lower rate is the other seeds' (the best of
    several of a seed's own values would lie above their mean though all rates were alike). A lower rate that
    diverged counts as guessing; a seed with no lower rate, or with none that does not diverge, is a tie.
    """
    table = case.outcomes[case.outcomes["norm"].isin(VARIANTS)]
    table = select.at_common_rates(table).astype({"norm": "str"})
    table = table[table.groupby("seed")["norm"].transform("nunique") == len(VARIANTS)]
    found = []
    for (seed, norm), runs in groups(table, ["seed", "norm"]):
        runs = runs.sort_values("lr")
        last = int(np.flatnonzero(runs["fate"] != select.DIVERGED).max(initial=0))
        run, score = runs["run_id"].iloc[last], runs["score"].to_numpy(float)
        others = table[(table["norm"] == norm) & (table["seed"] != seed)].groupby("lr")["score"].mean()
        lower = others.reindex(runs["lr"].iloc[:last]).to_numpy(float)
        below = score[int(lower.argmax())] if last and len(others) else score[last]
        found += [(seed, norm, run, AT_HIGHEST, score[last]), (seed, norm, run, BELOW, below)]
    rows = pd.DataFrame(found, columns=["seed", "variant", "run_id", "norm", "value"])
    if rows.empty or table["lr"].nunique() < 2:
        raise NotMeasuredError(f"no seed has all of {', '.join(VARIANTS)} at two rates")
    return rows.groupby(["norm", "seed"], as_index=False).agg(
        value=("value", "mean"), run_id=("run_id", "first")
    )


def _trains_more_often(a: pd.DataFrame, b: pd.DataFrame) -> Evidence:
    return more_often(a["fate"] == select.TRAINED, b["fate"] == select.TRAINED)


def _most_of_the_gain(top: pd.DataFrame, bn: pd.DataFrame, none: pd.DataFrame) -> Evidence:
    scores = [last_test(cell).to_numpy(float) for cell in (top, bn, none)]
    found = combination(scores, (1.0, -0.5, -0.5))
    if scores[1].mean() <= scores[2].mean():
        return found._replace(
            note="batch normalisation gains nothing here, so that there is nothing to share"
        )
    return found


ESTIMATOR = "mean last-epoch test accuracy at the best rate of each seed, {}; Welch's interval"
COMMON: dict[str, Any] = {
    "unit": "accuracy",
    "whole": True,
    "sweep": ("bn_parts",),
    "figures": ("final_accuracy", "variants"),
}
MORE: dict[str, Any] = {
    "rule": "exact Mann–Whitney test, one-sided",
    "test": _more_accurate,
    "least_seeds": seeds_for_exact,
    **COMMON,
}

CLAIMS = (
    Claim(
        id="bn_on_top_alone_permits_larger_rates",
        sentence="Batch normalisation before the classifier alone lets networks train at a rate of 0.03.",
        source="App. E, Figs 11 and 12",
        cells=(Cell("bn_top", TOP), Cell("none", TOP)),
        estimator=f"share of seeds that trained at rate {TOP:g}, bn_top minus none; Newcombe's interval",
        rule="Fisher's exact test, one-sided",
        unit="share",
        test=_trains_more_often,
        least_seeds=seeds_for_exact,
        sweep=("bn_on_top",),
        figures=("fates",),
    ),
    Claim(
        id="bn_on_top_brings_most_of_the_gain",
        sentence=(
            "Batch normalisation before the classifier alone brings more than half of the gain in accuracy."
        ),
        source="App. E, Figs 11 and 12",
        cells=(Cell("bn_top", TOP), Cell("bn", HIGH), Cell("none", LOW)),
        estimator=(
            f"mean last-epoch test accuracy of bn_top at {TOP:g}, less the middle between bn at {HIGH:g} and "
            f"none at {LOW:g}; a diverged run counts as guessing; Satterthwaite's interval"
        ),
        rule="one-sided t test (the paper: about two thirds)",
        test=_most_of_the_gain,
        value=last_test,
        least_seeds=seeds_for_t,
        **{**COMMON, "sweep": ("bn_on_top", "fig01"), "figures": ("final_accuracy",)},
    ),
    Claim(
        id="normalising_matters_more_than_affine",
        sentence="Removing the normalisation hurts more than removing the affine transformation.",
        source="App. F, Fig 13, Table 2",
        cells=(Cell("bn_no_affine"), Cell("bn_affine_only")),
        estimator=ESTIMATOR.format("without the affine part minus affine only"),
        measure=best_of(Cell("bn_no_affine"), Cell("bn_affine_only")),
        **MORE,
    ),
    Claim(
        id="subtracting_the_mean_matters",
        sentence="Batch normalisation without subtracting the mean is less accurate.",
        source="App. F, Fig 13, Table 2",
        cells=(Cell("bn"), Cell("bn_no_mean")),
        estimator=ESTIMATOR.format("bn minus bn without the mean"),
        measure=best_of(Cell("bn"), Cell("bn_no_mean")),
        **MORE,
    ),
    Claim(
        id="dividing_by_the_deviation_matters",
        sentence="Batch normalisation without dividing by the deviation is less accurate.",
        source="App. F, Fig 13, Table 2",
        cells=(Cell("bn"), Cell("bn_no_var")),
        estimator=ESTIMATOR.format("bn minus bn without the variance"),
        measure=best_of(Cell("bn"), Cell("bn_no_var")),
        **MORE,
    ),
    Claim(
        id="affine_is_worth_little",
        sentence="Without its affine transformation, batch normalisation is about as accurate.",
        source="App. F, Fig 13, Table 2",
        cells=(Cell("bn"), Cell("bn_no_affine")),
        estimator=ESTIMATOR.format("bn minus bn without the affine part"),
        rule=(
            f"equivalence within {100 * MARGIN:g} points: two one-sided Welch tests (the paper: worth about "
            "0.6)"
        ),
        test=_equally_accurate,
        least_seeds=seeds_for_t,
        measure=best_of(Cell("bn"), Cell("bn_no_affine")),
        **COMMON,
    ),
    Claim(
        id="highest_rate_is_best",
        sentence=(
            "Variants of batch normalisation are most accurate at the highest rate at which they do not "
            "diverge."
        ),
        source="App. F, Table 2",
        cells=(Cell(AT_HIGHEST), Cell(BELOW)),
        estimator=(
            "last-epoch test accuracy of bn and of its parts, at the highest rate of a seed that does not "
            "diverge minus at the lower rate that is best for the other seeds (the same where there is "
            "none), mean over the variants; Welch's interval"
        ),
        rule="exact Mann–Whitney test, one-sided",
        test=_more_accurate,
        least_seeds=seeds_for_exact,
        measure=_highest_against_lower,
        **COMMON,
    ),
)

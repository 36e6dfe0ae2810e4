"""Other normalisations (Bjorck et al. 2018, App. K, Table 4), and an initialisation in their place (§6)."""

import numpy as np
import pandas as pd

from analysis import select
from analysis.claims.base import Case, Cell, Claim
from analysis.claims.bjorck.parts import best_of
from analysis.claims.bjorck.rates import last_test
from analysis.claims.rules import Evidence, every, larger, not_worse, seeds_for_exact, seeds_for_t

SCHEMES = ("bn", "ln", "in", "gn")
SMALLER, SMALLEST = 0.01, 0.0001
"""Compared for every scheme: at 0.1 layer normalisation is past its best, says the paper."""

SMALL_LOSS = 0.05
"""Accuracy that counts as a small loss."""

INIT = "init.name"
LSUV = (Cell("none", where=((INIT, "lsuv"),)), Cell("bn", where=((INIT, "xavier_normal"),)))


def _all_worsen(*cells: pd.DataFrame) -> Evidence:
    scores = [last_test(cell) for cell in cells]
    half = len(cells) // 2
    return every([larger(a, b) for a, b in zip(scores[:half], scores[half:], strict=True)])


def _best_rate(case: Case) -> pd.DataFrame:
    found = best_of(Cell("bn"), Cell("ln"))(case)
    return found.assign(value=np.log10(found["lr"]))


def _higher_rate(a: pd.DataFrame, b: pd.DataFrame) -> Evidence:
    found = larger(a["value"], b["value"])
    estimate, low, high = (float(10.0**v) for v in found[:3])
    return found._replace(estimate=estimate, low=low, high=high)


def _small_loss(lsuv: pd.DataFrame, bn: pd.DataFrame) -> Evidence:
    found = not_worse(lsuv["value"], bn["value"], SMALL_LOSS)
    if (bn["fate"] == select.TRAINED).mean() > 0.5:
        return found
    return found._replace(note="bn is at chance even at its best rate: there is nothing to replace")


CLAIMS = (
    Claim(
        id="all_schemes_worsen_at_small_rates",
        sentence="Every normalisation is less accurate at a small learning rate.",
        source="App. K, Table 4",
        cells=tuple(Cell(norm, lr) for lr in (SMALLER, SMALLEST) for norm in SCHEMES),
        estimator=f"mean last-epoch test accuracy, rate {SMALLER:g} minus rate {SMALLEST:g}, of that of "
        f"{', '.join(SCHEMES)} for which it is least certain; Welch's interval",
        rule="exact Mann–Whitney test of each, one-sided; all must hold",
        unit="accuracy",
        test=_all_worsen,
        value=last_test,
        least_seeds=seeds_for_exact,
        whole=True,
        sweep=("schemes",),
        figures=("final_accuracy", "variants"),
    ),
    Claim(
        id="layer_norm_is_best_at_a_smaller_rate",
        sentence="Layer normalisation is best at a smaller learning rate than batch normalisation.",
        source="App. K, Table 4",
        cells=(Cell("bn"), Cell("ln")),
        estimator=(
            "rate with the best last-epoch test accuracy of each seed, bn over ln; geometric means, Welch's "
            "interval of their logarithms"
        ),
        rule="exact Mann–Whitney test, one-sided",
        unit="times",
        test=_higher_rate,
        least_seeds=seeds_for_exact,
        measure=_best_rate,
        whole=True,
        sweep=("schemes",),
        figures=("final_accuracy", "variants"),
    ),
    Claim(
        id="lsuv_replaces_bn_at_a_small_loss",
        sentence=(
            "An initialisation that normalises every layer's output once replaces batch normalisation at a "
            "small loss of accuracy."
        ),
        source="§6",
        cells=LSUV,
        estimator=(
            "mean last-epoch test accuracy at the best rate of each seed, LSUV without a norm minus bn; "
            "Welch's interval"
        ),
        rule=f"one-sided Welch test of a loss below {100 * SMALL_LOSS:g} points",
        unit="accuracy",
        test=_small_loss,
        least_seeds=seeds_for_t,
        measure=best_of(*LSUV),
        whole=True,
        varies=(INIT,),
        sweep=("lsuv", "fig01"),
        figures=("final_accuracy",),
    ),
)

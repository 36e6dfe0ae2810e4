"""The highest trainable rate (Bjorck et al. 2018, App. H, Table 3)."""

import numpy as np
import pandas as pd

from analysis import select
from analysis.claims.base import Case, Cell, Claim
from analysis.claims.rules import Evidence, later, seeds_for_exact

DEPTH, WARM = "model.depth", "schedule.warm_start_epochs"


def _brackets(case: Case) -> pd.DataFrame:
    """Between which rates training ceases to work, per configuration and seed whose search is done."""
    found = select.rate_brackets(case.outcomes)
    return found[found["narrow"]]


def _higher(a: pd.DataFrame, b: pd.DataFrame) -> Evidence:
    """Of logarithms; open brackets reach to −∞ or ∞."""
    with np.errstate(divide="ignore"):
        x, y = (np.log10(t[["works", "fails"]].fillna({"works": 0.0, "fails": np.inf})) for t in (a, b))
    found = later(x, y)
    estimate, low, high = (float(10.0**v) for v in found[:3])
    return found._replace(estimate=estimate, low=low, high=high)


ESTIMATOR = (
    "rate at which training ceases to work, per seed: between the lowest that failed (diverged or stuck at "
    "chance) and the highest below it that trained, {}; geometric means of the middles (of an open "
    "bracket its one end), Welch's interval"
)
RULE = "Gehan's exact test of the brackets, one-sided: of two seeds whose brackets overlap neither is higher"

CLAIMS = (
    Claim(
        id="shallower_networks_train_at_higher_rates",
        sentence="Without batch normalisation, a shallower network trains at higher learning rates.",
        source="App. H, Table 3",
        cells=(Cell("none", where=((DEPTH, 32),)), Cell("none", where=((DEPTH, 110),))),
        estimator=ESTIMATOR.format("32 layers over 110"),
        rule=f"{RULE} (the paper: as high or higher; equal ones decide nothing here)",
        unit="times",
        test=_higher,
        least_seeds=seeds_for_exact,
        measure=_brackets,
        varies=(DEPTH,),
        sweep=("max_lr",),
        figures=("highest_rates",),
    ),
    Claim(
        id="warm_start_raises_the_highest_rate",
        sentence=(
            "Without batch normalisation, an epoch at 0.0001 first raises the rate at which a network trains."
        ),
        source="App. H, Table 3",
        cells=(Cell("none", where=((WARM, 1),)), Cell("none", where=((WARM, 0),))),
        estimator=ESTIMATOR.format("with a warm start over without"),
        rule=RULE,
        unit="times",
        test=_higher,
        least_seeds=seeds_for_exact,
        measure=_brackets,
        varies=(WARM,),
        sweep=("max_lr", "max_lr_warm_start"),
        figures=("highest_rates",),
    ),
    Claim(
        id="alternating_statistics_lower_the_highest_rate",
        sentence=(
            "With statistics that are recomputed every other batch, networks do not train at the rates at "
            "which they do with batch normalisation."
        ),
        source="App. H, Table 3",
        cells=(Cell("bn"), Cell("bn_alternating")),
        estimator=ESTIMATOR.format("bn over bn_alternating"),
        rule=RULE,
        unit="times",
        test=_higher,
        least_seeds=seeds_for_exact,
        measure=_brackets,
        sweep=("max_lr_alternating",),
        figures=("highest_rates",),
    ),
)

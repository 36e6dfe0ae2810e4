"""The highest trainable rate (Bjorck et al. 2018, App. H, Table 3)."""

import numpy as np
import pandas as pd

from analysis import select
from analysis.claims.base import Case, Cell, Claim
from analysis.claims.rules import Evidence, Floats, larger, seeds_for_exact

DEPTH, WARM = "model.depth", "schedule.warm_start_epochs"


def _brackets(case: Case) -> pd.DataFrame:
    """One row per configuration and seed: log₁₀ of the highest trainable rate below the lowest that fails."""
    table = select.rate_brackets(case.outcomes)
    with np.errstate(divide="ignore"):
        return table.assign(value=np.log10(table["works"].fillna(0.0)))


def _higher(a: pd.DataFrame, b: pd.DataFrame) -> Evidence:
    """Ranks of highest rates; what lies beyond what somebody tried is tied, since nobody knows its order."""
    both = pd.concat([a, b])
    with np.errstate(divide="ignore"):
        top = np.log10(both.loc[both["fails"].isna(), "works"]).min()
        bottom = np.log10(both.loc[both["works"].isna(), "fails"]).max()
    x, y = (_tied(cell["value"].to_numpy(float), top, bottom) for cell in (a, b))
    found = larger(x, y)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return found._replace(estimate=np.nan, low=np.nan, high=np.nan)
    estimate, low, high = (float(10.0**v) for v in found[:3])
    return found._replace(estimate=estimate, low=low, high=high)


def _tied(values: Floats, top: float, bottom: float) -> Floats:
    values = np.where(values >= top, top, values) if np.isfinite(top) else values
    return np.where(values < bottom, -np.inf, values) if np.isfinite(bottom) else values


ESTIMATOR = (
    "highest rate that trained below the lowest that failed (diverged or stuck at chance), per seed, {}; "
    "geometric means and Welch's interval of their logarithms"
)
RULE = "exact Mann–Whitney test, one-sided; rates beyond those tried are tied"

CLAIMS = (
    Claim(
        id="shallower_networks_train_at_higher_rates",
        sentence="Without batch normalisation, a shallower network trains at higher learning rates.",
        source="App. H, Table 3",
        cells=(Cell("none", where=((DEPTH, 32),)), Cell("none", where=((DEPTH, 110),))),
        estimator=ESTIMATOR.format("32 layers over 110"),
        rule=RULE,
        unit="times",
        test=_higher,
        least_seeds=seeds_for_exact,
        measure=_brackets,
        varies=(DEPTH,),
        sweep=("max_lr",),
        figures=("fates",),
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
        sweep=("max_lr",),
        figures=("fates",),
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
        sweep=("max_lr",),
        figures=("fates",),
    ),
)

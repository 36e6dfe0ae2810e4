"""Products of random matrices (Bjorck et al. 2018, §5, App. C and K, Figs 8–10, 20, 21)."""

from functools import partial

import numpy as np
import pandas as pd

from analysis.claims.base import EVERYTHING, Case, Cell, Claim, NotMeasuredError
from analysis.claims.measured import MEDIAN, alone_times
from analysis.claims.rules import seeds_for_signs
from analysis.figures import UndrawableError, _randmat
from analysis.tidy import groups
from study.paths import RANDOM_MATRICES

MOST = 20
"""Factors up to which growth is measured; fixed, so that it does not depend on how far somebody computed."""
SIZE = 1000
"""The paper's N."""


def products(case: Case) -> pd.DataFrame:
    """Extreme singular values of products of 1 to MOST factors, a row per (draw, m), of N = SIZE at gain 1.

    From the case's table of that name, or from the tables of study.randmat beside the runs.
    """
    found = case.tables.get(RANDOM_MATRICES)
    if found is None:
        try:
            found = _randmat.table(case.frames, "products", SIZE)
        except UndrawableError as error:
            why = str(error) or f"no products of random matrices of N = {SIZE} (python -m study.randmat)"
            raise NotMeasuredError(why) from error
    return pd.DataFrame(found[found["m"] <= MOST])


def _growth(column: str, case: Case) -> pd.DataFrame:
    """Least-squares slope of a decimal logarithm a factor, of each draw that goes to MOST factors.

    A draw's products share their factors, so that a draw, not a product, is what is independent.
    """
    rows = products(case)
    found = [
        (f"randmat n={n} seed={seed} draw={draw}", float(np.polyfit(run["m"], run[column], 1)[0]))
        for (n, seed, draw), run in groups(rows, ["n", "seed", "draw"])
        if set(run["m"]) == set(range(1, MOST + 1))
    ]
    if not found:
        raise NotMeasuredError(f"draws go to {int(rows['m'].max())} factors, not to {MOST}")
    table = pd.DataFrame(found, columns=["run_id", "value"])
    return table.assign(norm="draws", seed=range(len(table)), lr=np.nan)


CLAIMS = tuple(
    Claim(
        id=f"{name}_grows_with_factors",
        sentence=f"The {words} of a product of random matrices grows with the number of factors.",
        source=source,
        cells=(Cell("draws"),),
        estimator=(
            f"growth of the {words} a factor: ten to the least-squares slope of its decimal logarithm for 1 "
            f"to {MOST} factors, N = {SIZE}; {MEDIAN.replace('seeds', 'draws')}"
        ),
        rule="exact Wilcoxon signed-rank test over draws, one-sided, of a growth above 1",
        unit="times",
        test=alone_times(),
        least_seeds=seeds_for_signs,
        measure=partial(_growth, column),
        varies=EVERYTHING,
        figures=figures,
    )
    for name, words, column, source, figures in (
        (
            "condition_number",
            "condition number",
            "log10_condition",
            "§5, App. C and K, Figs 8–10, 20 and 21",
            ("bjorck_fig09",),
        ),
        (
            "largest_singular_value",
            "largest singular value",
            "log10_largest",
            "§5, App. C and K, Figs 8–10",
            ("bjorck_fig10",),
        ),
    )
)

"""The noise of a batch's gradient (Bjorck et al. 2018, §2.1 and App. D)."""

import pandas as pd

from analysis.claims.base import UNTRAINED, Case, Cell, Claim, NotMeasuredError
from analysis.claims.measured import named, table
from analysis.claims.rules import near, seeds_for_t
from analysis.figures import gradient_noise as figure

MARGIN = 0.2
"""Exponents within this of −1 count as −1: over a factor of 16 in batch size, a factor of 1.7 in variance."""


def _exponents(case: Case) -> pd.DataFrame:
    """Exponent of the batch size in the variance, the factor of a finite subset removed.

    Only where images do not influence each other (estimand `image`): with batch statistics an image's
    gradient depends on its batch, and the law is about something else.
    """
    rows = table(case, "gradient_noise")
    rows = rows[rows["law"].isin(list(figure.LAWS)) & (rows["estimand"] == "image") & (rows["measured"] > 0)]
    if rows.empty:
        raise NotMeasuredError("no run whose images do not influence each other")
    return named(figure.exponents(figure.corrected(rows)), rows, "slope")


CLAIMS = (
    Claim(
        id="gradient_variance_falls_as_batch_size",
        sentence="The variance of a batch's gradient is inversely proportional to the batch size.",
        source="§2.1, App. D",
        cells=(Cell("none"),),
        estimator=(
            "exponent of the batch size in E‖g(batch) − g‖² before training, corrected for the finite subset "
            "that batches are drawn from; mean over seeds with Student's interval"
        ),
        rule=f"equivalence with −1 within {MARGIN:g}: two one-sided t tests",
        unit="",
        test=lambda a: near(a["value"], -1.0, MARGIN),
        least_seeds=seeds_for_t,
        measure=_exponents,
        varies=UNTRAINED,
        sweep=("gradient_noise", "bjorck_init"),
        figures=("gradient_noise",),
    ),
)

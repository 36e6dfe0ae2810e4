"""The grid of learning rates (Bjorck et al. 2018, §2, Fig 1): what BN permits, and what larger rates do."""

import pandas as pd

from analysis import select
from analysis.claims.base import Cell, Claim
from analysis.claims.rules import (
    Evidence,
    larger,
    later,
    more_often,
    seeds_for_exact,
    seeds_for_t,
    within,
)

HIGH, LOW = 0.1, 0.0001
"""The ends of the rates in Fig 1; fixed here, so that no rate is picked by its outcome."""

MARGIN = 0.03
"""Accuracies closer than this count as equal. Ours: the paper names no margin for its "about equally"."""


SWEEPS = ("fig01",)


def last_test(runs: pd.DataFrame) -> "pd.Series[float]":
    """Last-epoch test accuracy; a diverged run counts as guessing."""
    return select.score(runs, "last_test")


def _trains_more_often(bn: pd.DataFrame, none: pd.DataFrame) -> Evidence:
    return more_often(bn["fate"] == select.TRAINED, none["fate"] == select.TRAINED)


def _diverges_more_often(high: pd.DataFrame, low: pd.DataFrame) -> Evidence:
    return more_often(high["fate"] == select.DIVERGED, low["fate"] == select.DIVERGED)


def _more_accurate(high: pd.DataFrame, low: pd.DataFrame) -> Evidence:
    return larger(last_test(high), last_test(low))


def _equally_accurate(bn: pd.DataFrame, none: pd.DataFrame) -> Evidence:
    found = within(last_test(bn), last_test(none), MARGIN)
    return found._replace(note=_untrained(bn, none))


def _larger_gap(bn: pd.DataFrame, none: pd.DataFrame) -> Evidence:
    return later(*(_gap(runs) for runs in (bn, none)))._replace(note=_untrained(bn, none))


def _gap(runs: pd.DataFrame) -> pd.DataFrame:
    """Bounds of train minus test accuracy after the last epoch, both in eval mode where that was recorded.

    Both are the gap itself, but of a run that diverged: what its gap would be nobody knows.
    """
    train = runs["last_train_eval"].where(runs["last_train_eval"].notna(), runs["last_train"])
    gap, lost = train - runs["last_test"], runs["fate"] == select.DIVERGED
    return pd.DataFrame({"least": gap.mask(lost, -1.0), "most": gap.mask(lost, 1.0)})


def _untrained(*cells: pd.DataFrame) -> str:
    """Networks that have learnt nothing agree in accuracy and in gap; that would be no evidence."""
    if all((runs["fate"] == select.TRAINED).mean() > 0.5 for runs in cells):
        return ""
    return "not most runs of both cells trained: untrained networks would agree for no reason of interest"


CLAIMS = (
    Claim(
        id="bn_permits_larger_rates",
        sentence="With batch normalisation, networks train at a learning rate at which they do not without.",
        source="§1, §3, Table 3",
        cells=(Cell("bn", HIGH), Cell("none", HIGH)),
        estimator=f"share of seeds that trained at rate {HIGH:g}, bn minus none; Newcombe's interval",
        rule="Fisher's exact test, one-sided",
        unit="share",
        test=_trains_more_often,
        least_seeds=seeds_for_exact,
        sweep=SWEEPS,
        figures=("fates", "learning_curves"),
    ),
    Claim(
        id="larger_rates_make_none_diverge",
        sentence="Without batch normalisation, networks diverge at larger learning rates.",
        source="§2, Fig 1",
        cells=(Cell("none", HIGH), Cell("none", LOW)),
        estimator=f"share of seeds that diverged, rate {HIGH:g} minus rate {LOW:g}; Newcombe's interval",
        rule="Fisher's exact test, one-sided",
        unit="share",
        test=_diverges_more_often,
        least_seeds=seeds_for_exact,
        sweep=SWEEPS,
        figures=("fates", "learning_curves"),
    ),
    Claim(
        id="larger_rates_improve_bn",
        sentence="With batch normalisation, a larger learning rate gives a higher test accuracy.",
        source="§2, Fig 1, Table 4",
        cells=(Cell("bn", HIGH), Cell("bn", LOW)),
        estimator=(
            f"mean last-epoch test accuracy, rate {HIGH:g} minus rate {LOW:g}; a diverged run counts as "
            "guessing; Welch's interval"
        ),
        rule="exact Mann–Whitney test, one-sided",
        unit="accuracy",
        test=_more_accurate,
        value=last_test,
        least_seeds=seeds_for_exact,
        whole=True,
        sweep=SWEEPS,
        figures=("final_accuracy", "learning_curves"),
    ),
    Claim(
        id="equal_at_matched_low_rate",
        sentence="At the same low rate, networks with and without batch normalisation are equally accurate.",
        source="§2, Fig 1",
        cells=(Cell("bn", LOW), Cell("none", LOW)),
        estimator=f"mean last-epoch test accuracy at rate {LOW:g}, bn minus none; Welch's interval",
        rule=f"equivalence within {100 * MARGIN:g} points: two one-sided Welch tests; most runs must train",
        unit="accuracy",
        test=_equally_accurate,
        value=last_test,
        least_seeds=seeds_for_t,
        whole=True,
        sweep=SWEEPS,
        figures=("final_accuracy", "learning_curves"),
    ),
    Claim(
        id="larger_gap_with_bn_at_low_rate",
        sentence="At the same low rate, batch normalisation leaves the larger train–test gap in accuracy.",
        source="§2, Fig 1",
        cells=(Cell("bn", LOW), Cell("none", LOW)),
        estimator=(
            f"mean of train minus test accuracy after the last epoch at rate {LOW:g}, bn minus none; Welch's "
            "interval; the gap of a run that diverged may be anything and counts as 0"
        ),
        rule=(
            "exact Mann–Whitney test, one-sided, in which a run that diverged is above no other and below "
            "none (Gehan's test); most runs must have trained"
        ),
        unit="accuracy",
        test=_larger_gap,
        value=lambda runs: _gap(runs).mean(axis=1),
        least_seeds=seeds_for_exact,
        whole=True,
        sweep=SWEEPS,
        figures=("final_accuracy", "learning_curves"),
    ),
)

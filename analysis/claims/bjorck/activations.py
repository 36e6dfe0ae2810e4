"""Activations of untrained networks and in their first steps (Bjorck et al. 2018, §3, §4, App. K)."""

import numpy as np
import pandas as pd

from analysis.claims.base import Case, Cell, Claim
from analysis.claims.measured import (
    BARE,
    BEFORE_TRAINING,
    BOTH,
    MEDIAN,
    SIGNED_RANK,
    alone_times,
    below_times,
    difference,
    logarithm,
    named,
    per_run,
    table,
)
from analysis.claims.rules import seeds_for_signs
from analysis.figures import _probes, bjorck_fig04, bjorck_fig05, bjorck_fig22, bjorck_fig24
from analysis.tidy import each, groups

LOW = 0.0001
"""Rate of Fig 24."""
LARGE = 0.1
"""Rate of Fig 4's update: without BN it diverges."""


def _late_over_early(case: Case) -> pd.DataFrame:
    """log₁₀ of the largest |channel mean|, last over first layer measured, after the whole update."""
    rows = table(case, "update_path", rate=LARGE)
    data = bjorck_fig04.extremes(rows)
    ends = data[data["share"] == data["share"].max()].sort_values("number")
    found = [
        (norm, seed, _decades(run["largest_mean"].iloc[-1], run["largest_mean"].iloc[0]))
        for (norm, seed), run in groups(ends, ["norm", "seed"])
    ]
    return named(pd.DataFrame(found, columns=["norm", "seed", "ratio"]), rows, "ratio")


def _decades(a: float, b: float) -> float:
    with np.errstate(invalid="ignore"):
        return float(logarithm(a) - logarithm(b))


def _growth(source: str, case: Case) -> pd.DataFrame:
    """Slope of ln(deviation) a layer, for training images or for noise."""
    rows = table(case, "activation_moments")
    slopes = bjorck_fig05.slopes(bjorck_fig05.by_layer(rows))
    return named(slopes[slopes["source"] == source], rows, "slope")


def _largest_scale(case: Case) -> pd.DataFrame:
    """log₁₀ of the largest |mean| or deviation of any channel of any layer."""
    rows = table(case, "activation_moments")
    rows = rows[(rows["side"] == "output") & (rows["source"] == "data")]
    return per_run(rows, _top)


def _top(rows: pd.DataFrame) -> float:
    sizes = [np.abs(_probes.numbers(v)) for v in rows["mean"]]
    sizes += [np.sqrt(_probes.numbers(v)) for v in rows["variance"]]
    every = np.concatenate(sizes) if sizes else np.empty(0)
    return float(logarithm(np.where(np.isnan(every), np.inf, every).max())) if len(every) else np.nan


def _hidden(case: Case) -> pd.DataFrame:
    """Histograms after the norm of all layers but the classifier."""
    rows = bjorck_fig22.after_norm(table(case, "activation_histogram"))
    return pd.DataFrame(rows[rows["number"] < rows["number"].max()])


def _relative_mean(case: Case) -> pd.DataFrame:
    rows = _hidden(case)
    rows = rows.assign(relative=[bjorck_fig22.relative_mean(r) for r in each(rows)])
    return per_run(rows, lambda r: float(r["relative"].median()))


def _several_modes(case: Case) -> pd.DataFrame:
    rows = _hidden(case)
    deep = rows[(rows["number"] > 2 * (rows["number"].max() + 1) / 3) & rows["unimodal_p"].notna()]
    return named(bjorck_fig22.several_modes(deep), rows, "share")


def _change(case: Case) -> pd.DataFrame:
    """log₁₀ of last over first value, of mean or variance, whichever shrank less; ∞ after divergence."""
    data = bjorck_fig24.first_moments(case.frames)
    late = data[data["number"] == data["number"].max()].sort_values("step")
    outcome = case.frames.runs.set_index(case.frames.runs["run_id"].astype("str"))["outcome"]

    def change(run: pd.DataFrame) -> float:
        if outcome.get(run["run_id"].iloc[0]) == "diverged":
            return float("inf")
        return max(_decades(run[c].iloc[-1], run[c].iloc[0]) for c in ("mean", "variance"))

    return per_run(late, change)


CLAIMS = (
    Claim(
        id="late_layers_blow_up_in_a_large_update",
        sentence=(
            "Without batch normalisation, a large update takes late layers orders of magnitude above early "
            "ones."
        ),
        source="§3, Fig 4",
        cells=BARE,
        estimator=(
            f"largest |channel mean| after the first update at rate {LARGE}, layer 80 over layer 8; {MEDIAN}"
        ),
        rule=f"{SIGNED_RANK}, of a ratio above 100 (“orders of magnitude”: at least two)",
        unit="times",
        test=alone_times(100),
        measure=_late_over_early,
        figures=("bjorck_fig04",),
        **{**BEFORE_TRAINING, "sweep": ("bjorck_init", "diverging_update")},
    ),
    Claim(
        id="activations_grow_with_depth_without_bn",
        sentence="Before training, activations grow faster with depth without batch normalisation.",
        source="§4, Fig 5",
        cells=BOTH,
        estimator=f"least-squares slope of ln(channel deviation) a layer, none minus bn; {MEDIAN}",
        rule=SIGNED_RANK,
        unit="",
        test=difference,
        measure=lambda case: _growth("data", case),
        figures=("bjorck_fig05",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="growth_with_depth_needs_no_data",
        sentence=(
            "Before training, activations of pure noise grow faster with depth without batch normalisation "
            "too."
        ),
        source="§4, Fig 5",
        cells=BOTH,
        estimator=(
            f"least-squares slope of ln(channel deviation) a layer, noise images, none minus bn; {MEDIAN}"
        ),
        rule=SIGNED_RANK,
        unit="",
        test=difference,
        measure=lambda case: _growth("noise", case),
        figures=("bjorck_fig05",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="channels_reach_a_hundred_without_bn",
        sentence="Before training and without batch normalisation, some channels reach a scale of a hundred.",
        source="§4, Fig 5",
        cells=BARE,
        estimator=f"largest |mean| or deviation of any channel; {MEDIAN}",
        rule=f"{SIGNED_RANK}, of a scale above 10^1.5 (nearer 10² than 10)",
        unit="level",
        test=alone_times(10**1.5),
        measure=_largest_scale,
        figures=("bjorck_fig05",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="means_not_zero_without_bn",
        sentence="Before training, a layer's mean is farther from zero without batch normalisation.",
        source="App. K, Figs 22 and 23",
        cells=BOTH,
        estimator=(
            "|mean| of a layer's values over their root mean square, median over the hidden layers (after "
            f"the norm where there is one), none minus bn; {MEDIAN}"
        ),
        rule=SIGNED_RANK,
        unit="",
        test=difference,
        measure=_relative_mean,
        figures=("bjorck_fig22",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="deep_layers_have_several_modes_without_bn",
        sentence="Before training, more deep layers have several modes without batch normalisation.",
        source="App. K, Figs 22 and 23",
        cells=BOTH,
        estimator=(
            "share of the last third's layers for which a dip test rejects one mode at 1%, none minus bn; "
            f"{MEDIAN}"
        ),
        rule=SIGNED_RANK,
        unit="share",
        test=difference,
        measure=_several_modes,
        figures=("bjorck_fig22",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="late_moments_shrink_in_the_first_steps",
        sentence=(
            "Without batch normalisation at a low rate, means and variances of late layers shrink over the "
            "first mini-batches."
        ),
        source="App. K, Fig 24",
        cells=(Cell("none", LOW),),
        estimator=(
            f"last over first value at rate {LOW:g}, layer 80, of the mean |channel mean| or the mean "
            f"channel variance, whichever shrank less; a run that diverged did not shrink; {MEDIAN}"
        ),
        rule=f"{SIGNED_RANK}, of a ratio below 1",
        unit="times",
        test=below_times(),
        least_seeds=seeds_for_signs,
        measure=_change,
        sweep=("early_moments",),
        figures=("bjorck_fig24",),
    ),
)

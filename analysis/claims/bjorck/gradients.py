"""Gradients of untrained networks (Bjorck et al. 2018, §3, §4, App. G–K): wide, and blind to the image.

Where the paper gives a factor in round words the claim asks for less than it, by a threshold that stands in
the rule: "two orders of magnitude" must exceed one, "about 10² against about 2" must differ tenfold.
"""

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
    below,
    below_times,
    column,
    difference,
    from_logs,
    logarithm,
    named,
    per_run,
    ratio,
    table,
)
from analysis.figures import (
    _probes,
    bjorck_fig02,
    bjorck_fig06,
    bjorck_fig07,
    bjorck_fig14,
    bjorck_fig15,
    bjorck_fig16,
    bjorck_fig19,
)
from analysis.tidy import each


def _deviation(case: Case) -> pd.DataFrame:
    """log₁₀ of the gradients' deviation; ∞ where a gradient is not finite: it is wider than can be held."""
    rows = _probes.at_layer(table(case, "gradient_tails"), bjorck_fig02.LAYER)
    return from_logs(rows, lambda r: r["deviation"].where(r["nonfinite"] == 0, np.inf))


def _largest_share(case: Case) -> pd.DataFrame:
    rows = table(case, "logit_gradients")
    return per_run(rows, lambda r: bjorck_fig06.largest_share(r["positive_share"].iloc[0]))


def _concentration(case: Case) -> pd.DataFrame:
    rows = _probes.at_layer(table(case, "channel_pairs"), bjorck_fig07.LAYER)
    return per_run(rows, lambda r: bjorck_fig07.concentration(bjorck_fig07.matrix(next(each(r)))))


def _channel_correlation(name: str, case: Case) -> pd.DataFrame:
    """Mean over the measured layers of the rank correlation of a channel's property and gradient."""
    rows = table(case, "channel_pairs")
    found = bjorck_fig14.correlations(bjorck_fig14.channels(rows), name)
    means = found.groupby(["norm", "seed"])["rho"].mean()
    return named(means.reset_index(), rows, "rho")


def _early_over_late(case: Case) -> pd.DataFrame:
    """log₁₀ of the channels' spread in early layers over that in late ones; of bn its magnitude."""
    rows = table(case, "gradient_tails")
    wide = bjorck_fig15.thirds(bjorck_fig15.by_layer(rows)).pivot(
        index=["norm", "seed"], columns="third", values="spread"
    )
    wide = wide.reindex(columns=["first", "last"])
    found = wide.assign(spread=logarithm(wide["first"] / wide["last"])).reset_index()
    found["spread"] = found["spread"].where(found["norm"] == "none", found["spread"].abs())
    return named(found, rows, "spread")


def _lead(case: Case) -> pd.DataFrame:
    rows = table(case, "class_gradients")
    found = bjorck_fig16.leads(bjorck_fig16.ranked(rows))
    return named(found.assign(second=logarithm(found["second"])), rows, "second")


def _straightness(case: Case) -> pd.DataFrame:
    rows = _probes.at_layer(table(case, "gradient_agreement"), bjorck_fig19.LAYER)
    return per_run(rows, lambda r: bjorck_fig19.correlation(next(each(r))))


CLAIMS = (
    Claim(
        id="gradients_wider_without_bn",
        sentence="Before training, gradients are more than ten times as wide without batch normalisation.",
        source="§3, Fig 2",
        cells=BOTH,
        estimator=f"standard deviation of layer 55's weight gradients, none over bn; {MEDIAN}",
        rule=f"{SIGNED_RANK}, of a ratio above 10 (the paper: about two orders of magnitude)",
        unit="times",
        test=ratio(10),
        measure=_deviation,
        figures=("bjorck_fig02",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="gradients_heavier_tailed_without_bn",
        sentence="Before training, gradients have heavier tails without batch normalisation.",
        source="§3, Fig 2",
        cells=BOTH,
        estimator=f"kurtosis of layer 55's weight gradients, none over bn; {MEDIAN}",
        rule=SIGNED_RANK,
        unit="times",
        test=ratio(),
        measure=column("gradient_tails", "kurtosis", bjorck_fig02.LAYER, logs=True),
        figures=("bjorck_fig02",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="one_class_gets_the_gradient_without_bn",
        sentence=(
            "Before training and without batch normalisation, more of the logits' positive gradient lies in "
            "one class."
        ),
        source="§4, Fig 6",
        cells=BOTH,
        estimator=f"largest share of all positive ∂L/∂logits in one class, none minus bn; {MEDIAN}",
        rule=f"{SIGNED_RANK} (the paper: nearly all in one class without it)",
        unit="share",
        test=difference,
        measure=_largest_share,
        figures=("bjorck_fig06",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="gradient_terms_cancel_with_bn",
        sentence=(
            "Before training, the terms of a weight's gradient cancel more than ten times as much with "
            "batch normalisation."
        ),
        source="§4.1, Table 1",
        cells=(Cell("bn"), Cell("none")),
        estimator=f"a/b, geometric mean over layers 18, 54 and 90, bn over none; {MEDIAN}",
        rule=f"{SIGNED_RANK}, of a ratio above 10 (the paper: about 10² against about 2)",
        unit="times",
        test=ratio(10),
        measure=column("gradient_agreement", "ratio", logs=True),
        figures=("bjorck_table1",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="gradient_terms_agree_without_bn",
        sentence="Before training and without batch normalisation, a weight's gradient terms nearly add up.",
        source="§4.1, Table 1",
        cells=BARE,
        estimator=f"a/b (1: they all add up), geometric mean over layers 18, 54 and 90; {MEDIAN}",
        rule=f"{SIGNED_RANK}, of a/b below 3 (the paper: within about 2)",
        unit="times",
        test=below_times(3),
        measure=column("gradient_agreement", "ratio", logs=True),
        figures=("bjorck_table1",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="channel_pairs_dominate_without_bn",
        sentence=(
            "Before training and without batch normalisation, fewer pairs of channels hold more of a "
            "kernel's gradient."
        ),
        source="§4.1, Fig 7",
        cells=BOTH,
        estimator=(
            f"share of layer 54's gradient on the tenth of pairs with the most, none minus bn; {MEDIAN}"
        ),
        rule=SIGNED_RANK,
        unit="share",
        test=difference,
        measure=_concentration,
        figures=("bjorck_fig07",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="channel_mean_drives_gradient_without_bn",
        sentence=(
            "Before training, the size of a channel's mean predicts that of its outgoing weights' gradient "
            "better without batch normalisation."
        ),
        source="§4.1, App. G.1, Figs 7 and 14",
        cells=BOTH,
        estimator=(
            "Spearman's ρ of an input channel's |mean| and its weights' mean |gradient|, mean over layers "
            f"18, 54 and 90, none minus bn; {MEDIAN}"
        ),
        rule=f"{SIGNED_RANK} (the paper: strongly related, with bn not at all)",
        unit="",
        test=difference,
        measure=lambda case: _channel_correlation("mean", case),
        figures=("bjorck_fig14", "bjorck_fig07"),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="dead_channels_have_small_gradients",
        sentence=(
            "Before training and without batch normalisation, channels that the ReLU silences more have "
            "smaller gradients."
        ),
        source="App. G.1, Fig 14",
        cells=BARE,
        estimator=(
            "Spearman's ρ of an input channel's share of zeros and its weights' mean |gradient|, mean over "
            f"layers 18, 54 and 90; {MEDIAN}"
        ),
        rule=f"{SIGNED_RANK}, of a ρ below 0 (the paper: dead channels have tiny ones)",
        unit="",
        test=below(),
        measure=lambda case: _channel_correlation("zeros", case),
        figures=("bjorck_fig14",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="channels_vary_most_in_early_layers_without_bn",
        sentence=(
            "Before training and without batch normalisation, gradients vary more between channels in early "
            "than in late layers; with it, layers are alike."
        ),
        source="App. G.2, Fig 15",
        cells=BOTH,
        estimator=(
            "spread between a layer's channels (deviation over mean of their mean |gradient|), first over "
            "last third of the layers; that of none over that of bn, whichever way the latter points; "
            f"{MEDIAN}"
        ),
        rule=SIGNED_RANK,
        unit="times",
        test=ratio(),
        measure=_early_over_late,
        figures=("bjorck_fig15",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="favoured_class_has_ten_times_the_gradient",
        sentence=(
            "Before training and without batch normalisation, one class sends back at least ten times the "
            "gradient of any other."
        ),
        source="App. I and J, Figs 16 and 17",
        cells=BARE,
        estimator=(
            f"mean |gradient| of layer 52's kernel by logit column, the largest over the second; {MEDIAN}"
        ),
        rule=f"{SIGNED_RANK}, of a ratio above 10",
        unit="times",
        test=alone_times(10),
        measure=_lead,
        figures=("bjorck_fig16",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="images_pull_one_way_without_bn",
        sentence=(
            "Before training, the images' gradients of a weight lie more to one side of zero without batch "
            "normalisation."
        ),
        source="App. J, Fig 18",
        cells=BOTH,
        estimator=(
            "share of images whose term has the more frequent sign, mean over layer 90's weights, none "
            f"minus bn; {MEDIAN}"
        ),
        rule=SIGNED_RANK,
        unit="share",
        test=difference,
        measure=column("example_gradients", "majority_share"),
        figures=("bjorck_fig18",),
        **BEFORE_TRAINING,
    ),
    Claim(
        id="sums_follow_a_line_without_bn",
        sentence=(
            "Before training, a weight's sum of gradient terms follows the sum of their magnitudes more "
            "closely without batch normalisation."
        ),
        source="App. K, Fig 19",
        cells=BOTH,
        estimator="correlation of the two sums' logarithms over layer 54's weights, none minus bn; " + MEDIAN,
        rule=SIGNED_RANK,
        unit="",
        test=difference,
        measure=_straightness,
        figures=("bjorck_fig19",),
        **BEFORE_TRAINING,
    ),
)

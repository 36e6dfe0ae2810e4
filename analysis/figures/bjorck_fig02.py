"""Fig 2 of Bjorck et al. 2018 (§3): the gradients of one layer's weights before training."""

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from scipy import stats as distributions

from analysis import style
from analysis.figures import _probes as probes
from analysis.figures._bins import SignedLog, exceeding
from analysis.load import Frames

TITLE = "Fig 2: gradients of one layer's weights"
SECTION = probes.STEPS
ORDER = 2
NEEDS = ("probe:gradient_tails",)
EXPECTED = "fig02"
MEASURED = (
    "The gradient of the loss with respect to every single weight of one layer half-way up the network: how "
    "wide the gradients are spread, and how much farther out the rarest of them lie than those of a bell "
    "curve of the same width would (kurtosis: 3 for a bell curve, more for heavier tails)."
)
HOW = (
    "One batch of training images, one backward pass, before any weight has moved. Weights whose gradient is "
    "exactly zero are counted apart."
)

LAYER = 55


def draw(frames: Frames) -> style.Drawing:
    """Left: shares of the weights by gradient; right: share beyond a multiple of the standard deviation."""
    table = probes.at_layer(probes.rows(frames, "gradient_tails"), LAYER)
    colours = style.norm_colours(probes.norms(table))
    known = [probes.numbers(c) for c in table["counts"] if len(probes.numbers(c))]
    scale = SignedLog.around(np.sum(known, axis=0) if known else np.zeros(1), 0.01)
    data, tails = [], []
    with style.styled():
        figure, grid = probes.panels(1, 2, 3.0)
        left, right = grid[0]
        for norm, seed, run in probes.each_run(table):
            counts = probes.numbers(run["counts"].iloc[0])
            if not len(counts):
                continue
            edges, shares = scale.regroup(counts)
            left.stairs(shares, edges, color=colours[norm], linewidth=1.1, alpha=0.85)
            multiples, beyond = _tail(counts, float(run["deviation"].iloc[0]))
            right.plot(multiples, beyond, color=colours[norm], linewidth=1.1)
            tails.append((multiples, beyond))
            centres = (edges[:-1] + edges[1:]) / 2
            data.append(pd.DataFrame({"norm": norm, "seed": seed, "position": centres, "share": shares}))
        x = np.geomspace(0.1, 8, 100)
        right.plot(x, 2 * distributions.norm.sf(x), color="#444444", linestyle=(0, (2, 2)), linewidth=1.2)
        style.log_axis(right, "x", x)
        style.log_axis(right, "y", x)
        right.set(ylim=SHARES, xlim=MULTIPLES)
        style.note(right, "\n".join(_hidden(tails, table)))
        right.set(xlabel="multiple of the standard deviation", title="share of weights beyond it")
        left.set(xlabel="gradient", title=f"share of weights, layer {probes.layers(table)[0]}")
        scale.ticks(left)
        bell = Line2D([], [], color="#444444", linestyle=(0, (2, 2)), label="bell curve")
        probes.norm_legend(figure, table, [bell])
    caption = (
        "One line per seed. Left: one bin an octave on both sides of zero; what is smaller than the first "
        "label shares the middle bin. Right: share of weights whose gradient is larger in magnitude than a "
        "multiple of their standard deviation."
    )
    return style.Drawing(figure, pd.concat(data) if data else table.iloc[:0], caption, tuple(_seen(table)))


MULTIPLES, SHARES = (0.1, 30), (1e-5, 1.5)
"""Limits of the right panel."""


def _tail(counts: probes.Floats, deviation: float) -> tuple[probes.Floats, probes.Floats]:
    """(Multiples of the deviation, share of the weights beyond each); nothing without a deviation."""
    sizes, beyond = exceeding(counts)
    if not np.isfinite(deviation) or deviation <= 0:
        return np.empty(0), np.empty(0)
    there = beyond > 0
    return sizes[there] / deviation, beyond[there]


def _hidden(tails: list[tuple[probes.Floats, probes.Floats]], table: pd.DataFrame) -> list[str]:
    """How many runs' tails the right panel cannot show, or not to their end."""
    n = table.groupby(["norm", "seed"]).ngroups
    lost = n - sum(len(multiples) > 0 for multiples, _ in tails)
    past = sum(bool(((m > MULTIPLES[1]) & (b > SHARES[0])).any()) for m, b in tails)
    said = [f"{lost} of {n} runs have no finite deviation: not shown"] if lost else []
    return said + ([f"{past} of {n} lines go on beyond {MULTIPLES[1]}"] if past else [])


def _seen(table: pd.DataFrame) -> list[str]:
    times = probes.ratio(table, "deviation")
    said = [f"Standard deviation: {probes.by_norm(table, 'deviation')}."]
    if np.isfinite(times):
        said[0] += f" Without BN it is {probes.say(times)} times that with BN (medians over seeds)."
    said.append(f"Kurtosis: {probes.by_norm(table, 'kurtosis')}.")
    said.append(f"Weights with a gradient of exactly zero: {probes.by_norm(table, 'zeros')}.")
    lost = int(table["nonfinite"].sum())
    if lost:
        said.append(f"{lost} gradients are not finite; their run has no standard deviation.")
    return said

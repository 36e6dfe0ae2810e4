"""Fig 14 of Bjorck et al. 2018 (App. G.1): a channel's mean against the gradient of its outgoing weights."""

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis import style
from analysis.figures import _probes as probes
from analysis.figures.bjorck_fig07 import matrix
from analysis.load import Frames
from analysis.tidy import each, groups

TITLE = "Fig 14: a channel's mean and the gradient of its outgoing weights"
SECTION = probes.APPENDIX
ORDER = 14
NEEDS = ("probe:channel_pairs",)
EXPECTED = "fig14"
MEASURED = (
    "Each dot is one input channel of a layer: across, the mean of its values; up, the mean magnitude of the "
    "gradient of all weights that read it. If the dots rise, a channel is pushed because it is large, not "
    "because it is useful."
)
HOW = (
    "One batch of training images before any update. The mean is that of what the layer reads, after the "
    "ReLU: a channel whose values were all negative before it is dead there, all zeros, and cannot have a "
    "gradient."
)

DEAD = 1.0


def draw(frames: Frames) -> style.Drawing:
    """Rows are layers, columns norms; all seeds together."""
    data = channels(probes.rows(frames, "channel_pairs"))
    chosen, norms = probes.layers(data), probes.norms(data)
    colours = style.norm_colours(norms)
    with style.styled():
        figure, grid = probes.panels(len(chosen), len(norms), 1.9 * len(chosen) + 0.5)
        for row, number in enumerate(chosen):
            for column, norm in enumerate(norms):
                axes = grid[row, column]
                mine = data[(data["number"] == number) & (data["norm"] == norm)]
                axes.scatter(
                    mine["mean"], mine["gradient"], s=9, color=colours[norm], alpha=0.6, linewidths=0
                )
                style.log_axis(axes, "y", mine["gradient"])
                axes.xaxis.set_major_locator(MaxNLocator(5))
                rho = probes.over_seeds(correlations(mine)["rho"])
                axes.set_title(f"{norm}, layer {number}: ρ = {rho}", fontsize=8)
        figure.supxlabel("mean of the input channel", fontsize=9)
        figure.supylabel("mean |gradient| of its weights", fontsize=9)
    caption = (
        f"One dot per input channel, {probes.seeds(data)} together; ρ is Spearman's rank correlation within "
        f"a seed (median, range). Each panel has its own scales."
    )
    return style.Drawing(figure, data, caption, tuple(_seen(data)))


def channels(table: pd.DataFrame) -> pd.DataFrame:
    """One row per input channel: mean, share of zeros, mean |gradient| of the weights that read it."""
    pieces = []
    for row in each(table):
        pairs = matrix(row)
        zeros = probes.numbers(row.input_zeros)
        piece = {"mean": probes.numbers(row.input_mean), "zeros": zeros, "gradient": pairs.mean(0)}
        pieces.append(
            pd.DataFrame(piece).assign(norm=row.norm, seed=row.seed, number=row.number, dead=zeros >= DEAD)
        )
    return pd.concat(pieces, ignore_index=True)


def correlations(data: pd.DataFrame, column: str = "mean") -> pd.DataFrame:
    """Rank correlation of |column| and gradient over the channels of a layer: norm, seed, number, rho."""
    found = [
        (norm, seed, number, probes.rank_correlation(np.abs(run[column]), run["gradient"]))
        for (norm, seed, number), run in groups(data, ["norm", "seed", "number"])
    ]
    return pd.DataFrame(found, columns=["norm", "seed", "number", "rho"])


def _seen(data: pd.DataFrame) -> list[str]:
    found = correlations(data)
    said = [
        f"Rank correlation of |mean| and gradient in layer {number}: "
        f"{probes.by_norm(found[found['number'] == number], 'rho')}."
        for number in probes.layers(found)
    ]
    for norm in probes.norms(data):
        mine = data[data["norm"] == norm]
        dead = mine[mine["dead"]]
        text = f"Dead channels, {norm}: {len(dead)} of {len(mine)}"
        if len(dead):
            text += f"; their largest mean |gradient| is {probes.say(float(dead['gradient'].max()))}"
        said.append(text + ".")
    return said

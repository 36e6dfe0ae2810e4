"""Figs 16 and 17 of Bjorck et al. 2018 (App. I, J): how much of a kernel's gradient each class sends back."""

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis import style
from analysis.figures import UndrawableError
from analysis.figures import _probes as probes
from analysis.load import Frames
from analysis.tidy import groups

TITLE = "Figs 16 and 17: gradients from one class alone"
SECTION = probes.APPENDIX
ORDER = 16
NEEDS = ("probe:class_gradients",)
EXPECTED = "fig16"
MEASURED = (
    "The gradient of one kernel half-way up the network, had the loss spoken through one class only: if one "
    "class sends back far more than all others, the others' images hardly count."
)
HOW = (
    "One batch of training images before any update. All but one column of the loss's gradient at the logits "
    "are set to zero and the rest is sent back through the network, for each class in turn; the ten results "
    "add up to the ordinary gradient."
)


def draw(frames: Frames) -> style.Drawing:
    """Classes in order of their gradient, as shares of the largest; one line per seed."""
    table = probes.rows(frames, "class_gradients")
    data = ranked(table)
    layer = probes.layers(table)[0]
    colours = style.norm_colours(probes.norms(data))
    with style.styled():
        figure, grid = probes.panels(1, 2, 3.0)
        for axes, column in zip(grid[0], ("mean_abs", "share"), strict=True):
            for (norm, _), run in groups(data, ["norm", "seed"]):
                drawn = run[column].where(np.isfinite(run[column]))
                axes.plot(run["rank"], drawn, color=colours[norm], marker="o", markersize=3, linewidth=1)
            style.log_axis(axes, "y", data[column])
            axes.set_xlabel("classes, largest gradient first")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        grid[0, 0].set_title(f"mean |gradient|, layer {layer}")
        grid[0, 1].set_title("÷ that of the largest")
        probes.norm_legend(figure, data)
    caption = "One line per seed; the classes are those of the logits, in each seed's own order."
    return style.Drawing(figure, data, caption, tuple(_seen(data)))


def ranked(table: pd.DataFrame) -> pd.DataFrame:
    """Classes of the first layer measured by logit column, the largest mean |gradient| first.

    Raises UndrawableError if there is none.
    """
    table = table[table["by"] == "logit"]
    if table.empty or not probes.layers(table):
        raise UndrawableError("no gradient was measured by logit column")
    table = table[table["number"] == probes.layers(table)[0]]
    rows = table[["norm", "seed", "class", "mean_abs"]].sort_values(
        ["norm", "seed", "mean_abs"], ascending=[True, True, False]
    )
    grouped = rows.groupby(["norm", "seed"])
    share = rows["mean_abs"] / grouped["mean_abs"].transform("max").replace(0, np.nan)
    return rows.assign(rank=grouped.cumcount() + 1, share=share).reset_index(drop=True)


def leads(data: pd.DataFrame) -> pd.DataFrame:
    """The largest class's gradient over the second's, and over the median of the others': norm, seed, …"""
    found = []
    for (norm, seed), run in groups(data, ["norm", "seed"]):
        sizes = run["mean_abs"].to_numpy(float)
        others = sizes[1:]
        good = len(others) > 0 and np.isfinite(sizes).all() and others.min() > 0
        found.append(
            (
                norm,
                seed,
                sizes[0] / others.max() if good else np.nan,
                sizes[0] / np.median(others) if good else np.nan,
            )
        )
    return pd.DataFrame(found, columns=["norm", "seed", "second", "median"])


def _seen(data: pd.DataFrame) -> list[str]:
    table = leads(data)
    return [
        f"Largest class's gradient ÷ the second's: {probes.by_norm(table, 'second')}.",
        f"Largest class's gradient ÷ the median of the others: {probes.by_norm(table, 'median')}.",
    ]

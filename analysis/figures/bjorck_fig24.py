"""Fig 24 of Bjorck et al. 2018 (App. K): how activations change over the first mini-batches."""

import numpy as np
import pandas as pd

from analysis import style
from analysis.figures import UndrawableError
from analysis.figures import _probes as probes
from analysis.load import Frames
from analysis.tidy import groups

TITLE = "Fig 24: activations over the first mini-batches"
SECTION = probes.FIRST
ORDER = 24
NEEDS = ("probe:activation_moments",)
EXPECTED = "fig24"
WHEN = ("first", "every")
MEASURED = (
    "The magnitude of a channel's mean and its variance, averaged over the channels of a layer, while the "
    "first updates are made, in an early, a middle and a late layer."
)
HOW = "Measured on each training batch just before its update, without normalisation, at the lowest rate run."

LAYERS = (8, 44, 80)


def draw(frames: Frames) -> style.Drawing:
    """Means and variances by step, a column per layer: one line per seed, and their median."""
    data = first_moments(frames)
    numbers = probes.layers(data)
    look = style.seed_line(data["seed"].nunique())
    colour = style.norm_colours(["none"])["none"]
    with style.styled():
        figure, grid = probes.panels(2, len(numbers), 4.2, sharex=True, sharey="row")
        for row, name in zip(grid, ("mean", "variance"), strict=True):
            for axes, number in zip(row, numbers, strict=True):
                mine = data[data["number"] == number].sort_values("step")
                for _, run in groups(mine, ["seed"]):
                    axes.plot(run["step"] + 1, run[name], color=colour, **look)
                middle = mine.groupby("step")[name].median()
                axes.plot(middle.index + 1, middle, color="#222222", linewidth=1.6)
                style.log_axis(axes, "y", mine[name], among=data[name], narrow=True)
            row[0].set_ylabel("mean |channel mean|" if name == "mean" else "mean channel variance")
        for axes, number in zip(grid[0], numbers, strict=True):
            axes.set_title(f"layer {number}")
        for axes in grid[1]:
            axes.set_xlabel("mini-batch")
    caption = (
        f"Rate {style.rate_label(float(data['lr'].iloc[0]))}, {probes.seeds(data)}: one line per seed, their "
        f"median dark."
    )
    return style.Drawing(figure, data, caption, tuple(_seen(data)))


def first_moments(frames: Frames) -> pd.DataFrame:
    """Mean |channel mean| and variance of LAYERS at each of the first steps, at the lowest rate without norm.

    Raises UndrawableError where that has not been measured.
    """
    raw = probes.rows(frames, "activation_moments", when=WHEN, least_norms=1)
    raw = raw[(raw["norm"] == "none") & (raw["side"] == "output")]
    if raw["step"].nunique() < 2:
        raise UndrawableError("no run without normalisation was measured at more than one of its first steps")
    raw = raw[raw["lr"] == raw["lr"].min()]
    raw = pd.concat([probes.at_layer(raw, n) for n in LAYERS])
    return raw[["run_id", "norm", "lr", "seed", "number", "step"]].assign(
        mean=[probes.average(np.abs(probes.numbers(v))) for v in raw["mean"]],
        variance=[probes.average(probes.numbers(v)) for v in raw["variance"]],
    )


def _seen(data: pd.DataFrame) -> list[str]:
    """Last over first value, per layer."""
    said = []
    for number in probes.layers(data):
        mine = data[data["number"] == number].sort_values("step")
        ends = mine.groupby("seed")[["mean", "variance"]].agg(["first", "last"])
        for name in ("mean", "variance"):
            times = ends[(name, "last")] / ends[(name, "first")]
            said.append(
                f"Layer {number}, {name}: at the end {probes.over_seeds(times)} times its first value."
            )
    return said

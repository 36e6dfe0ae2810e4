"""Training loss by step, log scale: how fast each cell learns, and how a diverging one ends."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis import select, style
from analysis.load import Frames
from analysis.tidy import groups

TITLE = "Training loss"
SECTION = "Learning rates (Bjorck et al. 2018, §2)"
ORDER = 4
NEEDS = ("metrics",)

BINS = 200
"""At most this many points per line: longer runs are averaged over equal stretches of steps."""


def draw(frames: Frames) -> style.Drawing:
    """One panel per norm; each line is a run's training-batch loss, averaged over stretches of steps."""
    table = select.outcomes(frames)
    rows = frames.metrics[frames.metrics["split"] == "batch"]
    data = _binned(rows).merge(
        table[["run_id", "norm", "lr", "seed", "fate"]].astype({"run_id": "str"}), on="run_id"
    )
    norms = select.norm_order(table["norm"])
    colours, styles = style.rate_colours(table["lr"]), style.norm_styles(norms)
    columns = min(3, len(norms))
    height = 2.7 * -(-len(norms) // columns)
    with style.styled():
        figure, grid = plt.subplots(
            -(-len(norms) // columns),
            columns,
            figsize=(style.WIDTH, height),
            sharex=True,
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        for axes, norm in zip(grid.flat, norms, strict=False):
            mine = data[data["norm"] == norm]
            for (lr, _), run in groups(mine, ["lr", "run_id"]):
                axes.plot(
                    run["step"], run["loss"], color=colours[lr], linestyle=styles[norm][0], linewidth=1.1
                )
                if run["fate"].iloc[0] == select.DIVERGED:
                    end = run[np.isfinite(run["loss"])].tail(1)
                    axes.scatter(end["step"], end["loss"], marker="x", s=34, color=colours[lr], zorder=5)
            style.log_axis(axes, "y", mine["loss"])
            axes.set_title(norm)
        for axes in list(grid.flat)[len(norms) :]:
            axes.set_visible(False)
        figure.supxlabel("step", fontsize=9)
        grid[0, 0].set_ylabel("cross-entropy per image (nats)")
        style.legends(figure, table["lr"], norms)
    longest = int(rows.groupby("run_id", observed=True).size().max()) if len(rows) else 0
    stretch = f" averaged over stretches of {-(-longest // BINS)} steps" if longest > BINS else ""
    return style.Drawing(
        figure,
        data,
        f"Loss of each training batch{stretch}, one line per run; × marks the last finite loss of a "
        "run that diverged.",
    )


def _binned(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean loss of each run over equal stretches; a stretch with a non-finite loss is not finite."""
    counts = rows.groupby("run_id", observed=True)["step"].transform("size")
    width = np.ceil(counts / BINS).astype(int)
    place = rows.groupby("run_id", observed=True).cumcount()
    # A mean skips NaN but not infinity: NaN counts as infinite, so that no stretch hides one.
    loss = rows["loss"].fillna(np.inf)
    grouped = rows.assign(bin=place // width, loss=loss).groupby(["run_id", "bin"], observed=True)
    means = grouped.agg(step=("step", "max"), loss=("loss", "mean")).reset_index()
    return means.drop(columns="bin").astype({"run_id": "str"})

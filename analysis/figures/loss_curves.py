"""Training loss by step, log scale: how fast each cell learns, and how a diverging one ends."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis import select, stats, style
from analysis.figures import MOST_NORMS, _counts
from analysis.figures import _probes as probes
from analysis.load import Frames
from analysis.tidy import each, groups

TITLE = "Training loss"
SECTION = "Learning rates (Bjorck et al. 2018, §2)"
ORDER = 4
NEEDS = ("metrics",)
EXPECTED = "loss"
MEASURED = (
    "The loss on each training batch: how large it is before the first update, how fast it falls, and how it "
    "ends where it does not fall."
)
HOW = (
    "The training step's own loss, before the update it leads to. A run ends when it is not a number, or "
    "after the first update exceeds a thousand times its initial value (at least a thousand)."
)

TOP = 1e6
"""Losses beyond it are not shown: one run that diverges at 1e30 would leave nothing to see of the others."""
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
    many = len(norms) > MOST_NORMS
    columns = min(4 if many else 3, len(norms))
    height = (1.25 if many else 2.7) * -(-len(norms) // columns) + (0.5 if many else 0)
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
                line = "-" if many else styles[norm][0]  # each panel is named
                axes.plot(run["step"], run["loss"], color=colours[lr], linestyle=line, linewidth=1.1)
                if run["fate"].iloc[0] == select.DIVERGED:
                    end = run[np.isfinite(run["loss"])].tail(1)
                    last = end["loss"].clip(upper=TOP)
                    axes.scatter(end["step"], last, marker="x", s=34, color=colours[lr], zorder=5)
            among = data["loss"].where(np.isfinite(data["loss"])).clip(upper=TOP)
            style.log_axis(axes, "y", mine["loss"], among=among, narrow=columns > 2)
            axes.set_title(norm, fontsize=8 if many else None)
        if (data["loss"][np.isfinite(data["loss"])] > TOP).any():
            grid[0, 0].set_ylim(top=2 * TOP)  # the panels share the axis
        for axes in list(grid.flat)[len(norms) :]:
            axes.set_visible(False)
        figure.supxlabel("step", fontsize=9)
        figure.supylabel("cross-entropy per image (nats)", fontsize=9)
        style.legends(figure, table["lr"], [] if many else norms)
        style.footnote(figure, _counts.lines(table))
    longest = int(rows.groupby("run_id", observed=True).size().max()) if len(rows) else 0
    stretch = f" averaged over stretches of {-(-longest // BINS)} steps" if longest > BINS else ""
    return style.Drawing(
        figure,
        data,
        f"Loss of each training batch{stretch}, one line per run; × marks the last finite loss of a "
        f"run that diverged, at {style.power_of_ten(TOP)} if it is larger. {_every_n(table)}",
        tuple(_seen(table, rows)),
    )


def _every_n(table: pd.DataFrame) -> str:
    """How many runs each cell has, and how many of them are not drawn to their end."""
    cells = stats.accuracy_table(table)
    texts = []
    for c in each(cells):
        counted = stats.of_n(c.n - c.n_diverged, c.n, c.n_diverged, c.n_undecided)
        texts.append(f"{c.norm} {style.rate_label(c.lr)}: {counted}")
    return "; ".join(texts) + "."


def _seen(table: pd.DataFrame, rows: pd.DataFrame) -> list[str]:
    """Initial loss by norm, and when runs diverged."""
    first = rows.sort_values("step", kind="stable").drop_duplicates("run_id").set_index("run_id")["loss"]
    initial = table.assign(first=table["run_id"].astype("str").map(first), norm=table["norm"].astype("str"))
    said = [f"Loss of the first batch, before any update: {probes.by_norm(initial, 'first')}."]
    for (norm, lr), runs in groups(table[table["fate"] == select.DIVERGED], ["norm", "lr"]):
        steps = runs["diverged_step"].dropna()
        when = f" at step {probes.over_seeds(steps.astype(float))}" if len(steps) else ""
        said.append(f"{norm} at {style.rate_label(lr)}: {len(runs)} diverged{when}.")
    return said


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

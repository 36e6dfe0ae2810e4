"""Train and test accuracy by epoch: Fig 1 of Bjorck et al. 2018 (§2)."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import select, stats, style
from analysis.figures import few_norms
from analysis.load import Frames
from analysis.tidy import each, groups

TITLE = "Learning curves"
SECTION = "Learning rates (Bjorck et al. 2018, §2)"
ORDER = 1
NEEDS = ("metrics",)

PANELS = (("train", "train accuracy"), ("test", "test accuracy"))


def draw(frames: Frames) -> style.Drawing:
    """Thin lines are seeds, thick lines their median, in which a diverged run ranks lowest; × marks those."""
    few_norms(frames.runs["norm"])
    table = select.outcomes(frames)
    curves = _curves(frames, table)
    diverged = table["fate"] == select.DIVERGED
    colours, styles = style.rate_colours(table["lr"]), style.norm_styles(table["norm"])
    with style.styled():
        figure, panels = plt.subplots(1, 2, figsize=(style.WIDTH, 3.1), sharey=True, layout="constrained")
        for axes, (split, label) in zip(panels, PANELS, strict=True):
            for (norm, lr), cell in groups(curves[curves["split"] == split], ["norm", "lr"]):
                n_diverged = int(((table["norm"] == norm) & (table["lr"] == lr) & diverged).sum())
                _cell(axes, cell, colours[lr], styles[norm][0], n_diverged)
            axes.set(title=label, xlabel="epoch")
            style.percent(axes)
            _guessing(axes, table)
        panels[0].set_ylabel("accuracy")
        style.legends(figure, table["lr"], table["norm"])
        style.footnote(figure, _crosses(panels[1], table, colours))
    return style.Drawing(figure, curves, _caption(table))


def _curves(frames: Frames, table: pd.DataFrame) -> pd.DataFrame:
    rows = frames.metrics[frames.metrics["split"].isin([split for split, _ in PANELS])]
    cells = table[["run_id", "norm", "lr", "seed", "fate"]].astype({"run_id": "str", "norm": "str"})
    rows = rows[["run_id", "split", "epoch", "accuracy"]].astype({"run_id": "str", "split": "str"})
    return rows.merge(cells, on="run_id").sort_values(
        ["norm", "lr", "seed", "split", "epoch"], ignore_index=True
    )


def _cell(axes: Axes, cell: pd.DataFrame, colour: str, line: object, n_diverged: int) -> None:
    look: Any = {"color": colour, "linestyle": line}
    going = cell[cell["fate"] != select.DIVERGED]
    if going["run_id"].nunique() + n_diverged > 1:
        for _, run in groups(cell, ["run_id"]):
            axes.plot(run["epoch"], run["accuracy"], **look, linewidth=0.7, alpha=0.4)
    middle = going.groupby("epoch")["accuracy"].agg(lambda v: stats.censored_median(v, n_diverged))
    middle = middle[np.isfinite(middle)]
    axes.plot(middle.index, middle, **look)


def _crosses(axes: Axes, table: pd.DataFrame, colours: dict[float, str]) -> list[str]:
    """Mark the diverged runs, whose curves are too short to be seen, and return what to say of each cell."""
    lines = []
    for (norm, lr), runs in groups(table, ["norm", "lr"]):
        diverged = runs[runs["fate"] == select.DIVERGED]
        if len(diverged):
            steps = diverged["diverged_step"].dropna()
            when = f" (first at step {int(steps.min())})" if len(steps) else ""
            shown = stats.of_n(len(runs) - len(diverged), len(runs), len(diverged))
            lines.append(f"× {norm} at {style.rate_label(lr)}: {shown}{when}")
            axes.scatter(
                [0] * len(diverged), diverged["chance"], marker="x", s=34, color=colours[lr], zorder=5
            )
    return lines


def _guessing(axes: Axes, table: pd.DataFrame) -> None:
    chance = table["chance"].dropna()
    if len(chance):
        axes.axhline(chance.iloc[0], color="#888888", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)


def _caption(table: pd.DataFrame) -> str:
    accuracy = stats.accuracy_table(table)
    cells = [
        f"{c.norm} {style.rate_label(c.lr)}: {stats.of_n(c.n_observed, c.n, c.n_diverged, c.n_undecided)}"
        for c in each(accuracy)
    ]
    return (
        "Accuracy after each epoch; train accuracy is that of the batches as they were trained on. The "
        "dotted grey line is guessing. Thin lines are single seeds, thick lines medians over all seeds, in "
        "which a diverged run ranks below every accuracy; × marks diverged runs. " + "; ".join(cells) + "."
    )

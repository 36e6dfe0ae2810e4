"""Train and test accuracy by epoch: Fig 1 of Bjorck et al. 2018 (§2)."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from analysis import select, stats, style
from analysis.figures import _counts, overview
from analysis.load import Frames
from analysis.tidy import each, groups

TITLE = "Fig 1: learning curves"
SECTION = "Learning rates (Bjorck et al. 2018, §2)"
ORDER = 1
NEEDS = ("metrics",)
EXPECTED = "fig01"
MEASURED = (
    "How much of the training images and of the test images the network classifies correctly, epoch by "
    "epoch, with and without normalisation, at several learning rates."
)
HOW = (
    "Test accuracy is measured after each epoch on all test images, train accuracy on the batches as they "
    "were trained on. Every run of a colour and line style differs by its seed alone."
)

PANELS = (("train", "train accuracy"), ("test", "test accuracy"))


def draw(frames: Frames) -> style.Drawing:
    """Thin lines are seeds, thick lines their median, in which a diverged run ranks lowest; × marks those."""
    frames, left_out = overview(frames)
    table = select.outcomes(frames)
    curves = _curves(frames, table)
    diverged = table["fate"] == select.DIVERGED
    colours, styles = style.rate_colours(table["lr"]), style.norm_styles(table["norm"])
    with style.styled():
        figure, panels = plt.subplots(
            1, 2, figsize=(style.WIDTH, 3.1), sharex=True, sharey=True, layout="constrained"
        )
        for axes, (split, label) in zip(panels, PANELS, strict=True):
            for (norm, lr), cell in groups(curves[curves["split"] == split], ["norm", "lr"]):
                n_diverged = int(((table["norm"] == norm) & (table["lr"] == lr) & diverged).sum())
                _cell(axes, cell, colours[lr], styles[norm][0], n_diverged)
            axes.set(title=label, xlabel="epoch")
            style.percent(axes)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            _guessing(axes, table)
        panels[0].set_ylabel("images classified correctly")
        style.legends(figure, table["lr"], table["norm"])
        _crosses(panels[1], table, colours)
        style.footnote(figure, [*_counts.lines(table), *left_out])
    return style.Drawing(figure, curves, _caption(table), tuple(_seen(table)))


def _seen(table: pd.DataFrame) -> list[str]:
    """Last test accuracy by norm, highest rate first, and the train–test gap at the lowest rate."""
    said = []
    for norm in select.norm_order(table["norm"]):
        cells = stats.accuracy_table(table[table["norm"] == norm])
        texts = [
            f"{_share(c.mean)} at {style.rate_label(c.lr)} "
            f"({stats.of_n(c.n_observed, c.n, c.n_diverged, c.n_undecided)})"
            for c in each(cells.sort_values("lr", ascending=False))
        ]
        said.append(f"Test accuracy after the last epoch, {norm}: {', '.join(texts)}.")
    lowest = table[table["lr"] == table["lr"].min()]
    gaps = [
        f"{norm} {100 * gap:+.1f} points".replace("-", "−")
        for norm in select.norm_order(lowest["norm"])
        if np.isfinite(gap := _gap(lowest[lowest["norm"] == norm]))
    ]
    if gaps:
        rate = style.rate_label(float(lowest["lr"].iloc[0]))
        said.append(f"Train minus test accuracy at {rate}, the lowest rate: {', '.join(gaps)}.")
    return said


def _gap(runs: pd.DataFrame) -> float:
    """Mean train minus test accuracy after the last epoch, in eval mode where that was recorded."""
    train = runs["last_train_eval"].where(runs["last_train_eval"].notna(), runs["last_train"])
    return float((train - runs["last_test"]).mean())


def _share(value: float) -> str:
    return f"{100 * value:.1f}%" if np.isfinite(value) else "no accuracy"


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


def _crosses(axes: Axes, table: pd.DataFrame, colours: dict[float, str]) -> None:
    """Mark the diverged runs, whose curves are too short to be seen."""
    for (lr,), runs in groups(table[table["fate"] == select.DIVERGED], ["lr"]):
        axes.scatter([0] * len(runs), runs["chance"], marker="x", s=34, color=colours[lr], zorder=5)


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

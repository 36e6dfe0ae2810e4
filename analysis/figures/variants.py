"""Many norms at one rate: one small panel each, and a table of their switches, outcomes and accuracies."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import select, stats, style
from analysis.figures import MOST_NORMS, UndrawableError
from analysis.figures import _probes as probes
from analysis.load import Frames
from analysis.tidy import each, groups

TITLE = "Every variant"
SECTION = "Variants of normalisation"
ORDER = 1
NEEDS = ("metrics",)
EXPECTED = "fig13"
MEASURED = (
    "Whether a network learns when batch normalisation is taken apart, or replaced by something else: "
    "accuracy on training and test images, epoch by epoch, for every variant."
)
HOW = (
    "The same network, images and rate for all; only what stands at the normalisation sites differs, as the "
    "table's second column says. Train accuracy is that of the batches as they were trained on."
)

COLUMNS = 4
PARTS = {"bn_no_affine", "bn_affine_only", "bn_no_mean", "bn_no_var"}
"""Norms of Fig 13: they are shown one by one even where they are few."""


def draw(frames: Frames) -> style.Drawing:
    """Accuracy by epoch, a panel per norm: test solid, training batches dashed; a colour per rate."""
    table = select.outcomes(frames)
    norms = select.norm_order(table["norm"])
    if len(norms) <= MOST_NORMS and not PARTS & set(norms):
        raise UndrawableError  # the figures by learning rate show them all
    rows = frames.metrics[frames.metrics["split"].isin(["train", "test"])]
    rows = rows[["run_id", "split", "epoch", "accuracy"]].astype({"run_id": "str", "split": "str"})
    cells = table[["run_id", "norm", "lr", "seed", "fate"]].astype({"run_id": "str", "norm": "str"})
    data = rows.merge(cells, on="run_id").sort_values(["norm", "lr", "seed", "split", "epoch"])
    colours = style.rate_colours(table["lr"])
    height = -(-len(norms) // COLUMNS)
    with style.styled():
        figure, grid = probes.panels(height, COLUMNS, 1.25 * height + 0.5, sharex=True, sharey=True)
        for axes, norm in zip(grid.flat, norms, strict=False):
            _panel(axes, norm, data[data["norm"] == norm], table[table["norm"] == norm], colours)
        for axes in list(grid.flat)[len(norms) :]:
            axes.set_visible(False)
        figure.supxlabel("epoch", fontsize=9)
        figure.supylabel("accuracy", fontsize=9)
        style.legends(figure, table["lr"], [])
    caption = (
        "Accuracy after each epoch, one panel per variant: solid lines are test, dashed lines training "
        "accuracy, one line per seed; the dotted line is guessing. Diverged runs are counted in their panel."
    )
    return style.Drawing(figure, data, caption, tuple(_seen(table)), _table(table))


def _seen(table: pd.DataFrame) -> list[str]:
    """Counts of fates, and which variants end best and worst at each rate."""
    said = []
    for fate in select.FATES:
        norms = select.norm_order(table.loc[table["fate"] == fate, "norm"])
        if norms and fate != select.TRAINED:
            said.append(f"Variants with runs that {_WORDS[fate]}: {', '.join(norms)}.")
    for (lr,), cells in groups(stats.accuracy_table(table), ["lr"]):
        ranked = cells[np.isfinite(cells["mean"])].sort_values("mean", ascending=False)
        if len(ranked) > 1:
            ends = [f"{c.norm} ({100 * c.mean:.1f}%)" for c in each(ranked)]
            said.append(
                f"At {style.rate_label(lr)} the best last test accuracies are those of "
                f"{', '.join(ends[:3])}; the worst that of {ends[-1]}."
            )
    return said or ["No variant has a complete run."]


_WORDS = {select.DIVERGED: "diverged", select.STUCK: "stayed at chance"}


def _panel(axes: Axes, norm: str, data: pd.DataFrame, runs: pd.DataFrame, colours: dict[float, str]) -> None:
    going = data[data["fate"] != select.DIVERGED]
    for (lr, _, split), run in groups(going, ["lr", "run_id", "split"]):
        look: dict[str, Any] = {"color": colours[lr], "linewidth": 1.1}
        axes.plot(run["epoch"], run["accuracy"], linestyle="-" if split == "test" else (0, (3, 1.5)), **look)
    axes.set_title(norm, fontsize=8)
    style.percent(axes)
    axes.set_yticks([0, 0.5, 1])
    chance = runs["chance"].dropna()
    if len(chance):
        axes.axhline(chance.iloc[0], color="#888888", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
    diverged, undecided = (int((runs["fate"] == f).sum()) for f in (select.DIVERGED, select.UNDECIDED))
    if diverged or undecided:
        n = len(runs) - undecided
        style.note(axes, stats.of_n(n - diverged, n, diverged, undecided))


def _table(table: pd.DataFrame) -> pd.DataFrame:
    """Per norm and rate: switches that differ from plain BN's, fates, last test accuracy."""
    accuracy = stats.accuracy_table(table)
    switches = table.astype({"norm": "str"}).groupby("norm")["switches"].first()
    order = {norm: i for i, norm in enumerate(select.norm_order(table["norm"]))}
    ordered = sorted(each(accuracy), key=lambda c: (order[str(c.norm)], c.lr))
    shown = []
    for cell in ordered:
        mine = table[(table["norm"] == cell.norm) & (table["lr"] == cell.lr)]
        counts = mine["fate"].value_counts()
        fates = ", ".join(
            f"{f} {int(counts[f])} of {len(mine)}" if len(mine) > 1 else f
            for f in (*select.FATES[::-1], select.UNDECIDED)
            if counts.get(f)
        )
        tested = f"{100 * cell.mean:.1f}%" if cell.n_observed else "–"
        text = switches[str(cell.norm)] or "none: plain BN"
        shown.append((str(cell.norm), text, style.rate_label(cell.lr), fates, tested))
    columns = ["norm", "switches other than plain BN's", "rate", "outcome", "last test accuracy"]
    return pd.DataFrame(shown, columns=columns)

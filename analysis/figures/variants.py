"""Many norms at one rate: one small panel each, and a table of their switches, outcomes and accuracies."""

from typing import Any

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

COLUMNS = 4


def draw(frames: Frames) -> style.Drawing:
    """Accuracy by epoch, a panel per norm: test solid, training batches dashed; a colour per rate."""
    table = select.outcomes(frames)
    norms = select.norm_order(table["norm"])
    if len(norms) <= MOST_NORMS:
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
    return style.Drawing(figure, data, caption, table=_table(table))


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
    lost = int((runs["fate"] == select.DIVERGED).sum())
    if lost:
        style.note(axes, f"{lost} of {len(runs)} diverged")


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

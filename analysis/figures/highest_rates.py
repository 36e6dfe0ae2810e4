"""Between which rates training ceases to work, seed by seed: Table 3 of Bjorck et al. 2018 (App. H)."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis import select, style
from analysis.figures import MOST_NORMS, UndrawableError, searched
from analysis.load import Frames
from analysis.tidy import each

TITLE = "Table 3: the highest rate that trains"
SECTION = "Learning rates (Bjorck et al. 2018, §2)"
ORDER = 5
NEEDS = ("metrics",)
EXPECTED = "table3"
MEASURED = (
    "How large a learning rate the network bears: per seed the largest rate at which it learnt something and "
    "the smallest above it at which it did not."
)
HOW = (
    "A search narrows the rates of each seed down to two neighbours of which one trains and one fails "
    "(study.sweep max_lr), or they are those of the grid. A run fails that diverges, or is no better than "
    "guessing after its last epoch; at a rate below one that trains, that is to learn too slowly, no limit."
)

GAP = 1.5
"""Lines of free space between two norms."""


def draw(frames: Frames) -> style.Drawing:
    """One line per seed, from the rate that trains (dot) to the one that fails (cross or bar)."""
    table = select.outcomes(frames)
    table = table[(table["fate"] != select.UNDECIDED) & ~select.first_steps(table)]
    if table["lr"].nunique() < 2 or not (table["seed"].nunique() > 1 or searched(table).any()):
        raise UndrawableError  # one seed of a grid: the figure of fates says as much
    tried = table.groupby("norm", observed=True)["lr"].transform("nunique")
    table = table[tried > 1]  # one rate limits nothing
    if table.empty:
        raise UndrawableError("each norm was tried at one rate alone")
    norms = select.norm_order(table["norm"])
    if len(norms) > MOST_NORMS:
        raise UndrawableError(f"{len(norms)} norms are too many for one panel; Table 3 has them all")
    data = _data(table)
    lowest, highest = float(table["lr"].min()), float(table["lr"].max())
    counts = {norm: int((data["norm"] == norm).sum()) for norm in norms}
    height = 1.2 + 0.13 * (sum(counts.values()) + GAP * len(norms))
    with style.styled():
        figure, axes = plt.subplots(figsize=(style.WIDTH * 0.8, max(height, 2.2)), layout="constrained")
        top, ticks = 0.0, []
        for norm, colour in style.norm_colours(norms).items():
            mine = data[data["norm"] == norm]
            for place, row in enumerate(each(mine)):
                _bracket(axes, top - place, row, colour, lowest / 2, highest * 2)
            ticks.append(top - (len(mine) - 1) / 2)
            top -= len(mine) + GAP
        axes.set_yticks(ticks, norms)
        axes.grid(visible=False, axis="y")
        style.log_axis(axes, "x", table["lr"])
        axes.set(xlabel="learning rate", xlim=(lowest / 2.5, highest * 2.5))
        _legend(figure)
        style.footnote(figure, _diverged(table))
    caption = (
        "One line per seed, from the highest rate that trains (dot) to the lowest above it that fails (× "
        "diverged, | stuck at chance). A line that leaves the panel on the right failed at no rate; one "
        "without a dot trained at none."
    )
    return style.Drawing(figure, data, caption, tuple(_seen(data, norms)))


def _data(table: pd.DataFrame) -> pd.DataFrame:
    """One row per norm and seed: works, fails, fails_by; sorted so that a norm's lines form a staircase."""
    found = select.done_brackets(table)
    fate = {(str(r.norm), r.seed, r.lr): str(r.fate) for r in each(table)}
    found["fails_by"] = [fate.get((str(r.norm), r.seed, r.fails), "") for r in each(found)]
    found = found.sort_values(["norm", "works", "fails"], na_position="first", kind="stable")
    return found[["norm", "seed", "works", "fails", "fails_by", "tried"]].reset_index(drop=True)


def _bracket(axes: Axes, y: float, row: Any, colour: str, left: float, right: float) -> None:
    low, high = (left if np.isnan(row.works) else row.works), (right if np.isnan(row.fails) else row.fails)
    axes.plot([low, high], [y, y], color=colour, linewidth=1.3)
    if not np.isnan(row.works):
        axes.plot([row.works], [y], marker="o", markersize=3.5, color=colour)
    if not np.isnan(row.fails):
        marker = "x" if row.fails_by == select.DIVERGED else "|"
        axes.plot([row.fails], [y], marker=marker, markersize=5, color=colour)


def _legend(figure: Any) -> None:
    marks = (("o", "highest that trains"), ("x", "diverged"), ("|", "stuck at chance"))
    handles = [Line2D([], [], color="#444444", linestyle="", marker=m, label=label) for m, label in marks]
    figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3)


def _diverged(table: pd.DataFrame) -> list[str]:
    """As "none: 12 of 40 runs diverged", for each norm of which one did."""
    found = []
    for norm in select.norm_order(table["norm"]):
        fates = table.loc[table["norm"] == norm, "fate"]
        if lost := int((fates == select.DIVERGED).sum()):
            found.append(f"{norm}: {lost} of {len(fates)} runs diverged")
    return found


def _seen(data: pd.DataFrame, norms: list[str]) -> list[str]:
    """By norm: how many seeds train at some rate, and the range of their highest."""
    said = []
    for norm in norms:
        works = data.loc[data["norm"] == norm, "works"]
        if works.notna().any():
            low, high = (style.rate_label(float(v)) for v in (works.min(), works.max()))
            ends = low if low == high else f"{low} to {high}"
            said.append(f"{norm}: {int(works.notna().sum())} of {len(works)} seeds train, at up to {ends}.")
        else:
            said.append(f"{norm}: none of {len(works)} seeds trains at any rate tried.")
    return said

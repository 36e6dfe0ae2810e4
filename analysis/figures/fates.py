"""What became of each cell: the shares of seeds that diverged, stayed at chance, trained."""

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from analysis import select, stats, style
from analysis.figures import overview
from analysis.load import Frames
from analysis.tidy import at, each, groups

TITLE = "Fate by rate and norm"
SECTION = "Learning rates (Bjorck et al. 2018, §2)"
ORDER = 2
NEEDS = ("metrics",)
EXPECTED = "fig01"
MEASURED = (
    "What became of every run: its loss grew without bound (diverged), it ended no better than guessing "
    "(stuck at chance), or it learnt something (trained)."
)
HOW = (
    "A run diverges when a training batch's loss is not a number, or after the first update exceeds a "
    "thousand times its initial value. It is stuck if, after the last epoch, an exact binomial test at 1% "
    "does not tell its test accuracy from guessing the most frequent class."
)


def draw(frames: Frames) -> style.Drawing:
    """One box per cell, divided by fate; beneath it the count that trained with its 95% interval."""
    frames, left_out = overview(frames)
    table = stats.fate_table(select.outcomes(frames))
    norms, rates = select.norm_order(table["norm"]), sorted(table["lr"].unique())
    width = min(style.WIDTH, 1.4 + 1.5 * len(rates))
    with style.styled():
        figure, axes = plt.subplots(figsize=(max(width, 4.2), 0.9 + 0.8 * len(norms)), layout="constrained")
        for (norm, lr), cell in groups(table, ["norm", "lr"]):
            _box(axes, rates.index(lr), len(norms) - 1 - norms.index(norm), cell.set_index("fate"))
        axes.set_xticks(range(len(rates)), [style.rate_label(r) for r in rates])
        axes.set_yticks([y + 0.07 for y in range(len(norms))], norms[::-1])
        axes.set(xlabel="learning rate", xlim=(-0.5, len(rates) - 0.5), ylim=(-0.5, len(norms) - 0.4))
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        handles = [
            Patch(facecolor=style.FATE_COLOURS[f], hatch=style.FATE_HATCHES[f], edgecolor="white", label=f)
            for f in select.FATES
        ]
        figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3)
        style.footnote(figure, left_out)
    caption = (
        "Each box is one norm at one learning rate; its parts are the shares of seeds by fate. In brackets: "
        "95% Clopper–Pearson interval of the share that trained. Stuck at chance: after the last epoch, an "
        "exact binomial test (level 1%) does not tell test accuracy from guessing the most frequent class."
    )
    return style.Drawing(figure, table, caption, tuple(_seen(table, select.highest_trainable_rate(frames))))


def _seen(table: pd.DataFrame, highest: pd.DataFrame) -> list[str]:
    """By norm: the highest rate that trains, of the median seed, and at which rates runs diverged."""
    said = []
    found = {str(r.norm): r for r in each(highest)}
    for norm in select.norm_order(table["norm"]):
        mine = table[table["norm"] == norm]
        trained = mine[mine["fate"] == select.TRAINED]
        if not trained["n"].sum():
            said.append(f"{norm}: no complete run.")
            continue
        if not trained["k"].sum():
            said.append(f"{norm}: {_untrained(mine)}.")
            continue
        row = found[norm]
        text = f"{norm}: most seeds trained at none of the rates tried"
        if pd.notna(row.lr):
            text = f"{norm}: the highest rate that trains, of the median seed, is {style.rate_label(row.lr)}"
            text += " (no higher one failed)" if row.censored else ""
        lost = [
            f"{style.rate_label(c.lr)} ({c.k} of {c.n})"
            for c in each(mine[(mine["fate"] == select.DIVERGED) & (mine["k"] > 0)].sort_values("lr"))
        ]
        said.append(f"{text}; " + (f"runs diverged at {', '.join(lost)}." if lost else "no run diverged."))
    return said


def _untrained(cells: pd.DataFrame) -> str:
    """By rate, what became of the runs of a norm of which none trained."""
    ends = cells[(cells["k"] > 0) & (cells["fate"] != select.TRAINED)].sort_values("lr", kind="stable")
    return "trains at no rate tried: " + ", ".join(
        f"{c.k} of {c.n} at {style.rate_label(c.lr)} {c.fate}" for c in each(ends)
    )


def _box(axes: Axes, x: int, y: int, cell: pd.DataFrame) -> None:
    """Draw one cell's divided box (0.86 × 0.5) and its text."""
    left, bottom, width, height = x - 0.43, y - 0.18, 0.86, 0.5
    undecided = int(cell["n_undecided"].iloc[0])
    n = int(cell["n"].iloc[0])
    for fate in select.FATES:
        k = int(at(cell, fate, "k"))
        if not k:
            continue
        part = width * k / n
        axes.add_patch(
            Rectangle(
                (left, bottom),
                part,
                height,
                facecolor=style.FATE_COLOURS[fate],
                hatch=style.FATE_HATCHES[fate],
                edgecolor="white",
                linewidth=0.8,
            )
        )
        axes.text(
            left + part / 2,
            bottom + height / 2,
            str(k) if n > 1 else fate,
            ha="center",
            va="center",
            fontsize=8,
            fontweight="bold",
            color="black" if fate == select.STUCK else "white",
            bbox={"facecolor": style.FATE_COLOURS[fate], "edgecolor": "none", "pad": 1.2},
        )
        left += part
    if n == 0:
        axes.add_patch(
            Rectangle((left, bottom), width, height, facecolor="none", edgecolor="#999999", linestyle=":")
        )
    trained: Any = cell.loc[select.TRAINED]
    text = f"trained {int(trained['k'])} of {n}"
    if n > 1:
        text += f" ({100 * trained['low']:.0f}–{100 * trained['high']:.0f}%)"
    if undecided:
        text += f"\n{undecided} undecided"
    axes.text(x, y - 0.21, text, ha="center", va="top", fontsize=7.5, color="#333333")

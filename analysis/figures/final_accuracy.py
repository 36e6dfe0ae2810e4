"""Test accuracy after the last epoch by rate, one line per norm (cf. Table 4 and Fig 1)."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis import select, stats, style
from analysis.figures import _counts, overview
from analysis.load import Frames
from analysis.tidy import each

TITLE = "Final test accuracy by rate and norm"
SECTION = "Learning rates (Bjorck et al. 2018, §2)"
ORDER = 3
NEEDS = ("metrics",)
EXPECTED = "table4"
MEASURED = (
    "The share of test images classified correctly when training has ended, by learning rate: whether a norm "
    "is good at every rate or at one."
)
HOW = (
    "Measured once, on all test images, after the last epoch. Rates are not chosen by their result here; the "
    "paper reports the best over rates, which the table of outcomes gives too."
)


def draw(frames: Frames) -> style.Drawing:
    """Points are seeds, lines join medians in which a diverged run ranks lowest; counts stand below."""
    frames, left_out = overview(frames)
    table = select.outcomes(frames)
    accuracy = stats.accuracy_table(table)
    rates = sorted(table["lr"].unique())
    colours, styles = style.rate_colours(rates), style.norm_styles(table["norm"])
    norms = list(styles)
    places = dict(zip(norms, np.linspace(-0.13, 0.13, len(norms)) if len(norms) > 1 else [0.0], strict=True))
    with style.styled():
        figure, axes = plt.subplots(figsize=(style.WIDTH * 0.8, 3.3), layout="constrained")
        for norm, (line, marker) in styles.items():
            mine = accuracy[accuracy["norm"] == norm].sort_values("lr")
            x = np.array([rates.index(lr) for lr in mine["lr"]]) + places[norm]
            axes.plot(
                x, mine["median"].where(np.isfinite(mine["median"])), color="#777777", linestyle=line, lw=1.2
            )
            runs = table[(table["norm"] == norm) & table["last_test"].notna()]
            axes.scatter(
                [rates.index(lr) + places[norm] for lr in runs["lr"]],
                runs["last_test"],
                c=[colours[lr] for lr in runs["lr"]],
                marker=marker,
                s=26,
                alpha=0.85,
                edgecolors="white",
                linewidths=0.5,
                zorder=3,
            )
        axes.set_xticks(range(len(rates)), [style.rate_label(lr) for lr in rates])
        chance = table["chance"].dropna()
        if len(chance):
            axes.axhline(chance.iloc[0], color="#888888", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
        style.percent(axes)
        axes.set(
            xlim=(-0.5, len(rates) - 0.5), xlabel="learning rate", ylabel="test accuracy after the last epoch"
        )
        style.legends(figure, rates, norms, markers=True)
        lines = [line.removeprefix("× ") for line in _counts.lines(table)]
        style.footnote(figure, [*lines, *left_out])
    caption = (
        "Test accuracy after the last epoch. Each point is one seed; grey lines join the medians over all "
        "seeds, in which a diverged run ranks below every accuracy (a cell whose median is a diverged run "
        "has no line). The dotted line is guessing. Nothing is selected on the test set here."
    )
    return style.Drawing(figure, accuracy, caption, tuple(_seen(accuracy)))


def _seen(accuracy: pd.DataFrame) -> list[str]:
    """By norm: the rate with the best median, and what its smallest rate gives."""
    said = []
    for norm in select.norm_order(accuracy["norm"]):
        mine = accuracy[(accuracy["norm"] == norm) & np.isfinite(accuracy["median"])].sort_values("lr")
        if mine.empty:
            said.append(f"{norm}: no rate at which most runs ended with an accuracy.")
            continue
        best, least = next(each(mine.loc[[mine["median"].idxmax()]])), next(each(mine))
        text = f"{norm}: the best median is {100 * best.median:.1f}%, at {style.rate_label(best.lr)}"
        if least.lr != best.lr:
            text += f"; at {style.rate_label(least.lr)}, the smallest, it is {100 * least.median:.1f}%"
        said.append(text + ".")
    return said

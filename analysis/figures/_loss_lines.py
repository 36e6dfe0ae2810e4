"""Lines of relative loss against step size: what Figs 3 and 25 share."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis import style
from analysis.figures import _probes as probes
from analysis.tidy import each

TOP, BOTTOM = 1e4, 1e-3


def draw(batches: Mapping[str, pd.DataFrame], table: pd.DataFrame) -> style.Drawing:
    """One panel per batch, one line per run; what is beyond the panels is counted below them."""
    colours = style.norm_colours(probes.norms(table))
    look = style.seed_line(table["seed"].nunique())
    every = pd.Series(np.concatenate([probes.numbers(r) for r in table["ratio"]]))
    data, seen, lost = [], [], []
    with style.styled():
        figure, grid = probes.panels(1, len(batches), 3.1, sharey=True)
        for axes, (title, rows) in zip(grid[0], batches.items(), strict=True):
            shown = []
            for norm, seed, run in probes.each_run(rows):
                alpha, ratios = (probes.numbers(run[c].iloc[0]) for c in ("alpha", "ratio"))
                drawn = np.where(np.isfinite(ratios), ratios, np.nan)
                axes.plot(alpha, drawn, color=colours[norm], **look)
                shown.append(
                    pd.DataFrame({"batch": title, "norm": norm, "seed": seed}, index=range(len(alpha)))
                )
                shown[-1] = shown[-1].assign(alpha=alpha, ratio=ratios)
            mine = pd.concat(shown)
            style.log_axis(axes, "x", mine["alpha"])
            hidden = style.log_axis(axes, "y", mine["ratio"], among=every, remark=False)
            axes.axhline(1, color="#444444", linewidth=0.8, linestyle=(0, (2, 2)))
            axes.set(xlabel="step size α", title=title)
            lost += _beyond(f"{title}: " if len(batches) > 1 else "", mine["ratio"], hidden)
            data.append(mine)
            seen += _seen(rows, f"{title[0].upper()}{title[1:]}: " if len(batches) > 1 else "")
        grid[0, 0].set_ylabel("loss after ÷ loss before")
        finite = every[np.isfinite(every)]
        if len(finite):
            low, high = float(finite.min()), float(finite.max())
            grid[0, 0].set_ylim(max(BOTTOM, low * 0.8), min(TOP, max(10.0, high * 1.3)))
        probes.norm_legend(figure, table)
        style.footnote(figure, lost)
    caption = (
        "One line per seed. Dotted: where the loss is what it was. A line that ends does so where the loss "
        "is no longer a number, or above the top of the figure."
    )
    return style.Drawing(figure, pd.concat(data), caption, tuple(seen))


def _beyond(head: str, ratios: "pd.Series[float]", hidden: int) -> list[str]:
    """How many values a panel does not show, and why; nothing if it shows all."""
    finite = ratios[np.isfinite(ratios) & (ratios > 0)]
    counts = (
        (hidden, "not finite or not positive"),
        (int((finite > TOP).sum()), f"above {style.power_of_ten(TOP)}"),
        (int((finite < BOTTOM).sum()), f"below {style.power_of_ten(BOTTOM)}"),
    )
    told = [f"{n} {words}" for n, words in counts if n]
    return [f"{head}of {len(ratios)} values not shown: {', '.join(told)}"] if told else []


def _seen(rows: pd.DataFrame, head: str) -> list[str]:
    """Where it is lowest, up to where it improves, and where it passes 1.05 and 1000."""
    found = rows.assign(improves=[improves(r) for r in each(rows)])
    said = []
    for column, text in (
        ("best_alpha", "the loss is lowest at a step of"),
        ("best_ratio", "there it is, as a share of the loss before,"),
        ("improves", "the largest step tried that still improves it is"),
        ("past_1_05", "it first exceeds 1.05 times the loss before at a step of"),
        ("past_1000", "it first exceeds 1000 times the loss before at a step of"),
    ):
        values = [
            f"{n} {probes.over_seeds(v)}"
            if (v := found.loc[found["norm"] == n, column]).notna().any()
            else f"{n} never"
            for n in probes.norms(found)
        ]
        said.append(f"{head}{text} {', '.join(values)}.")
        head = ""
    times = probes.ratio(found, "improves")
    if np.isfinite(times) and times > 0:
        said.append(
            f"With BN steps help up to a size {probes.say(1 / times)} times that without (medians over "
            f"seeds)."
        )
    return [s[0].upper() + s[1:] for s in said]


def improves(run: object) -> float:
    """The largest step size tried that lowers the loss; NaN if none does."""
    alpha, ratios = probes.numbers(run.alpha), probes.numbers(run.ratio)  # type: ignore[attr-defined]
    better = alpha[ratios < 1]
    return float(better.max()) if len(better) else float("nan")

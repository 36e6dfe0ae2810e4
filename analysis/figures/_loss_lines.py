"""Lines of relative loss against step size: what Figs 3 and 25 share."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import style
from analysis.figures import _probes as probes
from analysis.tidy import each

TOP, BOTTOM = 1e4, 1e-3


def draw(batches: Mapping[str, pd.DataFrame], table: pd.DataFrame) -> style.Drawing:
    """One panel per batch, one line per run; what is beyond the panel is counted on it."""
    colours = style.norm_colours(probes.norms(table))
    data, seen = [], []
    with style.styled():
        figure, grid = probes.panels(1, len(batches), 3.1, sharey=True)
        for axes, (title, rows) in zip(grid[0], batches.items(), strict=True):
            shown = []
            for norm, seed, run in probes.each_run(rows):
                alpha, ratios = (probes.numbers(run[c].iloc[0]) for c in ("alpha", "ratio"))
                drawn = np.where(np.isfinite(ratios), ratios, np.nan)
                axes.plot(alpha, drawn, color=colours[norm], linewidth=1.2, alpha=0.9)
                shown.append(
                    pd.DataFrame({"batch": title, "norm": norm, "seed": seed}, index=range(len(alpha)))
                )
                shown[-1] = shown[-1].assign(alpha=alpha, ratio=ratios)
            every = pd.concat(shown)
            style.log_axis(axes, "x", every["alpha"])
            style.log_axis(
                axes, "y", every["ratio"], among=np.concatenate([probes.numbers(r) for r in table["ratio"]])
            )
            axes.axhline(1, color="#444444", linewidth=0.8, linestyle=(0, (2, 2)))
            axes.set(xlabel="step size α", title=title)
            _limit(axes, every["ratio"])
            data.append(every)
            seen += _seen(rows, f"{title[0].upper()}{title[1:]}: " if len(batches) > 1 else "")
        grid[0, 0].set_ylabel("loss after ÷ loss before")
        probes.norm_legend(figure, table)
    caption = (
        "One line per seed. Dotted: where the loss is what it was. A line that ends does so where the loss "
        "is no longer a number, or above the top of the figure."
    )
    return style.Drawing(figure, pd.concat(data), caption, tuple(seen))


def _limit(axes: Axes, ratios: "pd.Series[float]") -> None:
    finite = ratios[np.isfinite(ratios)]
    if finite.empty:
        return
    axes.set_ylim(max(BOTTOM, float(finite.min()) * 0.8), min(TOP, max(10.0, float(finite.max()) * 1.3)))
    above, below = int((finite > TOP).sum()), int((finite < BOTTOM).sum())
    beyond = [f"{above} of {len(ratios)} values above {style.power_of_ten(TOP)}"] if above else []
    beyond += [f"{below} of {len(ratios)} values below {style.power_of_ten(BOTTOM)}"] if below else []
    if beyond:
        style.note(axes, "\n".join(beyond), y=0.93)


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

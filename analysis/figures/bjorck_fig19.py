"""Fig 19 of Bjorck et al. 2018 (App. K): the two sums of Table 1, weight by weight."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import style
from analysis.figures import _probes as probes
from analysis.load import Frames
from analysis.tidy import each

TITLE = "Fig 19: do gradients add up or cancel, weight by weight?"
SECTION = probes.APPENDIX
ORDER = 19
NEEDS = ("probe:gradient_agreement",)
EXPECTED = "fig19"
MEASURED = (
    "The two quantities of Table 1 for every weight of one layer: across, the sum of the magnitudes of the "
    "gradient's terms; up, the magnitude of their sum. On the dashed line all terms agree; the farther "
    "below, the more they cancel."
)
HOW = "One batch of training images before any update; one layer half-way up the network."

LAYER, BINS = 54, 48


def draw(frames: Frames) -> style.Drawing:
    """Number of weights in each cell of a logarithmic grid, for each norm's first seed."""
    table = probes.at_layer(probes.rows(frames, "gradient_agreement"), LAYER)
    table = table.assign(correlation=[correlation(r) for r in each(table)])
    shown = probes.first_seed(table)
    data = []
    with style.styled():
        figure, grid = probes.panels(1, shown["norm"].nunique(), 3.3)
        for axes, (norm, seed, run) in zip(grid[0], probes.each_run(shown), strict=True):
            a, b = _sums(next(each(run)))
            both = np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)
            counts = _count(a[both], b[both])
            if len(counts):
                _paint(axes, counts)
            hidden = int((~both).sum())
            if hidden:
                style.note(axes, f"{hidden} of {len(a)} weights zero\nor not finite: not shown")
            axes.set(title=f"{norm}, seed {seed}", xlabel="Σ|terms|")
            data.append(counts.assign(norm=norm, seed=seed))
        grid[0, 0].set_ylabel("|Σ terms|")
    caption = (
        f"Weights of layer {probes.layers(table)[0]}, counted on a logarithmic grid (darker: more weights). "
        "The five hundredth of the weights with the smallest |Σ| stands at the lower edge. "
        f"Dashed: |Σ| = Σ||. First of {table['seed'].nunique()} seeds."
    )
    seen = (
        "Correlation of the two sums' logarithms over the layer's weights (1: a straight line): "
        f"{probes.by_norm(table, 'correlation')}.",
    )
    return style.Drawing(figure, pd.concat(data), caption, seen)


def _sums(row: object) -> tuple["probes.Floats", "probes.Floats"]:
    return probes.numbers(row.sum_abs), np.abs(probes.numbers(row.gradient))  # type: ignore[attr-defined]


def correlation(row: object) -> float:
    """Pearson's r of the logarithms, over weights where both sums are positive and finite."""
    a, b = _sums(row)
    both = np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)
    x, y = np.log(a[both]), np.log(b[both])
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def _count(a: "probes.Floats", b: "probes.Floats") -> pd.DataFrame:
    """Cells with at least one weight: decimal logarithms of their corners, and the count."""
    columns = ["a_from", "a_to", "b_from", "b_to", "weights"]
    if not len(a):
        return pd.DataFrame(columns=columns)
    # Far outliers of b, where a sum happens to cancel, would stretch the grid until nothing can be seen.
    x, y = np.log10(a), np.maximum(np.log10(b), np.quantile(np.log10(b), 0.002))
    counts, across, up = np.histogram2d(x, y, BINS)
    i, j = np.nonzero(counts)
    return pd.DataFrame(
        {
            "a_from": across[i],
            "a_to": across[i + 1],
            "b_from": up[j],
            "b_to": up[j + 1],
            "weights": counts[i, j].astype(int),
        }
    )


def _paint(axes: Axes, counts: pd.DataFrame) -> None:
    x, y = (10 ** counts[[f"{s}_from", f"{s}_to"]].mean(axis=1) for s in "ab")
    axes.scatter(x, y, c=np.log10(counts["weights"]), cmap="Blues", vmin=-0.7, s=7, marker="s", linewidths=0)
    low = float(10 ** counts["a_from"].min())
    high = float(10 ** counts["a_to"].max())
    axes.plot([low, high], [low, high], color="#444444", linestyle=(0, (4, 2)), linewidth=1)
    style.log_axis(axes, "x", x)
    style.log_axis(axes, "y", y)

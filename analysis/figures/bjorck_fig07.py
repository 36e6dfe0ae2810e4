"""Fig 7 of Bjorck et al. 2018 (§4.1): which pairs of channels get the gradient."""

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from analysis import style
from analysis.figures import _probes as probes
from analysis.load import Frames
from analysis.tidy import each

TITLE = "Fig 7: gradient by pair of channels"
SECTION = probes.DEPTH
ORDER = 8
NEEDS = ("probe:channel_pairs",)
EXPECTED = "fig07"
MEASURED = (
    "A convolution has a small kernel for every pair of an input and an output channel. Shown is the mean "
    "magnitude of the gradient of each: vertical stripes mean that some input channels drive everything."
)
HOW = "One batch of training images before any update; one layer half-way up the network."

LAYER = 54


def draw(frames: Frames) -> style.Drawing:
    """One picture per norm, of its first seed: rows output channels, columns input channels."""
    table = probes.at_layer(probes.rows(frames, "channel_pairs"), LAYER)
    table = table.assign(
        concentration=[concentration(matrix(r)) for r in each(table)],
        correlation=[
            probes.rank_correlation(np.abs(probes.numbers(r.input_mean)), matrix(r).mean(0))
            for r in each(table)
        ],
    )
    data = []
    shown = probes.first_seed(table)
    with style.styled():
        figure, grid = probes.panels(1, shown["norm"].nunique(), 3.3)
        for axes, (norm, seed, run) in zip(grid[0], probes.each_run(shown), strict=True):
            found = matrix(next(each(run)))
            found = np.where(np.isfinite(found), found, np.nan)
            top = float(np.nanmax(found, initial=0.0)) or 1.0
            image = axes.imshow(
                found, cmap="viridis", vmin=0, vmax=top, aspect="auto", interpolation="nearest"
            )
            figure.colorbar(image, ax=axes, shrink=0.85, format=FuncFormatter(_tick))
            axes.grid(visible=False)
            axes.set(title=f"{norm}, seed {seed}", xlabel="input channel")
            pairs = [(norm, seed, o, i, v) for (o, i), v in np.ndenumerate(found)]
            data.append(pd.DataFrame(pairs, columns=["norm", "seed", "output", "input", "mean_abs"]))
        grid[0, 0].set_ylabel("output channel")
    caption = (
        f"Mean |gradient| of the kernel of each pair of channels in layer {probes.layers(table)[0]}, for the "
        f"first of {table['seed'].nunique()} seeds; each picture has its own scale, from 0."
    )
    seen = (
        "Share of all gradient that falls on the tenth of pairs with the most: "
        f"{probes.by_norm(table, 'concentration')} (evenly spread: 0.1).",
        f"Share of the largest singular value of this matrix (1: one pattern of stripes explains it all): "
        f"{probes.by_norm(table, 'top_share')}.",
        "Rank correlation between an input channel's |mean| and the gradient of its pairs: "
        f"{probes.by_norm(table, 'correlation')}.",
    )
    return style.Drawing(figure, pd.concat(data), caption, seen)


def matrix(row: object) -> "probes.Floats":
    """Mean |gradient| by pair, outputs × inputs; NaN where it is not recorded."""
    shape = int(row.outputs), int(row.inputs)  # type: ignore[attr-defined]
    values = probes.numbers(row.mean_abs)  # type: ignore[attr-defined]
    return values.reshape(shape) if values.size == shape[0] * shape[1] else np.full(shape, np.nan)


def concentration(pairs: "probes.Floats") -> float:
    """Share of the sum in the largest tenth of the entries; NaN if there is no finite sum."""
    total = pairs.sum()
    if not np.isfinite(total) or total <= 0:
        return float("nan")
    ordered = np.sort(pairs.ravel())[::-1]
    return float(ordered[: max(1, round(len(ordered) / 10))].sum() / total)


def _tick(value: float, position: int | None = None) -> str:
    return probes.say(value)

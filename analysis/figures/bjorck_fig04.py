"""Fig 4 of Bjorck et al. 2018 (§3): activations while one large update is applied step by step."""

import numpy as np
import pandas as pd

from analysis import style
from analysis.figures import _probes as probes
from analysis.load import Frames
from analysis.tidy import each, groups

TITLE = "Fig 4: what one large update does to the activations"
SECTION = probes.STEPS
ORDER = 4
NEEDS = ("probe:update_path",)
EXPECTED = "fig04"
MEASURED = (
    "In an early, a middle and a late layer: the mean and the variance of every channel's values, of which "
    "the largest are shown, while one update at a large learning rate is applied bit by bit."
)
HOW = (
    "The update that stochastic gradient descent would make first is computed once; then 0%, 10%, … 100% of "
    "it are added to the weights and the same images are sent through. Values are those of the convolutions, "
    "before any normalisation."
)

COLUMNS = (("largest_mean", "largest |channel mean|"), ("largest_variance", "largest channel variance"))


def draw(frames: Frames) -> style.Drawing:
    """Columns are layers, rows the mean and the variance; one line per seed."""
    data = extremes(probes.rows(frames, "update_path"))
    chosen = probes.layers(data)
    colours = style.norm_colours(probes.norms(data))
    with style.styled():
        figure, grid = probes.panels(2, len(chosen), 4.6, sharex=True, sharey="row")
        for column, number in enumerate(chosen):
            for row, (name, label) in enumerate(COLUMNS):
                axes = grid[row, column]
                mine = data[data["number"] == number]
                for (norm, _), run in groups(mine, ["norm", "seed"]):
                    drawn = run[name].where(np.isfinite(run[name]))
                    axes.plot(100 * run["share"], drawn, color=colours[norm], linewidth=1.2)
                style.log_axis(axes, "y", mine[name], among=data[name], narrow=True)
                if row == 0:
                    axes.set_title(f"layer {number}")
                if column == 0:
                    axes.set_ylabel(label)
        figure.supxlabel("share of the update applied (%)", fontsize=9)
        probes.norm_legend(figure, data)
    caption = "One line per seed; the largest value over the layer's channels, on a logarithmic axis."
    return style.Drawing(figure, data, caption, tuple(_seen(data)))


def extremes(raw: pd.DataFrame) -> pd.DataFrame:
    """Largest |channel mean| and channel variance of every layer and share of the update."""
    table = raw.assign(
        largest_mean=[_largest(np.abs(probes.numbers(v))) for v in raw["mean"]],
        largest_variance=[_largest(probes.numbers(v)) for v in raw["variance"]],
    )
    return table[["norm", "seed", "number", "share", "loss", "largest_mean", "largest_variance"]]


def _largest(values: "probes.Floats") -> float:
    """The largest value, NaN counting as infinite: nothing that blew up may look small."""
    return float(np.where(np.isnan(values), np.inf, values).max()) if len(values) else float("nan")


def _seen(data: pd.DataFrame) -> list[str]:
    said = []
    ends = data[data["share"] == data["share"].max()]
    for number in probes.layers(ends):
        here = ends[ends["number"] == number]
        said.append(
            f"Layer {number}, all of the update applied: largest |mean| {_by_norm(here, 'largest_mean')}."
        )
    loss = ends.drop_duplicates(["norm", "seed"])
    start = data[data["share"] == 0].drop_duplicates(["norm", "seed"])
    said.append(f"Loss before the update {_by_norm(start, 'loss')}; after it {_by_norm(loss, 'loss')}.")
    return said


def _by_norm(rows: pd.DataFrame, column: str) -> str:
    """As probes.by_norm, but a value that is not finite is said to be so."""
    texts = []
    for norm in probes.norms(rows):
        values = [float(getattr(r, column)) for r in each(rows[rows["norm"] == norm])]
        lost = sum(not np.isfinite(v) for v in values)
        finite = [v for v in values if np.isfinite(v)]
        text = probes.over_seeds(finite) if finite else "not finite"
        texts.append(
            f"{norm} {text}" + (f" (not finite for {lost} of {len(values)} seeds)" if lost and finite else "")
        )
    return ", ".join(texts)

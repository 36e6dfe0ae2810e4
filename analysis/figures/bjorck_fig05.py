"""Fig 5 of Bjorck et al. 2018 (§4): means and deviations of the channels against depth, before training."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis import style
from analysis.figures import _probes as probes
from analysis.load import Frames
from analysis.tidy import each, groups

TITLE = "Fig 5: activations against depth"
SECTION = probes.DEPTH
ORDER = 5
NEEDS = ("probe:activation_moments",)
EXPECTED = "fig05"
MEASURED = (
    "How large the values inside the untrained network are, layer by layer: the magnitude of a channel's "
    "mean and its standard deviation, averaged over the layer's channels."
)
HOW = (
    "One batch of training images is sent through before any update, and a batch of pure noise besides: what "
    "noise shows too, the network makes by itself. Values are those of the convolutions, before any "
    "normalisation; the last point is the classifier's output."
)

MARKED = (*range(6, 103, 12), 110)
COLUMNS = (("mean", "mean |channel mean|"), ("deviation", "mean channel standard deviation"))
DASHES: dict[str, Any] = {"data": "-", "noise": (0, (1.5, 1.5))}


def draw(frames: Frames) -> style.Drawing:
    """Lines over all layers of the main path, dots at the paper's; dotted lines are noise images.

    Where there are many seeds, the dots are on their median.
    """
    data = by_layer(probes.rows(frames, "activation_moments"))
    sources = [s for s in DASHES if (data["source"] == s).any()]
    many = data["seed"].nunique() > style.MANY
    colours = style.norm_colours(probes.norms(data))
    with style.styled():
        figure, grid = probes.panels(1, 2, 3.2)
        for axes, (name, label) in zip(grid[0], COLUMNS, strict=True):
            for (norm, _, source), run in groups(data, ["norm", "seed", "source"]):
                _line(
                    axes, run, name, source, colours[norm], not many, style.seed_line(data["seed"].nunique())
                )
            for (norm, source), runs in groups(data, ["norm", "source"]) if many else ():
                middle = runs.groupby("number")[[name]].median().reset_index()
                _line(axes, middle, name, source, colours[norm], True, {"linewidth": 1.8})
            style.log_axis(axes, "y", data[name])
            axes.set(title=label, xlabel="layer")
        words = {"data": "training images", "noise": "noise images"}
        looks = [Line2D([], [], color="#444444", linestyle=DASHES[s], label=words[s]) for s in sources]
        probes.norm_legend(figure, data, looks if len(looks) > 1 else ())
    caption = "One line per seed; dots at the layers the paper shows, the classifier's output last."
    if many:
        caption = caption.replace("seed;", "seed, thick lines their medians;")
    if "noise" not in sources:
        caption += " Noise images were not measured here."
    return style.Drawing(figure, data, caption, tuple(_seen(data)))


def _line(
    axes: Axes, rows: pd.DataFrame, name: str, source: str, colour: str, dotted: bool, look: dict[str, Any]
) -> None:
    drawn = rows[name].where(np.isfinite(rows[name]))
    axes.plot(rows["number"], drawn, color=colour, linestyle=DASHES[source], **look)
    if dotted and source == "data":
        dots = rows["number"].isin(MARKED)
        axes.scatter(rows["number"][dots], drawn[dots], s=9, color=colour, zorder=3)


def by_layer(raw: pd.DataFrame) -> pd.DataFrame:
    """Mean over a layer's channels of their |mean| and deviation, for every layer of the main path."""
    raw = raw[(raw["side"] == "output") & raw["number"].notna()]
    data = raw[["norm", "seed", "number", "source", "nonfinite"]].assign(
        mean=[probes.average(np.abs(probes.numbers(v))) for v in raw["mean"]],
        deviation=[probes.average(np.sqrt(probes.numbers(v))) for v in raw["variance"]],
        nonfinite=[int(np.nansum(probes.numbers(v))) for v in raw["nonfinite"]],
    )
    return data.sort_values(["norm", "seed", "source", "number"], ignore_index=True)


def slopes(data: pd.DataFrame) -> pd.DataFrame:
    """Least-squares slope of ln(deviation) a layer over all but the classifier; norm, seed, source, slope."""
    hidden = data[data["number"] < data["number"].max()]
    found = []
    for (norm, seed, source), run in groups(hidden, ["norm", "seed", "source"]):
        good = run[np.isfinite(run["deviation"]) & (run["deviation"] > 0)]
        x, y = good["number"].to_numpy(float), np.log(good["deviation"].to_numpy(float))
        slope = float(np.polyfit(x, y, 1)[0]) if len(good) > 1 else float("nan")
        found.append((norm, seed, source, slope))
    return pd.DataFrame(found, columns=["norm", "seed", "source", "slope"])


def _seen(data: pd.DataFrame) -> list[str]:
    found = slopes(data)
    said = []
    for source, name in (("data", "training images"), ("noise", "noise images")):
        mine = found[found["source"] == source]
        if len(mine):
            said.append(f"ln(standard deviation) a layer, {name}: {probes.by_norm(mine, 'slope')}.")
    on_data = data[data["source"] == "data"]
    last = on_data[on_data["number"] == on_data["number"].max()]
    said.append(f"Standard deviation of the classifier's output: {probes.by_norm(last, 'deviation')}.")
    first, deepest = probes.layers(on_data)[0], _deepest(on_data)
    for number in (first, deepest):
        here = on_data[on_data["number"] == number]
        said.append(f"Mean |channel mean| in layer {number}: {probes.by_norm(here, 'mean')}.")
    bad = data[data["nonfinite"] > 0].drop_duplicates(["norm", "seed"])
    lost = [f"{r.norm} seed {r.seed}" for r in each(bad)]
    return [*said, *([f"Values that are not finite occur in: {', '.join(lost)}."] if lost else [])]


def _deepest(data: pd.DataFrame) -> int:
    """Number of the last layer before the classifier."""
    return probes.layers(data)[-2] if len(probes.layers(data)) > 1 else probes.layers(data)[-1]

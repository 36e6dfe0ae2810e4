"""Fig 5 of Bjorck et al. 2018 (§4): means and deviations of the channels against depth, before training."""

from typing import Any

import numpy as np
import pandas as pd
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
    """Lines over all layers of the main path, dots at the paper's; dotted lines are noise images."""
    data = by_layer(probes.rows(frames, "activation_moments"))
    colours = style.norm_colours(probes.norms(data))
    with style.styled():
        figure, grid = probes.panels(1, 2, 3.2)
        for axes, (name, label) in zip(grid[0], COLUMNS, strict=True):
            for (norm, _, source), run in groups(data, ["norm", "seed", "source"]):
                drawn = run[name].where(np.isfinite(run[name]))
                look = {"color": colours[norm], "linewidth": 0.9, "alpha": 0.85}
                axes.plot(run["number"], drawn, linestyle=DASHES[source], **look)
                if source == "data":
                    dots = run["number"].isin(MARKED)
                    axes.scatter(run["number"][dots], drawn[dots], s=9, color=colours[norm], zorder=3)
            style.log_axis(axes, "y", data[name])
            axes.set(title=label, xlabel="layer")
        noise = [Line2D([], [], color="#444444", linestyle=s, label=f"{k} images") for k, s in DASHES.items()]
        noise[0].set_label("training images")
        probes.norm_legend(figure, data, noise)
    caption = "One line per seed; dots at the layers the paper shows, the classifier's output last."
    return style.Drawing(figure, data, caption, tuple(_seen(data)))


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

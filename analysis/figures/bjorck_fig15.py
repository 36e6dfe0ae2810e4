"""Fig 15 of Bjorck et al. 2018 (App. G.2): how gradients differ between the channels of a layer."""

import numpy as np
import pandas as pd

from analysis import style
from analysis.figures import UndrawableError
from analysis.figures import _probes as probes
from analysis.load import Frames
from analysis.tidy import each, groups

TITLE = "Fig 15: gradients of a layer's channels"
SECTION = probes.APPENDIX
ORDER = 15
NEEDS = ("probe:gradient_tails",)
EXPECTED = "fig15"
MEASURED = (
    "For every layer, the mean magnitude of the gradient of each output channel's weights: how large "
    "gradients are, and how unequal a layer's channels are among themselves."
)
HOW = "One batch of training images before any update; all layers of the main path."

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
COLUMNS = ["least", "lower", "middle", "upper", "most"]


def draw(frames: Frames) -> style.Drawing:
    """Bands of the channels' quantiles against depth; medians over seeds."""
    data = by_layer(probes.rows(frames, "gradient_tails"))
    norms = probes.norms(data)
    colours = style.norm_colours(norms)
    bottom = _bottom(data)
    with style.styled():
        figure, grid = probes.panels(1, len(norms), 3.0, sharey=True)
        for axes, norm in zip(grid[0], norms, strict=True):
            mine = data[data["norm"] == norm]
            middle = mine.groupby("number")[COLUMNS].median()
            positive = middle.where(middle > 0)
            look = {"color": colours[norm], "linewidth": 0}
            axes.fill_between(middle.index, positive["least"], positive["most"], alpha=0.18, **look)
            axes.fill_between(middle.index, positive["lower"], positive["upper"], alpha=0.45, **look)
            axes.plot(middle.index, positive["middle"], color=colours[norm], linewidth=1)
            values = mine[COLUMNS].to_numpy().ravel()
            style.log_axis(axes, "y", values, among=data[COLUMNS].to_numpy().ravel())
            low = int((values[values > 0] < bottom).sum())
            if low:
                style.note(axes, f"{low} of {len(values)} values below {style.power_of_ten(bottom)}", y=0.93)
            probes.titled(axes, norm, data)
            axes.set_xlabel("layer")
        grid[0, 0].set_ylim(bottom=bottom)
        grid[0, 0].set_ylabel("mean |gradient| of a channel")
    caption = (
        "Line: the median channel of each layer; dark band: the middle half of its channels; light band: "
        "from the least to the most. Each is the median over seeds. A channel without any gradient cannot "
        "be shown on the logarithmic axis; the light band then ends."
    )
    return style.Drawing(figure, data, caption, tuple(_seen(data)))


def _bottom(data: pd.DataFrame) -> float:
    """A power of ten two decades below the smallest median: single dead channels would stretch the axis."""
    middle = data["middle"][np.isfinite(data["middle"]) & (data["middle"] > 0)]
    return float(10.0 ** (np.floor(np.log10(middle.min())) - 2)) if len(middle) else 1e-12


def by_layer(table: pd.DataFrame) -> pd.DataFrame:
    """Quantiles over a layer's channels of their mean |gradient|, and their spread: deviation over mean."""
    rows = []
    for row in each(table[table["number"].notna()]):
        channels = probes.numbers(row.channel_abs)
        if not len(channels) or not np.isfinite(channels).all():
            rows.append((row.norm, row.seed, int(row.number), *[np.nan] * 6))
            continue
        spread = float(channels.std() / channels.mean()) if channels.mean() > 0 else np.nan
        rows.append((row.norm, row.seed, int(row.number), *np.quantile(channels, QUANTILES), spread))
    return pd.DataFrame(rows, columns=["norm", "seed", "number", *COLUMNS, "spread"])


def thirds(data: pd.DataFrame) -> pd.DataFrame:
    """Medians of spread and of the middle channel's gradient over the first and the last third of the layers.

    Columns: norm, seed, third ("first" or "last"), spread, size.
    """
    if data.empty:
        raise UndrawableError("no layer of its tables has a number")
    last = max(probes.layers(data))
    where = {"first": data["number"] <= last / 3, "last": data["number"] > 2 * last / 3}
    found = [
        (norm, seed, name, float(run["spread"].median()), float(run["middle"].median()))
        for name, rows in where.items()
        for (norm, seed), run in groups(data[rows], ["norm", "seed"])
    ]
    return pd.DataFrame(found, columns=["norm", "seed", "third", "spread", "size"])


def _seen(data: pd.DataFrame) -> list[str]:
    found = thirds(data)
    said = []
    for name in ("first", "last"):
        said.append(
            f"Standard deviation between a layer's channels, as a multiple of their mean (median over the "
            f"{name} third of the layers): {probes.by_norm(found[found['third'] == name], 'spread')}."
        )
    for name in ("first", "last"):
        sizes = probes.by_norm(found[found["third"] == name], "size")
        said.append(f"Median channel's gradient, {name} third: {sizes}.")
    lost = int(data["middle"].isna().sum())
    return [*said, *([f"{lost} of {len(data)} layers have gradients that are not finite."] if lost else [])]

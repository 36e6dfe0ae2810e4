"""The noise of a batch's gradient by batch size (Bjorck et al. 2018, §2.1 and App. D)."""

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from analysis import style
from analysis.figures import UndrawableError
from analysis.figures import _probes as probes
from analysis.load import Frames
from analysis.tidy import groups

TITLE = "§2.1: variance of a batch's gradient by batch size"
SECTION = probes.STEPS
ORDER = 30
NEEDS = ("probe:gradient_noise",)
EXPECTED = "gradient_noise"
MEASURED = (
    "How far the gradient of a random batch of b images lies from that of all images of a subset: the mean "
    "squared length of the difference, E‖g(batch) − g‖², before training."
)
HOW = (
    "Batches of several sizes are drawn from a fixed subset of N training images, without replacement as a "
    "shuffled loader does, and independently. The factor (N − b)/(N − k) that a finite subset brings (k = 1 "
    "without replacement, else 0) is divided out, so that only the batch size is left. With batch statistics "
    "an image's gradient depends on its batch: the law does not speak of those."
)

LAWS = {"without_replacement": 1, "independent": 0}
"""How batches were drawn → k in the factor (N − b)/(N − k) that a subset of N images brings."""

MARKS = {"without_replacement": "o", "independent": "x"}


def draw(frames: Frames) -> style.Drawing:
    """One line per seed through both laws' means; what the images' own spread predicts is dashed."""
    data = corrected(probes.rows(frames, "gradient_noise", least_norms=1))
    if data["batch_size"].nunique() < 2:
        raise UndrawableError("it compares batch sizes, and only one has been measured")
    colours = style.norm_colours(probes.norms(data))
    with style.styled():
        figure, grid = probes.panels(1, 1, 3.4)
        axes = grid[0, 0]
        for (norm, _, law), run in groups(data, ["norm", "seed", "law"]):
            look = style.seed_line(2 * data["seed"].nunique()) | {"color": colours[norm]}
            axes.plot(run["batch_size"], run["variance"], marker=MARKS[law], markersize=3, **look)
            axes.plot(run["batch_size"], run["bound"], linestyle="--", **look)
        style.log_axis(axes, "x", data["batch_size"])
        sizes = sorted(data["batch_size"].unique())
        axes.set_xticks(sizes, [f"{b:g}" for b in sizes])
        style.log_axis(axes, "y", data["variance"])
        axes.set(xlabel="batch size b", ylabel="mean squared distance E‖g(batch) − g‖²")
        laws = [
            Line2D([], [], color="#444444", marker=m, label=law.replace("_", " ")) for law, m in MARKS.items()
        ]
        ideal = Line2D([], [], color="#444444", linestyle="--", label="C/b")
        probes.norm_legend(figure, data, [*laws, ideal])
    caption = (
        "One line per seed and way of drawing; C is the spread of single images' gradients, E‖∇ℓᵢ − g‖²."
    )
    return style.Drawing(figure, data, caption, tuple(_seen(data)))


def corrected(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with known laws that were drawn at all; `variance` is what it would be without end of images."""
    rows = rows[rows["law"].isin(list(LAWS)) & rows["measured"].notna()]
    b, subset = rows["batch_size"].to_numpy(float), rows["subset"].to_numpy(float)
    factor = (subset - rows["law"].map(LAWS).to_numpy(float)) / np.where(subset > b, subset - b, np.nan)
    columns = ["norm", "seed", "run_id", "estimand", "law", "draws", "bound"]
    data = rows[columns].assign(batch_size=b, variance=rows["measured"].to_numpy(float) * factor)
    return data.sort_values(["norm", "seed", "law", "batch_size"], ignore_index=True)


def exponents(data: pd.DataFrame) -> pd.DataFrame:
    """Slope of log variance against log batch size by norm and seed, each size weighted by its draws."""
    found = []
    for (norm, seed, estimand), run in groups(data, ["norm", "seed", "estimand"]):
        good = run[np.isfinite(run["variance"]) & (run["variance"] > 0)]
        slope = float("nan")
        if good["batch_size"].nunique() > 1:
            weights = np.sqrt(good["draws"].to_numpy(float))  # what polyfit multiplies residuals with
            x, y = np.log(good["batch_size"].to_numpy(float)), np.log(good["variance"].to_numpy(float))
            slope = float(np.polyfit(x, y, 1, w=weights)[0])
        found.append((norm, seed, estimand, slope))
    return pd.DataFrame(found, columns=["norm", "seed", "estimand", "slope"])


def _seen(data: pd.DataFrame) -> list[str]:
    found = exponents(data)
    words = {"image": "images by themselves", "batch_statistics": "batch statistics"}
    return [
        f"Exponent of the batch size, {words.get(str(estimand), estimand)}: {probes.by_norm(mine, 'slope')}."
        for (estimand,), mine in groups(found, ["estimand"])
    ]

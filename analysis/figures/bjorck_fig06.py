"""Fig 6 of Bjorck et al. 2018 (§4): the gradient of the loss with respect to the logits, before training."""

import numpy as np
import pandas as pd

from analysis import style
from analysis.figures import _probes as probes
from analysis.load import Frames

TITLE = "Fig 6: gradients of the logits"
SECTION = probes.DEPTH
ORDER = 6
NEEDS = ("probe:logit_gradients",)
EXPECTED = "fig06"
MEASURED = (
    "The network's outputs (logits), one per image and class, and which way the loss pushes each: a positive "
    "gradient says that this class is given too much for this image. If the outputs ignored the image, all "
    "images would push the same class down."
)
HOW = "One batch of training images before any update; the gradient is that of the batch's mean loss."


def draw(frames: Frames) -> style.Drawing:
    """One picture per norm, of its first seed: rows are images, sorted by label, columns classes."""
    table = probes.rows(frames, "logit_gradients")
    data = []
    shown = probes.first_seed(table)
    chosen = probes.norms(table)
    with style.styled():
        figure, grid = probes.panels(1, len(chosen), 3.8)
        for axes, (norm, seed, run) in zip(grid[0], probes.each_run(shown), strict=True):
            picture, labels = _picture(run)
            limit = float(np.nanmax(np.abs(picture), initial=0.0)) or 1.0
            image = axes.imshow(
                picture, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
            )
            axes.grid(visible=False)
            axes.set_xticks(range(picture.shape[1]))
            axes.set(title=f"{norm}, seed {seed}", xlabel="class")
            figure.colorbar(image, ax=axes, shrink=0.85)
            found = pd.DataFrame(picture).assign(norm=norm, seed=seed, label=labels)
            data.append(found.melt(["norm", "seed", "label"], var_name="class", value_name="gradient"))
        grid[0, 0].set_ylabel("image, sorted by label")
    caption = (
        f"Gradient of the loss with respect to each logit (red: pushed down, blue: pushed up), for the first "
        f"of {table['seed'].nunique()} seeds; each picture has its own scale."
    )
    return style.Drawing(figure, pd.concat(data), caption, tuple(_seen(table)))


def _picture(run: pd.DataFrame) -> tuple["probes.Floats", "probes.Floats"]:
    """Gradient as images × classes sorted by label, non-finite ones blank, and the labels."""
    row = run.iloc[0]
    values = probes.numbers(row["gradient"]).reshape(int(row["images"]), int(row["classes"]))
    labels = probes.numbers(row["labels"])
    order = np.argsort(labels, kind="stable")
    return np.where(np.isfinite(values), values, np.nan)[order], labels[order]


def _seen(table: pd.DataFrame) -> list[str]:
    found = table.assign(share=[largest_share(v) for v in table["positive_share"]])
    said = [
        f"Largest share of all positive gradient in one class: {probes.by_norm(found, 'share')} "
        f"(an even spread would give {probes.say(1 / int(table['classes'].iloc[0]))}).",
        f"Largest mean probability given to one class: {probes.by_norm(found, 'top_mass')}.",
        f"Mean cosine between two images' gradients (1: all images push alike): "
        f"{probes.by_norm(found, 'mean_row_cosine')}.",
    ]
    lost = int(table["nonfinite"].sum())
    return [*said, *([f"{lost} logits are not finite."] if lost else [])]


def largest_share(value: object) -> float:
    """The largest of the classes' shares of all positive gradient; NaN if none is finite."""
    shares = probes.numbers(value)
    return float(np.nanmax(shares)) if np.isfinite(shares).any() else float("nan")

"""Fig 18 of Bjorck et al. 2018 (App. J): one weight's gradient, image by image."""

import numpy as np
import pandas as pd

from analysis import style
from analysis.figures import _probes as probes
from analysis.load import Frames

TITLE = "Fig 18: a weight's gradient, image by image"
SECTION = probes.APPENDIX
ORDER = 18
NEEDS = ("probe:example_gradients",)
EXPECTED = "fig18"
MEASURED = (
    "What every image of the batch adds to the gradient of single weights of a late layer. If images ask for "
    "different things, their contributions lie on both sides of zero; if the network ignores them, all ask "
    "for the same."
)
HOW = (
    "One batch of training images before any update. The gradient of the batch's loss is split into the "
    "terms of its images, with the batch's statistics as they are, where there is normalisation."
)

MOST_WEIGHTS, MOST_IMAGES = 16, 256


def draw(frames: Frames) -> style.Drawing:
    """One row of dots per weight, one dot per image, for each norm's first seed."""
    table = probes.rows(frames, "example_gradients")
    table = table[table["number"] == probes.layers(table)[0]]
    shown = probes.first_seed(table)
    colours = style.norm_colours(probes.norms(table))
    data = []
    with style.styled():
        figure, grid = probes.panels(1, shown["norm"].nunique(), 3.4, sharex=True)
        for axes, (norm, seed, run) in zip(grid[0], probes.each_run(shown), strict=True):
            terms = _terms(run)
            places = np.repeat(np.arange(len(terms)), terms.shape[1])
            axes.scatter(terms.ravel(), places, s=5, color=colours[norm], alpha=0.45, linewidths=0)
            axes.axvline(0, color="#444444", linewidth=0.8)
            axes.set_yticks([])
            axes.set(title=f"{norm}, seed {seed}", xlabel="gradient ÷ its root mean square")
            found = pd.DataFrame({"weight": places, "relative": terms.ravel()})
            data.append(found.assign(norm=norm, seed=seed))
        grid[0, 0].set_ylabel("weights")
    caption = (
        f"Layer {probes.layers(table)[0]}: one row per weight ({MOST_WEIGHTS} at most, evenly spaced in the "
        f"kernel), one dot per image; each row is divided by its own root mean square over the images. First "
        f"of {table['seed'].nunique()} seeds."
    )
    return style.Drawing(figure, pd.concat(data), caption, tuple(_seen(table)))


def _terms(run: pd.DataFrame) -> "probes.Floats":
    """Weights × images, each row over its root mean square; rows that are zero or not finite are left out."""
    row = run.iloc[0]
    images = int(row["images"])
    terms = probes.numbers(row["gradient"]).reshape(-1, images)[:MOST_WEIGHTS, :MOST_IMAGES]
    size = np.sqrt(np.square(terms).mean(1))
    good = np.isfinite(size) & (size > 0)
    relative: probes.Floats = terms[good] / size[good, None]
    return relative


def _seen(table: pd.DataFrame) -> list[str]:
    said = [
        "Share of images whose term has the more frequent sign, mean over the layer's weights (0.5: half and "
        f"half; 1: all alike): {probes.by_norm(table, 'majority_share')}.",
        "|mean| of the terms over their standard deviation, median over the weights: "
        f"{probes.by_norm(table, 'mean_to_deviation')}.",
        f"|skewness| of the terms, median over the weights: {probes.by_norm(table, 'skewness')}.",
    ]
    lost = int(table["nonfinite"].sum())
    return [*said, *([f"{lost} terms are not finite."] if lost else [])]

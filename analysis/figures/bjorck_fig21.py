"""The linear regression of Bjorck et al. 2018 (§5): gradient-descent steps against the condition number."""

import numpy as np
import pandas as pd

from analysis import style
from analysis.figures import _probes as probes
from analysis.figures import _randmat as randmat
from analysis.load import Frames

TITLE = "§5: an ill-conditioned product makes gradient descent slow"
SECTION = randmat.SECTION
ORDER = 21
NEEDS = ()
APART = True
EXPECTED = "random_matrices"
MEASURED = (
    "How many steps gradient descent takes to solve a linear regression whose matrix is a product of M "
    "Gaussian matrices, until the weights, or the loss, have come within a thousandth of where they began."
)
HOW = (
    "Step size one over the largest squared singular value. Each direction then shrinks by a known factor a "
    "step, so that numbers of steps no machine could take can still be counted; where it could, the count "
    "equals that of gradient descent carried out."
)

KINDS = {"log10_steps_weights": "weights", "log10_steps_loss": "loss"}


def draw(frames: Frames) -> style.Drawing:
    """One dot per draw and M; the line has the slope 2 of κ²."""
    data = randmat.table(frames, "regression")
    factors = sorted({int(m) for m in data["m"]})
    colours = randmat.colours(factors)
    with style.styled():
        figure, grid = probes.panels(1, 2, 3.0)
        for axes, (column, name) in zip(grid[0], KINDS.items(), strict=True):
            for m in factors:
                mine = data[data["m"] == m]
                axes.scatter(mine["log10_condition"], mine[column], s=16, color=colours[m], label=f"M = {m}")
            axes.set(title=f"until the {name} fit", xlabel="log₁₀ of the condition number")
        ends = np.array([data["log10_condition"].min(), data["log10_condition"].max()])
        grid[0, 0].plot(ends, 2 * ends, color="#444444", linewidth=0.9, linestyle=(0, (3, 2)))
        grid[0, 0].set_ylabel("log₁₀ of the number of steps")
        grid[0, 0].legend(loc="upper left")
    caption = f"{randmat.repetitions(data)}. Dashed: the condition number squared."
    return style.Drawing(figure, data, caption, tuple(_seen(data)))


def _seen(data: pd.DataFrame) -> list[str]:
    said = []
    for column, name in KINDS.items():
        means = data.groupby("m")[column].mean()
        values = ", ".join(f"M = {m} {v:.1f}" for m, v in means.items())
        said.append(f"Mean log₁₀ of the steps until the {name} fit: {values}.")
    both = data[["log10_condition", "log10_steps_weights"]]
    if both["log10_condition"].nunique() > 2:
        slope = np.polyfit(both["log10_condition"], both["log10_steps_weights"], 1)[0]
        said.append(f"For the weights they grow as the condition number to the power {slope:.2f}.")
    return said

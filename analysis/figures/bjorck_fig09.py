"""Of Figs 8-10, 20, 21 of Bjorck et al. 2018 (§5, App. C): the condition number against M."""

import pandas as pd

from analysis import style
from analysis.figures import _probes as probes
from analysis.figures import _randmat as randmat
from analysis.load import Frames

TITLE = "Figs 8–10: the condition number grows with the number of matrices"
SECTION = randmat.SECTION
ORDER = 9
NEEDS = ()
APART = True
EXPECTED = "condition_number"
MEASURED = (
    "The condition number of a product of M Gaussian matrices: the largest singular value over the smallest. "
    "Gradient descent needs a number of steps that grows with its square."
)
HOW = (
    "Each draw multiplies up one sequence of matrices. The product is kept as a graded QR factorisation with "
    "its scales as logarithms, so that digits are right far beyond the 10¹⁷ at which an ordinary singular "
    "value decomposition stops. Logarithms are averaged: the condition number itself has no mean."
)


def draw(frames: Frames) -> style.Drawing:
    """One thin line per draw and the mean of the logarithms."""
    data = randmat.table(frames, "products")[["seed", "draw", "n", "m", "log10_condition"]]
    mean = data.groupby("m")["log10_condition"].mean()
    with style.styled():
        figure, grid = probes.panels(1, 1, 3.0)
        axes = grid[0, 0]
        for _, run in data.groupby(["seed", "draw"]):
            axes.plot(run["m"], run["log10_condition"], color="#0072B2", linewidth=0.7, alpha=0.6)
        axes.plot(mean.index, mean, color="#000000", linewidth=1.4, label="mean of the logarithms")
        axes.axhline(17, color="#D55E00", linewidth=0.9, linestyle=(0, (3, 2)))
        axes.text(mean.index.max(), 17, "an ordinary SVD ends here ", ha="right", va="bottom", fontsize=7)
        axes.set(xlabel="number of matrices M", ylabel="log₁₀ of the condition number")
        axes.legend(loc="upper left")
    caption = f"{randmat.repetitions(data)}; within a draw, M + 1 matrices are the M before and one more."
    return style.Drawing(figure, data, caption, tuple(_seen(mean)))


def _seen(mean: "pd.Series[float]") -> list[str]:
    shown = [m for m in (1, 2, 3, 4, 5, 6, 10, 20, 50, 100) if m in mean.index]
    values = ", ".join(f"M = {m} {mean[m]:.1f}" for m in shown)
    last = int(mean.index.max())
    said = [f"Mean log₁₀ condition number: {values}."]
    if last > 1:
        growth = (mean[last] - mean[1]) / (last - 1)
        said.append(f"On average each further matrix multiplies it by {probes.say(10**growth)}.")
    return said

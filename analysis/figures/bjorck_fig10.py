"""Of Figs 8-10, 20, 21 of Bjorck et al. 2018 (§5, App. C): the largest singular value against M."""

import numpy as np

from analysis import style
from analysis.figures import _probes as probes
from analysis.figures import _randmat as randmat
from analysis.load import Frames

TITLE = "Figs 8–10: the largest singular value"
SECTION = randmat.SECTION
ORDER = 10
NEEDS = ()
APART = True
EXPECTED = "random_matrices"
MEASURED = (
    "The largest singular value of a product of M Gaussian matrices, whose entries have the variance that "
    "keeps the mean square of the singular values at 1: how much the most stretched direction grows."
)
HOW = "By Lanczos iterations on the same products as the condition number."


def draw(frames: Frames) -> style.Drawing:
    """One thin line per draw, and the limit's edge √((M+1)^(M+1)/M^M)."""
    data = randmat.table(frames, "products")[["seed", "draw", "n", "m", "log10_largest"]]
    data = data.assign(largest=10 ** data["log10_largest"], edge=edge(data["m"].to_numpy(float)))
    with style.styled():
        figure, grid = probes.panels(1, 1, 3.0)
        axes = grid[0, 0]
        for i, (_, run) in enumerate(data.groupby(["seed", "draw"])):
            label = "one draw" if i == 0 else None
            axes.plot(run["m"], run["largest"], color="#0072B2", linewidth=0.8, alpha=0.7, label=label)
        ends = data.drop_duplicates("m")
        axes.plot(ends["m"], ends["edge"], color="#000000", linewidth=1.1, linestyle="--", label="limit")
        axes.set(xlabel="number of matrices M", ylabel="largest singular value", ylim=(0, None))
        axes.legend(loc="upper left")
    means = data.groupby("m")[["largest", "edge"]].mean()
    shown = [m for m in (1, 2, 3, 5, 10, 20, 100) if m in means.index]
    pairs = [(m, float(means["largest"][m]), float(means["edge"][m])) for m in shown]
    values = ", ".join(f"M = {m} {found:.3g} ({limit:.3g} in the limit)" for m, found, limit in pairs)
    return style.Drawing(
        figure, data, f"{randmat.repetitions(data)}.", (f"Mean largest singular value: {values}.",)
    )


def edge(m: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return √((M+1)^{M+1}/M^M), the largest singular value in the limit."""
    return np.exp(((m + 1) * np.log(m + 1) - m * np.log(m)) / 2)

"""Of Figs 8-10, 20, 21 of Bjorck et al. 2018 (§5, App. C): the limit density of the singular values."""

import numpy as np
import pandas as pd

from analysis import style
from analysis.figures import _probes as probes
from analysis.figures import _randmat as randmat
from analysis.load import Frames
from analysis.tidy import each

TITLE = "Figs 8–10: singular values of a product of M random matrices, in the limit"
SECTION = randmat.SECTION
ORDER = 8
NEEDS = ()
APART = True
EXPECTED = "random_matrices"
MEASURED = (
    "How the singular values of a product of M square Gaussian matrices spread: by how much it stretches "
    "different directions, as a deep network of linear layers would before training."
)
HOW = (
    "The density for matrices without bound in size is known in closed form; it is drawn as it is, and as "
    "the share of singular values below a size. Nothing is simulated here."
)


def draw(frames: Frames) -> style.Drawing:
    """Density on a linear axis, distribution function on a logarithmic one."""
    curves = randmat.table(frames, "density")
    colours = randmat.colours([int(m) for m in curves["m"]])
    data = pd.concat(
        [pd.DataFrame({"m": c.m, "x": c.x, "density": c.density, "cdf": c.cdf}) for c in each(curves)],
        ignore_index=True,
    )
    with style.styled():
        figure, grid = probes.panels(1, 2, 3.0)
        for m, curve in data.groupby("m"):
            look = {"color": colours[int(str(m))], "label": f"M = {m}"}
            inside = curve[curve["x"] > 0.02]
            grid[0, 0].plot(inside["x"], inside["density"], **look)
            grid[0, 1].plot(curve["x"], curve["cdf"], **look)
        grid[0, 0].set(xlabel="singular value", title="density", ylim=(0, 1.2))
        grid[0, 1].set(xlabel="singular value", title="share below", xscale="log", ylim=(0, 1.02))
        grid[0, 1].set_xlim(1e-8, 10)
        grid[0, 1].legend(loc="upper left")
    return style.Drawing(figure, data, "Left: cut off above 1.2.", tuple(_seen(data)))


def _seen(data: pd.DataFrame) -> list[str]:
    said = []
    for size in (0.1, 1e-3):
        shares = [
            f"M = {m} {100 * float(np.interp(size, c['x'], c['cdf'])):.1f}%" for m, c in data.groupby("m")
        ]
        said.append(f"Share of singular values below {probes.say(size)}: {', '.join(shares)}.")
    ends = [f"M = {m} {probes.say(float(c['x'].max()))}" for m, c in data.groupby("m")]
    said.append(f"Largest singular value: {', '.join(ends)}.")
    return said

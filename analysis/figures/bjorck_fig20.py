"""Of Figs 20, 21 of Bjorck et al. 2018 (App. C, K): histograms of singular values on their limit density."""

from itertools import pairwise

import numpy as np
import pandas as pd

from analysis import style
from analysis.figures import UndrawableError
from analysis.figures import _probes as probes
from analysis.figures import _randmat as randmat
from analysis.load import Frames

TITLE = "Figs 20, 21: simulated singular values lie on the limit density"
SECTION = randmat.SECTION
ORDER = 20
NEEDS = ()
APART = True
EXPECTED = "random_matrices"
MEASURED = (
    "All singular values of products of M Gaussian matrices, against the density the theory gives them."
)
HOW = (
    "Histograms on a logarithmic axis, so that the tail of small values can be seen. The test of fit "
    "(Kolmogorov's) takes one singular value of each of many independent products, since those of one matrix "
    "repel each other and would fit too well; the distance is of all values of one draw."
)

PANELS = (1, 2, 3, 5)
BINS = 40


def draw(frames: Frames) -> style.Drawing:
    """A panel per M: shares of values per bin, and what the limit gives those bins."""
    spectra, curves = randmat.table(frames, "spectra"), randmat.table(frames, "density")
    shown = [m for m in PANELS if m in set(spectra["m"]) & set(curves["m"])]
    if not shown:
        raise UndrawableError(f"none of M = {', '.join(map(str, PANELS))} has its singular values kept")
    data = pd.concat([binned(m, spectra, curves) for m in shown], ignore_index=True)
    colours = randmat.colours(shown)
    with style.styled():
        figure, grid = probes.panels(1, len(shown), 2.6, sharey=False)
        for axes, m in zip(grid[0], shown, strict=True):
            mine = data[data["m"] == m]
            edges = [*mine["low"], mine["high"].iloc[-1]]
            axes.stairs(mine["share"] / np.diff(edges), edges, fill=True, color=colours[m], alpha=0.45)
            axes.plot((mine["low"] + mine["high"]) / 2, mine["expected"] / np.diff(edges), color="#000000")
            axes.set(title=f"M = {m}", xlabel="log₁₀ singular value")
        grid[0, 0].set_ylabel("density a decade")
    caption = f"{randmat.repetitions(spectra)}; line: the limit."
    return style.Drawing(figure, data, caption, tuple(_seen(frames, spectra, shown)))


def binned(m: int, spectra: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Shares of all draws' singular values in bins of equal width in log₁₀, and the limit's; low, high."""
    values = np.concatenate(list(spectra.loc[spectra["m"] == m, "log10_values"]))
    curve = curves[curves["m"] == m].iloc[0]
    top = float(np.log10(curve["edge"])) + 0.05
    edges = np.linspace(float(np.quantile(values, 0.002)), top, BINS + 1)
    below = np.interp(10**edges, curve["x"], curve["cdf"], left=0.0, right=1.0)
    rows = [
        {"m": m, "low": low, "high": high, "share": float(((values > low) & (values <= high)).mean())}
        for low, high in pairwise(edges)
    ]
    return pd.DataFrame(rows).assign(expected=np.diff(below))


def _seen(frames: Frames, spectra: pd.DataFrame, shown: list[int]) -> list[str]:
    far = spectra.groupby("m")["distance"].max()
    said = [
        "Largest distance of a draw's distribution function from the limit's: "
        + ", ".join(f"M = {m} {far[m]:.4f}" for m in shown)
        + "."
    ]
    try:
        fit = randmat.table(frames, "fit")
    except UndrawableError:
        return said
    n, matrices = int(fit["n"].max()), int(fit["matrices"].max())
    mine = fit[(fit["n"] == n) & (fit["matrices"] == matrices)].drop_duplicates("m")
    found = mine.set_index("m")["p_value"]
    tests = ", ".join(f"M = {m} p = {float(found[m]):.2f}" for m in shown if m in found.index)
    return [*said, f"Test of fit on {matrices} independent products, N = {n}: {tests}."] if tests else said

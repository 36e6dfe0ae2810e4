"""What figures drawn from probe tables share: which rows, layers and seeds, how to say a number."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

from analysis import select, style
from analysis.figures import UndrawableError
from analysis.load import Frames
from analysis.tidy import groups

STEPS = "Before training: gradients and step sizes (Bjorck et al. 2018, §3)"
DEPTH = "Before training: activations and gradients by depth (Bjorck et al. 2018, §4)"
APPENDIX = "Before training: channels, classes and images (Bjorck et al. 2018, App. G–K)"
FIRST = "The first mini-batches (Bjorck et al. 2018, App. K)"

MOST_NORMS = 4
PAPER_DEPTH = 110

Floats = NDArray[np.float64]


def rows(
    frames: Frames, probe: str, *, when: Sequence[str] = ("init",), least_norms: int = 2
) -> pd.DataFrame:
    """As `measured`, of one run per norm and seed and of as many norms as a figure can show.

    Before the first update a run's rate does not matter: of several, the lowest stands for all; of updates
    (update_path), the one at the highest rate. At most
    MOST_NORMS norms are kept, bn and none first. Raises UndrawableError if nothing, or too little to compare,
    is left.
    """
    found = measured(frames, probe, when)
    norms = select.norm_order(found["norm"])
    if len(norms) < least_norms:
        raise UndrawableError(f"it compares norms, and only '{norms[0]}' has been measured")
    kept = sorted(norms, key=lambda n: (n not in {"bn", "none"}, norms.index(n)))[:MOST_NORMS]
    if when == ("init",):
        ordered = found.sort_values("lr", kind="stable")
        if "rate" in found:
            ordered = ordered.sort_values("rate", ascending=False, kind="stable")
        first = ordered.drop_duplicates(["norm", "seed"])["run_id"]
        found = found[found["run_id"].isin(set(first))]
    return found[found["norm"].isin(kept)].reset_index(drop=True)


def measured(frames: Frames, probe: str, when: Sequence[str]) -> pd.DataFrame:
    """Rows of a probe at some moments, with `seed`, `lr`, `depth` and `scientific` of their runs.

    Raises UndrawableError if there are none.
    """
    table = frames.probes.get(probe)
    if table is None:
        raise UndrawableError(f"no complete run has a table of probe '{probe}'")
    runs = frames.runs[["run_id", "seed", "lr", "depth", "scientific"]].astype({"run_id": "str"})
    found = table[table["when"].isin(list(when))].astype({"run_id": "str", "norm": "str"})
    if found.empty:
        raise UndrawableError(f"the tables of probe '{probe}' have no rows measured at {' or '.join(when)}")
    return found.merge(runs, on="run_id")


def at_layer(table: pd.DataFrame, number: int) -> pd.DataFrame:
    """Rows of the layer that stands where `number` stands in the paper's ResNet-110.

    Elsewhere the proportional one, of the same place in its block where there is such.
    """
    numbers = sorted({int(n) for n in table["number"].dropna()})
    if not numbers:
        raise UndrawableError("no layer of its tables has a number")
    known = table["depth"].dropna() if "depth" in table else pd.Series(dtype="Int64")
    depth = int(known.max()) if len(known) else numbers[-1]
    target = 1 + (number - 1) * (depth - 1) / (PAPER_DEPTH - 1)
    alike = [n for n in numbers if n % 2 == number % 2] or numbers
    return table[table["number"] == min(alike, key=lambda n: (abs(n - target), n))]


def layers(table: pd.DataFrame) -> list[int]:
    """Layer numbers that occur, ascending."""
    return sorted({int(n) for n in table["number"].dropna()})


def norms(table: pd.DataFrame) -> list[str]:
    """Norms that occur, in display order."""
    return select.norm_order(table["norm"])


def each_run(table: pd.DataFrame) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """(Norm, seed, its rows), norms in display order, seeds ascending."""
    for norm in norms(table):
        for (seed,), mine in groups(table[table["norm"] == norm], ["seed"]):
            yield norm, int(seed), mine


def first_seed(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of each norm's lowest seed: what a picture of single values shows."""
    lowest = table.groupby("norm")["seed"].transform("min")
    return table[table["seed"] == lowest]


def numbers(value: Any) -> Floats:
    """A list cell as a vector of floats; what is null in it, or a null cell, becomes NaN or nothing."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return np.empty(0)
    return np.asarray(value, dtype=float)


def average(values: Floats) -> float:
    """Mean; NaN of nothing."""
    return float(values.mean()) if len(values) else float("nan")


def titled(axes: Axes, norm: str, table: pd.DataFrame, more: str = "") -> None:
    """Name a norm's panel with its number of seeds."""
    axes.set_title(f"{norm}{more} ({seeds(table, norm)})")


def seeds(table: pd.DataFrame, norm: str | None = None) -> str:
    """Say how many seeds a norm has, as "n = 3 seeds"."""
    n = table[table["norm"] == norm]["seed"].nunique() if norm else table["seed"].nunique()
    return f"n = {n} seed{'s' if n != 1 else ''}"


def panels(n_rows: int, n_columns: int, height: float, **more: Any) -> tuple[Figure, NDArray[Any]]:
    """A grid of panels in the width of the text; call inside style.styled()."""
    return plt.subplots(
        n_rows, n_columns, figsize=(style.WIDTH, height), squeeze=False, layout="constrained", **more
    )


def norm_legend(figure: Figure, table: pd.DataFrame, extra: Iterable[Line2D] = ()) -> None:
    """One entry per norm with its number of seeds, and what else lines mean, below the panels."""
    colours = style.norm_colours(norms(table))
    handles = [
        Line2D([], [], color=c, linewidth=3, label=f"{n} ({seeds(table, n)})") for n, c in colours.items()
    ]
    figure.legend(
        handles=[*handles, *extra], loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=5, handlelength=2.6
    )


def say(value: float) -> str:
    """A number to three digits: 0.0071, 12.3, 1.7×10⁵; "not finite" for NaN and infinity."""
    if not np.isfinite(value):
        return "not finite"
    if value == 0 or 1e-4 <= abs(value) < 1e4:
        return f"{value:.3g}".replace("-", "−") if abs(value) < 999.5 else f"{value:.0f}".replace("-", "−")
    exponent = int(np.floor(np.log10(abs(value))))
    digits = value / 10.0**exponent
    return f"{digits:.2g}×{style.power_of_ten(10.0**exponent)}".replace("-", "−")


def over_seeds(values: ArrayLike) -> str:
    """Median over seeds with the range in brackets; a single value alone; how many are missing."""
    x = np.asarray(values, float)
    known = x[~np.isnan(x)]
    if not len(known):
        return "undefined"
    text = say(float(np.median(known)))
    if len(known) > 1:
        low, high = say(float(known.min())), say(float(known.max()))
        text += f" ({low} to {high})" if low != high else ""
    return text + (f", undefined for {len(x) - len(known)} of {len(x)} seeds" if len(known) < len(x) else "")


def by_norm(table: pd.DataFrame, column: str) -> str:
    """ "bn 0.0071 (0.0065 to 0.008), none 12 (3 to 60)" of one column with a value per run."""
    return ", ".join(f"{n} {over_seeds(table.loc[table['norm'] == n, column])}" for n in norms(table))


def ratio(table: pd.DataFrame, column: str) -> float:
    """Median of none over median of bn; NaN unless both are there."""
    middle = table.groupby("norm")[column].median()
    if not {"bn", "none"} <= set(middle.index) or not middle["bn"]:
        return float("nan")
    return float(middle["none"] / middle["bn"])


def rank_correlation(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's ρ over pairs in which both are finite; NaN below three, or if one side is constant."""
    a, b = np.asarray(x, float), np.asarray(y, float)
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both], b[both]
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    ranks = pd.DataFrame({"a": a, "b": b}).rank()
    return float(np.corrcoef(ranks["a"], ranks["b"])[0, 1])

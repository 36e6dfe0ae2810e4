"""The bins of the probes' histograms, and how they are drawn: bounded, logarithmic on both sides of zero.

The bins are those of study/probes/_histogram.py (a test compares them): two an octave from 2^LOWEST to
2^HIGHEST and their mirror images, everything smaller in the middle bin, everything larger in the outermost.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from analysis import style

LOWEST, HIGHEST = -40, 60
SIDE = 2 * (HIGHEST - LOWEST) + 1
"""Bins on each side of the middle one."""

OCTAVES_A_DECADE = np.log2(10)

Counts = NDArray[np.float64]


def positive_edges() -> Counts:
    """The SIDE edges above zero, ascending."""
    octaves = 2.0 ** np.arange(LOWEST, HIGHEST)
    edges: Counts = np.append(np.outer(octaves, [1.0, 1.5]).ravel(), 2.0**HIGHEST)
    return edges


class SignedLog(NamedTuple):
    """A signed logarithmic axis from −10^high to 10^high; magnitudes below 10^low share its middle."""

    low: int
    high: int

    @classmethod
    def around(cls, counts: ArrayLike, coverage: float = 0.001) -> "SignedLog":
        """The axis that holds all magnitudes that occur, but the smallest share `coverage` of them."""
        sides = fold(counts)
        edges = positive_edges()
        present = np.flatnonzero(sides)
        if not len(present):
            return cls(-1, 1)
        small = np.searchsorted(np.cumsum(sides), coverage * sides.sum())
        low = int(np.floor(np.log10(edges[small])))
        high = int(np.ceil(np.log10(edges[min(present[-1] + 1, SIDE - 1)])))
        return cls(max(low, high - 12), high)

    def place(self, values: ArrayLike) -> Counts:
        """Positions on the axis: 0 in the middle, one unit a decade, cut at both ends."""
        x = np.asarray(values, float)
        with np.errstate(divide="ignore"):
            size = np.clip(np.log10(np.abs(x)) - self.low, 0, self.high - self.low)
        places: Counts = np.sign(x) * size
        return places

    def regroup(self, counts: ArrayLike) -> tuple[Counts, Counts]:
        """(Edges as positions, shares of all counts between them): whole octaves, and the middle.

        Octaves since finer groups of another width than the bins' would show a comb that is not in the data.
        What is beyond the axis is in its outermost octaves.
        """
        x = np.asarray(counts, float)
        first = max(0, int(np.ceil(self.low * OCTAVES_A_DECADE)) - LOWEST)
        last = min(HIGHEST - LOWEST, int(np.ceil(self.high * OCTAVES_A_DECADE)) - LOWEST)
        sides = []
        for side in (x[:SIDE][::-1], x[SIDE + 1 :]):
            octaves = np.append(side[:-1].reshape(-1, 2).sum(1), side[-1])
            outer = octaves[first:last].copy()
            outer[-1] += octaves[last:].sum()
            sides.append(outer)
        middle = x.sum() - sides[0].sum() - sides[1].sum()
        positive = self.place(2.0 ** np.arange(first + LOWEST, last + LOWEST + 1))
        edges = np.concatenate([-positive[::-1], positive])
        return edges, np.concatenate([sides[0][::-1], [middle], sides[1]]) / (x.sum() or 1.0)

    def ticks(self, axes: Axes) -> None:
        """Label whole powers of ten on both sides, at most about nine labels, and limit the axis."""
        span = self.high - self.low
        step = max(1, -(-span // 4))
        decades: Sequence[int] = range(step, span + 1, step)
        places = [-d for d in reversed(decades)] + [0] + list(decades)
        names = [style.power_of_ten(10.0 ** (self.low + d)) for d in decades]
        axes.set_xticks(places, [f"−{n}" for n in reversed(names)] + ["0"] + names)
        axes.set_xlim(-span, span)


def fold(counts: ArrayLike) -> Counts:
    """Counts by magnitude: both sides of each pair of bins added, the middle bin left out."""
    x = np.asarray(counts, float)
    magnitudes: Counts = x[SIDE + 1 :] + x[:SIDE][::-1]
    return magnitudes


def exceeding(counts: ArrayLike) -> tuple[Counts, Counts]:
    """(Magnitudes, share of all counted values of at least that magnitude), at the bins' edges."""
    x = np.asarray(counts, float)
    beyond = np.cumsum(fold(x)[::-1])[::-1]
    return positive_edges(), beyond / (x.sum() or 1.0)


def edges() -> Counts:
    """All edges, ascending; the outermost bins are taken to reach one octave beyond theirs."""
    sides = np.append(positive_edges(), 2.0 ** (HIGHEST + 1))
    return np.concatenate([-sides[::-1], sides])


def root_mean_square(counts: ArrayLike) -> float:
    """Of the counted values, each taken as its bin's middle; NaN without any."""
    x, between = np.asarray(counts, float), edges()
    middles = (between[1:] + between[:-1]) / 2
    return float(np.sqrt((x * middles**2).sum() / x.sum())) if x.sum() else float("nan")


def shares_between(counts: ArrayLike, limits: Counts) -> Counts:
    """Share of all counted values in each stretch between `limits`, spread evenly within each bin."""
    x = np.asarray(counts, float)
    below = np.concatenate([[0.0], np.cumsum(x)]) / (x.sum() or 1.0)
    shares: Counts = np.diff(np.interp(limits, edges(), below))
    return shares

"""How figures look: a colour per rate, a line style per norm, counts of what is left out, safe log axes."""

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox
from numpy.typing import ArrayLike, NDArray

from analysis.select import DIVERGED, STUCK, TRAINED, norm_order

WIDTH = 7.2
"""Figure width, inches: a two-column text width."""

LINE = 100
"""Characters of a remark that fit into the width of a figure."""

FATE_COLOURS = {DIVERGED: "#D55E00", STUCK: "#B8B8B8", TRAINED: "#0072B2"}
"""Okabe and Ito's vermillion and blue, and a grey: distinct with any colour vision, and in greyscale."""
FATE_HATCHES = {DIVERGED: "////", STUCK: "", TRAINED: ""}

DASHES: tuple[Any, ...] = (
    "-",
    (0, (4, 1.5)),
    (0, (1, 1.2)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (1, 3)),
    (0, (6, 1, 3, 1)),
)
MARKERS = "osD^vPX<>*hd"

RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 9,
    "legend.title_fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "path",
    "svg.hashsalt": "why-batchnorm",
    "figure.dpi": 100,
    "savefig.dpi": 200,
}


class Drawing(NamedTuple):
    """What a figure module returns: the figure, the numbers it shows, and what a caption must say."""

    figure: Figure
    data: pd.DataFrame
    caption: str
    seen: tuple[str, ...] = ()
    """What these runs show, as sentences whose numbers are computed from the frames."""
    table: pd.DataFrame | None = None
    """A table to show with the figure: texts, the first column naming the row."""


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style to the figures made inside."""
    with mpl.rc_context(RC):
        yield


def rate_colours(rates: Iterable[float]) -> dict[float, str]:
    """One colour per distinct rate, in ascending order of rate.

    Samples of viridis: lightness rises with the rate, so that the order survives any colour vision and
    greyscale; its pale end is left out, since it vanishes on paper.
    """
    ordered = sorted({float(r) for r in rates})
    places = np.linspace(0.08, 0.8, len(ordered)) if len(ordered) > 1 else [0.35]
    palette = plt.get_cmap("viridis")
    return {rate: mpl.colors.to_hex(palette(p)) for rate, p in zip(ordered, places, strict=True)}


def norm_styles(norms: Iterable[str]) -> dict[str, tuple[Any, str]]:
    """(Line style, marker) of each norm: bn is solid, none always dashed, the others follow by name."""
    ordered = norm_order(norms)
    others = [n for n in ordered if n not in {"bn", "none"}]
    index = {"bn": 0, "none": 1} | {n: i + 2 for i, n in enumerate(others)}
    return {n: (DASHES[index[n] % len(DASHES)], MARKERS[index[n] % len(MARKERS)]) for n in ordered}


def norm_colours(norms: Iterable[str]) -> dict[str, str]:
    """One colour per norm, for figures in which the rate plays no part: bn blue, none vermillion."""
    ordered = norm_order(norms)
    others = [n for n in ordered if n not in {"bn", "none"}]
    palette = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
    fixed = {"bn": "#0072B2", "none": "#D55E00"}
    return {n: fixed.get(n) or palette[others.index(n) % len(palette)] for n in ordered}


MANY = 10
"""Seeds from which single lines would hide each other."""


def seed_line(seeds: int) -> dict[str, Any]:
    """How the line of one of so many seeds looks: many are thin and pale, so that their density shows."""
    return {"linewidth": 0.6, "alpha": 0.4} if seeds > MANY else {"linewidth": 1.0, "alpha": 0.85}


def rate_label(rate: float) -> str:
    """Write a rate as papers do: 0.1, 0.003, 0.0001; exponents only beyond that."""
    text = f"{rate:g}"
    return f"{rate:.10f}".rstrip("0") if "e-05" in text else text


def legends(figure: Figure, rates: Iterable[float], norms: Iterable[str], *, markers: bool = False) -> None:
    """Put a legend entry per rate (ascending) and per norm, with its marker if asked, below the panels."""
    colours = [
        Line2D([], [], color=c, linewidth=3, label=rate_label(r)) for r, c in rate_colours(rates).items()
    ]
    styles = [
        Line2D([], [], color="#444444", linestyle=line, marker=marker if markers else "", label=n)
        for n, (line, marker) in norm_styles(norms).items()
    ]
    above = figure.legend(
        handles=colours,
        title="learning rate",
        loc="upper left",
        bbox_to_anchor=(0.06, 0.0),
        ncols=min(6, len(colours)),
    )
    if not styles:
        return
    beside = figure.legend(
        handles=styles,
        title="norm",
        loc="upper right",
        bbox_to_anchor=(0.99, 0.0),
        ncols=min(5, len(styles)),
        handlelength=3.2,
    )
    first = above.get_window_extent()
    if first.x1 > beside.get_window_extent().x0:  # no room beside each other
        beside.set_loc("upper left")
        beside.set_bbox_to_anchor((0.06, first.y0 / figure.bbox.height), figure.transFigure)


def log_axis(
    axes: Axes,
    axis: str,
    values: ArrayLike,
    *,
    among: ArrayLike | None = None,
    narrow: bool = False,
    remark: bool = True,
) -> int:
    """Make an axis logarithmic; write on it how many of `values` it cannot show, and return that number.

    Panels that share the axis give all of its values in `among`: its ticks are for those. In a `narrow` panel
    the remark takes two lines; without `remark` the caller says it elsewhere.
    """
    x = np.asarray(values, float)
    every = x if among is None else np.asarray(among, float)
    hidden = int((~_showable(x)).sum())
    if _showable(every).any():
        (axes.set_xscale if axis == "x" else axes.set_yscale)("log")
        _log_ticks(axes.xaxis if axis == "x" else axes.yaxis, every[_showable(every)])
    if hidden and remark:
        end = "\n" if narrow else " "
        note(axes, f"{hidden} of {len(x)} values not finite{end}or not positive: not shown")
    return hidden


def _showable(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.isfinite(values) & (values > 0)


def _log_ticks(axis: Axis, shown: NDArray[np.float64]) -> None:
    if shown.max() < 30 * shown.min():  # too few powers of ten in it to read a value
        few = shown.max() < 3 * shown.min()
        axis.set_major_locator(
            mpl.ticker.MaxNLocator(4) if few else mpl.ticker.LogLocator(subs=(1, 2, 5), numticks=12)
        )
        axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    else:
        axis.set_major_formatter(mpl.ticker.FuncFormatter(power_of_ten))
    axis.set_minor_locator(mpl.ticker.NullLocator())


def power_of_ten(value: float, position: int | None = None) -> str:
    """Label a tick of a log axis, as 10³; plain Unicode, since parsing TeX costs more than drawing."""
    exponent = round(np.log10(value)) if value > 0 else 0
    if value <= 0 or not np.isclose(value, 10.0**exponent):
        return f"{value:g}"
    return (
        "1" if exponent == 0 else "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    )


def note(axes: Axes, text: str, *, y: float = 0.985) -> None:
    """Write a small remark, if there is any, into the upper right corner of a panel."""
    if not text:
        return
    axes.text(
        0.985,
        y,
        text,
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=7.5,
        color="#444444",
        bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5},
    )


def footnote(figure: Figure, lines: Sequence[str]) -> None:
    """Write remarks below the legends, at the left; short ones share a line, only long ones are broken."""
    if not lines:
        return
    figure.draw_without_rendering()  # legends have a place from here on
    width, height = figure.get_size_inches()[0], figure.get_size_inches()[1] * figure.dpi
    lowest = min((legend.get_window_extent().y0 for legend in figure.legends), default=0.0)
    most = int(LINE * width / WIDTH)
    whole = (line.replace(" ", "\N{NO-BREAK SPACE}") if len(line) < most else line for line in lines)
    text = textwrap.fill(";  ".join(whole), most, break_long_words=False, break_on_hyphens=False).replace(
        "\N{NO-BREAK SPACE}", " "
    )
    figure.text(0.065, lowest / height - 0.01, text, va="top", fontsize=8, color="#333333")


def percent(axes: Axes) -> None:
    """Show a y axis of shares, 0 to 1, as per cent."""
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_locator(mpl.ticker.MultipleLocator(0.2))
    axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0, decimals=0))


def svg(figure: Figure) -> str:
    """Return the figure as SVG text: transparent, text as outlines, the same bytes for the same figure."""
    out = io.StringIO()
    box = _fixed(figure)
    with styled():
        figure.savefig(
            out, format="svg", transparent=True, bbox_inches=box, metadata={"Date": None, "Creator": None}
        )
    return out.getvalue()


def save(drawing: Drawing, folder: Path, name: str) -> str:
    """Write NAME.svg, NAME.png (white ground) and NAME.csv (the numbers drawn); return the SVG text."""
    folder.mkdir(parents=True, exist_ok=True)
    text = svg(drawing.figure)
    (folder / f"{name}.svg").write_text(text)
    with styled():
        drawing.figure.savefig(folder / f"{name}.png", facecolor="white", bbox_inches=_fixed(drawing.figure))
    drawing.data.to_csv(folder / f"{name}.csv", index=False)
    return text


def _fixed(figure: Figure) -> Bbox:
    """Lay the figure out, once, and return the box (inches) that holds all of it, legends included."""
    with styled():
        if figure.get_layout_engine() is not None:
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        return figure.get_tightbbox().padded(0.05)

"""One module per figure: TITLE, SECTION, NEEDS (tables without which it cannot be drawn) and draw(frames).

NEEDS lists "metrics" or "probe:NAME". `draw` gets the frames of one setting (comparable by norm and rate) and
returns a style.Drawing, or raises UndrawableError; ORDER sorts the figures of a section. Every figure says
what is MEASURED and HOW, what the paper reports of it (EXPECTED, its key in analysis.expectations), and what
these runs show (Drawing.seen). One drawn from a probe's rows of other moments than "init" lists them in WHEN.
"""

import importlib
import json
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING

from analysis import select
from analysis.load import Frames
from study.paths import SEARCH_SUFFIX

if TYPE_CHECKING:
    import pandas as pd

    from analysis.style import Drawing

MOST_NORMS = 8
"""As many norms as one panel can tell apart; more get a panel each (variants.py)."""


class UndrawableError(ValueError):
    """These frames hold too little for the figure; the text says what they lack.

    An empty text: the figure has nothing to add to the others here, and need not be mentioned.
    """


def modules(*, apart: bool = False) -> dict[str, ModuleType]:
    """Every figure of the folder by name, by section and order.

    With `apart` those that show no run (their APART is true), which any frames of the folder can draw, once.
    """
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    found = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    found = {name: module for name, module in found.items() if getattr(module, "APART", False) == apart}
    return dict(sorted(found.items(), key=lambda item: (_place(item[1].SECTION), item[1].ORDER, item[0])))


def lacking(module: ModuleType, frames: Frames) -> list[str]:
    """Which of the tables that a figure needs are absent or empty.

    Metrics of the first steps alone are not what becomes of a network: beside the paper's they would mislead.
    """
    missing = []
    for need in module.NEEDS:
        kind, _, name = need.partition(":")
        table = frames.probes.get(name) if kind == "probe" else frames.metrics
        if table is None or table.empty:
            missing.append(f"probe table '{name}'" if kind == "probe" else "metrics")
        elif kind == "metrics" and not select.beyond_first_steps(frames.runs).any():
            missing.append("more than one epoch of training")
    return missing


def draw(module: ModuleType, frames: Frames) -> "Drawing":
    """Draw a figure, and write on it how many runs of its norms have no table of the probe it shows."""
    from analysis import style

    drawing: style.Drawing = module.draw(frames)
    lines = [line for need in module.NEEDS for line in _unmeasured(module, need, frames, drawing)]
    style.footnote(drawing.figure, lines)
    return drawing


def _unmeasured(module: ModuleType, need: str, frames: Frames, drawing: "Drawing") -> list[str]:
    """As "none: n = 2 of 3 seeds", for each norm shown that has runs without rows of a probe."""
    kind, _, name = need.partition(":")
    if kind != "probe" or "norm" not in drawing.data:
        return []
    table = frames.probes[name]
    measured = set(table.loc[table["when"].isin(getattr(module, "WHEN", ("init",))), "run_id"])
    lines = []
    for norm in dict.fromkeys(drawing.data["norm"].astype("str")):
        runs = frames.runs[frames.runs["norm"] == norm]
        there, all_of_it = runs.loc[runs["run_id"].isin(measured), "seed"].nunique(), runs["seed"].nunique()
        if there < all_of_it:
            lines.append(f"{norm}: n = {there} of {all_of_it} seeds, the others were not measured")
    return lines


def overview(frames: Frames) -> tuple[Frames, list[str]]:
    """Return the runs that a figure of norms and rates shows, and a line for each kind it leaves to others.

    Beside a grid's runs not those of a search for the highest rates: they are at other rates for every seed,
    and stop early. Of more norms than one panel can tell apart only bn and none, as in the paper's Fig 1.
    Raises UndrawableError if there are too many others.
    """
    lines = []
    by_search = searched(frames.runs)
    if by_search.all():
        raise UndrawableError  # the figure of the highest rates shows them
    if by_search.any():
        frames = frames.subset(frames.runs.loc[~by_search, "run_id"])
        lines.append(f"{int(by_search.sum())} runs of a search for the highest rate: see “Table 3”")
    norms = frames.runs["norm"].astype("str")
    n, both = norms.nunique(), norms.isin(["bn", "none"])
    if n > MOST_NORMS:
        if norms[both].nunique() < 2:
            raise UndrawableError(
                f"{n} norms are too many for one panel; each has its own under “Every variant”"
            )
        frames = frames.subset(frames.runs.loc[both, "run_id"])
        lines.append(f"{n - 2} other norms: see “Every variant”")
    return frames, lines


def searched(runs: "pd.DataFrame") -> "pd.Series[bool]":
    """Which runs belong to searches for the highest rate alone."""
    return runs["sweeps"].map(_only_searched).astype(bool)


def _only_searched(sweeps: str) -> bool:
    names = json.loads(sweeps)
    return bool(names) and all(name.endswith(SEARCH_SUFFIX) for name in names)


def _place(section: str) -> tuple[int, str]:
    """Sections in the order in which a network lives: before training, its first steps, training."""
    order = ("Before training: gradients", "Before training: act", "Before training: chan", "The first", "")
    return next(i for i, start in enumerate(order) if section.startswith(start)), section

"""Table 1 of Bjorck et al. 2018 (§4.1): do the terms of a weight's gradient agree or cancel?"""

import pandas as pd

from analysis import style
from analysis.figures import _probes as probes
from analysis.load import Frames
from analysis.tidy import groups

TITLE = "Table 1: do gradients add up or cancel?"
SECTION = probes.DEPTH
ORDER = 7
NEEDS = ("probe:gradient_agreement",)
EXPECTED = "table1"
MEASURED = (
    "A weight's gradient is a sum of one term per image and position. a is the mean over weights of the sum "
    "of the terms' magnitudes, b that of the magnitude of their sum. If all terms agree in sign, a/b is 1; "
    "if they point anywhere and cancel, it is large."
)
HOW = (
    "One batch of training images before any update; all weights of three layers, an early, a middle and a "
    "late one."
)


COLUMNS = ("layer", "norm", "a", "b", "a/b", "the same, summed by image first", "seeds")
"""Headings of the table."""


def draw(frames: Frames) -> style.Drawing:
    """Dots are seeds, lines join medians; and the table itself."""
    data = _data(frames)
    chosen, colours = probes.layers(data), style.norm_colours(probes.norms(data))
    with style.styled():
        figure, grid = probes.panels(1, 1, 2.9)
        axes = grid[0, 0]
        for norm, colour in colours.items():
            mine = data[data["norm"] == norm]
            axes.scatter(
                [chosen.index(int(n)) for n in mine["number"]], mine["ratio"], s=22, color=colour, alpha=0.8
            )
            middle = mine.groupby("number")["ratio"].median()
            axes.plot([chosen.index(int(n)) for n in middle.index], middle, color=colour, linewidth=1)
        axes.axhline(1, color="#444444", linewidth=0.8, linestyle=(0, (2, 2)))
        style.log_axis(axes, "y", data["ratio"])
        axes.set_xticks(range(len(chosen)), [f"layer {n}" for n in chosen])
        axes.set(ylabel="a/b", xlim=(-0.5, len(chosen) - 0.5))
        probes.norm_legend(figure, data)
    caption = (
        "Dots are seeds, lines join their medians. Dotted: 1, where all terms of a weight agree in sign."
    )
    return style.Drawing(figure, data, caption, tuple(_seen(data)), _table(data))


def table(frames: Frames) -> pd.DataFrame:
    """The table, as texts; raises UndrawableError where there is too little to compare."""
    return _table(_data(frames))


def _data(frames: Frames) -> pd.DataFrame:
    rows = probes.rows(frames, "gradient_agreement")
    return rows[["norm", "seed", "number", "a", "b", "ratio", "image_ratio", "nonfinite"]]


def _table(data: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for (number, norm), mine in groups(data, ["number", "norm"]):
        texts = [probes.over_seeds(mine[c]) for c in ("a", "b", "ratio", "image_ratio")]
        rows.append((f"layer {int(number)}", norm, *texts, str(mine["seed"].nunique())))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _seen(data: pd.DataFrame) -> list[str]:
    said = []
    for number in probes.layers(data):
        here = data[data["number"] == number]
        times = 1 / probes.ratio(here, "ratio")
        more = f"; {probes.say(times)} times as much with BN" if times == times else ""
        said.append(f"a/b in layer {number}: {probes.by_norm(here, 'ratio')}{more}.")
    return said

"""Fig 25 of Bjorck et al. 2018 (App. K): the loss along the gradient in the first steps of training."""

import pandas as pd

from analysis import style
from analysis.figures import _loss_lines as lines
from analysis.figures import _probes as probes
from analysis.load import Frames

TITLE = "Fig 25: how far one may step, over the first mini-batches"
SECTION = probes.FIRST
ORDER = 25
NEEDS = ("probe:loss_along_gradient",)
EXPECTED = "fig25"
WHEN = ("first",)
MEASURED = (
    "As Fig 3, on the mini-batches that the network is trained on: the loss after a step against the "
    "gradient, divided by the loss before it, on the same images."
)
HOW = (
    "Measured at the first, fourth and seventh mini-batch, just before the update that each leads to; of "
    "several rates the highest is shown, without normalisation the lowest."
)

BATCHES = (1, 4, 7)


def draw(frames: Frames) -> style.Drawing:
    """One panel per mini-batch, one line per run."""
    table = at_their_rates(probes.rows(frames, "loss_along_gradient", when=WHEN))
    panels = {f"mini-batch {b}": table[table["step"] == b - 1] for b in BATCHES}
    drawing = lines.draw({title: rows for title, rows in panels.items() if len(rows)}, table)
    rates = table.groupby("norm")["lr"].first()
    told = ", ".join(f"{norm} at {style.rate_label(lr)}" for norm, lr in rates.items())
    return drawing._replace(caption=f"Trained with {told}. {drawing.caption}")


def at_their_rates(table: pd.DataFrame) -> pd.DataFrame:
    """Of several rates the highest, as in the paper; without normalisation the lowest."""
    ends = table.groupby("norm")["lr"].agg(["min", "max"])
    wanted = ends["max"].where(ends.index != "none", ends["min"])
    return table[table["lr"] == table["norm"].map(wanted)]

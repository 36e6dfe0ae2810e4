"""Batch size × learning rate (Bjorck et al. 2018, §2.1): accuracy, train–test gap and sharpness at the end.

Its runs differ in batch size, so that they are of several settings: it stands apart from each one's figures.
"""

import json

import numpy as np
import pandas as pd

from analysis import select, style
from analysis.figures import UndrawableError
from analysis.figures import _probes as probes
from analysis.load import Frames
from analysis.tidy import groups

TITLE = "§2.1: rate ÷ batch size, generalisation and sharpness"
SECTION = "The noise of stochastic gradients (Bjorck et al. 2018, §2.1)"
ORDER = 1
NEEDS = ("probe:sharpness",)
APART = True
EXPECTED = "batch_rate"
MEASURED = (
    "Networks with BN trained with several batch sizes and rates: accuracy on the test set, how much higher "
    "it is on the training set, and how sharply the loss curves where training ended."
)
HOW = (
    "The noise of a batch's gradient, as a share of the step, grows with the rate divided by the batch size. "
    "Sharpness is the largest eigenvalue of the loss's Hessian on a fixed set of training images, batch "
    "statistics included. All networks trained equally many epochs, so larger batches took fewer steps."
)

PANELS = (
    ("last_test", "test accuracy"),
    ("gap", "train − test accuracy"),
    ("sharpness", "largest Hessian eigenvalue"),
)
LEAST = 2


def draw(frames: Frames) -> style.Drawing:
    """A dot per run that did not diverge; colour is the rate, marker the batch size."""
    every = measured(frames)
    data = every[every["fate"] != select.DIVERGED]
    if data.drop_duplicates(["lr", "batch"]).shape[0] < LEAST:
        raise UndrawableError("it compares batch sizes and rates, and only one of each has been measured")
    colours = style.rate_colours(data["lr"])
    batches = sorted({int(b) for b in data["batch"]})
    markers = dict(zip(batches, style.MARKERS * len(batches), strict=False))
    with style.styled():
        figure, grid = probes.panels(1, 3, 2.8)
        for axes, (column, label) in zip(grid[0], PANELS, strict=True):
            for (lr, batch), cell in groups(data, ["lr", "batch"]):
                axes.scatter(
                    cell["noise"],
                    cell[column],
                    s=18,
                    color=colours[float(lr)],
                    marker=markers[int(batch)],
                    label=f"{style.rate_label(float(lr))}, batch {batch}",
                )
            style.log_axis(axes, "x", data["noise"])
            axes.set(title=label, xlabel="rate ÷ batch size")
        style.log_axis(grid[0, 2], "y", data["sharpness"])
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4)
        lost = len(every) - len(data)
        style.footnote(figure, [f"{lost} of {len(every)} runs diverged and are not shown"] if lost else [])
    return style.Drawing(figure, data, "One dot per seed.", tuple(_seen(data)))


def measured(frames: Frames) -> pd.DataFrame:
    """One row per run with BN and its sharpness; `batch` is its size, `noise` the rate divided by it."""
    table = frames.probes["sharpness"]
    top = table[(table["when"] == "final") & (table["rank"] == 1)].astype({"run_id": "str"})
    top = top.rename(columns={"eigenvalue": "sharpness"})[["run_id", "sharpness"]]
    runs = select.outcomes(frames).astype({"run_id": "str", "norm": "str"})
    runs = runs[runs["norm"] == "bn"].merge(top, on="run_id")
    if runs.empty:
        raise UndrawableError("no run with BN has its sharpness measured at the end")
    scientific = frames.runs.astype({"run_id": "str"}).set_index("run_id")["scientific"]
    batch = [int(json.loads(scientific[r]).get("batch_size", 128)) for r in runs["run_id"]]
    train = runs["last_train_eval"].where(runs["last_train_eval"].notna(), runs["last_train"])
    found = runs.assign(batch=batch, gap=train - runs["last_test"])
    found["noise"] = found["lr"] / found["batch"]
    columns = ["run_id", "setting", "lr", "batch", "seed", "noise", "last_test", "gap", "sharpness", "fate"]
    return found[columns].astype({"sharpness": float})


def _seen(data: pd.DataFrame) -> list[str]:
    said = []
    for column, label in PANELS:
        rho = probes.rank_correlation(data["noise"], data[column])
        if np.isfinite(rho):
            words = f"Rank correlation of {label} with rate ÷ batch size: {rho:.2f} (n = {len(data)} runs)."
            said.append(words.replace("-", "−"))
    return said or ["Too few runs for a correlation."]

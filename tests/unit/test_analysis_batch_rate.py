"""The figure of batch size × rate: from several settings, with what diverged counted."""

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa
import pytest

from analysis import expectations, figures, style
from analysis.figures import batch_rate
from analysis.load import load
from study.probes import base
from tests import factory

COMMON = {"step": 90, "epoch": 15, "when": "final", "layer": None, "number": None}


def sharpness(value):
    rows = [
        {**COMMON, "rank": rank, "eigenvalue": value and value / rank, "images": 64, "loss": 0.1}
        | {"gradient_norm": 0.2, "products": 20, "nonfinite": 0}
        for rank in (1, 2)
    ]
    return pa.Table.from_pylist(rows, schema=base.schema("sharpness"))


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for lr in (0.1, 0.01):
        for batch in (16, 64, 128):
            for seed in (0, 1):
                table = {"sharpness": sharpness(batch / lr + seed)}
                extra = {} if batch == 128 else {"batch_size": batch}
                factory.write_run(folder, lr=lr, seed=seed, extra=extra, probes=table, gap=0.01 * lr)
    factory.write_run(folder, lr=1.0, fate="diverged", probes={"sharpness": sharpness(None)})
    factory.write_run(folder, lr=0.1, norm="none", probes={"sharpness": sharpness(3.0)})
    return load([folder])


def test_it_stands_apart_and_has_its_expectation():
    assert figures.modules(apart=True)["batch_rate"] is batch_rate
    assert batch_rate.EXPECTED in expectations.EXPECTED


def test_numbers_come_from_the_runs(frames, tmp_path):
    data = batch_rate.measured(frames)
    assert len(data) == 13
    assert set(data["batch"]) == {16, 64, 128}
    one = data[(data["lr"] == 0.01) & (data["batch"] == 16) & (data["seed"] == 1)].iloc[0]
    assert (one["noise"], one["sharpness"]) == (0.01 / 16, 1601.0)
    assert one["setting"] != data[data["batch"] == 64].iloc[0]["setting"]
    drawing = batch_rate.draw(frames)
    assert "largest Hessian eigenvalue with rate ÷ batch size: −0.99" in drawing.seen[2]
    text = style.save(drawing, tmp_path, "batch_rate")
    assert text.startswith("<?xml")
    assert len(pd.read_csv(tmp_path / "batch_rate.csv")) == 12
    assert "1 of 13 runs diverged" in drawing.figure.texts[-1].get_text()
    plt.close("all")


def test_too_little_is_a_sentence(frames):
    cells = frames.runs[(frames.runs["lr"] == 0.1) & (frames.runs["norm"] == "bn")]
    one = cells.loc[cells["setting"] == cells["setting"].iloc[0], "run_id"]
    with pytest.raises(figures.UndrawableError, match="only one of each"):
        batch_rate.draw(frames.subset(one))
    bare = frames.runs.loc[frames.runs["norm"] == "none", "run_id"]
    with pytest.raises(figures.UndrawableError, match="no run with BN"):
        batch_rate.draw(frames.subset(bare))

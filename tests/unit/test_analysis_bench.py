"""`python -m analysis.bench` compares ways that read the same rows, and says so; how long is not tested."""

import pandas as pd

from analysis import bench, catalogue
from analysis.load import load
from study.paths import CATALOGUE

MEASURES = ["step", "epoch", "split", "lr", "loss", "accuracy", "n", "norm"]


def test_all_ways_read_the_same_rows(tmp_path):
    bench.make_runs(tmp_path, 6, csv=True)
    csv, ours = bench.read_csvs(tmp_path), load([tmp_path]).metrics
    assert len(csv) == len(ours) == 6 * bench.ROWS
    for frame in (csv, ours):
        frame["run_id"] = frame["run_id"].astype(str)
    a, b = (f.sort_values(["run_id", "step"], kind="stable").reset_index(drop=True) for f in (csv, ours))
    kinds = dict.fromkeys(("split", "norm"), "str") | dict.fromkeys(("step", "epoch", "n"), "int64")
    pd.testing.assert_frame_equal(a[MEASURES].astype(kinds), b[MEASURES].astype(kinds))


def test_every_ratio_has_its_line_and_the_exit_code_says_whether_all_bounds_are_kept(monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "SETTLED_SECONDS", 0.0)
    monkeypatch.setattr(catalogue, "LEAST_RUNS", 1)
    made, write = [], catalogue.write
    monkeypatch.setattr(catalogue, "write", lambda folder, *more: made.append(folder) or write(folder, *more))
    code = bench.main(["--runs", "4", "--many", "3", "--rounds", "2"])
    text = capsys.readouterr().out
    for name in ("one CSV per run", "cold ", bench.FIRST, "from the catalogue"):
        assert f"  {name}" in text
    assert "2 rounds" in text or "best of 2" in text
    bounded = [line for line in text.splitlines() if line.endswith((" ok", " MISSED"))]
    assert len(bounded) == 5  # two times, three memories
    missed = [line for line in bounded if line.endswith("MISSED") and "making the catalogue" not in line]
    assert code == bool(missed)
    assert len(made) == 3  # twice by "first", once for the memory; never by "cold" or "from the catalogue"


def test_cold_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "LEAST_RUNS", 1)
    bench.make_runs(tmp_path, 2, csv=False)
    load([tmp_path], use_catalogue=False)
    assert not (tmp_path / CATALOGUE).exists()

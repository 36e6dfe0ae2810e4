"""`python -m analysis.bench`: how fast the loader is, against reading one CSV per run with pandas.

Everything runs in one process on the same rows: 2,000 runs of 200 rows, in the page cache. Times are the best
of several alternating rounds; every ratio is printed with the bound it must keep, and the exit code says
whether all do. "Cold" reads every run directory and leaves nothing behind. A folder's first load makes the
catalogue besides, which only later loads profit from: that takes longer, and is printed without a bound.
"""

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from analysis import catalogue
from analysis.load import Frames, load
from study import pipes
from study.paths import CATALOGUE, RunPaths
from study.records import METRICS

ROWS = 200
CSV = "metrics.csv"
FIRST = "cold, and making the catalogue"
COLD_AT_LEAST, CATALOGUE_AT_LEAST, MEMORY_AT_MOST = 2.5, 20.0, 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 0 if every bound is kept, else 1."""
    parser = argparse.ArgumentParser(prog="python -m analysis.bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="runs for the times (default: 2000)")
    parser.add_argument("--many", type=int, default=10000, help="runs for the memory (default: 10000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each way (default: 3)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="analysis-bench-") as folder:
        kept = _times(Path(folder) / "some", options.runs, options.rounds)
    with tempfile.TemporaryDirectory(prefix="analysis-bench-") as folder:
        kept &= _memory(Path(folder) / "many", options.many)
    return 0 if kept else 1


def make_runs(folder: Path, n_runs: int, csv: bool) -> None:
    """Write `n_runs` runs of ROWS rows of noise, as the study would, and the same rows as CSV if asked."""
    rng = np.random.default_rng(0)
    splits = np.array((["batch"] * 8 + ["train", "test"]) * (ROWS // 10))
    old = time.time() - 60
    for i in range(n_runs):
        norm, lr = ("bn", "none")[i % 2], (0.1, 0.003, 0.0001)[i % 3]
        run = RunPaths(folder / f"digits-resnet110-{norm}-lr{lr:g}-s{i}-{i:012x}")
        run.root.mkdir(parents=True)
        table = pa.table(
            {
                "step": np.arange(ROWS),
                "epoch": np.arange(ROWS, dtype=np.int32) // 10,
                "split": splits,
                "lr": np.full(ROWS, lr),
                "loss": rng.random(ROWS),
                "accuracy": rng.random(ROWS),
                "n": np.full(ROWS, 64),
                "predicted": [None if s == "batch" else list(range(10)) for s in splits],
                "poisoned": np.zeros(ROWS, bool),
            },
            schema=METRICS,
        )
        pq.write_table(table, run.metrics, compression="zstd")
        record = {
            "status": "finished",
            "outcome": "trained",
            "norm": norm,
            "lr": lr,
            "seed": i,
            "chance": 0.1,
        }
        run.record.write_text(json.dumps(record))
        os.utime(run.metrics, (old, old))
        if csv:
            table.to_pandas().to_csv(run.root / CSV, index=False)


def read_csvs(folder: Path) -> pd.DataFrame:
    """What the loader is compared with: every run's CSV and record, concatenated."""
    pieces = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        record = json.loads((path / "run.json").read_text())
        pieces.append(pd.read_csv(path / CSV).assign(run_id=path.name, norm=record["norm"]))
    return pd.concat(pieces, ignore_index=True)


def _times(folder: Path, n_runs: int, rounds: int) -> bool:
    make_runs(folder, n_runs, csv=True)
    time.sleep(catalogue.SETTLED_SECONDS + 0.1)  # the last runs written must have settled
    ways: dict[str, Callable[[], object]] = {
        "one CSV per run": lambda: read_csvs(folder),
        "cold": lambda: load([folder], use_catalogue=False),
        FIRST: lambda: load([folder]),
        "from the catalogue": lambda: load([folder]),
    }
    load([folder], use_catalogue=False)  # the warm-up of every import
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            if name == FIRST:
                shutil.rmtree(folder / CATALOGUE, ignore_errors=True)
            begin = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - begin)
    print(f"loading {n_runs} runs × {ROWS} rows, seconds (best of {rounds}; slowest in brackets)")
    for name, seconds in taken.items():
        print(f"  {name:<33} {min(seconds):7.3f} ({max(seconds):.3f})")
    base = min(taken["one CSV per run"])
    print(f"  {FIRST}: {base / min(taken[FIRST]):.1f} times faster")
    cold, warm = base / min(taken["cold"]), base / min(taken["from the catalogue"])
    return _bound("cold", cold, COLD_AT_LEAST) & _bound("from the catalogue", warm, CATALOGUE_AT_LEAST)


def _memory(folder: Path, n_runs: int) -> bool:
    make_runs(folder, n_runs, csv=False)
    kept = True
    for name, use in (("cold", False), ("making the catalogue", True), ("from the catalogue", True)):
        frames, peak = _peak(lambda use=use: load([folder], use_catalogue=use))  # type: ignore[misc]
        size = frames.metrics.memory_usage(deep=True).sum() + frames.runs.memory_usage(deep=True).sum()
        ratio = peak / size
        met = ratio <= MEMORY_AT_MOST
        kept &= met or name == "making the catalogue"
        print(
            f"memory, {n_runs} runs, {name}: peak {peak / 1e6:.0f} MB above the start, frames "
            f"{size / 1e6:.0f} MB: {ratio:.2f} times (at most {MEMORY_AT_MOST:g}) {'ok' if met else 'MISSED'}"
        )
        del frames
    return kept


def _peak(way: Callable[[], Frames]) -> tuple[Frames, int]:
    """Run `way`; return what it gives and the most resident memory above the start, sampled every ms."""
    process, stop = psutil.Process(), threading.Event()
    start = process.memory_info().rss
    highest = [start]

    def watch() -> None:
        while not stop.wait(0.001):
            highest[0] = max(highest[0], process.memory_info().rss)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        frames = way()
    finally:
        stop.set()
        thread.join()
    return frames, max(highest[0], process.memory_info().rss) - start


def _bound(name: str, ratio: float, least: float) -> bool:
    met = ratio >= least
    print(f"  {name}: {ratio:.1f} times faster (at least {least:g}) {'ok' if met else 'MISSED'}")
    return met


if __name__ == "__main__":
    pipes.run(main)

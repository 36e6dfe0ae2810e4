"""The smallest run that exercises everything, and how two finished runs are compared to the bit."""

from pathlib import Path

import pyarrow.parquet as pq
import torch

from study.config import RunConfig, from_mapping
from study.paths import RunPaths
from study.records import read_record

MARKS = ("created", "updated", "seconds", "restarts", "git", "code_changed", "host", "sweeps", "wandb_id")
"""Keys of run.json that say when and where, not what."""


def tiny(runs_dir: Path, **changes: object) -> RunConfig:
    """Eight updates of a ResNet-8 with two to four channels, on augmented synthetic images."""
    settings: dict[str, object] = {
        "data": {"name": "synthetic", "subset": 160, "crop_padding": 1, "flip": True, "validation": 0.2},
        "model": {"depth": 8, "widths": [2, 3, 4], "dropout": 0.1},
        "epochs": 2,
        "batch_size": 32,
        "lr": 0.05,
        "device": "cpu",
        "checkpoint_seconds": 0.0,
        "runs_dir": str(runs_dir),
    }
    return from_mapping(settings | changes)


def assert_same_results(a: RunPaths, b: RunPaths) -> None:
    """Fail unless two finished runs hold the same rows, weights and record, to the bit."""
    for name in sorted({p.name for run in (a, b) for p in run.root.rglob("*.parquet")}):
        found = [next(run.root.rglob(name)) for run in (a, b)]
        rows = [repr(pq.read_table(file).to_pylist()) for file in found]  # exact, and NaN is NaN
        assert rows[0] == rows[1], name
    weights = [torch.load(run.weights, weights_only=True) for run in (a, b)]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        if isinstance(value, torch.Tensor):
            assert value.equal(weights[1][name]), name
        else:
            assert value == weights[1][name], name
    records = [read_record(run) for run in (a, b)]
    assert records[0] is not None
    assert records[1] is not None
    for record in records:
        for mark in MARKS:
            record.pop(mark)
    assert records[0] == records[1]


def leftovers(paths: RunPaths) -> list[str]:
    """Names in a run directory that a finished run should not have."""
    expected = {"config.yaml", "run.json", "metrics.parquet", "weights.pt", "log.txt", "probes"}
    return sorted(p.name for p in paths.root.iterdir() if p.name not in expected)

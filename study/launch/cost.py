"""What a run will cost, from the measured times of finished runs that are like it."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from study.config import RunConfig
from study.identity import scientific
from study.paths import run_dirs
from study.records import DamagedRunError, misnamed, read_record

MIN_STEPS = 10
"""A run that ended after fewer steps says nothing about the cost of a step."""

Measured = Mapping[tuple[str, ...], float]
"""Median seconds per epoch by kind of run (finer and coarser kinds)."""


def measure(runs_dirs: Iterable[Path]) -> Measured:
    """Return the seconds per epoch of every kind of run found in the folders."""
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for folder in runs_dirs:
        for paths in run_dirs(folder):
            try:
                record = read_record(paths)
            except DamagedRunError:
                continue
            if record is None or misnamed(paths, record) or record.get("steps_done", 0) < MIN_STEPS:
                continue
            fields, seconds = record.get("scientific", {}), record.get("seconds")
            epochs, total = fields.get("epochs", RunConfig.epochs), record.get("steps_total")
            if epochs and total and seconds is not None:
                for kind in _kinds(fields):
                    found[kind].append(seconds / record["steps_done"] * total / epochs)
    return {kind: statistics.median(seconds) for kind, seconds in found.items()}


def remaining(config: RunConfig, share_done: float, measured: Measured) -> float | None:
    """Seconds that the rest of a run takes; None if nothing like it was measured."""
    for kind in _kinds(scientific(config)):
        if kind in measured:
            return measured[kind] * config.epochs * (1 - share_done)
    return None


def duration(seconds: float) -> str:
    """Return a duration as a person says it: 45 s, 12 min, 3.4 h, 2.1 days."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def _kinds(fields: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Finer and coarser kind: same network, data, batch and precision; and same norm or any."""
    same = [f"{k}={v}" for k, v in sorted(fields.items()) if k.startswith(("model.", "data."))]
    same += [f"{k}={fields[k]}" for k in ("batch_size", "precision") if k in fields]
    norm = [f"{k}={v}" for k, v in sorted(fields.items()) if k.startswith("norm.")]
    return ("norm", *norm, *same), tuple(same)

"""What came of a run, in the words of the tables: outcome, best and last test accuracy."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from study.criteria import fate
from study.paths import RunPaths
from study.status import Status


@dataclass(frozen=True)
class Result:
    """One line of a table of outcomes."""

    outcome: str
    """trained, stuck at chance or diverged; the status of a run that has not finished."""
    best: float | None
    """Highest test accuracy after any epoch."""
    last: float | None
    """Test accuracy after the last epoch."""
    seconds: float | None
    damaged: bool = False
    """Whether the run has finished but its metrics cannot be read."""


def result(paths: RunPaths, status: Status, record: dict[str, Any] | None) -> Result:
    """Read the result of a run from its record and its metrics; the words say so if they are damaged."""
    if record is None or status not in (Status.FINISHED, Status.STOPPED):
        return Result(str(status), None, None, record.get("seconds") if record else None)
    said, chance = record.get("outcome"), float(record.get("chance") or "nan")
    try:
        rows = _test_rows(paths)
        if not all(accuracy is None or 0 <= accuracy <= 1 for accuracy, _ in rows):
            raise pa.ArrowInvalid("an accuracy is no share")
    except (OSError, pa.ArrowException):
        name = paths.metrics.name
        what = f"{name} is {'damaged' if paths.metrics.exists() else 'missing'}"
        return Result(f"{said or status}, but {what}", None, None, record.get("seconds"), damaged=True)
    accuracies = [accuracy for accuracy, _ in rows if accuracy is not None]
    accuracy, n = rows[-1] if rows else (None, None)
    without = "not trained" if record.get("steps_total") == 0 else str(said or status)
    outcome = (fate(said, accuracy, n, chance) if said else None) or without
    best, last = (max(accuracies), accuracies[-1]) if accuracies else (None, None)
    return Result(outcome, best, last, record.get("seconds"))


def _test_rows(paths: RunPaths) -> list[tuple[float | None, int]]:
    """(accuracy, images) of every evaluation on the test set, in order."""
    source = pa.BufferReader(paths.metrics.read_bytes())  # a third of the time of read_table's own way
    columns = ["step", "accuracy", "n", "split"]
    table = pq.ParquetFile(source).read(columns=columns, use_threads=False)
    rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
    return [
        (accuracy, n) for _, accuracy, n, split in sorted(rows, key=lambda row: row[0]) if split == "test"
    ]

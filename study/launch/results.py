"""What came of a run, in the words of the tables: outcome, best and last test accuracy."""

from dataclasses import dataclass
from typing import Any

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


def result(paths: RunPaths, status: Status, record: dict[str, Any] | None) -> Result:
    """Read the result of a run from its record and its metrics."""
    if record is None or status not in (Status.FINISHED, Status.STOPPED):
        return Result(str(status), None, None, record.get("seconds") if record else None)
    rows = _test_rows(paths)
    accuracies = [accuracy for accuracy, _ in rows if accuracy is not None]
    accuracy, n = rows[-1] if rows else (None, None)
    without = "not trained" if record.get("steps_total") == 0 else str(record["outcome"])
    outcome = fate(str(record["outcome"]), accuracy, n, record["chance"]) or without
    best, last = (max(accuracies), accuracies[-1]) if accuracies else (None, None)
    return Result(outcome, best, last, record["seconds"])


def _test_rows(paths: RunPaths) -> list[tuple[float | None, int]]:
    """(accuracy, images) of every evaluation on the test set, in order."""
    if not paths.metrics.exists():
        return []
    table = pq.read_table(
        paths.metrics, columns=["step", "accuracy", "n"], filters=[("split", "=", "test")]
    ).sort_by("step")
    return list(zip(table["accuracy"].to_pylist(), table["n"].to_pylist(), strict=True))

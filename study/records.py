"""What the files of a run say: schemas, atomic writes, and rows that survive any kill. Imports no torch."""

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from study import record_fields
from study.errors import StudyError
from study.paths import RunPaths

SCHEMA_VERSION = 1
"""Version of run.json and of the tables."""

METRICS = pa.schema(
    [
        ("step", pa.int64()),  # updates done when the row was measured
        ("epoch", pa.int32()),  # epochs completed; for `batch` rows the epoch they belong to, from 0
        ("split", pa.string()),  # one of SPLITS
        ("lr", pa.float64()),
        ("loss", pa.float64()),  # mean cross-entropy per image, nats
        ("accuracy", pa.float64()),  # share of images classified correctly
        ("n", pa.int64()),  # images behind the row
        ("predicted", pa.list_(pa.int64())),  # predictions by class; null for `batch`
        ("poisoned", pa.bool_()),  # running statistics have seen a non-finite batch (run.json: poisoned)
    ]
)

SPLITS = ("batch", "train", "train_eval", "validation", "test")
"""`batch`: one training batch. `train`: all batches of one epoch, as they were trained on (train mode,
augmented). The others are evaluated: eval mode, every image once, not augmented; `train_eval` (the training
images) only after the last epoch."""


RANDOM_MATRICES: dict[str, pa.Schema] = {
    "products": pa.schema(
        [
            ("seed", pa.int64()),
            (
                "draw",
                pa.int32(),
            ),  # independent repetition, from 0; within one, product m + 1 extends product m
            ("n", pa.int32()),  # rows and columns of each factor
            ("m", pa.int32()),  # factors
            ("gain", pa.float64()),  # standard deviation of a factor's entries, times √n
            ("log10_condition", pa.float64()),  # largest over smallest singular value
            ("log10_largest", pa.float64()),
            ("log10_smallest", pa.float64()),
        ]
    ),
    "spectra": pa.schema(
        [
            ("seed", pa.int64()),
            ("draw", pa.int32()),
            ("n", pa.int32()),
            ("m", pa.int32()),
            ("log10_values", pa.list_(pa.float64())),  # all n singular values at gain 1, descending
            ("distance", pa.float64()),  # largest distance of their distribution function from the limit's
        ]
    ),
    "regression": pa.schema(
        [
            ("seed", pa.int64()),
            ("draw", pa.int32()),
            ("n", pa.int32()),
            ("m", pa.int32()),
            ("log10_condition", pa.float64()),  # of the design matrix
            ("tolerance", pa.float64()),
            ("log10_steps_weights", pa.float64()),  # until ‖w − w*‖ ≤ tolerance·‖w*‖, from w = 0
            ("log10_steps_loss", pa.float64()),  # until the loss is ≤ tolerance times its start
        ]
    ),
    "density": pa.schema(
        [
            ("m", pa.int32()),
            ("x", pa.list_(pa.float64())),  # ascending, from near 0 to the edge
            ("density", pa.list_(pa.float64())),  # of singular values in the limit n → ∞
            ("cdf", pa.list_(pa.float64())),
            ("edge", pa.float64()),
        ]
    ),
    "fit": pa.schema(
        [
            ("seed", pa.int64()),
            ("n", pa.int32()),
            ("m", pa.int32()),
            ("matrices", pa.int32()),  # independent products, one random singular value of each
            ("distance", pa.float64()),  # Kolmogorov's statistic against the limit
            ("p_value", pa.float64()),
        ]
    ),
}
"""Tables of `python -m study.randmat`: files NAME-*.parquet of its folder, which belong to no run."""


class DamagedRunError(StudyError):
    """A file of a run exists but cannot be read."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write atomically and durably: a temporary name in the same folder, fsync, rename."""
    write_with(path, lambda tmp: _write_durably(tmp, data))


def write_with(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it; nothing is left behind on failure."""
    tmp = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        write(tmp)
        os.replace(tmp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            tmp.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a mapping as strict JSON; non-finite numbers become strings ("nan", "inf", "-inf")."""
    write_bytes(path, json.dumps(strict(value), indent=1, allow_nan=False).encode())


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file atomically and durably."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_bytes(path, sink.getvalue().to_pybytes())


def read_record(paths: RunPaths) -> dict[str, Any] | None:
    """Return run.json, or None if there is none; raises DamagedRunError if it cannot be understood."""
    try:
        text = paths.record.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:  # nothing is known to be wrong with the run
        raise DamagedRunError(f"{paths.record} cannot be read: {error.strerror or error}") from error
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedRunError(
            f"{paths.record} cannot be read ({error}); delete {paths.root} to run it again"
        ) from error
    if wrong := record_fields.fault(record, SCHEMA_VERSION):
        raise DamagedRunError(f"{paths.record} {wrong}")
    assert isinstance(record, dict)
    return record


def misnamed(paths: RunPaths, record: Mapping[str, Any] | None) -> str:
    """Return why a folder that holds a run's files is not that run, to be counted once; empty if it is."""
    run_id = (record or {}).get("run_id", paths.run_id)
    if run_id == paths.run_id:
        return ""
    if RunPaths(paths.root.with_name(run_id)).record.exists():
        return f"a copy of {run_id}"
    return f"its folder is not named after its run, {run_id}"


class Rows:
    """Rows of a run under way: buffered in memory, written as parts, joined into tables at the end.

    A checkpoint names the parts that belong to it (`flush` returns them). Resuming from it drops later ones,
    so every row exists once. Names of tables are "metrics" or "probes/NAME".
    """

    def __init__(self, paths: RunPaths, parts: Iterable[str] = ()) -> None:
        self.paths = paths
        self.parts = list(parts)
        self._pending: dict[str, list[pa.Table]] = {}
        if paths.parts.is_dir():
            for stray in paths.parts.iterdir():
                if stray.name not in self.parts:
                    stray.unlink(missing_ok=True)
        for name in self.parts:
            self._check(paths.parts / name)

    def _check(self, part: Path) -> None:
        """Raise DamagedRunError unless a part can be read; better now than after the last epoch."""
        advice = (
            f"but {self.paths.checkpoint} needs it; delete {self.paths.checkpoint} to start this run over"
        )
        if not part.exists():
            raise DamagedRunError(f"{part} is missing, {advice}")
        try:
            pq.read_metadata(part)
        except (OSError, pa.ArrowException) as error:
            raise DamagedRunError(f"{part} is damaged, {advice}") from error

    def add(self, name: str, table: pa.Table) -> None:
        """Buffer rows of one table."""
        self._pending.setdefault(name, []).append(table)

    def flush(self, step: int) -> list[str]:
        """Write what is buffered as parts that end at `step`; return the names of all parts so far."""
        for name, tables in self._pending.items():
            self.paths.parts.mkdir(parents=True, exist_ok=True)
            part = f"{name.replace('/', '.')}-{step:09d}-{len(self.parts):06d}.parquet"
            write_table(self.paths.parts / part, pa.concat_tables(tables))
            self.parts.append(part)
        self._pending.clear()
        return list(self.parts)

    def drop_after(self, step: int) -> None:
        """Forget buffered rows of later steps: a loss that was read late has shown that they are void."""
        import pyarrow.compute as pc  # slow to import, and hardly ever needed

        for name, tables in self._pending.items():
            self._pending[name] = [t.filter(pc.less_equal(t["step"], step)) for t in tables]

    def join(self) -> None:
        """Write the final tables from the parts and from what is still buffered. Repeating it is harmless."""
        tables: dict[str, list[pa.Table]] = {"metrics": [METRICS.empty_table()]}
        for part in self.parts:
            tables.setdefault(table_of(part), []).append(pq.read_table(self.paths.parts / part))
        for name, pending in self._pending.items():
            tables.setdefault(name, []).extend(pending)
        for name, pieces in tables.items():
            target = self.paths.root / f"{name}.parquet"
            target.parent.mkdir(exist_ok=True)
            write_table(target, pa.concat_tables(pieces))


def table_of(part: str) -> str:
    """Return the table that a part file, given by its name, belongs to."""
    return part.rsplit("-", 2)[0].replace("probes.", "probes/", 1)


def strict(value: Any) -> Any:
    """Return nested plain values with non-finite numbers as strings, as run.json holds them."""
    if isinstance(value, Mapping):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return str(value)
    return value


def _write_durably(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())

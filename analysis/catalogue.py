"""A compacted copy of a runs folder's complete runs, used only for runs that have not changed since.

It lies in RUNS/.catalogue as generations: folders that are written under a temporary name, renamed once, and
never changed afterwards. Readers take the newest; the writer removes older ones. Nothing here is needed:
whatever is absent, damaged or out of date is read from the run directories, and deleting it loses nothing.
"""

import contextlib
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from study.paths import CATALOGUE, RunPaths
from study.records import METRICS

FORMAT = 4
"""Version of these files; another version's generations are ignored."""

SETTLED_SECONDS = 2.0
"""A file changed less than this before it was looked at is read again next time: within one tick of the file
system's clock it could change once more and keep its times."""

ABANDONED_SECONDS = 3600.0
"""A generation that has been half written for so long is nobody's any more."""

LEAST_RUNS = 50
"""Smaller folders are read directly: that takes no longer."""


@dataclass
class Part:
    """Tables of some runs of one folder, still in Arrow."""

    runs: pd.DataFrame
    metrics: pa.Table
    probes: dict[str, pa.Table] = field(default_factory=dict)


_EXAMPLE = RunPaths(Path())
_TABLES = (_EXAMPLE.record.name, _EXAMPLE.metrics.name)


def stamp(root: str) -> tuple[str, int]:
    """What changes when any table or the record of the run in `root` does, and the newest change's time (ns).

    Inode, size, modification and change time of run.json, metrics.parquet and each probe table. The study
    replaces files by renaming, so a change always brings a new inode or a new change time.
    """
    seen: list[tuple[str | int, ...]] = []
    newest = 0
    for name in _TABLES:
        with contextlib.suppress(OSError):
            found = os.stat(f"{root}{os.sep}{name}")
            seen.append((found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
            newest = max(newest, found.st_ctime_ns)
    with contextlib.suppress(OSError), os.scandir(f"{root}{os.sep}{_EXAMPLE.probes.name}") as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            found = entry.stat()
            seen.append((entry.name, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
            newest = max(newest, found.st_ctime_ns)
    return repr(seen), newest


def read(folder: Path, stamps: Mapping[str, tuple[str, int]]) -> Part | None:
    """The catalogued rows of those runs whose stamp is still the same, or None if there is nothing to use."""
    for generation in _generations(folder):
        try:
            return _read(generation, stamps)
        except (OSError, pa.ArrowException, KeyError, ValueError):
            continue  # half removed by another writer, or damaged
    return None


def write(folder: Path, part: Part, stamps: Mapping[str, tuple[str, int]], looked_ns: int) -> bool:
    """Make a new generation of the settled runs of `part`; False if the folder cannot be written to.

    `stamps` must have been taken before the tables were read, at `looked_ns` (time.time_ns()).
    """
    limit = looked_ns - int(SETTLED_SECONDS * 1e9)
    keep = [run for run in part.runs["run_id"] if stamps[run][1] < limit]
    root = folder / CATALOGUE
    name = f"{_prefix()}{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
    temporary = root / f".{name}.tmp"
    try:
        temporary.mkdir(parents=True)
        runs = part.runs[part.runs["run_id"].isin(keep)]
        runs = runs.assign(stamp=[stamps[run][0] for run in runs["run_id"]])
        runs.to_parquet(temporary / "runs.parquet", index=False)
        kept = set(keep)
        pq.write_table(_only(part.metrics, kept), temporary / "metrics.parquet", compression="lz4")
        for probe, table in part.probes.items():
            pq.write_table(_only(table, kept), temporary / f"probe-{probe}.parquet", compression="lz4")
        older = list(_generations(folder))
        temporary.rename(root / name)
    except (OSError, pa.ArrowException):
        shutil.rmtree(temporary, ignore_errors=True)
        return False
    for generation in older:
        shutil.rmtree(generation, ignore_errors=True)
    for left in root.glob(".*.tmp"):  # of a writer that was killed
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    return True


def _read(generation: Path, stamps: Mapping[str, tuple[str, int]]) -> Part:
    runs = pd.read_parquet(generation / "runs.parquet")
    fresh = {r for r, s in zip(runs["run_id"], runs["stamp"], strict=True) if stamps.get(r, ("",))[0] == s}
    runs = runs[runs["run_id"].isin(fresh)].drop(columns="stamp").reset_index(drop=True)
    metrics = _only(pq.read_table(generation / "metrics.parquet"), fresh)
    probes = {
        path.stem.removeprefix("probe-"): _only(pq.read_table(path), fresh)
        for path in sorted(generation.glob("probe-*.parquet"))
    }
    return Part(runs, metrics, {name: table for name, table in probes.items() if len(table)})


def _only(table: pa.Table, runs: set[str]) -> pa.Table:
    """Rows of these runs; the table itself when that is all of them."""
    column = table.column("run_id")
    present = set(column.unify_dictionaries().chunk(0).dictionary.to_pylist()) if column.num_chunks else set()
    if present <= runs:
        return table
    return table.filter(pc.is_in(column.cast(pa.string()), pa.array(sorted(runs), pa.string())))


def _generations(folder: Path) -> list[Path]:
    """Complete generations of this format, newest first."""
    try:
        names = os.listdir(folder / CATALOGUE)
    except OSError:
        return []
    return [folder / CATALOGUE / name for name in sorted(names, reverse=True) if name.startswith(_prefix())]


def _prefix() -> str:
    schema = hashlib.sha256(METRICS.to_string().encode()).hexdigest()[:8]
    return f"v{FORMAT}-{schema}-"

"""Any set of run directories → tidy frames, with everything that is left out listed by name."""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis import parquet
from analysis import runs as runs_table
from study.paths import RunPaths, run_dirs
from study.records import METRICS, DamagedRunError, read_record
from study.status import Status

MEASURED = frozenset({Status.FINISHED, Status.STOPPED})
"""Statuses whose tables are complete; a stopped run's fate was decided before its last epoch."""

PROBLEMS = ("run_id", "kind", "problem", "path")
"""Columns of Frames.problems; kind is missing, damaged, unfinished, failed, duplicate or probe."""


class LoadError(ValueError):
    """The folder or sweep asked for does not exist; the text is the whole message."""


@dataclass(frozen=True)
class Frames:
    """The tables of a set of runs."""

    runs: pd.DataFrame
    """One row per readable run, finished or not (columns: analysis.runs)."""
    metrics: pd.DataFrame
    """run_id, norm and the columns of study.records.METRICS; only runs whose tables are complete."""
    probes: dict[str, pd.DataFrame]
    """Probe name → run_id, norm and that probe's columns."""
    problems: pd.DataFrame
    """What is missing, damaged, unfinished, failed or doubled: run_id, kind, problem, path."""

    def subset(self, run_ids: Iterable[str]) -> "Frames":
        """The same frames, of these runs only; problems of runs that have no row in `runs` stay."""
        keep = set(run_ids)

        def within(frame: pd.DataFrame) -> pd.DataFrame:
            chosen = frame[frame["run_id"].isin(keep)].reset_index(drop=True)
            for name in chosen.columns.intersection(list(parquet.CATEGORIES)):
                chosen[name] = chosen[name].cat.remove_unused_categories()
            return chosen

        known = set(self.runs["run_id"])
        mine = self.problems["run_id"].map(lambda run: run in keep or run not in known).astype(bool)
        probes = {name: within(table) for name, table in self.probes.items()}
        probes = {name: table for name, table in probes.items() if len(table)}
        problems = self.problems[mine].reset_index(drop=True)
        return replace(
            self, runs=within(self.runs), metrics=within(self.metrics), probes=probes, problems=problems
        )

    def sweep(self, name: str) -> "Frames":
        """Only the runs that the sweep of this name asked for; raises LoadError if no run names it."""
        listed = self.runs["sweeps"].map(json.loads)
        chosen = self.runs.loc[[name in sweeps for sweeps in listed], "run_id"]
        if chosen.empty:
            known = sorted({str(s) for sweeps in listed for s in sweeps})
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise LoadError(f"no run belongs to sweep '{name}'.{hint} Sweeps: {', '.join(known) or 'none'}.")
        return self.subset(chosen)


def load(paths: Iterable[Path | str]) -> Frames:
    """Load run directories, or folders of them; raises LoadError if one of the paths is not a folder."""
    found, problems = _unique(find(paths))
    records, faults = _records(found)
    problems += faults
    complete = [run for run, record in records if record["status"] in MEASURED]
    table, bad = parquet.read({run.run_id: run.metrics for run in complete}, METRICS)
    problems += _faults(complete, "metrics.parquet", bad)
    runs = runs_table.frame((str(run.root), record) for run, record in records)
    probes, faults = _probes(complete)
    problems += faults
    norms = runs.set_index("run_id")["norm"]
    return Frames(
        runs=runs,
        metrics=_with_norm(table, norms),
        probes={name: _with_norm(probe, norms) for name, probe in probes.items()},
        problems=pd.DataFrame(problems, columns=list(PROBLEMS)).astype("str"),
    )


def find(paths: Iterable[Path | str]) -> list[RunPaths]:
    """All run directories at or below `paths`; raises LoadError if a path is not a folder."""
    found: list[RunPaths] = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise LoadError(f"there is no folder '{path}': --runs takes the folder that runs_dir= named.")
        run = RunPaths(path)
        found += [run] if run.record.exists() or run.config.exists() else run_dirs(path)
    return found


Problem = tuple[str, str, str, str]


def _unique(found: list[RunPaths]) -> tuple[list[RunPaths], list[Problem]]:
    """The first directory of each run id; the others are the same run again."""
    first: dict[str, RunPaths] = {}
    problems: list[Problem] = []
    for run in found:
        kept = first.setdefault(run.run_id, run)
        if kept.root.resolve() != run.root.resolve():
            problems.append((run.run_id, "duplicate", f"also in {kept.root}, which is used", str(run.root)))
    return list(first.values()), problems


def _records(found: list[RunPaths]) -> tuple[list[tuple[RunPaths, dict[str, object]]], list[Problem]]:
    records: list[tuple[RunPaths, dict[str, object]]] = []
    problems: list[Problem] = []
    for run in found:
        where = str(run.root)
        try:
            record = read_record(run)
        except DamagedRunError as error:
            problems.append((run.run_id, "damaged", str(error), where))
            continue
        if record is None:
            problems.append((run.run_id, "missing", "has a config.yaml but no run.json: not started", where))
            continue
        record["run_id"] = run.run_id  # the directory's name: a copied or renamed run stays one run
        records.append((run, record))
        status = record["status"]
        if status == Status.FAILED:
            error_text = str(record.get("error") or "no message").strip().splitlines()[-1]
            problems.append((run.run_id, "failed", f"{error_text} (see {run.log})", where))
        elif status not in MEASURED:
            done, total = record.get("steps_done"), record.get("steps_total")
            text = f"status {status}, {done or 0} of {total or 'unknown'} steps done"
            problems.append((run.run_id, "unfinished", text, where))
    return records, problems


def _probes(complete: list[RunPaths]) -> tuple[dict[str, pa.Table], list[Problem]]:
    """All probe tables, and which runs lack one that others have."""
    files: dict[str, dict[str, Path]] = {}
    for run in complete:
        for path in sorted(run.probes.glob("*.parquet")) if run.probes.is_dir() else ():
            files.setdefault(path.stem, {})[run.run_id] = path
    tables: dict[str, pa.Table] = {}
    problems: list[Problem] = []
    for name, having in sorted(files.items()):
        tables[name], bad = parquet.read(having, None)
        problems += _faults(complete, f"probes/{name}.parquet", bad)
        lacking = [run for run in complete if run.run_id not in having]
        problems += [(r.run_id, "probe", f"has no table of probe '{name}'", str(r.root)) for r in lacking]
    return tables, problems


def _faults(runs: list[RunPaths], what: str, bad: dict[str, str]) -> list[Problem]:
    kinds = {run: "missing" if fault == "is missing" else "damaged" for run, fault in bad.items()}
    return [
        (r.run_id, kinds[r.run_id], f"{what} {bad[r.run_id]}", str(r.root)) for r in runs if r.run_id in bad
    ]


def _with_norm(table: pa.Table, norms: "pd.Series[str]") -> pd.DataFrame:
    """Convert to pandas and put the run's norm, as a categorical, beside its id."""
    frame = parquet.to_frame(table)
    labels = frame["run_id"].cat.categories.map(norms.astype("str").to_dict())
    kinds = pd.Index(sorted(set(norms.astype("str"))))
    places = kinds.get_indexer(labels)
    codes = places[frame["run_id"].cat.codes] if len(labels) else np.empty(0, int)
    column: Any = pd.Categorical.from_codes(codes, kinds)
    frame.insert(1, "norm", column)
    return frame

"""Any set of run directories → tidy frames, with everything that is left out listed by name."""

import difflib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analysis import catalogue, parquet
from analysis import runs as runs_table
from analysis.catalogue import Part
from study.ownership import observed_status
from study.paths import SEARCH_SUFFIX, RunPaths, run_dirs
from study.probe_schemas import schema
from study.records import METRICS, DamagedRunError, misnamed, read_record
from study.status import Status

MEASURED = frozenset({Status.FINISHED, Status.STOPPED})
"""Statuses whose tables are complete; a stopped run's fate was decided before its last epoch."""

PROBLEMS = ("run_id", "kind", "problem", "path")
"""Columns of Frames.problems; kind is missing, damaged, misnamed, unfinished, failed, duplicate or
probe."""


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
    folders: tuple[Path, ...] = ()
    """The folders of runs that were loaded; beside the runs may lie what belongs to none."""

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
        """Only the runs that the sweep of this name asked for; raises LoadError if no run names it.

        Of a sweep that was only searched for its highest rates, the runs of the search.
        """
        listed = self.runs["sweeps"].map(json.loads)
        searched = f"{name}{SEARCH_SUFFIX}"
        if not any(name in sweeps for sweeps in listed) and any(searched in sweeps for sweeps in listed):
            name = searched
        chosen = self.runs.loc[[name in sweeps for sweeps in listed], "run_id"]
        if chosen.empty:
            known = sorted({str(s) for sweeps in listed for s in sweeps})
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise LoadError(f"no run belongs to sweep '{name}'.{hint} Sweeps: {', '.join(known) or 'none'}.")
        return self.subset(chosen)


def load(paths: Iterable[Path | str] | Path | str, *, use_catalogue: bool = True) -> Frames:
    """Load run directories, or folders of them, one or several; raises LoadError if one is not a folder.

    Complete runs that have not changed come from the folder's catalogue (see analysis.catalogue), which is
    brought up to date on the way where the folder can be written to.
    """
    given = [Path(p) for p in ([paths] if isinstance(paths, (str, Path)) else paths)]
    every = find(given)
    alone = {run.root for run in every}
    folders = {p.parent if p in alone else p for p in given}
    found, problems = _unique(every)
    parts: list[Part] = []
    for folder, runs in _by_folder(found).items():
        problems += _load_folder(folder, runs, use_catalogue and len(runs) >= catalogue.LEAST_RUNS, parts)
    if not parts:
        parts.append(Part(runs_table.frame([]), parquet.read({}, METRICS)[0]))
    records = runs_table.ordered(pd.concat([part.runs for part in parts], ignore_index=True))
    norms = records.set_index("run_id")["norm"]
    tables, faults = _unite_probes(parts, records)
    problems += faults
    tables[""] = parquet.unite([part.metrics for part in parts])
    parts.clear()  # from here on each table is held once, and let go of as it is converted
    frames = {name: _with_norm(parquet.to_frame(tables.pop(name)), norms) for name in list(tables)}
    return Frames(
        runs=runs_table.categorised(records),
        metrics=frames.pop(""),
        probes=frames,
        problems=pd.DataFrame(problems, columns=list(PROBLEMS)).astype("str"),
        folders=tuple(sorted(folders)),
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
        if kept is not run and kept.root.resolve() != run.root.resolve():
            problems.append((run.run_id, "duplicate", f"also in {kept.root}, which is used", str(run.root)))
    return list(first.values()), problems


def _by_folder(found: list[RunPaths]) -> dict[Path, list[RunPaths]]:
    folders: dict[Path, list[RunPaths]] = {}
    for run in found:
        folders.setdefault(run.root.parent, []).append(run)
    return folders


def _load_folder(folder: Path, runs: list[RunPaths], use_catalogue: bool, parts: list[Part]) -> list[Problem]:
    """Add one folder's parts: unchanged runs from its catalogue, the others from their directories."""
    if not use_catalogue:
        part, _, problems = _read_directories(runs)
        parts.append(part)
        return problems
    looked = time.time_ns()
    stamps = {run.run_id: catalogue.stamp(os.fspath(run.root)) for run in runs}
    known = catalogue.read(folder, stamps)
    ids = set() if known is None else set(known.runs["run_id"])
    changed = [run for run in runs if run.run_id not in ids]
    if known is not None:
        where = os.path.join(folder, "")
        known.runs["path"] = pd.Series([where + run for run in known.runs["run_id"]], dtype="str")
    mine = [] if known is None else [known]
    if known is not None and not changed:
        parts += mine
        return []
    fresh, sound, problems = _read_directories(changed)
    mine.append(fresh)
    parts += mine
    settled = looked - int(catalogue.SETTLED_SECONDS * 1e9)
    if any(stamps[run][1] < settled for run in sound):
        records = pd.concat([part.runs for part in mine], ignore_index=True)
        complete = Part(
            records[records["run_id"].isin(ids | sound)],
            parquet.unite([part.metrics for part in mine]),
            _unite_probes(mine, records)[0],
        )
        catalogue.write(folder, complete, stamps, looked)
    return problems


def _read_directories(found: list[RunPaths]) -> tuple[Part, set[str], list[Problem]]:
    """All tables of these runs, the ids of the complete and sound ones, and what is wrong with others."""
    records, problems = _records(found)
    complete = [run for run, record in records if record["status"] in MEASURED]
    runs = runs_table.frame((str(run.root), record) for run, record in records)
    records.clear()  # thousands of parsed records need not wait in memory for the tables
    metrics, bad = parquet.read({run.run_id: run.metrics for run in complete}, METRICS)
    metrics, impossible = _without_impossible(metrics)
    bad |= impossible
    problems += _faults(complete, "metrics.parquet", bad)
    files: dict[str, dict[str, Path]] = {}
    for run in complete:
        for path in sorted(run.probes.glob("*.parquet")) if run.probes.is_dir() else ():
            files.setdefault(path.stem, {})[run.run_id] = path
    probes: dict[str, pa.Table] = {}
    faulty = set(bad)
    for name, having in sorted(files.items()):
        probes[name], bad = parquet.read(having, schema(name), check=True)
        problems += _faults(complete, f"probes/{name}.parquet", bad)
        faulty |= set(bad)
    return Part(runs, metrics, probes), {run.run_id for run in complete} - faulty, problems


def _without_impossible(metrics: pa.Table) -> tuple[pa.Table, dict[str, str]]:
    """The rows of runs all of whose accuracies can be, and {run id: what is wrong} of the others.

    A network of non-finite weights has an accuracy as well, a count of answers divided by their number, so
    that none but a damaged table lacks one.
    """
    share = metrics.column("accuracy")
    possible = pc.and_(pc.greater_equal(share, 0), pc.less_equal(share, 1))
    possible = pc.fill_null(pc.and_(possible, pc.greater(metrics.column("n"), 0)), False)
    wrong = metrics.filter(pc.invert(possible)).column("run_id").unique()
    if not len(wrong):
        return metrics, {}
    fault = "is damaged: an accuracy in it is no share of some images"
    names = wrong.to_pylist()
    theirs = pc.is_in(metrics.column("run_id").cast(pa.string()), pa.array(names, pa.string()))
    return metrics.filter(pc.invert(theirs)), dict.fromkeys(names, fault)


def _unite_probes(parts: list[Part], runs: pd.DataFrame) -> tuple[dict[str, pa.Table], list[Problem]]:
    """Every probe's rows from all parts, and which complete runs lack a table that others have."""
    names = sorted({name for part in parts for name in part.probes})
    complete = runs[runs["status"].isin([str(s) for s in MEASURED])]
    tables: dict[str, pa.Table] = {}
    problems: list[Problem] = []
    for name in names:
        pieces = [part.probes[name] for part in parts if name in part.probes]
        declared = schema(name)
        try:
            # A catalogue may be older than what its probe declares now.
            pieces = [parquet.typed(piece, declared) for piece in pieces] if declared else pieces
            tables[name] = parquet.unite(pieces)
        except pa.ArrowException as error:
            tables[name] = pieces[0]
            text = f"probes/{name}.parquet of some runs cannot be joined with the others: {error}"
            problems.append(("", "damaged", text, ""))
        having = set(tables[name].column("run_id").unique().to_pylist())
        lacking = complete[~complete["run_id"].isin(having)]
        problems += [
            (run, "probe", f"has no table of probe '{name}'", path)
            for run, path in zip(lacking["run_id"], lacking["path"], strict=True)
        ]
    return tables, problems


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
        if why := misnamed(run, record):
            problems.append((run.run_id, "misnamed", why, where))
            continue
        if lacking := runs_table.lacking(record, record["status"] in MEASURED):
            text = f"{run.record} lacks {', '.join(lacking)}, without which it belongs nowhere"
            problems.append((run.run_id, "damaged", text, where))
            continue
        if record["status"] == Status.RUNNING:
            record["status"] = str(observed_status(run, record))  # lost, if its process is gone
        record["run_id"] = run.run_id  # which the records of early versions lack
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


def _faults(runs: list[RunPaths], what: str, bad: dict[str, str]) -> list[Problem]:
    kinds = {run: "missing" if fault == "is missing" else "damaged" for run, fault in bad.items()}
    return [
        (r.run_id, kinds[r.run_id], f"{what} {bad[r.run_id]}", str(r.root)) for r in runs if r.run_id in bad
    ]


def _with_norm(frame: pd.DataFrame, norms: "pd.Series[str]") -> pd.DataFrame:
    """Put the run's norm, as a categorical, beside its id."""
    labels = frame["run_id"].cat.categories.map(norms.to_dict())
    kinds = pd.Index(sorted(set(norms)), dtype="str")
    places = kinds.get_indexer(labels).astype(np.int16)
    codes: NDArray[np.int16] = places[frame["run_id"].cat.codes] if len(labels) else np.empty(0, np.int16)
    column: Any = pd.Categorical.from_codes(codes, kinds)
    frame = frame.drop(columns="norm", errors="ignore")  # a gradient's length, in tables of early versions
    frame.insert(1, "norm", column)
    return frame

"""A W&B project → run directories like the local ones, so that `analysis.load` gives the same frames.

    python -m analysis.wandb_source ENTITY/PROJECT --out FOLDER
    python -m analysis.report --runs FOLDER --out report

Rows come from the full history, not the sampled one; run.json from the summary; probe tables from the
artifact. A run that has not changed since is not read again. Requests that fail are tried again.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import wandb

from study import pipes
from study.paths import RunPaths
from study.records import METRICS, write_bytes, write_json, write_table

T = TypeVar("T")

ORDER = ("batch", "train", "validation", "test", "train_eval")
"""Order in which a run records what it measures after one step."""

ATTEMPTS = 5
WAIT_SECONDS = 1.0
"""Before the second attempt; doubled before each further one."""


class SourceError(Exception):
    """W&B cannot be read; the text is the whole message."""


def fetch(project: str, out: Path, *, timeout: int = 30) -> list[str]:
    """Write every run of a W&B project ("ENTITY/PROJECT") below `out`; return what is wrong with some.

    Where several W&B runs are of one run, the first by age stands, and the others are named.
    Raises SourceError if the project cannot be read.
    """
    # The client tries again by itself too, by default for a quarter of an hour.
    wandb.setup(wandb.Settings(silent=True, x_graphql_retry_max=2, x_graphql_retry_wait_max_seconds=5))
    api = _patiently(lambda: wandb.Api(timeout=timeout))
    runs = _patiently(lambda: list(api.runs(project, order="+created_at", lazy=False)))
    problems: list[str] = []
    taken: dict[str, str] = {}
    for run in runs:
        text = run.summary.get("record")
        if not isinstance(text, str):
            problems.append(f"{run.id}: not a run of this study, or it never started")
            continue
        record = json.loads(text)
        if record["run_id"] in taken:
            problems.append(f"{run.id}: the same run as {taken[record['run_id']]}, which is used")
            continue
        taken[record["run_id"]] = run.id
        _write(run, record, RunPaths(out / record["run_id"]))
    return problems


def rows(history: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Turn rows of a W&B history into rows of the metrics table (study.records.METRICS)."""
    for row in history:
        for split in (s for s in ORDER if f"{s}/loss" in row):
            predicted = row.get(f"{split}/predicted")
            yield {
                "step": row["step"],
                "epoch": row["epoch"],
                "split": split,
                "lr": _number(row.get("lr")),
                "loss": _number(row[f"{split}/loss"]),
                "accuracy": _number(row.get(f"{split}/accuracy")),
                "n": row.get(f"{split}/n"),
                "predicted": predicted["values"] if predicted else None,
                "poisoned": row.get("poisoned"),
            }


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m analysis.wandb_source", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("project", metavar="ENTITY/PROJECT")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder of runs to write")
    args = parser.parse_args(argv)
    try:
        problems = fetch(args.project, args.out)
    except SourceError as error:
        print(f"analysis.wandb_source: {error}", file=sys.stderr)
        return 2
    for problem in problems:
        print(problem)
    return 0


def _write(run: Any, record: dict[str, Any], paths: RunPaths) -> None:
    """Write one run's directory; run.json last, so that what it says is there."""
    probes = run.summary.get("probes")
    tables = json.loads(probes) if isinstance(probes, str) else paths.probe_sizes()
    if paths.record.exists() and json.loads(paths.record.read_text()) == record:
        if paths.probe_sizes() != tables:
            _patiently(lambda: _probes(run, paths))
        return
    paths.root.mkdir(parents=True, exist_ok=True)
    found = _patiently(lambda: list(rows(run.scan_history())))
    table = pa.Table.from_pylist(found, METRICS)
    write_table(paths.metrics, table)
    _patiently(lambda: _probes(run, paths))
    write_json(paths.record, record)


def _probes(run: Any, paths: RunPaths) -> None:
    """Write the probe tables and the config from the newest version of the run's artifact."""
    versions = [a for a in run.logged_artifacts() if a.type == "records"]
    for artifact in sorted(versions, key=lambda a: int(a.version.removeprefix("v")))[-1:]:
        with tempfile.TemporaryDirectory() as folder:
            artifact.download(folder, skip_cache=True)
            fetched = RunPaths(Path(folder))
            for file in (fetched.config, *fetched.probes.glob("*.parquet")):
                target = paths.root / file.relative_to(folder)
                target.parent.mkdir(exist_ok=True)
                write_bytes(target, file.read_bytes())


def _patiently(ask: Callable[[], T]) -> T:
    """Ask again after a failure, ATTEMPTS times in all."""
    for attempt in range(ATTEMPTS):
        try:
            return ask()
        except Exception as error:
            if attempt + 1 == ATTEMPTS or isinstance(error, ValueError):  # the latter: no such project
                text = " ".join(str(error).split()) or type(error).__name__
                raise SourceError(f"W&B cannot be read: {text}") from error
            time.sleep(WAIT_SECONDS * 2**attempt)
    raise AssertionError("unreachable")


def _number(value: Any) -> float | None:
    """W&B gives numbers that JSON lacks back as texts: "NaN", "Infinity", "-Infinity"."""
    return None if value is None else float(value)


if __name__ == "__main__":
    pipes.run(main)

"""`python -m study.probe RUN probes=NAME [at=init|final]`: measure a finished run, without training again.

RUN is a run directory, or a run id below `runs_dir`. `probes=` takes a choice of conf/probes, and any setting
of the group besides (`'probes.measure=[gradient_tails]'`). Each of its probes is measured once, on the fixed
probe batch, with the initial weights (a function of the config) or the final ones (weights.pt). Rows of that
moment in a table that is there already are replaced, all others stay.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from study import pipes
from study.config import ProbesConfig, RunConfig, stored_config
from study.errors import ConfigError, StudyError, plain_disk_errors, unknown
from study.identity import run_id
from study.paths import RunPaths
from study.records import read_record, write_table
from study.status import Status

if TYPE_CHECKING:
    from study.state import TrainState

AT = ("init", "final")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; print one plain sentence per error and return the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if given else 2
    try:
        paths, probes, at = _parsed(given)
        with plain_disk_errors(paths.root):
            names, failures = probe_run(paths, probes, at)
    except StudyError as error:
        print(f"study.probe: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(f"measured: {', '.join(names) or 'nothing'}")
    for name, text in failures:
        gap = "\n" if "\n" in text else " "  # a traceback, or a sentence
        print(f"study.probe: {name} failed:{gap}{text}", file=sys.stderr)
    return 1 if failures else 0


def probe_run(paths: RunPaths, probes: ProbesConfig, at: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Add the tables of `probes` at the moment `at` to a finished run.

    Returns the names of the probes measured, and (name, traceback) of those that failed. Raises StudyError if
    the run is not finished, kept no weights, or is owned by another process.
    """
    from study import device as devices
    from study.data.loading import load
    from study.ownership import claim
    from study.probes.base import ProbeEngine, parse
    from study.state import TrainState

    run, steps, epochs = _finished_run(paths, at)
    measured = tuple(f"{name}@{at}" for name in dict.fromkeys(due.name for due in parse(probes.measure)))
    run = dataclasses.replace(run, probes=dataclasses.replace(probes, measure=measured))
    device = devices.prepare(run)
    state = TrainState(run, load(run.data, device), device)
    if at == "final":
        _load_weights(state, paths)
    tables: dict[str, pa.Table] = {}
    failures: list[tuple[str, str]] = []
    engine = ProbeEngine(
        run,
        state.network,
        state.image_set,
        device,
        tables.__setitem__,
        lambda name, step, text: failures.append((name, text)),
        # at init the optimiser is as new; at the end its momentum is lost, so its update is the first one
        optimizer=state.optimizer,
        scaler=state.scaler,
    )
    engine.moment(at, *((steps, epochs) if at == "final" else (0, 0)))
    with claim(paths):
        paths.probes.mkdir(exist_ok=True)
        for name, table in tables.items():
            write_table(paths.probe(name), merged(paths.probe(name), table, at))
    return sorted(tables), failures


def merged(path: Path, table: pa.Table, at: str) -> pa.Table:
    """Return the rows of the table at `path` that are of another moment, and the new ones."""
    if not path.exists():
        return table
    try:
        old = pq.read_table(path, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise StudyError(f"{path} is damaged; delete it and measure again") from error
    old = old.filter(pc.not_equal(old["when"], at))
    return pa.concat_tables([old, table], promote_options="default")


def _parsed(words: Sequence[str]) -> tuple[RunPaths, ProbesConfig, str]:
    from study.compose import compose

    plain = [w for w in words if "=" not in w]
    settings = dict(w.split("=", 1) for w in words if "=" in w)
    at = settings.pop("at", "init")
    if at not in AT:
        raise unknown("moment", at, AT)
    foreign = [k for k in settings if k.lstrip("+") != "probes" and not k.startswith(("probes.", "runs_dir"))]
    if len(plain) != 1 or foreign:
        wrong = foreign[0] if foreign else " ".join(plain)
        raise ConfigError(f"expected one RUN, then probes=…, at=… or runs_dir=…; cannot use '{wrong}'")
    run = compose([f"{k}={v}" for k, v in settings.items()])
    if not run.probes.measure:
        raise ConfigError("nothing to measure: give probes=NAME (a choice of conf/probes other than none)")
    root = Path(plain[0])
    return RunPaths(root if root.is_dir() else Path(run.runs_dir) / plain[0]), run.probes, at


def _finished_run(paths: RunPaths, at: str) -> tuple[RunConfig, int, int]:
    """Return a finished run's config, and the steps and whole epochs it did (one that diverged not all)."""
    from study.ownership import observed_status

    record = read_record(paths)
    if record is None:
        raise StudyError(f"there is no run at {paths.root}")
    if record["status"] != Status.FINISHED:
        status = observed_status(paths, record)
        what = "wait for its end" if status is Status.RUNNING else "launch it again to finish it"
        raise StudyError(f"{paths.run_id} is {status}, not finished; {what}")
    run = stored_config(paths.config)
    if run_id(run) != record.get("run_id"):
        raise StudyError(
            f"{paths.config} is not the config of this run as this version of the study makes it (that is "
            f"{run_id(run)}); nothing was measured"
        )
    if at == "final" and not paths.weights.exists():
        why = (
            f"{paths.weights} is missing; rerun=true trains it again"
            if run.keep_weights
            else f"{paths.run_id} kept no final weights (keep_weights=false)"
        )
        raise StudyError(f"{why}; only at=init is possible")
    total = record.get("steps_total", 0)
    done = record.get("steps_done", total)
    return run, done, done * run.epochs // total if total else 0


def _load_weights(state: "TrainState", paths: RunPaths) -> None:
    import torch

    try:
        weights = torch.load(paths.weights, map_location=state.device, weights_only=True)
        state.network.load_state_dict(weights)
    except Exception as error:
        raise StudyError(
            f"{paths.weights} is damaged or of another network; rerun=true trains it again"
        ) from error


if __name__ == "__main__":
    pipes.run(main)

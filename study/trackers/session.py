"""One W&B run: opened with what describes it, fed rows by position, closed with its outcome."""

import contextlib
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import wandb
from wandb.sdk.lib.wbauth import authenticate_session  # wandb.login writes the user's settings at every run

from study.config import RunConfig, to_mapping
from study.paths import RunPaths
from study.records import strict, table_of
from study.status import Status
from study.trackers import agent_run, history, offline

EXIT_CODES = {Status.FINISHED: 0, Status.STOPPED: 0, Status.FAILED: 1, Status.PREEMPTED: 143}
"""What W&B takes for the process's exit code: 0 is finished, anything else failed."""

INTERRUPTED = 130
MAX_TAG = 64
"""Most characters of a tag that W&B accepts."""


def online() -> bool:
    """Whether W&B is reached while the run trains: WANDB_MODE says so, or else its agent runs us."""
    return os.environ.get("WANDB_MODE", "online" if agent_run() else "offline") in ("online", "run")


class NoAccountError(Exception):
    """W&B is to be reached, but nobody has logged in."""


class Session:
    """A W&B run that is open. Any method may raise what W&B raises, and may block as long as W&B does."""

    def __init__(
        self, config: RunConfig, paths: RunPaths, record: Mapping[str, Any], *, live: bool, patience: float
    ) -> None:
        """Create the W&B run, or continue it where the server has it. `live` is online."""
        self.paths, self.live, self.patience = paths, live, patience
        # The agent's bare settings would replace whole groups of the nested config (norm=bn for norm: {…}).
        os.environ.pop("WANDB_SWEEP_PARAM_PATH", None)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # The agent sets WANDB_DIR to where it was started.
        folder = (None if agent_run() else os.environ.get("WANDB_DIR")) or str(paths.root)
        _remove_earlier(Path(folder), str(record["wandb_id"]))
        settings = wandb.setup(wandb.Settings(silent=True)).settings
        # Its own log would complain on stderr, line by line, of a full disk; the service keeps another one.
        logging.getLogger("wandb").disabled = True
        if live and not authenticate_session(host=settings.base_url, source="study", prompt=False):
            raise NoAccountError(
                "no account is known here: run `wandb login`, or leave out WANDB_MODE=online"
            )
        self.run = wandb.init(
            entity=config.tracker.entity or None,
            project=config.tracker.project,
            id=str(record["wandb_id"]),
            name=paths.run_id,
            group=config.experiment or None,
            tags=[name[:MAX_TAG] for name in record.get("sweeps", ())],
            config=plain_config(config, paths.run_id),
            dir=folder,
            resume="allow" if live else None,
            settings=_settings(live, patience),
        )
        # The last row that the server has; rows up to there are not sent again.
        self.last = int(self.run.starting_step) - 1
        self.sent = 0
        self.n_nonfinite = 0
        self.folder = Path(self.run.dir).parent
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("depth/layer", hidden=True)
        self.run.define_metric("depth/*", step_metric="depth/layer")
        self.run.define_metric("*", step_metric="step")

    def send(self, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Log the rows that lie beyond the last one."""
        for position, values in rows:
            self.n_nonfinite += history.nonfinite(values)
            if position > self.last:
                row = {k: _histogram(v) if isinstance(v, history.Bins) else v for k, v in values.items()}
                self.run.log({**row, "n_nonfinite": self.n_nonfinite}, step=position)
                self.last = position
                self.sent += 1

    def describe(self, record: Mapping[str, Any], tables: history.Tables) -> None:
        """Set the summary: status and outcome, and run.json as one text, from which the loader reads."""
        found = {k: record.get(k) for k in ("status", "outcome", "seconds", "initial_loss", "error")}
        losses = tables["metrics"].column("loss").to_pylist() if "metrics" in tables else []
        found["n_nonfinite"] = sum(not math.isfinite(x) for x in losses if x is not None)
        if record.get("divergence"):
            found["diverged_at_step"] = record["divergence"].get("step")
            found["diverged_at_layer"] = record["divergence"].get("layer")
        # Statuses are enumerations, of which W&B would show the members' names.
        plain = {k: str(v) if isinstance(v, str) else v for k, v in found.items() if v is not None}
        finite = {k: v for k, v in plain.items() if not isinstance(v, float) or math.isfinite(v)}
        self.run.summary.update({**finite, "record": json.dumps(strict(record), allow_nan=False)})

    def attach(self) -> None:
        """Log the run's tables, config and record as one artifact."""
        # The files are final: referring to them spares W&B's own copies of them in the home directory.
        artifact = wandb.Artifact(f"records-{self.run.id}", type="records")
        files = [self.paths.config, self.paths.record, self.paths.metrics]
        files += sorted(self.paths.probes.glob("*.parquet"))
        for path in files:
            name = path.relative_to(self.paths.root).as_posix()
            artifact.add_file(str(path), name=name, policy="immutable", skip_cache=True)
        self.run.log_artifact(artifact)
        # From which a reader knows that study.probe has added tables, which changes nothing else.
        self.run.summary["probes"] = json.dumps(self.paths.probe_sizes())

    def close(self, status: str) -> None:
        """Finish the W&B run; raises TimeoutError where data could not be sent within the patience."""
        if status == Status.PREEMPTED:
            self.run.mark_preempting()
        self.run.finish(exit_code=EXIT_CODES.get(Status(status), INTERRUPTED))

    def lacking(self) -> str:
        """Return what W&B lacks of a run that was closed; empty if nothing.

        The client is silent when a server refuses rows (403 for a quota, say) or a disk is full. Servers and
        the client's own file lag behind, so both are asked until `patience` is over.
        """
        deadline = time.monotonic() + self.patience
        missing = self._missing_on_server() if self.live else self._missing_in_file()
        while (text := missing()) and time.monotonic() < deadline:
            time.sleep(min(1.0, self.patience / 10))
        return text

    def _missing_on_server(self) -> Callable[[], str]:
        api = wandb.Api(timeout=max(1, int(self.patience)))
        run = api.run(f"{self.run.entity}/{self.run.project}/{self.run.id}")

        def missing() -> str:
            there = int(run.lastHistoryStep)
            short = f"only rows up to position {there} of {self.last} were taken (a quota?)"
            return short if there < self.last else ""

        return missing

    def _missing_in_file(self) -> Callable[[], str]:
        return lambda: offline.lacking(self.folder, self.sent)


def plain_config(config: RunConfig, run_id: str) -> dict[str, Any]:
    """Return the nested config in plain values, numbers as numbers; infinity, which JSON lacks, as a text."""
    plain: dict[str, Any] = strict(to_mapping(config))
    return {"run_id": run_id, **plain}


def read_parts(paths: RunPaths, parts: Iterable[str]) -> dict[str, pa.Table]:
    """Return the tables that these parts hold; parts that were joined meanwhile are left out."""
    tables: dict[str, list[pa.Table]] = {}
    for part in parts:
        with contextlib.suppress(FileNotFoundError):
            table = pq.read_table(paths.parts / part)
            tables.setdefault(table_of(part), []).append(table)
    return {name: pa.concat_tables(pieces) for name, pieces in tables.items()}


def read_tables(paths: RunPaths) -> dict[str, pa.Table]:
    """Return the final tables of a run."""
    files = {"metrics": paths.metrics} | {
        f"probes/{path.stem}": path for path in sorted(paths.probes.glob("*.parquet"))
    }
    return {name: pq.read_table(path) for name, path in files.items() if path.exists()}


def _settings(live: bool, patience: float) -> Any:
    return wandb.Settings(
        mode="online" if live else "offline",
        reinit="create_new",  # several runs in one process stay apart
        init_timeout=patience,
        finish_timeout=patience,
        finish_timeout_raises=True,
        x_service_wait=patience,
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )


def _histogram(bins: history.Bins) -> Any:
    return wandb.Histogram(np_histogram=(bins.counts, bins.edges))


def _remove_earlier(folder: Path, wandb_id: str) -> None:
    """Remove W&B's files of earlier attempts: this one sends every row again, so `wandb sync` may too."""
    for earlier in (folder / "wandb").glob(f"*run-*-{wandb_id}"):
        shutil.rmtree(earlier, ignore_errors=True)

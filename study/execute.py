"""One run from its config to its records: claim, start or resume, train, finish.

from study.compose import compose
from study.execute import execute
record = execute(compose(["lr=0.1", "norm=bn"]))
"""

import contextlib
import errno
import logging
import os
import shutil
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch
import yaml

from study import device as devices
from study import ownership, provenance, records, trackers
from study.config import RunConfig, from_mapping, to_mapping
from study.criteria import plateau_reached
from study.data.batches import majority_share
from study.data.loading import load
from study.divergence import first_bad_layer
from study.errors import ConfigError, OwnedElsewhereError, StudyError
from study.identity import run_id, scientific
from study.ownership import Claim, OwnershipLostError, claim, claimed
from study.paths import RunPaths
from study.records import Rows, read_record, write_json
from study.state import TrainState
from study.status import Outcome, Status
from study.train import Ending, Row, train

PROGRESS_SECONDS = 0.5
RERUN_DIR = ".rerun"


class Progress(NamedTuple):
    """How far a run is."""

    step: int
    steps_total: int
    epoch: int
    loss: float
    accuracy: float


Report = Callable[[Progress], None]


def execute(
    config: RunConfig, *, report: Report | None = None, stop: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """Bring a run to its end and return its run.json; a finished one is returned as it is.

    `report` hears of progress about twice a second. When `stop()` turns true the run writes a checkpoint, is
    marked preempted and returns. Raises ConfigError before anything is written; OwnedElsewhereError if
    another process owns the run; StudyError for a full or read-only disk; any other exception is recorded
    (status failed, traceback in log.txt) and raised again.
    """
    final = run_paths(config)
    with _plain_disk_errors(final.root):
        _complete_swap(final)
        finished = _finished(final, config)
        if finished and not config.rerun:
            return finished
        device = devices.prepare(config)
        state = TrainState(config, load(config.data, device), device)
        if state.steps_per_epoch == 0 and config.epochs > 0:
            raise ConfigError(
                f"batch_size={config.batch_size} is out of range: there are only "
                f"{len(state.image_set.train)} training images, and incomplete batches are dropped"
            )
        paths = RunPaths(final.root.parent / RERUN_DIR / final.run_id) if config.rerun else final
        with claim(paths) as held:
            record = _finished(paths, config) or _Run(state, paths, held, report, stop).execute()
    if config.rerun and record["status"] == Status.FINISHED:
        _swap(paths, final)
    return record


def run_paths(config: RunConfig) -> RunPaths:
    """Return the files of the run that a config describes."""
    return RunPaths(Path(config.runs_dir) / run_id(config))


class _Run:
    """A run while this process owns its directory; implements the training loop's Events."""

    def __init__(
        self,
        state: TrainState,
        paths: RunPaths,
        held: Claim,
        report: Report | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        self.state, self.run, self.paths, self.held = state, state.run, paths, held
        self._report, self._stop = report, stop
        self.total = self.run.epochs * state.steps_per_epoch
        self.rows_store: Rows
        self._buffer: list[Row] = []
        self._began = self._last_checkpoint = time.monotonic()
        self._last_report = 0.0
        self.record: dict[str, Any] = {}
        if self.run.probes.measure:
            self._attach_probes()

    def execute(self) -> dict[str, Any]:
        self._refuse_other_config()
        self.record = self._opening_record()
        if not self.paths.config.exists():
            text = yaml.safe_dump(to_mapping(self.run), sort_keys=False)
            records.write_bytes(self.paths.config, text.encode())
        resumed = self._load_checkpoint()
        self._publish(status=Status.RUNNING)
        self.log = _log(self.paths.log)
        self.tracker = trackers.build(self.run, self.paths, self.record)
        try:
            self.log.info(
                "%s at step %d of %d", "resumed" if resumed else "started", self.state.step, self.total
            )
            self.tracker.publish(self.rows_store.parts)
            ending = self._train()
            self._finish(ending)
        except OwnershipLostError:
            raise
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self.tracker.finish(self.record)
            _close(self.log)
        return self.record

    # What the training loop tells and asks (train.Events).

    def rows(self, rows: list[Row]) -> None:
        self._buffer += rows
        for row in rows:
            if row["split"] == "test":
                self.log.info(
                    "epoch %d: test accuracy %.4f, loss %.4g", row["epoch"], row["accuracy"], row["loss"]
                )

    def progress(self, loss: float, accuracy: float) -> None:
        now = time.monotonic()
        if self._report and now - self._last_report >= PROGRESS_SECONDS:
            self._last_report = now
            epoch = self.state.step // max(1, self.state.steps_per_epoch)
            self._report(Progress(self.state.step, self.total, epoch, loss, accuracy))

    def checkpoint_due(self) -> bool:
        return time.monotonic() - self._last_checkpoint >= self.run.checkpoint_seconds

    def stop(self) -> bool:
        return self._stop is not None and self._stop()

    def checkpoint(self) -> None:
        self._flush_rows()
        self.held.check()
        saved = {
            "state": self.state.state_dict(),
            "parts": self.rows_store.flush(self.state.step),
            "seconds": self._seconds(),
        }
        records.write_with(self.paths.checkpoint, lambda tmp: _save(tmp, saved))
        self.tracker.publish(self.rows_store.parts)
        self._last_checkpoint = time.monotonic()

    # The rest is this class's own.

    def _attach_probes(self) -> None:
        from study.probes.base import ProbeEngine

        state = self.state
        state.probes = ProbeEngine(
            self.run,
            state.network,
            state.image_set,
            state.device,
            write=lambda name, table: self.rows_store.add(f"probes/{name}", table),
            fail=self._probe_failed,
            optimizer=state.optimizer,
            scaler=state.scaler,
        )

    def _probe_failed(self, name: str, step: int, text: str) -> None:
        """A probe that raises never ends a run; its failure is in the log and in run.json."""
        self.log.error("probe %s failed at step %d:\n%s", name, step, text)
        failure = {"probe": name, "step": step, "error": text.strip().splitlines()[-1]}
        if failure not in self.record["probe_failures"]:
            self.record["probe_failures"].append(failure)

    def _train(self) -> Ending:
        if self.state.step == 0:
            self.state.probes.moment("init", 0, 0)
        ending = train(self.state, self)
        if ending is Ending.COMPLETE:
            self.state.probes.moment("final", self.state.step, self.run.epochs)
        return ending

    def _finish(self, ending: Ending) -> None:
        """Publish the end; run.json is written last, so that what it says is true whenever it is seen."""
        if ending is Ending.STOPPED:
            self.log.info("preempted at step %d", self.state.step)
            self._publish(status=Status.PREEMPTED)
            return
        diverged = ending is Ending.DIVERGED
        divergence = self._divergence() if diverged else None
        self._flush_rows()
        self.held.check()
        self.rows_store.join()
        if self.run.keep_weights:
            weights = self.state.network.state_dict()
            records.write_with(self.paths.weights, lambda tmp: _save(tmp, weights))
        outcome = Outcome.DIVERGED if diverged else Outcome.TRAINED
        self.log.info("finished: %s", outcome)
        self._publish(status=Status.FINISHED, outcome=outcome, divergence=divergence)
        _drop_progress(self.paths)

    def _divergence(self) -> dict[str, Any]:
        monitor = self.state.monitor
        return {
            "step": monitor.diverged_step,
            "layer": first_bad_layer(self.state, monitor.diverged_step or 0),
            "loss": monitor.diverged_loss,
            "initial_loss": monitor.initial_loss,
        }

    def _fail(self, error: BaseException) -> None:
        """Record a failure; an interruption leaves the run as a kill would, resumable."""
        if isinstance(error, Exception):
            self.log.error("failed: %s", error, exc_info=error)
            text = "".join(traceback.format_exception_only(error)).strip()
            with contextlib.suppress(OSError, StudyError):
                self._publish(status=Status.FAILED, error=text)

    def _load_checkpoint(self) -> bool:
        if not self.paths.checkpoint.exists():
            self.rows_store = Rows(self.paths)
            return False
        try:
            saved = torch.load(self.paths.checkpoint, map_location=self.state.device, weights_only=True)
        except Exception as error:
            raise records.DamagedRunError(f"{self.paths.checkpoint} cannot be read: {error}") from error
        self.rows_store = Rows(self.paths, saved["parts"])
        self.state.load_state_dict(saved["state"])
        self._began -= saved["seconds"]
        return True

    def _flush_rows(self) -> None:
        if self._buffer:
            self.rows_store.add("metrics", pa.Table.from_pylist(self._buffer, records.METRICS))
            self._buffer = []

    def _publish(self, **changes: Any) -> None:
        self.held.check()
        monitor = self.state.monitor
        self.record |= {
            "outcome": None,
            "divergence": None,
            "error": None,
            "initial_loss": monitor.initial_loss,
            "crossings": {
                "absolute_step": monitor.absolute_step,
                "relative_step": monitor.relative_step,
            },
            "poisoned": [{"layer": layer, "step": step} for layer, step in self.state.poisoned],
            "plateau_reached": plateau_reached(
                self.state.losses, self.run.schedule.patience, self.run.schedule.threshold
            ),
            "steps_done": self.state.step,
            "seconds": round(self._seconds(), 3),
            "updated": _now(),
            **changes,
        }
        write_json(self.paths.record, self.record)

    def _refuse_other_config(self) -> None:
        if self.paths.config.exists():
            stored = _stored_config(self.paths)
            if scientific(stored) != scientific(self.run):
                raise ConfigError(
                    f"{self.paths.config} holds another config than the one that asks for this directory; "
                    f"move it away"
                )

    def _opening_record(self) -> dict[str, Any]:
        old = read_record(self.paths) or {}
        run, sets = self.run, self.state.image_set
        sweeps = list(old.get("sweeps", []))
        if run.sweep and run.sweep not in sweeps:
            sweeps.append(run.sweep)
        return {
            "schema": records.SCHEMA_VERSION,
            "run_id": self.paths.run_id,
            "status": Status.RUNNING,
            "norm": run.norm.name,
            "lr": run.lr,
            "seed": run.seed,
            "model": run.model.name,
            "depth": run.model.depth,
            "data": run.data.name,
            "experiment": run.experiment,
            "scale": run.scale,
            "sweeps": sweeps,
            "scientific": scientific(run),
            "n_classes": sets.n_classes,
            "chance": majority_share(sets.test),
            "n_train": len(sets.train),
            "n_test": len(sets.test),
            "conv_biases": self.state.network.conv_biases(),
            "steps_total": self.total,
            "versions": provenance.versions(),
            "threads": run.threads,
            "device": devices.describe(self.state.device),
            "git": provenance.git(),
            "code_changed": provenance.code_changed() or old.get("code_changed"),
            "host": socket.gethostname(),
            "wandb_id": trackers.identity(run, self.paths.run_id, old.get("wandb_id")),
            "probe_failures": list(old.get("probe_failures", [])),
            "created": old.get("created", _now()),
            "restarts": int(old.get("restarts", -1)) + 1,
        }

    def _seconds(self) -> float:
        return time.monotonic() - self._began


def _finished(paths: RunPaths, config: RunConfig) -> dict[str, Any] | None:
    record = read_record(paths)
    if record is None or record["status"] != Status.FINISHED:
        return None
    if paths.config.exists() and scientific(_stored_config(paths)) != scientific(config):
        raise ConfigError(f"{paths.config} holds another config than the one requested under its id")
    killed_at_the_end = paths.checkpoint.exists() or paths.parts.exists() or claimed(paths)
    if killed_at_the_end:
        with contextlib.suppress(OwnedElsewhereError), claim(paths):
            _drop_progress(paths)
    ownership.tag(paths, config.sweep)
    return read_record(paths)


def _drop_progress(paths: RunPaths) -> None:
    """Remove what only a resume needs."""
    paths.checkpoint.unlink(missing_ok=True)
    shutil.rmtree(paths.parts, ignore_errors=True)


def _stored_config(paths: RunPaths) -> RunConfig:
    try:
        return from_mapping(yaml.safe_load(paths.config.read_text()))
    except (OSError, yaml.YAMLError) as error:
        raise records.DamagedRunError(f"{paths.config} cannot be read: {error}") from error


def _swap(new: RunPaths, old: RunPaths) -> None:
    """Put a rerun in the place of the run it repeats; `_complete_swap` mends what a kill leaves half done."""
    aside = _aside(old)
    shutil.rmtree(aside, ignore_errors=True)
    if old.root.exists():
        os.rename(old.root, aside)
    os.rename(new.root, old.root)
    _complete_swap(old)


def _complete_swap(final: RunPaths) -> None:
    """Bring the old run back if its successor never came; forget it otherwise."""
    aside = _aside(final)
    if not aside.exists():
        return
    if final.root.exists():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(aside, final.root)
    with contextlib.suppress(OSError):
        aside.parent.rmdir()


def _aside(final: RunPaths) -> Path:
    return final.root.parent / RERUN_DIR / f"{final.run_id}.old"


@contextlib.contextmanager
def _plain_disk_errors(root: Path) -> Iterator[None]:
    """Turn "no space left", "read-only" and "permission denied" into one plain sentence."""
    plain = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}
    try:
        yield
    except OSError as error:
        if error.errno not in plain:
            raise
        raise StudyError(f"cannot write to {error.filename or root}: {error.strerror}") from error


def _save(path: Path, value: Any) -> None:
    with open(path, "wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())


def _log(path: Path) -> logging.Logger:
    logger = logging.getLogger(f"study.run.{path.parent.name}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger


def _close(logger: logging.Logger) -> None:
    for handler in list(logger.handlers):
        handler.close()
        logger.removeHandler(handler)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""A run while this process owns its directory: opens it, hears the training loop, publishes, finishes."""

import contextlib
import io
import os
import shutil
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch

from study import device as devices
from study import provenance, records, trackers
from study.config import stored_config
from study.criteria import fate_decided, plateau_reached
from study.data.batches import majority_share
from study.divergence import first_bad_layer
from study.errors import ConfigError, StudyError
from study.identity import scientific
from study.opening import close_log, described, now, open_log, write_config
from study.ownership import Claim, OwnershipLostError
from study.paths import RunPaths
from study.records import Rows, read_record, write_json
from study.state import TrainState
from study.status import Outcome, Status
from study.train import Ending, Row, train

PROGRESS_SECONDS = 0.5


class Progress(NamedTuple):
    """How far a run is."""

    step: int
    steps_total: int
    epoch: int
    loss: float
    accuracy: float


Report = Callable[[Progress], None]


class Running:
    """A run while this process owns its directory; implements the training loop's Events."""

    def __init__(
        self,
        state: TrainState,
        paths: RunPaths,
        held: Claim,
        report: Report | None,
        stop: Callable[[], bool] | None,
        repeated: dict[str, Any] | None = None,
    ) -> None:
        """`repeated` is the record of the run that a rerun will replace: its sweeps still want it."""
        self.state, self.run, self.paths, self.held = state, state.run, paths, held
        self._report, self._stop, self._repeated = report, stop, repeated or {}
        self.total = self.run.epochs * state.steps_per_epoch
        self.rows_store: Rows
        self._buffer: list[Row] = []
        self._began = self._last_checkpoint = time.monotonic()
        self._last_report = 0.0
        self._decided = False
        self.record: dict[str, Any] = {}
        if self.run.probes.measure:
            self._attach_probes()

    def execute(self) -> dict[str, Any]:
        """Start or resume, train, finish; return run.json."""
        self._refuse_other_config()
        self.record = self._opening_record()
        if not self.paths.config.exists():
            write_config(self.run, self.paths)
        resumed = self._load_checkpoint()
        self._publish(status=Status.RUNNING)
        self.log = open_log(self.paths.log)
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
            close_log(self.log)
        return self.record

    # What the training loop tells and asks (train.Events).

    def rows(self, rows: list[Row]) -> None:
        """Buffer rows until the next checkpoint; say in the log how the test set goes."""
        self._buffer += rows
        for row in rows:
            if row["split"] == "test":
                self.log.info(
                    "epoch %d: test accuracy %.4f, loss %.4g", row["epoch"], row["accuracy"], row["loss"]
                )
                if self.run.stop_when_decided:
                    correct, n = round(row["accuracy"] * row["n"]), row["n"]
                    self._decided = fate_decided(correct, n, self.record["chance"], self.run.epochs)

    def progress(self, loss: float, accuracy: float) -> None:
        """Pass progress on, at most twice a second."""
        now = time.monotonic()
        if self._report and now - self._last_report >= PROGRESS_SECONDS:
            self._last_report = now
            epoch = self.state.step // max(1, self.state.steps_per_epoch)
            self._report(Progress(self.state.step, self.total, epoch, loss, accuracy))

    def checkpoint_due(self) -> bool:
        """Whether `checkpoint_seconds` have passed since the last one."""
        return time.monotonic() - self._last_checkpoint >= self.run.checkpoint_seconds

    def stop(self) -> bool:
        """Whether the run was told to stop, or may because its fate is decided."""
        return self._decided or (self._stop is not None and self._stop())

    def checkpoint(self) -> None:
        """Write the rows so far as parts, then the checkpoint that names them."""
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
        if ending is Ending.STOPPED and self._decided:
            self.rows_store.join()
            self.log.info("stopped at step %d: it has left chance", self.state.step)
            self._publish(status=Status.STOPPED, outcome=Outcome.TRAINED)
            return
        if ending is Ending.STOPPED:
            self.log.info("preempted at step %d", self.state.step)
            self._publish(status=Status.PREEMPTED)
            return
        diverged = ending is Ending.DIVERGED
        divergence = self._divergence() if diverged else None
        self._flush_rows()
        if diverged:
            self.rows_store.drop_after(self.state.step)
        self.held.check()
        self.rows_store.join()
        if self.run.keep_weights:
            weights = self.state.network.state_dict()
            records.write_with(self.paths.weights, lambda tmp: _save(tmp, weights))
        outcome = Outcome.DIVERGED if diverged else Outcome.TRAINED
        self.log.info("finished: %s", outcome)
        self._publish(status=Status.FINISHED, outcome=outcome, divergence=divergence)
        drop_progress(self.paths)

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
            parts, seconds = [str(name) for name in saved["parts"]], float(saved["seconds"])
            self.state.load_state_dict(saved["state"])
        except Exception as error:  # torch, and what it finds in the file, raise many kinds
            raise records.DamagedRunError(
                f"{self.paths.checkpoint} is damaged; delete it to start this run over"
            ) from error
        self.rows_store = Rows(self.paths, parts)
        self._began -= seconds
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
            "updated": now(),
            **changes,
        }
        write_json(self.paths.record, self.record)

    def _refuse_other_config(self) -> None:
        if self.paths.config.exists():
            stored = stored_config(self.paths.config)
            if scientific(stored) != scientific(self.run):
                raise ConfigError(
                    f"{self.paths.config} holds another config than the one that asks for this directory; "
                    f"move it away"
                )

    def _opening_record(self) -> dict[str, Any]:
        old = read_record(self.paths) or {}
        run, sets = self.run, self.state.image_set
        return described(run, self.paths, old or self._repeated) | {
            "status": Status.RUNNING,
            "n_classes": sets.n_classes,
            "chance": majority_share(sets.test),
            "n_train": len(sets.train),
            "n_test": len(sets.test),
            "conv_biases": self.state.network.conv_biases(),
            "unnormalised": list(self.state.network.unnormalised),
            "steps_total": self.total,
            "device": devices.describe(self.state.device),
            "code_changed": provenance.code_changed() or old.get("code_changed"),
            "wandb_id": trackers.identity(run, self.paths.run_id, old.get("wandb_id")),
            "probe_failures": list(old.get("probe_failures", [])),
            "created": old.get("created", now()),
            "restarts": int(old.get("restarts", -1)) + 1,
        }

    def _seconds(self) -> float:
        return time.monotonic() - self._began


def drop_progress(paths: RunPaths) -> None:
    """Remove what only a resume needs."""
    paths.checkpoint.unlink(missing_ok=True)
    shutil.rmtree(paths.parts, ignore_errors=True)


def _save(path: Path, value: Any) -> None:
    """Write through memory: torch's own writer turns a full disk into an error of its own."""
    data = io.BytesIO()
    torch.save(value, data)
    with open(path, "wb") as file:
        file.write(data.getbuffer())
        file.flush()
        os.fsync(file.fileno())

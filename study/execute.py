"""One run from its config to its records: claim, start or resume, train, finish.

from study.compose import compose
from study.execute import execute
record = execute(compose(["lr=0.1", "norm=bn"]))
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from study import device as devices
from study import ownership
from study.config import RunConfig, stored_config
from study.data.loading import load
from study.errors import UNWRITABLE, ConfigError, OwnedElsewhereError, StudyError, plain_disk_errors
from study.identity import run_id, scientific
from study.opening import record_failure
from study.ownership import claim, claimed
from study.paths import RERUN, RunPaths
from study.records import DamagedRunError, read_record
from study.running import Progress, Report, Running, drop_progress
from study.state import TrainState
from study.status import Status, enough

__all__ = ["Progress", "execute", "run_paths"]


def execute(
    config: RunConfig, *, report: Report | None = None, stop: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """Bring a run to its end and return its run.json; one that is as far as asked is returned as it is.

    `report` hears of progress about twice a second. When `stop()` turns true the run writes a checkpoint, is
    marked preempted and returns. Raises ConfigError before anything is written; OwnedElsewhereError if
    another process owns the run; StudyError for a disk that is full, read-only or at fault; any other
    exception is recorded (status failed, traceback in log.txt) and raised again.
    """
    final = run_paths(config)
    with plain_disk_errors(final.root):
        if _aside(final).exists():
            with _swapping(final):
                _complete_swap(final)
        finished = None if config.rerun else _finished(final, config)
        if finished:
            return finished
        paths = final.rerun if config.rerun else final
        state = _built(config, paths)
        if state.steps_per_epoch == 0 and config.epochs > 0:
            raise ConfigError(
                f"batch_size={config.batch_size} is out of range: there are only "
                f"{len(state.image_set.train)} training images, and incomplete batches are dropped"
            )
        with claim(paths) as held:
            record = _finished(paths, config)
            if record is None:
                record = Running(state, paths, held, report, stop, _repeated(final)).execute()
        if config.rerun and record["status"] == Status.FINISHED:
            with _swapping(final):
                _swap(paths, final)
    return record


def run_paths(config: RunConfig) -> RunPaths:
    """Return the files of the run that a config describes."""
    return RunPaths(Path(config.runs_dir) / run_id(config))


def _repeated(final: RunPaths) -> dict[str, Any] | None:
    """Return the record that a rerun will replace; a damaged one has nothing to hand on."""
    try:
        return read_record(final)
    except DamagedRunError:
        return None


def _built(config: RunConfig, paths: RunPaths) -> TrainState:
    """Load the data and build the network; an exception that is no refusal is recorded."""
    try:
        device = devices.prepare(config)
        return TrainState(config, load(config.data, device), device)
    except StudyError:
        raise
    except Exception as error:
        with contextlib.suppress(OSError, StudyError), claim(paths) as held:
            record_failure(config, paths, held, error)
        raise


def _finished(paths: RunPaths, config: RunConfig) -> dict[str, Any] | None:
    record = read_record(paths)
    if record is None or record["status"] not in enough(config.stop_when_decided):
        return None
    if paths.config.exists() and scientific(stored_config(paths.config)) != scientific(config):
        raise ConfigError(f"{paths.config} holds another config than the one requested under its id")
    progress = record["status"] == Status.FINISHED and (paths.checkpoint.exists() or paths.parts.exists())
    killed_at_the_end = progress or claimed(paths)
    if killed_at_the_end:
        try:
            with contextlib.suppress(OwnedElsewhereError), claim(paths):
                if progress:
                    drop_progress(paths)
        except OSError as error:
            if error.errno not in UNWRITABLE:  # a finished run on a read-only disk is a result all the same
                raise
    ownership.tag(paths, config.sweep)
    return read_record(paths)


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


@contextlib.contextmanager
def _swapping(final: RunPaths) -> Iterator[None]:
    """Let one process at a time move runs about: a claim on a folder that is nobody's run."""
    folder = final.root.parent / RERUN
    with claim(RunPaths(folder / f"{final.run_id}.swap")):
        yield
    with contextlib.suppress(OSError):
        folder.rmdir()


def _aside(final: RunPaths) -> Path:
    return final.root.parent / RERUN / f"{final.run_id}.old"

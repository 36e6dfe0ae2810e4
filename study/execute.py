"""One run from its config to its records: claim, start or resume, train, finish.

from study.compose import compose
from study.execute import execute
record = execute(compose(["lr=0.1", "norm=bn"]))
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from study import device as devices
from study import ownership
from study.config import RunConfig
from study.data.loading import load
from study.errors import ConfigError, OwnedElsewhereError, StudyError
from study.identity import run_id, scientific
from study.ownership import claim, claimed
from study.paths import RERUN, RunPaths
from study.records import read_record
from study.running import Progress, Report, Running, drop_progress, stored_config
from study.state import TrainState
from study.status import Status

__all__ = ["Progress", "execute", "run_paths"]


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
        if _aside(final).exists():
            with _swapping(final):
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
        paths = RunPaths(final.root.parent / RERUN / final.run_id) if config.rerun else final
        with claim(paths) as held:
            record = _finished(paths, config)
            if record is None:
                record = Running(state, paths, held, report, stop, read_record(final)).execute()
        if config.rerun and record["status"] == Status.FINISHED:
            with _swapping(final):
                _swap(paths, final)
    return record


def run_paths(config: RunConfig) -> RunPaths:
    """Return the files of the run that a config describes."""
    return RunPaths(Path(config.runs_dir) / run_id(config))


def _finished(paths: RunPaths, config: RunConfig) -> dict[str, Any] | None:
    record = read_record(paths)
    if record is None or record["status"] != Status.FINISHED:
        return None
    if paths.config.exists() and scientific(stored_config(paths)) != scientific(config):
        raise ConfigError(f"{paths.config} holds another config than the one requested under its id")
    killed_at_the_end = paths.checkpoint.exists() or paths.parts.exists() or claimed(paths)
    if killed_at_the_end:
        with contextlib.suppress(OwnedElsewhereError), claim(paths):
            drop_progress(paths)
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

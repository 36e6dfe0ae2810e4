"""What a trial's own process does: run it, tell the launcher how far it is, end cleanly when told to."""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from study.config import RunConfig
from study.errors import OwnedElsewhereError, StudyError
from study.identity import run_id
from study.paths import RunPaths
from study.records import read_record

OWNED_ELSEWHERE = 75
"""Exit code of a trial that another live process works on (EX_TEMPFAIL)."""

REFUSED = 2
"""Exit code of a trial that never began, for a reason the user can mend."""

LOOK_SECONDS = 0.5
"""Time between two looks whether the launcher still lives; however it died, its pipe ends with it."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Whether the trial should write a checkpoint and end: it was signalled, or its launcher is gone."""

    def __init__(self) -> None:
        self._told = False
        self._launcher = multiprocessing.parent_process()
        self._looked = time.monotonic()
        for number in STOP_SIGNALS:
            signal.signal(number, self._hear)

    def __call__(self) -> bool:
        """Whether to stop now; cheap enough for every step."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._told = self._told or (self._launcher is not None and not self._launcher.is_alive())
        return self._told

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._told = True


def run_trial(config: RunConfig, pipe: Connection, output: str, gpu: str | None) -> None:
    """Run one trial; exits with 0, 1 (failed), REFUSED or OWNED_ELSEWHERE.

    Progress, and at the end the text of an error, go through `pipe`; all that is printed goes to the file
    `output`. `gpu` is what CUDA_VISIBLE_DEVICES becomes (None leaves it).
    """
    stop = Stop()
    _redirect(output)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    try:
        from study.execute import execute

        execute(config, report=lambda progress: _send(pipe, tuple(progress)), stop=stop)
    except OwnedElsewhereError as error:
        _send(pipe, str(error))
        sys.exit(OWNED_ELSEWHERE)
    except StudyError as error:
        _send(pipe, str(error))
        sys.exit(REFUSED)
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        _send(pipe, text)
        if not _recorded(config, text):
            traceback.print_exc()
        sys.exit(1)


def _recorded(config: RunConfig, error: str) -> bool:
    """Whether the run's own record names this error; then its log.txt has the traceback."""
    with contextlib.suppress(StudyError):
        final = RunPaths(Path(config.runs_dir) / run_id(config))
        record = read_record(final.rerun if config.rerun else final)
        return record is not None and record.get("error") == error
    return False


def _send(pipe: Connection, message: object) -> None:
    with contextlib.suppress(OSError):  # the launcher is gone: `Stop` notices
        pipe.send(message)


def _redirect(output: str) -> None:
    """Send everything printed, also by C code and by a crash, to a file."""
    with open(output, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable()

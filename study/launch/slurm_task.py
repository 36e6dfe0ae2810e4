"""One task of a job array, on its node: several trials, each in a process of its own, then the queue again.

On a warning signal, whichever the site uses, every trial writes a checkpoint and is marked preempted. Then
the task asks SLURM to requeue it, and its next incarnation goes on in the same run directories.
"""

import io
import json
import multiprocessing.forkserver
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from study import provenance
from study.config import from_mapping
from study.errors import StudyError
from study.launch import local, slurm_queue
from study.launch.plan import make_plan
from study.launch.slurm_queue import add_note, read_note
from study.launch.table import Display, State, console

USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""What SLURM is asked to warn with; its default action is death, and all processes of a step get it."""
WARNINGS = (*USER_SIGNALS, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
NOTE_SECONDS = 5.0
"""Time between two notes of progress for a launcher that waits."""
SLACK_SECONDS = 90.0
"""SLURM warns up to a minute earlier than asked."""
NEVER = 1e9
"""Trials may take as long as SLURM lets them to write their checkpoint."""
REFUSED = 3
"""Exit code of a task that did not start because the code had been edited."""


@dataclass(frozen=True)
class Pack:
    """What a task needs to know; plain values, so that it can be read whatever became of the code."""

    trials: tuple[dict[str, Any], ...]
    """Configs, as nested plain values."""
    folder: str
    index: int
    directory: str
    """Working directory of the launcher: paths in the configs may be relative to it."""
    concurrent: int
    warn_seconds: int
    max_timeouts: int
    code: dict[str, Any]
    """provenance.code() at submission."""
    refuse_changes: bool

    @property
    def note(self) -> Path:
        """File in which the task leaves word for the launcher."""
        return Path(self.folder) / f"task_{self.index}.json"


def run_pack(pack: Pack) -> None:
    """Run a task; leaves the process with 0, 1 (a trial failed or was left), or REFUSED."""
    os.chdir(pack.directory)
    sys.stdout = _Patient(sys.stdout)
    ears = _Ears()
    _compare_code(pack)
    plan = make_plan(map(from_mapping, pack.trials))
    display = _NodeDisplay(console(), pack=pack)
    display.plan(plan, pack.concurrent)
    context = local.fork_server([trial.config for trial in plan.trials])
    with _deaf_children():
        multiprocessing.forkserver.ensure_running()
    options = local.Options(workers=pack.concurrent, grace_seconds=NEVER)
    pool = local.Pool(plan, options, display, context, patient=False)
    ears.pool = pool
    if ears.heard:
        pool.stopping = True
    with display:
        pool.run()
    code = display.final()
    reasons = {x.trial.run_id: x.reason for x in display.lines.values() if x.state is State.FAILED}
    add_note(pack.note, failed=reasons)
    left = [x for x in display.lines.values() if x.state in (State.WAITING, State.INTERRUPTED)]
    if left and pool.stopping:
        display.say(_requeue(pack))
    sys.exit(code)


class _Patient(io.TextIOBase):
    """A stream that drops what its disk has no room for: a full log must not end the trials beside it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        """Do nothing: every write is flushed."""


class _Ears:
    """Hears warnings; only the first one counts, for SLURM sends several and means the same."""

    def __init__(self) -> None:
        self.pool: local.Pool | None = None
        self.heard = False
        for number in WARNINGS:
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if not self.heard:
            print(f"told to stop by {signal.Signals(number).name}", flush=True)
        self.heard = True
        if self.pool is not None and not self.pool.stopping:
            self.pool.interrupt(number, frame)


@dataclass
class _NodeDisplay(Display):
    """Prints into the task's log, and notes the progress of each trial for a launcher that waits."""

    pack: Pack | None = None
    noted: float = 0.0

    def refresh(self) -> None:
        super().refresh()
        if self.pack is not None and time.monotonic() - self.noted > NOTE_SECONDS:
            self.noted = time.monotonic()
            running = [x for x in self.lines.values() if x.state is State.RUNNING and x.total]
            progress = {x.trial.run_id: [x.step, x.total, x.accuracy] for x in running}
            add_note(self.pack.note, progress=progress)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Start processes that the warning signals do not reach; this process hears of them afterwards."""
    signal.pthread_sigmask(signal.SIG_BLOCK, USER_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, USER_SIGNALS)


def _compare_code(pack: Pack) -> None:
    """Tell the trials if the code is not the one that was submitted, or end here."""
    now = provenance.code()
    os.environ.pop(provenance.CODE_CHANGED, None)
    if now["files"] == pack.code["files"]:
        return
    change = {"submitted": pack.code, "started": now}
    print(f"the code was edited after the submission: {json.dumps(change)}", flush=True)
    if pack.refuse_changes:
        add_note(pack.note, ended="the code was edited after the submission (on_code_change=refuse)")
        sys.exit(REFUSED)
    os.environ[provenance.CODE_CHANGED] = json.dumps(change)


def _requeue(pack: Pack) -> str:
    """Ask SLURM to run the task again unless it does so itself, or must not; return what was done."""
    job = slurm_queue.this_task()
    try:
        state, reason, left = slurm_queue.state_of(job)
    except StudyError as error:
        print(error, flush=True)
        state, reason, left = "UNKNOWN", "", None
    over = reason == "TimeLimit"
    if state not in ("RUNNING", "UNKNOWN") and not over:  # cancelled, or SLURM requeues it by itself
        return f"not requeued: SLURM has ended the job (now {state})"
    if over or (left is not None and left <= pack.warn_seconds + SLACK_SECONDS):
        timeouts = read_note(pack.note).get("timeouts", 0) + 1
        if timeouts > pack.max_timeouts:
            text = f"gave up after {pack.max_timeouts + 1} time limits (max_timeouts={pack.max_timeouts})"
            add_note(pack.note, ended=text)
            return text
        add_note(pack.note, timeouts=timeouts)
    print(f"requeueing {job} ({state}, {left} s left)", flush=True)
    try:
        slurm_queue.requeue(job)
    except StudyError as error:
        return f"not requeued: {error}"
    return "requeued"

"""Waiting for submitted trials: run directories say what came of them, SLURM only who is left."""

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from study.errors import StudyError
from study.launch import slurm_queue
from study.launch.plan import Plan, Trial
from study.launch.slurm_queue import Live, Submission, read_note
from study.launch.table import ENDED, Display, Line, State
from study.status import Status

POLL_SECONDS = 3.0
PROBE_BYTES = 65536
"""What a disk must have room for to count as one that can be written to."""
GONE = 2
"""Looks in a row at which neither SLURM nor the disk may know of a trial before it is given up."""


def watch(plan: Plan, display: Display) -> int:
    """Show a live table until no trial is left in the queue; return 0 only if every trial is done.

    An interrupt ends the watching, not the jobs (130).
    """
    watcher = _Watcher(plan, display)
    try:
        with display:
            while watcher.look():
                display.refresh()
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        display.say("the jobs go on without this table")
        return 130
    return display.final()


class _Watcher:
    def __init__(self, plan: Plan, display: Display) -> None:
        self.display = display
        self.before = {t.run_id: t.record for t in plan.trials}
        self.missed: dict[str, int] = {}
        self.warned: set[str] = set()
        self.tasks = slurm_queue.latest(dict.fromkeys(t.paths.root.parent for t in plan.trials))

    def look(self) -> bool:
        """Take in how things stand; return whether any trial is still open."""
        lines = [x for x in self.display.lines.values() if x.state not in ENDED]
        live = self._live()
        progress = self._progress(lines)
        for line in lines:
            self._settle(line, line.trial.look(), live, progress)
        return any(x.state not in ENDED for x in lines)

    def _settle(self, line: Line, now: Trial, live: Live | None, progress: dict[str, Any]) -> None:
        where = self.tasks.get(str(now.paths.root))
        task = live.get((where[0].name, where[1])) if live is not None and where is not None else None
        if now.done:
            line.finish(State.DONE, now)
        elif now.status is Status.FAILED and now.record != self.before[now.run_id]:
            line.finish(State.FAILED, now, str((now.record or {}).get("error")))
        elif now.status is Status.RUNNING:
            self.missed.pop(now.run_id, None)
            if line.state is not State.RUNNING:
                line.start(now.share)
            if now.run_id in progress:
                step, total, accuracy = progress[now.run_id]
                line.progress(step, total, 0, 0.0, accuracy)
        elif live is not None and task is None:
            self.missed[now.run_id] = self.missed.get(now.run_id, 0) + 1
            if self.missed[now.run_id] >= GONE:
                resumable = (Status.PREEMPTED, Status.STOPPED)  # stopped by a search; wanted whole here
                state = State.INTERRUPTED if now.status in resumable else State.FAILED
                line.finish(state, now, self._reason(now, where))
        else:
            self.missed.pop(now.run_id, None)
            line.state = State.WAITING

    def _reason(self, now: Trial, where: tuple[Submission, int] | None) -> str:
        """Say why a trial ended without a word of its own: its task's note, or SLURM's accounting."""
        if where is None:
            return str(now.status)
        submission, index = where
        log = submission.last_log(index)
        seen = f" (see {log})" if log else ""
        if ended := submission.last_word(index, now.run_id):
            return f"{ended}{seen}"
        if fault := _fault(submission.folder.parent):  # which kept the task from leaving word
            return f"cannot write to {now.paths.root.parent}: {fault}"
        state = self._accounting(log.name.removesuffix("_0_log.out")) if log else ""
        return f"{now.status}{f', SLURM says {state}' if state else ', its task ended without a word'}{seen}"

    def _accounting(self, job: str) -> str:
        if "sacct" in self.warned:  # it may have taken a minute not to answer
            return ""
        try:
            return slurm_queue.ended(job)
        except StudyError as error:
            self._warn("sacct", f"{error}; why jobs ended is not known")
            return ""

    def _live(self) -> Live | None:
        try:
            return slurm_queue.live()
        except StudyError as error:
            self._warn("squeue", f"{error}; only the run directories are watched until it answers")
            return None

    def _warn(self, about: str, text: str) -> None:
        if about not in self.warned:
            self.warned.add(about)
            self.display.say(f"warning: {text}")

    def _progress(self, lines: Iterable[Line]) -> dict[str, Any]:
        running = (self.tasks.get(str(x.trial.paths.root)) for x in lines if x.state is State.RUNNING)
        notes = {where[0].note(where[1]) for where in running if where is not None}
        found: dict[str, Any] = {}
        for note in notes:
            found |= read_note(note).get("progress", {})
        return found


def _fault(folder: Path) -> str:
    """Say why nothing can be written into a folder; empty if it can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
    except OSError as error:
        return str(error.strerror)
    return ""

"""What was submitted to SLURM, and what SLURM says of it now.

Every job array has a folder `runs/.slurm/NAME`, written before sbatch is asked; NAME is the job's name. So
what is queued can be told from the folder and one call of squeue, even if the launcher died in between.
"""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from study.errors import StudyError
from study.records import write_json

FOLDER = ".slurm"
"""Folder inside a runs folder that holds all submissions."""
PATIENCE = 60.0
"""Seconds that a SLURM command may take."""


@dataclass(frozen=True)
class Submission:
    """One job array."""

    folder: Path
    sweep: str
    tasks: tuple[tuple[str, ...], ...]
    """Ids of the runs of each task."""
    code: dict[str, Any]
    """provenance.code() at submission."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.folder.name

    def write(self) -> None:
        """Write it down, before the job exists."""
        self.folder.mkdir(parents=True)
        write_json(self.folder / "submission.json", asdict(self) | {"folder": self.name})

    def note(self, index: int) -> Path:
        """File in which a task leaves word for the launcher."""
        return self.folder / f"task_{index}.json"

    def last_log(self, index: int) -> Path | None:
        """What a task printed, under the name that submitit gives it; None if it never began."""
        name = f"*_{index}_0_log.out" if len(self.tasks) > 1 else "*_0_log.out"
        logs = sorted(self.folder.glob(name))
        return logs[-1] if logs else None

    def last_word(self, index: int, run: str) -> str:
        """What a task has noted of the failure of one of its runs, or of its own end; empty if nothing."""
        note = read_note(self.note(index))
        return str(note.get("failed", {}).get(run) or note.get("ended") or "")


@dataclass(frozen=True)
class Task:
    """A task of a job array that SLURM has in its queue."""

    job: str
    """Its id, as scancel takes it."""
    pending: bool
    reason: str
    """Why it waits, or where it runs."""


Live = dict[tuple[str, int], Task]
"""Tasks in the queue, by the name and index of what was submitted."""


def submissions(runs_dir: Path) -> list[Submission]:
    """Return all that was ever submitted for a runs folder, oldest first."""
    found = []
    for file in (runs_dir / FOLDER).glob("*/submission.json"):
        try:
            values = json.loads(file.read_text())
        except (OSError, ValueError):  # its launcher was killed just then: it never asked sbatch
            continue
        tasks = tuple(map(tuple, values["tasks"]))
        found.append((file.stat().st_mtime, Submission(file.parent, values["sweep"], tasks, values["code"])))
    return [s for _, s in sorted(found, key=lambda x: x[0])]


def latest(runs_dirs: Iterable[Path]) -> dict[str, tuple[Submission, int]]:
    """Return by run directory in which task of which submission a run was last asked for."""
    found: dict[str, tuple[Submission, int]] = {}
    for runs_dir in runs_dirs:
        for submission in submissions(runs_dir):
            for index, runs in enumerate(submission.tasks):
                found |= {str(runs_dir / run): (submission, index) for run in runs}
    return found


def live() -> Live:
    """Ask SLURM for all tasks of this user that wait, run or end just now; raises StudyError if it cannot."""
    text = ask("squeue", "--me", "--array", "--noheader", "--format=%F|%K|%T|%R|%j")
    found: Live = {}
    for line in text.splitlines():
        array, index, state, reason, name = line.strip().split("|", 4)
        job = f"{array}_{index}" if index.isdigit() else array
        number = int(index) if index.isdigit() else 0
        found[name, number] = Task(job, state == "PENDING", reason.strip("()"))
    return found


def queued(runs_dirs: Iterable[Path], now: Live) -> dict[str, tuple[Submission, int, Task]]:
    """Return by run directory in which task of the queue a run is."""
    found: dict[str, tuple[Submission, int, Task]] = {}
    names = {name for name, _ in now}
    for runs_dir in runs_dirs:
        for submission in submissions(runs_dir):
            if submission.name in names:
                for index, runs in enumerate(submission.tasks):
                    if (submission.name, index) in now:
                        task = now[submission.name, index]
                        found |= {str(runs_dir / run): (submission, index, task) for run in runs}
    return found


def max_array_size() -> int:
    """Ask the cluster how many tasks one array may have: it caps the index, which starts at 0."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"), re.MULTILINE)
    return max(1, int(found[1])) if found else 1001


def this_task() -> str:
    """Return the id of the array task (or job) this process is in; empty outside."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array and index else os.environ.get("SLURM_JOB_ID", "")


def state_of(job: str) -> tuple[str, str, float | None]:
    """Return a job's state, SLURM's reason for it, and the seconds until its time limit (None: no limit)."""
    text = ask("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r|%L")
    state, reason, left = (text.strip().splitlines() or ["UNKNOWN||"])[0].split("|")
    return state, reason, _seconds(left)


def requeue(job: str) -> None:
    """Put a job back into the queue; this ends its processes."""
    ask("scontrol", "requeue", job)


def cancel(jobs: Iterable[str]) -> None:
    """Cancel tasks: they are told to stop and have SLURM's KillWait to write a checkpoint."""
    jobs = sorted(jobs)
    for first in range(0, len(jobs), 500):
        ask("scancel", *jobs[first : first + 500])


def ended(job: str) -> str:
    """Ask the accounting what became of a job, as "OUT_OF_MEMORY"; raises StudyError if there is none."""
    text = ask("sacct", "--allocations", "--parsable2", "--noheader", "--format=State", f"--jobs={job}")
    return text.strip().splitlines()[-1] if text.strip() else ""


def ask(*command: str) -> str:
    """Run one of SLURM's commands and return its output; raises StudyError with its words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except FileNotFoundError:
        raise StudyError(f"{command[0]} was not found: this machine is not part of a SLURM cluster") from None
    except subprocess.TimeoutExpired:
        raise StudyError(f"{command[0]} did not answer within {PATIENCE:.0f} s") from None
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())
        raise StudyError(f"{command[0]} failed: {words or f'exit code {done.returncode}'}")
    return done.stdout


def read_note(file: Path) -> dict[str, Any]:
    """Return what a task has left word of; empty if nothing."""
    try:
        note: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return note


def add_note(file: Path, **values: Any) -> None:
    """Leave word; only the task itself does so, and only for people: nothing is decided by it but retries."""
    tmp = file.with_suffix(".tmp")
    with contextlib.suppress(OSError):
        tmp.write_text(json.dumps(read_note(file) | values))
        os.replace(tmp, file)


def _seconds(text: str) -> float | None:
    """Read SLURM's [DAYS-][[HOURS:]MINUTES:]SECONDS; None for UNLIMITED, NOT_SET and the like."""
    days, _, clock = text.strip().rpartition("-")
    parts = clock.split(":")
    if not all(p.isdigit() for p in parts) or (days and not days.isdigit()):
        return None
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return float(seconds + 86400 * int(days or 0))

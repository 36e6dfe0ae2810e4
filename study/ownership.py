"""One process owns a run directory at a time; network file systems are the normal case. Imports no torch.

A claim is a folder `owner.N` that holds owner.json. It is prepared under a temporary name and renamed into
place, which fails if `owner.N` exists already: of two claimants one wins. The owner is the highest N. A dead
owner's claim is never removed by others, only topped by `owner.N+1`, so that a slow claimant cannot remove a
live claim by mistake. The owner checks before every publish that nothing tops its claim.
"""

import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from study import records
from study.errors import UNWRITABLE, OwnedElsewhereError
from study.paths import RunPaths
from study.status import Status

REMOVAL_SECONDS = 5.0
"""Longest time that a claim may stand half removed before it counts as one that cannot be seen from here."""


class OwnershipLostError(OwnedElsewhereError):
    """Another process took the run directory over; this one must not write into it any more."""


@dataclass(frozen=True)
class Owner:
    """Who claimed a run directory."""

    token: str
    host: str
    boot: str
    """Boot id of the host and its process namespace, so that a pid means something."""
    pid: int
    started: float
    """Start of the process, seconds since the epoch: tells a reused pid."""
    job_id: str
    """SLURM job (array task) id, or empty."""
    restart: int
    """SLURM's restart count of that job."""

    def __str__(self) -> str:
        if not self.token:
            return "somebody whose owner.json cannot be read"
        job = f", SLURM job {self.job_id}" if self.job_id else ""
        return f"process {self.pid} on {self.host}{job}"


UNREADABLE = Owner(token="", host="", boot="", pid=0, started=0.0, job_id="", restart=0)
"""Stands for the owner of a claim that cannot be understood: nobody can see from here whether it lives."""


def this_process() -> Owner:
    """Describe the calling process under a fresh token."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")
    return Owner(
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        boot=_boot(),
        pid=os.getpid(),
        started=psutil.Process().create_time(),
        job_id=job,
        restart=int(os.environ.get("SLURM_RESTART_COUNT", "0")),
    )


def owner_of(paths: RunPaths) -> Owner | None:
    """Return who holds the highest claim, alive or not; None if nobody does."""
    found = _claims(paths)
    return found[-1][1] if found else None


def claimed(paths: RunPaths) -> bool:
    """Whether there is any claim, alive, dead or half removed."""
    return any(paths.root.glob("owner.*"))


def is_alive(owner: Owner) -> bool | None:
    """Whether the owner still runs; None if that cannot be known from here."""
    if not owner.token:
        return None
    if owner.host == socket.gethostname():
        if owner.boot == _boot():
            return _process_alive(owner.pid, owner.started)
        if owner.boot.split("/")[0] != _boot().split("/")[0]:
            return False  # the machine was rebooted since
    if _earlier_self(owner):
        return False
    if owner.job_id:
        return _job_alive(owner.job_id, owner.restart)
    return None


def _earlier_self(owner: Owner) -> bool:
    """Whether the owner is this very job before SLURM requeued it."""
    mine = this_process()
    return bool(owner.job_id) and owner.job_id == mine.job_id and owner.restart < mine.restart


def observed_status(paths: RunPaths, record: dict[str, object] | None = None) -> Status:
    """Return the status an observer sees: run.json's, or WAITING without one, or LOST if its owner is gone.

    Raises DamagedRunError if run.json cannot be read.
    """
    record = records.read_record(paths) if record is None else record
    if record is None:
        owner = owner_of(paths)
        return Status.RUNNING if owner and is_alive(owner) else Status.WAITING
    status = Status(str(record["status"]))
    if status is Status.RUNNING:
        owner = owner_of(paths)
        if owner is None or is_alive(owner) is False:
            return Status.LOST
    return status


class Claim:
    """Ownership of one run directory; `check()` before every publish."""

    def __init__(self, paths: RunPaths, number: int, owner: Owner) -> None:
        self.paths, self.number, self.owner = paths, number, owner

    def check(self) -> None:
        """Raise OwnershipLostError unless this claim is still the highest."""
        found = _claims(self.paths)
        if not found or found[-1][1].token != self.owner.token:
            by = f" by {found[-1][1]}" if found else ""
            raise OwnershipLostError(f"{self.paths.root} was taken over{by}; this process stops writing")

    def release(self) -> None:
        """Give the directory back: remove this claim and the dead ones below it."""
        for number in _numbers(self.paths):
            if number <= self.number:
                _drop(self.paths, number)


@contextlib.contextmanager
def claim(paths: RunPaths) -> Iterator[Claim]:
    """Own a run directory for the length of a `with` block; creates the directory.

    Raises OwnedElsewhereError if a live process owns it, or one that cannot be seen from here.
    """
    paths.root.mkdir(parents=True, exist_ok=True)
    held = _claim(paths)
    try:
        yield held
    finally:
        held.release()
        with contextlib.suppress(OSError):
            paths.root.rmdir()  # only if nothing was ever written


def release_unseen(paths: RunPaths) -> None:
    """Remove all claims on a run whose owner cannot be seen from here; for a person who knows it is gone."""
    for _, owner in reversed(_claims(paths)):
        if is_alive(owner):
            raise OwnedElsewhereError(f"{paths.root} is owned by {owner}, which is alive")
    for number in _numbers(paths):
        _drop(paths, number)


def tag(paths: RunPaths, sweep: str, patience: float = 5.0) -> bool:
    """Note in the record of a finished run that a sweep asked for it too; return whether it is noted.

    Reads and writes while owning the run, so that of two sweeps neither name is lost. Where another process
    owns it, tries again for `patience` seconds; a run that this process owns already is written at once.
    On a full or read-only disk it is not noted.
    """
    end = time.monotonic() + patience
    while True:
        record = records.read_record(paths)
        if not sweep or record is None or sweep in record.get("sweeps", ()):
            return record is not None
        owner = owner_of(paths)
        mine = owner is not None and (owner.host, owner.boot, owner.pid) == _here()
        try:
            with contextlib.nullcontext() if mine else claim(paths):
                _note(paths, sweep)
            return True
        except OSError as error:
            if error.errno in UNWRITABLE:
                return False
            raise
        except OwnedElsewhereError:
            if time.monotonic() > end or (owner is not None and is_alive(owner) is None):
                return False
            time.sleep(0.05)


def _note(paths: RunPaths, sweep: str) -> None:
    record = records.read_record(paths)
    sweeps = [] if record is None else record.get("sweeps", [])
    if record is not None and sweep not in sweeps:
        records.write_json(paths.record, {**record, "sweeps": [*sweeps, sweep]})


def _here() -> tuple[str, str, int]:
    return socket.gethostname(), _boot(), os.getpid()


def _claim(paths: RunPaths) -> Claim:
    owner = this_process()
    end = time.monotonic() + REMOVAL_SECONDS
    while True:
        found = _claims(paths)
        if found:
            _refuse_if_held(paths, found[-1][1])
        elif time.monotonic() > end and _numbers(paths):  # nobody goes on removing it
            _refuse_if_held(paths, UNREADABLE)
        number = found[-1][0] + 1 if found else 1
        tmp = paths.root / f".owner.{owner.token}.{owner.pid}@{owner.host}.tmp"
        tmp.mkdir()
        try:
            records.write_json(tmp / "owner.json", asdict(owner))
            os.rename(tmp, _folder(paths, number))
        except OSError as error:
            shutil.rmtree(tmp, ignore_errors=True)
            won = error.errno in (errno.ENOTEMPTY, errno.EEXIST)  # and the winner may have released since
            if not won and not _folder(paths, number).exists():
                raise
            continue  # somebody else won this number: look again
        held = Claim(paths, number, owner)
        held.check()
        _remove_temporaries(paths)
        return held


def _remove_temporaries(paths: RunPaths) -> None:
    """Remove what killed processes left half-written; only the owner writes files, others only claims."""
    for folder in (paths.root, paths.probes, paths.parts):
        for tmp in folder.glob(".*.tmp"):
            if tmp.is_file():
                tmp.unlink(missing_ok=True)
            elif _claimant_gone(tmp.name):
                shutil.rmtree(tmp, ignore_errors=True)


def _claimant_gone(name: str) -> bool:
    """Whether the process that was preparing a claim (`.owner.TOKEN.PID@HOST.tmp`) is known to be dead."""
    process, _, host = name.removesuffix(".tmp").partition("@")
    pid = process.rpartition(".")[2]
    return host == socket.gethostname() and pid.isdigit() and not psutil.pid_exists(int(pid))


def _refuse_if_held(paths: RunPaths, owner: Owner) -> None:
    alive = is_alive(owner)
    if alive:
        raise OwnedElsewhereError(f"{paths.root} is being worked on by {owner}")
    if alive is None:
        raise OwnedElsewhereError(
            f"{paths.root} is owned by {owner}, which cannot be seen from here; if it is gone, "
            f"say: python -m study.runs clean --release {paths.root}"
        )


def _claims(paths: RunPaths) -> list[tuple[int, Owner]]:
    """All claims, the highest last; one without its owner.json was released while we looked."""
    found = []
    for number in reversed(_numbers(paths)):
        with contextlib.suppress(FileNotFoundError):
            found.append((number, _read(_folder(paths, number) / "owner.json")))
    return found


def _read(file: Path) -> Owner:
    """Return the owner that a file names, UNREADABLE if it names none."""
    try:
        values = json.loads(file.read_text())
        owner = Owner(**values)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, RecursionError):
        return UNREADABLE
    wrong = [k for k, v in values.items() if not isinstance(v, _KINDS[k]) or isinstance(v, bool)]
    return UNREADABLE if wrong or not owner.token else owner


_KINDS: dict[str, type | tuple[type, ...]] = {
    "token": str, "host": str, "boot": str, "pid": int, "started": (int, float), "job_id": str, "restart": int
}  # fmt: skip


def _numbers(paths: RunPaths) -> list[int]:
    """Numbers of all claims, also of those that are half removed; the highest first."""
    names = (p.name.removeprefix("owner.") for p in paths.root.glob("owner.*"))
    return sorted((int(n) for n in names if n.isascii() and n.isdigit()), reverse=True)


def _drop(paths: RunPaths, number: int) -> None:
    folder = _folder(paths, number)
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            folder.unlink(missing_ok=True)


def _folder(paths: RunPaths, number: int) -> Path:
    return paths.root / f"owner.{number}"


def _boot() -> str:
    """Boot id / process namespace; empty parts where the platform does not tell."""
    boot, namespace = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{boot}/{namespace}"


def _process_alive(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < 2
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


_asked: list[tuple[float, dict[str, int] | None]] = []


def _job_alive(job_id: str, restart: int, fresh_for: float = 5.0) -> bool | None:
    """Whether a job runs with this restart count; None if SLURM cannot be asked.

    All jobs are asked for at once: an observer may look at thousands of runs.
    """
    if not _asked or time.monotonic() - _asked[0][0] > fresh_for:
        _asked[:] = [(time.monotonic(), _running_jobs())]
    running = _asked[0][1]
    return None if running is None else running.get(job_id) == restart


def _running_jobs() -> dict[str, int] | None:
    """Restart counts of all jobs and array tasks that have processes, by id; None if squeue fails."""
    form = "ArrayJobID:|,ArrayTaskID:|,RestartCnt:|,State:|"
    command = ["squeue", "--noheader", "--array", f"--Format={form}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    found = {}
    for line in done.stdout.splitlines():
        array, task, count, state = line.strip().split("|")[:4]
        if state != "PENDING":
            found[f"{array}_{task}" if task.isdigit() else array] = int(count)
    return found

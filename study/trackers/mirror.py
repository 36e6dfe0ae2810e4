"""The W&B tracker: a thread of its own that may fail, hang or come late without the run noticing.

The training loop only puts names into a queue. At the end the run waits, at most for `tracker.patience` to
start, as long to finish and as long to be confirmed; then W&B's service process is killed. Whatever goes
wrong is one warning.
"""

import contextlib
import logging
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from study.config import RunConfig
from study.paths import RunPaths
from study.records import write_json
from study.status import Status
from study.trackers import WARNING, history

SERVICE = "wandb-core"
GRACE_SECONDS = 5.0
"""How much longer than W&B's own limits we wait before its service is killed."""

PREEMPTED_SECONDS = 10.0
"""Longest wait of a preempted run: its scheduler kills it soon."""


class Mirror:
    """Mirrors one run into one W&B run, which is continued if the run is."""

    def __init__(
        self, config: RunConfig, paths: RunPaths, record: Mapping[str, Any], *, live: bool | None = None
    ) -> None:
        """Start the thread; returns at once. `live` is online or not; None follows WANDB_MODE."""
        self.live = live
        self.config, self.paths, self.record = config, paths, dict(record)
        self.patience = config.tracker.patience
        self.failed = ""
        """What went wrong; empty if nothing has."""
        self._lock = threading.Lock()
        self._abandoned = False
        self._seen = 0
        self._parts: list[str] = []
        self._jobs: queue.SimpleQueue[Callable[[Any], bool]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"wandb {paths.run_id}", daemon=True)
        self._thread.start()

    def publish(self, parts: Sequence[str]) -> None:
        """Mirror the parts that are new; returns at once."""
        new, self._seen = list(parts[self._seen :]), len(parts)
        if new:
            self._jobs.put(lambda session: self._send(session, new))

    def finish(self, record: Mapping[str, Any]) -> None:
        """Mirror the rest, close the W&B run and wait for that, for a bounded time."""
        final = dict(record)
        self._jobs.put(lambda session: self._close(session, final))
        preempted = final["status"] == Status.PREEMPTED
        limit = PREEMPTED_SECONDS if preempted else 3 * self.patience + GRACE_SECONDS
        self._thread.join(limit)
        if self._thread.is_alive():
            self._abandoned = True
            self._fail(f"W&B did not finish within {limit:.0f} s")
            kill_service()
            self._thread.join(GRACE_SECONDS)

    def _work(self) -> None:
        _active.add(self)
        try:
            self._follow()
        except BaseException as error:  # nothing of W&B's may reach the run
            self._fail(_plain(error))
        finally:
            _active.discard(self)
        # A service that failed one run goes on trying, and refuses the run a second attempt.
        if self.failed and not self._abandoned and not _active:
            kill_service()

    def _follow(self) -> None:
        from study.trackers import session as sessions

        live = sessions.online() if self.live is None else self.live
        session = sessions.Session(self.config, self.paths, self.record, live=live, patience=self.patience)
        session.describe(self.record, {})
        while not self._jobs.get()(session):
            pass

    def _send(self, session: Any, parts: list[str]) -> bool:
        from study.trackers.session import read_parts

        session.send(history.positions(read_parts(self.paths, parts)))
        self._parts += parts
        return False

    def _close(self, session: Any, record: dict[str, Any]) -> bool:
        from study.trackers.session import read_parts, read_tables

        whole = record["status"] in (Status.FINISHED, Status.STOPPED)
        tables = read_tables(self.paths) if whole else read_parts(self.paths, self._parts)
        session.n_nonfinite = 0
        session.send(history.positions(tables))
        if whole:
            session.send(history.by_depth(tables, int(record.get("steps_total", 0))))
            session.attach()
        session.describe(record, tables)
        session.close(record["status"])
        if lacking := session.lacking():
            self._fail(lacking)
        elif session.live and whole:
            mark_uploaded(self.paths, record)
        return True

    def _fail(self, reason: str) -> None:
        with self._lock:
            if self.failed:
                return
            self.failed = reason
        if self.live is not None:  # somebody waits for this upload, and says what came of it
            return
        text = (
            f"{reason}. The run and its records are not affected; "
            "upload them later with `python -m study.sweep sync`"
        )
        log = logging.getLogger(f"study.run.{self.paths.run_id}")
        with contextlib.suppress(Exception):
            if log.handlers:  # the run is under way
                log.warning("%s%s", WARNING, text)
        with contextlib.suppress(Exception):
            print(f"{WARNING}{text}", file=sys.stderr, flush=True)


_active: set[Mirror] = set()
"""Mirrors of this process whose threads run: they share one service."""


def mark_uploaded(paths: RunPaths, record: Mapping[str, Any]) -> None:
    """Note that W&B has all of a run, so that `study.sweep sync` and `wandb sync` leave it alone."""
    paths.wandb.mkdir(exist_ok=True)
    write_json(paths.uploaded, uploaded_as(paths, record))
    for file in paths.wandb.glob("offline-run-*/run-*.wandb"):
        file.with_name(file.name + ".synced").touch()


def uploaded_as(paths: RunPaths, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a run an upload depends on; probe tables may be added to a finished run."""
    kept = {k: record.get(k) for k in ("wandb_id", "status", "updated", "sweeps")}
    return kept | {"probes": paths.probe_sizes()}


def kill_service() -> None:
    """Kill W&B's service of this process, which hangs, and let the next run start a new one."""
    for child in _services():
        with contextlib.suppress(psutil.Error):
            child.kill()
            child.wait(GRACE_SECONDS)
    _forget_service()


def _services() -> list[psutil.Process]:
    """Processes of W&B's service that are ours and alive."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.name().startswith(SERVICE) and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def _forget_service() -> None:
    """Make W&B's client drop its connection to a service that is dead."""

    def forget() -> None:
        import wandb

        with contextlib.suppress(BaseException):  # it raises what the dead connection raises
            wandb.teardown()

    thread = threading.Thread(target=forget, daemon=True)
    thread.start()
    thread.join(GRACE_SECONDS)


def _plain(error: BaseException) -> str:
    lines = [x.strip() for x in str(error).splitlines() if x.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__

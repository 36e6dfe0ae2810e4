"""The one list of statuses and outcomes. Imports neither torch nor the rest of the study."""

from enum import StrEnum


class Status(StrEnum):
    """Where a run stands. All but WAITING and LOST are written into run.json."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    """Ended early because it had left chance (criteria.fate_decided); whoever needs it whole resumes it."""
    FAILED = "failed"
    """Raised an exception; the traceback is in log.txt."""
    PREEMPTED = "preempted"
    """Told to stop; a checkpoint lies ready."""
    WAITING = "waiting"
    """Not started: what an observer says of a planned run without a directory."""
    LOST = "lost"
    """What an observer concludes of a run marked running whose owner is gone."""


class Outcome(StrEnum):
    """What training came to."""

    TRAINED = "trained"
    DIVERGED = "diverged"


DONE = frozenset({Status.FINISHED})
"""Statuses that a launch leaves alone."""


def enough(stop_when_decided: bool) -> frozenset[Status]:
    """Statuses of a run that is as far as was asked: whole, or stopped where that will do."""
    return DONE | {Status.STOPPED} if stop_when_decided else DONE

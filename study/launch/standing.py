"""How a plan stands, in words: statuses, outcomes, time left, what SLURM has queued, and what failed."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from study.arguments import counted
from study.errors import StudyError
from study.launch import cost, slurm_queue
from study.launch.plan import Plan, Trial
from study.launch.results import result
from study.status import Status


@dataclass(frozen=True)
class Standing:
    """The state of a sweep."""

    text: str
    failed: bool
    """Whether any trial failed, was refused, or is damaged."""
    open: bool
    """Whether any trial runs, is queued, or has never been tried."""


def standing(name: str, plan: Plan) -> Standing:
    """Look how a sweep stands."""
    done = [t for t in plan.trials if t.status in (Status.FINISHED, Status.STOPPED)]
    results = [result(t.paths, t.status, t.record) for t in done]
    lines = [f"{name}: {counted(len(plan.trials), 'trial')}"]
    lines += [f"  {n:6d} {status}" for status, n in sorted(plan.counts().items())]
    if results:
        outcomes = Counter(found.outcome for found in results)
        lines.append(
            "outcomes of the finished: " + ", ".join(f"{n} {o}" for o, n in sorted(outcomes.items()))
        )
    if left := _time_left(plan):
        lines.append(left)
    queued, words = _queue(plan)
    lines += words
    failed = [t for t in plan.trials if t.status is Status.FAILED]
    for t in failed:
        lines.append(f"failed: {t.run_id}: {t.damage or (t.record or {}).get('error')} (see {t.paths.log})")
    gave_up = _last_words(t for t in plan.todo if str(t.paths.root) not in queued)
    lines += [f"failed: {run}: {why}" for run, why in gave_up.items()]
    waiting = {t.run_id for t in plan.trials if t.status is Status.WAITING} - set(gave_up)
    return Standing(
        text="\n".join(lines),
        failed=bool(failed or gave_up or any(found.damaged for found in results)),
        open=bool(
            waiting or plan.counts()[Status.RUNNING] or any(str(t.paths.root) in queued for t in plan.todo)
        ),
    )


def _time_left(plan: Plan) -> str:
    known = [s for s in plan.estimates if s is not None]
    if not known:
        return ""
    left = sum(known) / len(known) * len(plan.todo)
    running = max(1, plan.counts()[Status.RUNNING])
    wall = cost.duration(left / running)
    return f"about {cost.duration(left)} of run time left ({wall} at {running} at once)"


def _queue(plan: Plan) -> tuple[set[str], list[str]]:
    """Return the directories of the runs in SLURM's queue, and how many wait and run there."""
    folders = {t.paths.root.parent for t in plan.todo}
    if not any((folder / slurm_queue.FOLDER).is_dir() for folder in folders):
        return set(), []
    try:
        queued = slurm_queue.queued(folders, slurm_queue.live())
    except StudyError as error:
        return set(), [f"whether trials are queued is not known: {error}"]
    pending = [queued[str(t.paths.root)][2].pending for t in plan.todo if str(t.paths.root) in queued]
    waiting, running = sum(pending), len(pending) - sum(pending)
    return set(queued), [f"SLURM: {waiting} trials in tasks that wait, {running} in tasks that run"]


def _last_words(trials: Iterable[Trial]) -> dict[str, str]:
    """Say, by run id, of trials that wait though a task had them why it left them: refused, out of patience.

    What is refused before it begins leaves no run directory, so that only the task's note tells of it.
    """
    waiting = [t for t in trials if t.status in (Status.WAITING, Status.PREEMPTED)]
    tasks = slurm_queue.latest({t.paths.root.parent for t in waiting})
    words: dict[str, str] = {}
    for trial in waiting:
        if where := tasks.get(str(trial.paths.root)):
            submission, index = where
            if word := submission.last_word(index, trial.run_id):
                log = submission.last_log(index)
                words[trial.run_id] = word + (f" (see {log})" if log else "")
    return words

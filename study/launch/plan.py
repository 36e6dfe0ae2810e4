"""What is to be done: trials without duplicates, what is on disk already, and what the rest will cost."""

import functools
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from study import trackers
from study.arguments import counted
from study.config import RunConfig
from study.errors import ConfigError
from study.identity import run_id, scientific
from study.launch import cost
from study.ownership import observed_status, tag
from study.paths import RunPaths
from study.records import DamagedRunError, read_record
from study.status import Outcome, Status, enough


@dataclass(frozen=True)
class Trial:
    """One run that was asked for, and how far it is."""

    config: RunConfig
    paths: RunPaths
    status: Status
    record: dict[str, Any] | None
    """run.json as it was when we looked."""
    damage: str = ""
    """Why run.json cannot be read; such a trial counts as failed until it is deleted or rerun."""

    @property
    def run_id(self) -> str:
        """The run's directory name."""
        return self.paths.run_id

    @property
    def where(self) -> RunPaths:
        """Directory that is worked on: of a rerun, that of the repetition while there is one."""
        beside = self.paths.rerun
        return beside if self.config.rerun and beside.root.is_dir() else self.paths

    @property
    def done(self) -> bool:
        """Whether a launch leaves it alone."""
        return self.status in enough(self.config.stop_when_decided) and not self.config.rerun

    @property
    def share(self) -> float:
        """Share of its steps that are behind it; of a rerun, those of the repetition."""
        record = self.record
        if record is None or (self.config.rerun and self.where is self.paths):
            return 0.0
        total = record.get("steps_total") or 0
        return min(1.0, record.get("steps_done", 0) / total) if total else 0.0

    def look(self) -> "Trial":
        """Return the trial as it stands on disk now."""
        status, record, damage = _observed(self.where)
        return replace(self, status=status, record=record, damage=damage)


@dataclass(frozen=True)
class Plan:
    """All distinct trials of a launch, in the order asked for."""

    trials: tuple[Trial, ...]
    duplicates: int
    """Requests that named a run which another request had named already."""

    @property
    def todo(self) -> tuple[Trial, ...]:
        """Trials that a launch must run or take further."""
        return tuple(t for t in self.trials if not t.done)

    def counts(self) -> Counter[Status]:
        """Number of trials by status."""
        return Counter(t.status for t in self.trials)

    @functools.cached_property
    def estimates(self) -> list[float | None]:
        """Seconds that each trial in `todo` still needs on the machine its likes ran on; None if unknown."""
        measured = cost.measure({t.paths.root.parent for t in self.todo})
        return [cost.remaining(t.config, t.share, measured) for t in self.todo]

    def summary(self, at_once: int = 1) -> str:
        """Return the plan in a few lines."""
        counts, todo = self.counts(), self.todo
        parts = [f"{n} {status}" for status, n in sorted(counts.items())]
        dropped = f" ({counted(self.duplicates, 'duplicate')} dropped)" if self.duplicates else ""
        lines = [f"{counted(len(self.trials), 'trial')}{dropped}: {', '.join(parts)}; {len(todo)} to run"]
        partly = [t for t in todo if t.share > 0]
        if partly:
            mean = sum(t.share for t in partly) / len(partly)
            lines.append(f"{len(partly)} partly done, {mean:.0%} of their steps on average")
        unmeasured = [t for t in self.trials if t.done and _lacks_probes(t)]
        if unmeasured:
            first = unmeasured[0]
            lines.append(
                f"{len(unmeasured)} finished without the probes asked for; to measure them now: "
                f"python -m study.probe {first.paths.root} {_probes_setting(first)}"
            )
        unsent = [t for t in self.trials if t.done and _was_not_mirrored(t)]
        if unsent:
            lines.append(
                f"{len(unsent)} finished without W&B and not sent to it by this; finished runs go up with: "
                "python -m study.sweep sync sweeps/NAME.yaml"
            )
        added = [t for t in todo if t.config.rerun and _has_other_probes(t)]
        if added:
            lines.append(
                f"the rerun drops probe tables that were added later to {counted(len(added), 'run')}, as to "
                f"{added[0].run_id}; study.probe measures them again"
            )
        if todo:
            lines.append(_estimate(self.estimates, at_once))
        return "\n".join(lines)


def make_plan(configs: Iterable[RunConfig]) -> Plan:
    """Compare the configs with what is on disk; writes nothing.

    Raises ConfigError where a run directory holds another config than the one requested.
    """
    wanted: dict[Path, RunConfig] = {}
    asked = 0
    for config in configs:
        asked += 1
        known = wanted.setdefault(path := Path(config.runs_dir) / run_id(config), config)
        if known.stop_when_decided and not config.stop_when_decided:
            wanted[path] = config  # who wants it whole gets it
    present = {folder: _entries(folder) for folder in {path.parent for path in wanted}}
    trials = [
        _trial(RunPaths(path), config, exists=path.name in present[path.parent])
        for path, config in wanted.items()
    ]
    return Plan(tuple(trials), asked - len(trials))


def mark(trials: Iterable[Trial]) -> list[Trial]:
    """Note in finished runs that a sweep asked for them too; return those where somebody else was in the way.

    To be called before the trials run, and with a fresh look after them: others may have finished some.
    """
    asked = (t for t in trials if t.status in enough(t.config.stop_when_decided))
    return [t for t in asked if not tag(t.paths, t.config.sweep)]


def differing(configs: Sequence[RunConfig]) -> list[str]:
    """Names of the scientific fields in which the configs differ: what a table has to show."""
    flat = [scientific(c) for c in configs]
    names = sorted({name for fields in flat for name in fields})
    return [n for n in names if len({json.dumps(f.get(n)) for f in flat}) > 1]


def _trial(paths: RunPaths, config: RunConfig, exists: bool) -> Trial:
    if not exists:
        return Trial(config, paths, Status.WAITING, None)
    status, record, damage = _observed(paths)
    asked = _as_stored(scientific(config))
    if record is not None and record.get("scientific", asked) != asked:  # without it config.yaml tells later
        raise ConfigError(
            f"{paths.root} holds another config than the one that asks for this directory; move it away"
        )
    trial = Trial(config, paths, status, record, damage)
    return trial if trial.where is paths else trial.look()


def _observed(paths: RunPaths) -> tuple[Status, dict[str, Any] | None, str]:
    """Status and record of a run directory, and what is wrong with the record if it cannot be read."""
    try:
        record = read_record(paths)
        return observed_status(paths, record), record, ""
    except DamagedRunError as error:
        return Status.FAILED, None, str(error)


def _asked_probes(trial: Trial) -> set[str]:
    return {entry.partition("@")[0] for entry in trial.config.probes.measure}


def _lacks_probes(trial: Trial) -> bool:
    """Whether a table is missing that the run, finished as it is, would have made."""
    asked = (entry.partition("@") for entry in trial.config.probes.measure)
    names = {name for name, _, when in asked if _came(when, trial)}
    return any(not trial.paths.probe(name).exists() for name in names)


def _was_not_mirrored(trial: Trial) -> bool:
    """Whether W&B was asked for and never had the run; what an agent asks for is replayed into its own."""
    asked = trackers.wanted(trial.config) and trackers.agent_run() is None
    return asked and not (trial.record or {}).get("wandb_id")


def _came(when: str, trial: Trial) -> bool:
    """Whether a finished run was ever at that part of a schedule; "" is a probe's usual one."""
    diverged = (trial.record or {}).get("outcome") == Outcome.DIVERGED
    if when in ("divergence", "final"):
        return when == "final" and not diverged
    trained = trial.config.epochs > 0
    return when in ("", "init") or (trained and not (diverged and when == "epoch_end"))


def _probes_setting(trial: Trial) -> str:
    """Return the setting that asks for a trial's probes: the choice's name, or the list if there is none."""
    name = trial.config.probes.name
    return (
        f"probes={name}" if name != "none" else f"'probes.measure=[{','.join(sorted(_asked_probes(trial)))}]'"
    )


def _has_other_probes(trial: Trial) -> bool:
    return bool({p.stem for p in trial.paths.probes.glob("*.parquet")} - _asked_probes(trial))


def _entries(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise ConfigError(f"runs_dir={folder} cannot be used: {error.strerror}") from error


def _as_stored(fields: dict[str, Any]) -> Any:
    """Return the fields as run.json gives them back (non-finite numbers are texts there)."""
    return json.loads(json.dumps(fields), parse_constant=lambda name: str(float(name)))


def _estimate(seconds: list[float | None], at_once: int) -> str:
    known = [s for s in seconds if s is not None]
    if not known:
        return "cost unknown: no run like these has been measured here yet"
    total = sum(known) / len(known) * len(seconds)
    unknown = len(seconds) - len(known)
    guessed = f", {unknown} of them by the others' mean" if unknown else ""
    wall = f", about {cost.duration(total / at_once)} with {at_once} at once" if at_once > 1 else ""
    return f"about {cost.duration(total)} of run time left{wall} (from measured runs{guessed})"

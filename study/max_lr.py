"""The highest trainable learning rate of a configuration and seed, by bisection; its result is a bracket.

Rates lie on the grid ratio^k, so that later searches find what earlier ones ran. A rate is trainable if its
run neither diverges nor ends stuck at chance (study/criteria.py). Bisection takes for granted that all
rates above a failing one fail; runs on disk that contradict it are shown.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from study.config import RunConfig
from study.errors import ConfigError
from study.identity import run_id, scientific
from study.launch.plan import Plan, make_plan
from study.launch.results import result
from study.paths import RunPaths, run_dirs
from study.records import DamagedRunError, read_record
from study.status import Outcome, Status

Launch = Callable[[Plan], int]


@dataclass
class Search:
    """What is known of one configuration and seed."""

    config: RunConfig
    """Its `lr` means nothing."""
    ratio: float
    low: float
    high: float
    known: dict[float, str] = field(default_factory=dict)
    """Outcome by rate, in the words of the tables."""

    @property
    def works(self) -> float | None:
        """Largest trainable rate below the smallest one that fails; None if there is none."""
        limit = self.fails if self.fails is not None else math.inf
        return max((lr for lr, o in self.known.items() if o == Outcome.TRAINED and lr < limit), default=None)

    @property
    def fails(self) -> float | None:
        """Smallest rate that fails; None if none does."""
        return min((lr for lr, outcome in self.known.items() if outcome != Outcome.TRAINED), default=None)

    @property
    def contradictions(self) -> list[float]:
        """Trainable rates above one that fails."""
        limit = self.fails if self.fails is not None else math.inf
        return sorted(lr for lr, o in self.known.items() if o == Outcome.TRAINED and lr > limit)

    def next_rates(self) -> list[float]:
        """Return the rates to try now; none when the bracket is as narrow as asked for."""
        lowest, highest = self.snap(self.low), self.snap(self.high)
        works, fails = self.works, self.fails
        if works is None and fails is None:
            return [lowest, highest]
        if works is None and fails is not None:
            return [lowest] if fails > lowest * (1 + 1e-9) else []
        if works is not None and fails is None:
            return [highest] if works < highest * (1 - 1e-9) else []
        assert works is not None
        assert fails is not None
        if fails / works <= self.ratio * (1 + 1e-6):
            return []
        middle = self.snap(math.sqrt(works * fails))
        return [middle] if works < middle < fails else []

    def snap(self, lr: float) -> float:
        """Return the nearest rate of the grid, written with five digits."""
        return float(f"{self.ratio ** round(math.log(lr) / math.log(self.ratio)):.5g}")

    def bracket(self) -> str:
        """Return the bracket in words."""
        works, fails = self.works, self.fails
        if works is None:
            return f"below {fails:g}" if fails is not None else "unknown"
        return f"{works:g} – {fails:g}" if fails is not None else f"at least {works:g}"


def find(configs: Iterable[RunConfig], launch: Launch, ratio: float, low: float, high: float) -> list[Search]:
    """Search for every distinct configuration and seed at once, a round of runs at a time.

    Stops early where runs fail for another reason than their rate. Raises ConfigError for a bad range.
    """
    if not 1.01 <= ratio <= 100:
        raise ConfigError(f"ratio={ratio:g} is out of range: it must be ≥ 1.01 and ≤ 100")
    if not 0 < low < high:
        raise ConfigError(f"low={low:g} and high={high:g}: it must be 0 < low < high")
    distinct = {run_id(replace(c, lr=1.0)): c for c in configs}
    searches = [Search(c, ratio, low, high) for c in distinct.values()]
    _recall(searches)
    tried: set[str] = set()
    while True:
        wanted = [(s, replace(s.config, lr=lr)) for s in searches for lr in s.next_rates()]
        wanted = [(s, c) for s, c in wanted if run_id(c) not in tried]
        if not wanted:
            return searches
        tried |= {run_id(c) for _, c in wanted}
        launch(make_plan(c for _, c in wanted))
        for search, config in wanted:
            paths = RunPaths(Path(config.runs_dir) / run_id(config))
            outcome = _outcome(paths, read_record(paths))
            if outcome is not None:
                search.known[config.lr] = outcome


def table(searches: Sequence[Search]) -> str:
    """Return one line per search: bracket, ratio of its ends, runs used, configuration."""
    from study.launch.plan import differing
    from study.launch.table import label

    names = [n for n in differing([s.config for s in searches]) if n != "lr"] or ["norm.name", "seed"]
    lines = ["highest trainable rate\truns\tconfiguration"]
    for search in searches:
        odd = ", ".join(f"{lr:g}" for lr in search.contradictions)
        note = f" (yet {odd} trains)" if odd else ""
        narrow = "" if not search.next_rates() else " (not narrower: runs are missing)"
        text = f"{search.bracket()}{note}{narrow}"
        lines.append(f"{text}\t{len(search.known)}\t{label(search.config, names)}")
    return "\n".join(lines)


def _recall(searches: Sequence[Search]) -> None:
    """Take in all finished runs on disk that differ from a search's configuration in their rate alone."""
    wanted: dict[str, list[Search]] = {}
    for search in searches:
        wanted.setdefault(_key(scientific(replace(search.config, lr=1.0))), []).append(search)
    for folder in {Path(s.config.runs_dir) for s in searches}:
        for paths in run_dirs(folder):
            try:
                record = read_record(paths)
            except DamagedRunError:
                continue
            for search in wanted.get(_key((record or {}).get("scientific", {})), []):
                outcome = _outcome(paths, record)
                if outcome is not None and record is not None:
                    search.known[float(record["lr"])] = outcome


def _key(fields: dict[str, Any]) -> str:
    return repr(sorted((k, str(v)) for k, v in fields.items() if k != "lr"))


def _outcome(paths: RunPaths, record: dict[str, Any] | None) -> str | None:
    """Return what came of a finished run; None if it has not finished."""
    if record is None or record["status"] != Status.FINISHED:
        return None
    return result(paths, Status.FINISHED, record).outcome

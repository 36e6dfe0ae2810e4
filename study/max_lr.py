"""The highest trainable learning rate of a configuration and seed, by bisection; its result is a bracket.

Rates lie on the grid ratio^k, so that later searches find what earlier ones ran. A rate is trainable if its
run neither diverges nor ends stuck at chance (study/criteria.py). On the way a run stops, resumable, once it
has left chance (criteria.fate_decided), which a later divergence could belie; so at the end the run at the
lower end of the bracket is trained to its last epoch, and if it fails there, the search goes on below it.
The upper end always rests on a complete run: one that diverged, or one that was stuck after its last epoch.
Bisection takes for granted that all rates above a failing one fail; runs that contradict it are shown. Not so
at the lowest rate: where a run stays at chance there, higher ones are tried, to ratio².
"""

import contextlib
import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from study import brackets
from study.config import RunConfig
from study.criteria import STUCK
from study.errors import ConfigError, StudyError
from study.identity import run_id, scientific
from study.launch.plan import Plan, make_plan, mark
from study.launch.results import result
from study.paths import RunPaths, run_dirs
from study.records import DamagedRunError, misnamed, read_record
from study.status import Outcome, Status

Launch = Callable[[Plan], int]

LARGEST = 1e6
"""Highest rate that a run takes."""

INTERRUPTED = 130
"""Exit code of a launch that was told to stop."""


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
    early: set[float] = field(default_factory=set)
    """Rates known from runs that stopped when they had left chance."""

    @property
    def run_id(self) -> str:
        """Names the search: the id of its configuration's run at rate 1."""
        return run_id(replace(self.config, lr=1.0))

    @property
    def works(self) -> float | None:
        """Largest trainable rate below the smallest one that fails (study/brackets.py); None if none."""
        return brackets.bracket(self.known)[0]

    @property
    def fails(self) -> float | None:
        """Smallest rate that fails, as too large; None if none does."""
        return brackets.bracket(self.known)[1]

    @property
    def contradictions(self) -> list[float]:
        """Trainable rates above one that fails."""
        limit = self.fails if self.fails is not None else math.inf
        return sorted(lr for lr, o in self.known.items() if o == Outcome.TRAINED and lr > limit)

    def next_rates(self) -> list[float]:
        """Return the rates to try now; none when the bracket is as narrow as asked for."""
        return brackets.next_rates(self.known, self.ratio, self.low, self.high)

    def next_runs(self, confirm: bool) -> list[RunConfig]:
        """Return the runs to do now: of rates to try, or the whole one that confirms the lower end."""
        if rates := self.next_rates():
            return [replace(self.config, lr=lr, stop_when_decided=True) for lr in rates]
        works = self.works
        if confirm and works is not None and works in self.early:
            return [replace(self.config, lr=works, stop_when_decided=False)]
        return []

    def learn(self, paths: RunPaths, record: dict[str, Any] | None) -> None:
        """Take in what came of a run, if it has finished or was stopped, at a rate within the range."""
        status = Status(record["status"]) if record is not None else Status.WAITING
        if record is None or status not in (Status.FINISHED, Status.STOPPED):
            return
        found, lr = result(paths, status, record), record.get("lr")
        if found.damaged or lr is None or record.get("outcome") is None:
            return
        low, high = (brackets.snap(end, self.ratio) for end in (self.low, self.high))
        if not low * (1 - 1e-9) <= lr <= high * (1 + 1e-9):
            return
        self.known[lr] = found.outcome
        self.early.discard(lr)
        if status is Status.STOPPED:
            self.early.add(lr)

    def bracket(self) -> str:
        """Return the bracket in words."""
        works, fails = self.works, self.fails
        if works is None:
            return f"below {fails:g}" if fails is not None else "unknown"
        return f"{works:g} – {fails:g}" if fails is not None else f"at least {works:g}"

    def remarks(self) -> str:
        """Return what keeps the bracket from being the whole truth; empty if nothing does."""
        found = []
        if self.next_rates():
            found.append("not narrower: runs are missing")
        elif self.works in self.early:
            found.append("lower end has left chance, not trained to its end")
        elif self.works is None and self.fails is not None and self.known[self.fails] == STUCK:
            found.append(f"none of {len(self.known)} rates trains")
        if self.contradictions:
            found.append(f"yet {', '.join(f'{lr:g}' for lr in self.contradictions)} trains")
        return "; ".join(found)


def find(
    configs: Iterable[RunConfig], launch: Launch, ratio: float, low: float, high: float, confirm: bool = True
) -> list[Search]:
    """Search for every distinct configuration and seed at once, a round of runs at a time.

    Without `confirm`, lower ends may rest on runs that were stopped when they had left chance. Stops early
    where runs fail for another reason than their rate, or if interrupted. Raises ConfigError for a bad range.
    """
    if not 1.01 <= ratio <= 100:
        raise ConfigError(f"ratio={ratio:g} is out of range: it must be ≥ 1.01 and ≤ 100")
    if not 0 < low < high <= LARGEST:
        raise ConfigError(f"low={low:g} and high={high:g}: it must be 0 < low < high ≤ {LARGEST:g}")
    lowest, highest = (brackets.snap(end, ratio) for end in (low, high))
    if not lowest < highest <= LARGEST:
        raise ConfigError(
            f"low={low:g} and high={high:g} become {lowest:g} and {highest:g}, the nearest powers of "
            f"ratio={ratio:g}: these must differ and be ≤ {LARGEST:g}"
        )
    searches = recall(configs, ratio, low, high)
    known = (replace(s.config, lr=lr, stop_when_decided=True) for s in searches for lr in s.known)
    mark(make_plan(known).trials)  # a report of this search alone has them too
    tried: set[tuple[str, bool]] = set()
    while True:
        wanted = [(s, c) for s in searches for c in s.next_runs(confirm) if _key_of(c) not in tried]
        if not wanted:
            return searches
        tried |= {_key_of(c) for _, c in wanted}
        code = launch(make_plan(c for _, c in wanted))
        for search, config in wanted:
            paths = RunPaths(Path(config.runs_dir) / run_id(config))
            with contextlib.suppress(DamagedRunError):  # the launch has named it
                search.learn(paths, read_record(paths))
        if code == INTERRUPTED:
            return searches


def refuse_rates(settings: Iterable[str]) -> None:
    """Raise ConfigError if settings fix the rate, which a search chooses."""
    if any(text.partition("=")[0].lstrip("+") == "lr" for text in settings):
        raise ConfigError("a search for the highest rate chooses the rates itself: leave lr= out")


HEAD = ("highest trainable rate", "ratio", "above it", "runs", "configuration", "remarks")


def rows(searches: Sequence[Search]) -> list[tuple[str, ...]]:
    """Return one row per search, as HEAD says: bracket, ratio of its ends, outcome at its upper end, …"""
    from study.launch.plan import differing
    from study.launch.table import label

    names = [n for n in differing([s.config for s in searches]) if n != "lr"] or ["norm.name", "seed"]
    found: list[tuple[str, ...]] = []
    for s in searches:
        narrow = f"{s.fails / s.works:.3g}" if s.works is not None and s.fails is not None else ""
        above = s.known[s.fails] if s.fails is not None else ""
        found.append((s.bracket(), narrow, above, str(len(s.known)), label(s.config, names), s.remarks()))
    return found


def table(searches: Sequence[Search]) -> str:
    """Return the rows as text, in columns."""
    lines = [HEAD, *rows(searches)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def write_csv(searches: Sequence[Search], file: Path) -> None:
    """Write rate bounds and settings, one row per search; an open end is empty. Raises StudyError."""
    fields = [scientific(s.config) for s in searches]
    names = sorted({name for f in fields for name in f} - {"lr"})
    ends = ("works", "fails", "fails_by", "works_whole", "runs")
    try:
        with open(file, "w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow([*ends, "norm", *names])
            for s, f in zip(searches, fields, strict=True):
                above = s.known[s.fails] if s.fails is not None else None
                whole = s.works is not None and s.works not in s.early
                values = [s.works, s.fails, above, whole, len(s.known), s.config.norm.name]
                writer.writerow([*values, *(f.get(name) for name in names)])
    except OSError as error:
        raise StudyError(f"cannot write to {file}: {error.strerror}") from error


def recall(configs: Iterable[RunConfig], ratio: float, low: float, high: float) -> list[Search]:
    """Return a search for every distinct configuration and seed, with all that runs on disk tell of it.

    Those are the runs that differ from it in their rate alone.
    """
    distinct = {(c.runs_dir, run_id(replace(c, lr=1.0))): c for c in configs}
    searches = [Search(c, ratio, low, high) for c in distinct.values()]
    wanted: dict[str, list[Search]] = {}
    for search in searches:
        wanted.setdefault(_key(scientific(replace(search.config, lr=1.0))), []).append(search)
    for folder in {Path(s.config.runs_dir) for s in searches}:
        for paths in run_dirs(folder):
            try:
                record = read_record(paths)
            except DamagedRunError:
                continue
            if misnamed(paths, record):
                continue
            for search in wanted.get(_key((record or {}).get("scientific", {})), []):
                search.learn(paths, record)
    return searches


def _key(fields: dict[str, Any]) -> str:
    return repr(sorted((k, str(v)) for k, v in fields.items() if k != "lr"))


def _key_of(config: RunConfig) -> tuple[str, bool]:
    return run_id(config), config.stop_when_decided

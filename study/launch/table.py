"""What a person sees of a launch: a live table (plain lines without a terminal), and the table at the end."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from study import describe, pipes
from study.config import RunConfig
from study.identity import scientific
from study.launch.cost import duration
from study.launch.plan import Plan, Trial, differing
from study.launch.results import Result, result

PLAIN_SECONDS = 30.0
"""Time between two lines of progress where the output is not a terminal."""
MAX_ROWS = 200
"""Longest table at the end; beyond it only what did not end well is listed."""


class State(StrEnum):
    """How a trial's line stands."""

    WAITING = "waiting"
    RUNNING = "running"
    SHARED = "running elsewhere"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


ENDED = (State.DONE, State.FAILED, State.INTERRUPTED)


@dataclass
class Line:
    """One trial as the launch sees it."""

    trial: Trial
    label: str
    display: "Display"
    state: State = State.WAITING
    step: int = 0
    total: int = 0
    accuracy: float | None = None
    """Training accuracy, as last reported."""
    began: float = 0.0
    first: tuple[float, int] | None = None
    """Time and step of the first report: before it come imports and data."""
    last: float = 0.0
    reason: str = ""

    def start(self, share: float) -> None:
        """The trial's process has been started, with `share` of its steps done before."""
        self.state, self.began, self.first = State.RUNNING, time.monotonic(), None
        again = f" again, {share:.0%} done" if share else ""
        self.display.say_plain(f"started{again}: {self.label}")

    def progress(self, step: int, total: int, epoch: int, loss: float, accuracy: float) -> None:
        """The trial has reported."""
        self.step, self.total, self.accuracy, self.last = step, total, accuracy, time.monotonic()
        self.first = self.first or (self.last, step)

    def share(self, owner: str) -> None:
        """Another process works on the trial."""
        if self.state is not State.SHARED:
            self.display.say_plain(f"left to {owner}: {self.label}")
        self.state = State.SHARED

    def finish(self, state: State, trial: Trial, reason: str = "") -> None:
        """The trial is over for this launch."""
        self.state, self.trial, self.reason = state, trial, reason
        self.display.ended(self)

    def result(self) -> Result:
        """Read from disk what came of the trial; a failure that left no record is still a failure."""
        found = result(self.trial.paths, self.trial.status, self.trial.record)
        return replace(found, outcome=str(self.state)) if self.state is State.FAILED else found

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the speed since the first report."""
        if self.first is None or self.step <= self.first[1]:
            return None
        speed = (self.step - self.first[1]) / (self.last - self.first[0])
        return (self.total - self.step) / speed


@dataclass
class Display:
    """Shows a launch while it goes on, and its outcome."""

    console: Console = field(default_factory=lambda: console())
    lines: dict[str, Line] = field(default_factory=dict)
    at_once: int = 1

    def plan(self, plan: Plan, at_once: int) -> None:
        """Show what is about to happen."""
        self.at_once = max(1, at_once)
        names = differing([t.config for t in plan.trials])
        for trial in plan.trials:
            state = State.DONE if trial.done else State.WAITING
            self.lines[trial.run_id] = Line(trial, label(trial.config, names), self, state)
        self.names = names
        self.estimates = plan.estimates if plan.todo else []
        self.say(plan.summary(self.at_once))

    def line(self, trial: Trial) -> Line:
        """Return the line of a trial."""
        return self.lines[trial.run_id]

    def say(self, text: str) -> None:
        """Print a sentence."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def say_plain(self, text: str) -> None:
        """Print a sentence unless the live table shows the same."""
        if not self.console.is_terminal:
            self.say(text)

    def __enter__(self) -> "Display":
        self.told = time.monotonic()
        self.live: Live | None = None
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4, get_renderable=self._live_table)
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def refresh(self) -> None:
        """Give a sign of life where there is no live table."""
        if self.live is None and time.monotonic() - self.told > PLAIN_SECONDS:
            self.told = time.monotonic()
            self.say(self._progress())

    def ended(self, line: Line) -> None:
        """Tell of a trial that is over."""
        over = sum(x.state in ENDED for x in self.lines.values())
        if line.state is State.FAILED:
            what = f"failed: {line.reason}"
        elif line.state is State.INTERRUPTED:
            what = f"interrupted at {line.trial.share:.0%}, resumable"
        else:
            what = _words(line.result())
        self.say_plain(f"[{over}/{len(self.lines)}] {line.label}: {what}")

    def final(self) -> int:
        """Print the table of outcomes and what failed; return 0 only if every trial is done."""
        lines = list(self.lines.values())
        bad = [x for x in lines if x.state is not State.DONE]
        shown = lines if len(lines) <= MAX_ROWS else bad[:MAX_ROWS]
        results = [x.result() for x in shown]
        if shown:
            self.console.print(outcome_table([x.trial for x in shown], [x.label for x in shown], results))
        counts = Counter(str(x.state) for x in lines)
        if bad or len(shown) < len(lines):
            self.say(", ".join(f"{n} {state}" for state, n in sorted(counts.items())))
        for line in (x for x in lines if x.state is State.FAILED):
            log = line.trial.where.log
            where = f" (see {log})" if log.exists() else ""
            self.say(f"failed: {line.label}: {line.reason}{where}")
        if any(x.state in (State.INTERRUPTED, State.WAITING, State.SHARED) for x in lines):
            self.say("the same command goes on where this one stopped")
        damaged = [x for x, found in zip(shown, results, strict=True) if found.damaged]
        for line in damaged:
            self.say(f"damaged: {line.label}: run it again with rerun=true ({line.trial.paths.metrics})")
        return 1 if bad or damaged else 0

    def _live_table(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("trial", "", "", "train acc.", "time left"):
            table.add_column(name, no_wrap=True)
        running = [x for x in self.lines.values() if x.state in (State.RUNNING, State.SHARED)]
        recent = [x for x in self.lines.values() if x.state in ENDED][-8:]
        height = max(3, self.console.size.height - 4)
        for line in [*recent, *running][-height:]:
            table.add_row(*_cells(line))
        return Group(table, Text(self._progress(), style="dim"))

    def _progress(self) -> str:
        counts = Counter(str(x.state) for x in self.lines.values())
        parts = [f"{counts[s]} {s}" for s in State if counts[s]]
        left = self._seconds_left()
        return ", ".join(parts) + (f"; about {duration(left)} left" if left is not None else "")

    def _seconds_left(self) -> float | None:
        """Time until all is done: what runs, and what waits at the speed of what runs or ran before."""
        running = [x for x in self.lines.values() if x.state is State.RUNNING]
        known = [x.seconds_left for x in running if x.seconds_left is not None]
        waiting = sum(x.state is State.WAITING for x in self.lines.values())
        whole = [
            x.seconds_left * x.total / max(1, x.total - x.step) for x in running if x.seconds_left is not None
        ]
        whole = whole or [s for s in self.estimates if s is not None]
        if (running and not known) or (waiting and not whole):
            return None
        rest = waiting * sum(whole) / len(whole) if waiting else 0.0
        return max(max(known, default=0.0), (sum(known) + rest) / self.at_once)


class _Console(Console):
    """Goes on in silence when the reader of its output leaves: no trial ends because of `| head`."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        pipes.silence()


def console() -> Console:
    """Return the console of the standard output; into a file or a pipe, tables are not cut to 80 columns."""
    made = _Console(markup=False)  # names of norms and folders may hold brackets
    return made if made.is_terminal else _Console(width=200, markup=False)


def label(config: RunConfig, names: Sequence[str]) -> str:
    """Name a trial by the settings in which the trials of a launch differ, as "lr=0.1 norm=bn"."""
    if not names:
        names = ["lr", "norm.name", "seed"]
    flat, parts = scientific(config), []
    for name in names:
        if name.startswith("norm."):
            parts.append(f"norm={config.norm.name}")
            continue
        value = flat.get(name, getattr(describe.settings().get(name), "default", None))
        parts.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
    return " ".join(dict.fromkeys(parts))


def outcome_table(trials: Sequence[Trial], labels: Sequence[str], results: Sequence[Result]) -> Table:
    """Return the table of what came of the trials."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("trial", "outcome", "best", "last", "time", "run directory"):
        right = name in ("best", "last", "time")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for trial, text, found in zip(trials, labels, results, strict=True):
        seconds = duration(found.seconds) if found.seconds is not None else ""
        where = str(trial.paths.root) if trial.record else ""
        edited = "; code edited since submission" if (trial.record or {}).get("code_changed") else ""
        failed = {str(x.get("probe")) for x in (trial.record or {}).get("probe_failures") or ()}
        probes = f"; failed in part or whole: {', '.join(sorted(failed))} (log.txt)" if failed else ""
        table.add_row(
            text, found.outcome + edited + probes, percent(found.best), percent(found.last), seconds, where
        )
    return table


def _words(found: Result) -> str:
    parts: list[str] = [found.outcome]
    if found.last is not None:
        parts.append(f"test accuracy {percent(found.last)} (best {percent(found.best)})")
    if found.seconds is not None:
        parts.append(duration(found.seconds))
    return ", ".join(parts)


def percent(share: float | None) -> str:
    """Return a share as a percentage; empty if there is none."""
    return "" if share is None else f"{100 * share:.1f}%"


def _cells(line: Line) -> list[Any]:
    if line.state is State.RUNNING:
        bar = ProgressBar(total=line.total or 1, completed=line.step, width=24)
        left = duration(line.seconds_left) if line.seconds_left is not None else "starting"
        return [line.label, bar, f"{line.step}/{line.total or '?'}", percent(line.accuracy), left]
    if line.state is State.DONE:
        found = line.result()
        return [line.label, found.outcome, "", percent(found.last), ""]
    text = line.reason if line.state is State.FAILED else ""
    return [line.label, Text(str(line.state), style="red" if text else ""), text[:40], "", ""]

"""Trials in parallel on this machine: each in a fresh process from a warm fork server, as many as fit.

The fork server imports torch once; a trial then starts in milliseconds, and its death, however it dies, harms
no other. What came of a trial is read from its run directory, never believed from its process.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from study import trackers
from study.config import RunConfig
from study.errors import ConfigError, unknown
from study.launch import child, machine, validate
from study.launch.plan import Plan, Trial, mark
from study.launch.table import Display, Line, State
from study.ownership import is_alive, owner_of
from study.status import Status

PRELOAD = ["study.launch._forkserver", "study.execute", "study.launch.child", "pandas", "pyarrow.compute"]
"""Imported once for all trials; the last two are what pyarrow imports when it makes its first table."""
TICK_SECONDS = 0.2
SHARED_SECONDS = 1.0
"""Time between two looks at trials that another launch is working on."""
INTERRUPTED = 130


@dataclass(frozen=True)
class Options:
    """Options of hydra/launcher=local."""

    workers: int = 0
    """Trials at once; 0 is as many as fit."""
    grace_seconds: float = 30.0
    """How long trials may take to write a checkpoint after an interrupt."""


def options(**values: Any) -> Options:
    """Build the options from conf/hydra/launcher/local.yaml; raises ConfigError on a wrong value."""
    try:
        made = Options(**values)
    except TypeError:
        wrong = sorted(set(values) - set(Options.__dataclass_fields__))
        raise unknown("option of hydra.launcher", wrong[0], Options.__dataclass_fields__) from None
    for name, value in (("workers", made.workers), ("grace_seconds", made.grace_seconds)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise ConfigError(f"hydra.launcher.{name}={value!r} is out of range: it must be a number ≥ 0")
    return made


def launch(plan: Plan, options: Options | None = None, display: Display | None = None) -> int:
    """Run all that is left of a plan; return 0, 1 if any trial failed, or 130 if interrupted.

    The first SIGINT, SIGTERM or SIGHUP makes every trial write a checkpoint and end as `preempted`; the
    second kills them. Trials that a live process elsewhere works on are left to it and waited for at the end.
    """
    display = display or Display()
    context = fork_server([trial.config for trial in plan.todo])
    if plan.todo:
        _refuse_unrunnable(plan, context)
    display.plan(plan, machine.at_once(plan.todo, options.workers if options else 0))
    if not plan.todo:
        note_sweeps(plan.trials, display)
        _show_agent(plan)
        return display.final()
    note_sweeps(plan.trials, display)
    pool = Pool(plan, options or Options(), display, context)
    with _signals(pool), display:
        pool.run()
    note_sweeps((t.look() for t in plan.todo), display)  # others may have finished some
    if not pool.stopping:
        _show_agent(plan)
    code = display.final()
    return INTERRUPTED if pool.stopping else code


def fork_server(configs: Iterable[RunConfig] = ()) -> ForkServerContext:
    """Return the context whose processes start with torch, and what the configs name, imported."""
    context = multiprocessing.get_context("forkserver")
    named = {
        f"study.{folder}.{name}"
        for c in configs
        for folder, name in (
            ("data", c.data.name),
            ("models", c.model.name),
            ("norms", c.norm.family),
            ("inits", c.init.name),
        )
    }
    context.set_forkserver_preload([*PRELOAD, *sorted(named), "study.launch._freeze"])
    return context


def _show_agent(plan: Plan) -> None:
    """Under `wandb agent`, replay trials that were finished already into the W&B run the agent made."""
    if trackers.agent_run():
        from study.trackers.upload import show_agent

        for trial in plan.trials:
            if trial.look().done:
                show_agent(trial.config, trial.paths)


def note_sweeps(trials: Iterable[Trial], display: Display) -> None:
    """Note in runs that are done already that this sweep asked for them too."""
    for trial in mark(trials):
        owner = owner_of(trial.paths)
        why = f"is owned by {owner}" if owner else "cannot be written to"
        display.say(f"{trial.run_id} {why}: sweep={trial.config.sweep} not noted")


def _refuse_unrunnable(plan: Plan, context: ForkServerContext) -> None:
    """Refuse the whole launch if one trial cannot be run; the fork server has torch already."""
    configs = [t.config for t in plan.todo]
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=validate.report, args=(configs, theirs), daemon=True)
    with _without_main():
        process.start()
    theirs.close()
    try:
        refusal = mine.recv()
    except EOFError:  # it died: the trials will tell why
        refusal = ""
    process.join()
    if refusal:
        raise ConfigError(refusal)


@dataclass
class _Running:
    trial: Trial
    line: Line
    process: ForkServerProcess
    pipe: Connection
    place: machine.Place
    output: Path
    message: str = ""
    """Text of the error the trial reported."""


@dataclass
class Pool:
    """Trials under way, and those that wait for a place."""

    plan: Plan
    options: Options
    display: Display
    context: ForkServerContext
    patient: bool = True
    """Whether to wait for trials that another process works on."""
    running: list[_Running] = field(default_factory=list)
    shared: list[Trial] = field(default_factory=list)
    """Trials that another live process works on."""
    stopping: bool = False
    killing: bool = False

    def run(self) -> None:
        """Run all trials, or end early if interrupted."""
        self.queue = deque(self.plan.todo)
        self.room = machine.Room(self.plan.todo, self.options.workers)
        self.outputs = Path(tempfile.mkdtemp(prefix="study-"))
        looked = time.monotonic()
        try:
            while self.running or self.queue or self.shared:
                if self.stopping:
                    self._wind_down()
                else:
                    self._start_what_fits()
                self._hear()
                if self.shared and time.monotonic() - looked > SHARED_SECONDS:
                    looked = time.monotonic()
                    self._look_at_shared()
                self.display.refresh()
        finally:
            for run in self.running:
                run.process.kill()
            shutil.rmtree(self.outputs, ignore_errors=True)

    def interrupt(self, number: int, frame: types.FrameType | None) -> None:
        """Take a signal: the first one stops, the second one kills."""
        self.killing = self.stopping
        self.stopping = True

    def _start_what_fits(self) -> None:
        while self.queue:
            place = self.room.take(self.queue[0].config)
            if place is None:
                return
            trial = self.queue.popleft()
            now = trial.look()
            if now.done or (now.status is Status.RUNNING and not trial.config.rerun):
                self.room.give_back(place)
                self._settle_elsewhere(now)
            else:
                self._start(now, place)

    def _start(self, trial: Trial, place: machine.Place) -> None:
        mine, theirs = self.context.Pipe(duplex=False)
        output = self.outputs / f"{trial.run_id}.txt"
        process = self.context.Process(
            target=child.run_trial,
            args=(trial.config, theirs, str(output), place.gpu),
            name=trial.run_id,
            daemon=True,
        )
        with _without_main():
            process.start()
        theirs.close()
        line = self.display.line(trial)
        line.start(trial.share)
        self.running.append(_Running(trial, line, process, mine, place, output))

    def _hear(self) -> None:
        """Wait a moment for progress and for ends, and take them in."""
        handles: list[Any] = [r.pipe for r in self.running if not r.pipe.closed]
        handles += [r.process.sentinel for r in self.running]
        if not handles:
            time.sleep(TICK_SECONDS)
            return
        ready = set(wait(handles, timeout=TICK_SECONDS))
        for run in list(self.running):
            ended = run.process.sentinel in ready
            if ended or run.pipe in ready:
                self._receive(run)
            if ended:
                run.process.join()
                self.running.remove(run)
                self.room.give_back(run.place)
                self._settle(run)

    def _receive(self, run: _Running) -> None:
        with contextlib.suppress(EOFError, OSError):
            while not run.pipe.closed and run.pipe.poll():
                try:
                    message = run.pipe.recv()
                except EOFError:
                    run.pipe.close()
                    return
                if isinstance(message, str):
                    run.message = message
                else:
                    run.line.progress(*message)

    def _settle(self, run: _Running) -> None:
        """Conclude from the run directory what came of a trial whose process has ended."""
        code, now = run.process.exitcode, run.trial.look()
        run.pipe.close()
        printed = _take_output(run)
        for line in printed.splitlines():
            if line.startswith(trackers.WARNING):
                self.display.say(f"{run.trial.run_id}: {line}")
        if code == child.OWNED_ELSEWHERE or now.status is Status.RUNNING:
            self._settle_elsewhere(now, run.message)
        elif code == 0 and now.status in (Status.FINISHED, Status.STOPPED):
            run.line.finish(State.DONE, now)
        elif now.status is Status.PREEMPTED or (self.stopping and (code or 0) < 0):
            run.line.finish(State.INTERRUPTED, now)
        else:
            run.line.finish(State.FAILED, now, _reason(run, code, printed))

    def _settle_elsewhere(self, now: Trial, message: str = "") -> None:
        """Deal with a trial that another process has finished, or works on, or has left."""
        line = self.display.line(now)
        owner = owner_of(now.where)
        if now.done:
            line.finish(State.DONE, now)
        elif now.status is Status.FAILED:
            line.finish(State.FAILED, now, f"failed in another launch: {(now.record or {}).get('error')}")
        elif owner is not None and is_alive(owner) is None:
            line.finish(State.FAILED, now, message or f"owned by {owner}, which cannot be seen from here")
        elif self.stopping:
            line.finish(State.INTERRUPTED, now)
        elif owner is not None and is_alive(owner):
            line.share(str(owner))
            if self.patient:
                self.shared.append(now)
        else:
            self.queue.append(now)

    def _look_at_shared(self) -> None:
        shared, self.shared = self.shared, []
        for trial in shared:
            self._settle_elsewhere(trial.look())

    def _wind_down(self) -> None:
        """Start nothing more; tell the trials to stop, and kill those that take too long."""
        if not hasattr(self, "deadline"):
            self.deadline = time.monotonic() + self.options.grace_seconds
            self.display.say("stopping: trials write a checkpoint; interrupt again to kill them")
            self.queue.clear()
            self.shared.clear()
        for run in self.running:  # again and again: a trial that is just being born has no ears yet
            _signal(run, signal.SIGTERM)
        if self.killing or time.monotonic() > self.deadline:
            for run in self.running:
                _signal(run, signal.SIGKILL)


def _signal(run: _Running, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if run.process.pid is not None and run.process.exitcode is None:
            os.kill(run.process.pid, number)


def _take_output(run: _Running) -> str:
    """Append what a trial printed to its log.txt, and return it; a tracker's warning is there already."""
    try:
        printed = run.output.read_text(errors="replace")
        run.output.unlink()
    except OSError:
        return ""
    kept = [x for x in printed.splitlines(keepends=True) if not x.startswith(trackers.WARNING)]
    where = run.trial.where
    if kept and where.root.is_dir():
        with contextlib.suppress(OSError), open(where.log, "a") as log:
            log.writelines(kept)
    return printed


def _reason(run: _Running, code: int | None, printed: str) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = " (from outside; perhaps the machine ran out of memory)" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    if run.message:
        return run.message
    last = printed.strip().splitlines()[-1:] or [f"exit code {code}"]
    return f"ended without a result: {last[0]}"


@contextlib.contextmanager
def _signals(pool: Pool) -> Iterator[None]:
    """Let the pool hear the stop signals; only a main thread may ask for them."""
    old: dict[signal.Signals, Any] = {}
    with contextlib.suppress(ValueError):
        for number in child.STOP_SIGNALS:
            old[number] = signal.signal(number, pool.interrupt)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep multiprocessing from importing the user's script in every trial: no trial needs it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main

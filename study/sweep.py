"""A grid kept in a file: `python -m study.sweep plan|launch|status|cancel|max_lr|sync sweeps/NAME.yaml`.

The file is in W&B's sweep syntax, so that `wandb sweep` takes it too.
"""

import argparse
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from study.arguments import Parser, counted
from study.errors import ConfigError, StudyError, unknown
from study.status import Status

KEYS = ("program", "method", "metric", "parameters", "command", "name", "description", "project", "entity")
COMMAND = ("-m", "study.run", "${args_no_hyphens}")
"""What the end of a sweep's command must be, so that W&B's agent runs what we run."""


@dataclass(frozen=True)
class Sweep:
    """A grid from a file."""

    name: str
    overrides: tuple[str, ...]
    """The grid as settings of `python -m study.run -m`."""

    def settings(self, extra: Sequence[str] = ()) -> list[str]:
        """Return the grid with further settings on top; the later of two with the same name counts."""
        return list({text.partition("=")[0]: text for text in (*self.overrides, *extra)}.values())

    def command(self, extra: Sequence[str] = ()) -> str:
        """Return the equivalent command line."""
        return shlex.join(["python", "-m", "study.run", "-m", *self.settings(extra)])


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file; raises ConfigError for what is not a grid in W&B's syntax."""
    from study.compose import quoted

    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except Exception as error:  # yaml has many ways to fail
        raise ConfigError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict) or not isinstance(content.get("parameters"), dict):
        raise ConfigError(f"{path}: a sweep has `parameters`, each with `value` or `values`")
    for key in content:
        if key not in KEYS:
            raise unknown(f"entry of {path}", key, KEYS)
    if content.get("method") != "grid":
        raise ConfigError(f"{path}: method={content.get('method')!r}; only 'grid' is supported")
    if "command" in content and tuple(content["command"])[-len(COMMAND) :] != COMMAND:
        raise ConfigError(f"{path}: command must end in: {' '.join(COMMAND)}")
    settings: dict[str, str] = {}
    for name, parameter in content["parameters"].items():
        values = _values(path, name, parameter)
        settings[str(name)] = ",".join(map(quoted, values))
    settings.setdefault("sweep", quoted(path.stem))
    name = settings["sweep"].strip("'")
    return Sweep(name, tuple(f"{k}={v}" for k, v in settings.items()))


def _values(path: Path, name: object, parameter: Any) -> list[Any]:
    if not isinstance(parameter, dict) or len(parameter) != 1 or set(parameter) - {"value", "values"}:
        raise ConfigError(f"{path}: parameter '{name}' needs exactly one of value and values")
    if "value" in parameter:
        return [parameter["value"]]
    values = parameter["values"]
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{path}: values of '{name}' must be a list")
    return values


def plan_of(sweep: Sweep, extra: Sequence[str]) -> Any:
    """Return the plan (study.launch.plan.Plan) of a sweep with further settings on top."""
    from study.compose import compose_all, expand
    from study.launch.plan import make_plan

    settings = [x for x in sweep.settings(extra) if not x.startswith("hydra")]
    return make_plan(compose_all(expand(settings)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = _parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except StudyError as error:
        print(f"study.sweep: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m study.sweep", description="Plan, launch and watch a grid that is kept in a file."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = _command(commands, "plan", _plan, "show the trials, what is done and what is left; start nothing")
    plan.add_argument("--all", action="store_true", help="list every trial, however many")
    _command(commands, "launch", _launch, "run what is left (hydra/launcher=… chooses where)")
    status = _command(commands, "status", _status, "count statuses and outcomes; exit code 1 if any failed")
    status.add_argument("--watch", type=float, metavar="SECONDS", help="refresh until nothing runs or waits")
    _command(commands, "cancel", _cancel, "cancel this sweep's SLURM jobs; what they run writes a checkpoint")
    search = _command(
        commands, "max_lr", _max_lr, "find the highest trainable rate per configuration and seed"
    )
    search.add_argument("--ratio", type=float, default=1.25, help="how narrow the bracket must be")
    search.add_argument("--low", type=float, default=1e-6, help="lowest rate to try")
    search.add_argument("--high", type=float, default=10.0, help="highest rate to try")
    _command(commands, "sync", _sync, "upload the finished runs to W&B, each once; exit code 1 if that fails")
    return parser


def _command(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    made.add_argument("file", type=Path, help="sweeps/NAME.yaml")
    made.add_argument("overrides", nargs="*", help="settings on top of the file's, as in runs_dir=/data/runs")
    made.set_defaults(run=run)
    return made


def _plan(args: argparse.Namespace) -> int:
    from study.launch.plan import differing
    from study.launch.table import MAX_ROWS, label
    from study.launch.validate import buildable

    sweep = read_sweep(args.file)
    plan = plan_of(sweep, args.overrides)
    buildable([t.config for t in plan.todo])
    names = differing([t.config for t in plan.trials])
    shown = plan.trials if args.all else plan.trials[:MAX_ROWS]
    for trial in shown:
        part = f" {trial.share:.0%}" if not trial.done and trial.share else ""
        print(f"{trial.status}{part}\t{label(trial.config, names)}\t{trial.run_id}")
    if len(shown) < len(plan.trials):
        print(f"… and {len(plan.trials) - len(shown)} more (--all lists them)")
    print(plan.summary())
    print(f"launch with: {sweep.command(args.overrides)}")
    return 0


def _launch(args: argparse.Namespace) -> int:
    from study import run

    sweep = read_sweep(args.file)
    print(sweep.command(args.overrides), flush=True)
    sys.argv = ["study.run", "-m", *sweep.settings(args.overrides)]
    try:
        run.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _status(args: argparse.Namespace) -> int:
    sweep = read_sweep(args.file)
    while True:
        plan = plan_of(sweep, args.overrides)
        text, failed = _counted(sweep, plan)
        print(text, flush=True)
        live = {Status.RUNNING, Status.WAITING} & set(plan.counts())
        if not args.watch or not live:
            return 1 if failed else 0
        time.sleep(args.watch)


def _sync(args: argparse.Namespace) -> int:
    from study.trackers.upload import sync

    sweep = read_sweep(args.file)
    trials = plan_of(sweep, args.overrides).trials
    ready = [t for t in trials if t.status in (Status.FINISHED, Status.STOPPED)]
    counts: Counter[str] = Counter({"not finished": len(trials) - len(ready)})
    failed = ""
    for trial in ready:
        uploaded, failed = sync(trial.config, trial.paths)
        if failed:  # what keeps one run from W&B keeps the others as well
            break
        counts["uploaded" if uploaded else "there already"] += 1
    done = ", ".join(f"{n} {what}" for what, n in counts.items() if n)
    print(f"{sweep.name}: {done or 'nothing uploaded'}" + (f"; stopped: {failed}" if failed else ""))
    return 1 if failed else 0


def _cancel(args: argparse.Namespace) -> int:
    from study.launch import slurm_queue

    plan = plan_of(read_sweep(args.file), args.overrides)
    mine = {str(t.paths.root) for t in plan.trials}
    names = {t.config.sweep for t in plan.trials}
    folders = {t.paths.root.parent for t in plan.trials}
    queued = slurm_queue.queued(folders, slurm_queue.live())
    foreign = {task.job for run, (_, _, task) in queued.items() if run not in mine}
    jobs = {task.job for submission, _, task in queued.values() if submission.sweep in names} - foreign
    slurm_queue.cancel(jobs)
    trials = sum(task.job in jobs for _, _, task in queued.values())
    print(f"cancelled {len(jobs)} tasks with {trials} trials; launch again to go on")
    return 0


def _max_lr(args: argparse.Namespace) -> int:
    from study import max_lr
    from study.compose import compose_all, expand

    settings = read_sweep(args.file).settings(args.overrides)
    grid = [x for x in settings if not x.startswith(("lr=", "hydra"))]
    launch = _launcher([x for x in settings if x.startswith("hydra")])
    searches = max_lr.find(compose_all(expand(grid)), launch, args.ratio, args.low, args.high)
    print(max_lr.table(searches))
    return 1 if any(s.next_rates() for s in searches) else 0


def _launcher(overrides: Sequence[str]) -> Any:
    """Return the function that runs a plan to its end through the launcher that the settings choose."""
    from study.compose import by_hydra_launcher
    from study.launch import local, slurm

    target, options = by_hydra_launcher(overrides)
    if target.endswith("SlurmLauncher"):
        waiting = slurm.options(**options | {"wait": True})
        return lambda plan: slurm.launch(plan, waiting)
    here = local.options(**options)
    return lambda plan: local.launch(plan, here)


def _in_queue(plan: Any) -> str:
    """Say how many trials wait or run in SLURM's queue; empty where nothing was submitted."""
    from study.launch import slurm_queue

    folders = {t.paths.root.parent for t in plan.todo}
    if not any((folder / slurm_queue.FOLDER).is_dir() for folder in folders):
        return ""
    try:
        queued = slurm_queue.queued(folders, slurm_queue.live())
    except StudyError as error:
        return f"whether trials are queued is not known: {error}"
    pending = [queued[str(t.paths.root)][2].pending for t in plan.todo if str(t.paths.root) in queued]
    return f"SLURM: {sum(pending)} trials in tasks that wait, {len(pending) - sum(pending)} in tasks that run"


def _counted(sweep: Sweep, plan: Any) -> tuple[str, bool]:
    """Return the sweep's state in words, and whether any trial failed."""
    from study.launch import cost
    from study.launch.results import result

    done = [t for t in plan.trials if t.status in (Status.FINISHED, Status.STOPPED)]
    outcomes = Counter(result(t.paths, t.status, t.record).outcome for t in done)
    lines = [f"{sweep.name}: {counted(len(plan.trials), 'trial')}"]
    lines += [f"  {n:6d} {status}" for status, n in sorted(plan.counts().items())]
    if outcomes:
        lines.append(
            "outcomes of the finished: " + ", ".join(f"{n} {o}" for o, n in sorted(outcomes.items()))
        )
    known = [s for s in plan.estimates() if s is not None]
    if known:
        left = sum(known) / len(known) * len(plan.todo)
        running = max(1, plan.counts()[Status.RUNNING])
        wall = cost.duration(left / running)
        lines.append(f"about {cost.duration(left)} of run time left ({wall} at {running} at once)")
    if queue := _in_queue(plan):
        lines.append(queue)
    failed = [t for t in plan.trials if t.status is Status.FAILED]
    lines += [f"failed: {t.run_id}: {(t.record or {}).get('error')} (see {t.paths.log})" for t in failed]
    return "\n".join(lines), bool(failed)


if __name__ == "__main__":
    sys.exit(main())

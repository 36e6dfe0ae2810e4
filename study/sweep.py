"""A grid kept in a file: `python -m study.sweep plan|launch|status|cancel|max_lr|sync sweeps/NAME.yaml`.

NAME alone will do. The file is in W&B's sweep syntax, so that `wandb sweep` takes it too.
"""

import argparse
import contextlib
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from study import pipes
from study.arguments import Parser
from study.errors import ConfigError, StudyError, plain_disk_errors, unknown
from study.status import Status

KEYS = ("program", "method", "metric", "parameters", "command", "name", "description", "project", "entity")
COMMAND = ("-m", "study.run", "${args_no_hyphens}")
"""What the end of a sweep's command must be, so that W&B's agent runs what we run."""


SWEEPS = Path(__file__).resolve().parent.parent / "sweeps"


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


def sweep_file(text: str) -> Path:
    """Return the file that a path, or the name of a file in sweeps/, means."""
    named = SWEEPS / f"{text}.yaml"
    return named if named.exists() and not Path(text).exists() else Path(text)


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file; raises ConfigError for what is not a grid in W&B's syntax."""
    from study.compose import quoted

    try:
        content: Any = yaml.load(path.read_text(), Loader=get_yaml_loader())  # reads 1e-4 as Hydra does
    except FileNotFoundError:
        if path == Path(path.name) or path.parent.resolve() == SWEEPS:
            raise unknown("sweep", path.stem, [p.stem for p in SWEEPS.glob("*.yaml")]) from None
        raise ConfigError(f"{path}: there is no such file") from None
    except Exception as error:  # yaml has many ways to fail
        raise ConfigError(f"{path} cannot be read: {[*str(error).splitlines(), error][0]}") from error
    if not isinstance(content, dict) or not isinstance(content.get("parameters"), dict):
        raise ConfigError(f"{path}: a sweep has `parameters`, each with `value` or `values`")
    for key in content:
        if key not in KEYS:
            raise unknown(f"entry of {path}", key, KEYS)
    if content.get("method") != "grid":
        given = f"method={content['method']!r}" if "method" in content else "it has no method"
        raise ConfigError(f"{path}: {given}; `method: grid` is what is supported")
    command = content.get("command", [*COMMAND])
    if not isinstance(command, list) or tuple(command)[-len(COMMAND) :] != COMMAND:
        raise ConfigError(f"{path}: command must end in: {' '.join(COMMAND)}")
    if not content["parameters"]:
        raise ConfigError(f"{path}: parameters is empty: there is no grid")
    grid = {str(name): _values(path, name, value) for name, value in content["parameters"].items()}
    if "sweep" not in grid and "${" in path.stem:
        raise ConfigError(
            f"{path}: a sweep is called as its file, and no name may hold '${{'; rename the file"
        )
    names = grid.setdefault("sweep", [path.stem])
    settings = {name: ",".join(map(quoted, values)) for name, values in grid.items()}
    return Sweep(",".join(map(str, names)), tuple(f"{k}={v}" for k, v in settings.items()))


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
        with plain_disk_errors(Path.cwd()):
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
    status.add_argument(
        "--watch",
        type=_pause,
        nargs="?",
        const=10.0,
        metavar="SECONDS",
        help="refresh, every 10 s if not told, until nothing runs or waits",
    )
    _command(commands, "cancel", _cancel, "cancel this sweep's SLURM jobs; what they run writes a checkpoint")
    _search_command(commands)
    _command(commands, "sync", _sync, "upload the finished runs to W&B, each once; exit code 1 if that fails")
    return parser


def _search_command(commands: Any) -> None:
    text = "find the highest trainable rate per configuration and seed"
    search = commands.add_parser("max_lr", help=text, description=f"{text} (study/max_lr.py says how)")
    search.add_argument(
        "words", nargs="+", metavar="NAME|SETTING", help="sweeps, and settings on top of theirs"
    )
    search.set_defaults(run=_max_lr)
    search.add_argument("--ratio", type=float, default=1.25, help="how narrow the bracket must be (1.25)")
    search.add_argument("--low", type=float, default=1e-6, help="lowest rate to try (1e-6)")
    search.add_argument("--high", type=float, default=10.0, help="highest rate to try (10)")
    search.add_argument("--csv", type=Path, metavar="FILE", help="write the table as CSV too")
    search.add_argument(
        "--unconfirmed",
        action="store_true",
        help="spare the last run of each search, which trains the lower end of its bracket to the end",
    )


def _pause(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 86_400:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is no number of seconds > 0 and ≤ 86400")


def _command(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    made.add_argument("file", type=sweep_file, metavar="NAME", help="NAME, or sweeps/NAME.yaml")
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
    from study.launch.standing import standing

    sweep = read_sweep(args.file)
    plan = plan_of(sweep, args.overrides)
    while True:
        now = standing(sweep.name, plan)
        print(now.text, flush=True)
        if not args.watch or not now.open:
            return 1 if now.failed else 0
        time.sleep(args.watch)
        plan = replace(plan, trials=tuple(t.look() for t in plan.trials))


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
    from study.config import with_values
    from study.paths import SEARCH_SUFFIX

    extra = [x for x in args.words if "=" in x]
    configs, launcher = [], [x for x in extra if x.startswith("hydra")]
    for name in (x for x in args.words if "=" not in x):
        settings = read_sweep(sweep_file(name)).settings(extra)
        grid = [x for x in settings if not x.startswith(("lr=", "hydra"))]
        for config in compose_all(expand(grid)):
            configs.append(with_values(config, {"sweep": f"{config.sweep}{SEARCH_SUFFIX}"}))
    if not configs:
        raise ConfigError("max_lr needs the name of a sweep, as in: python -m study.sweep max_lr quickstart")
    max_lr.refuse_rates(extra)
    if args.csv:
        max_lr.write_csv([], args.csv)  # that it cannot be written is told before the training
    launch, codes = _launcher(launcher), []

    def watched(plan: Any) -> int:
        codes.append(launch(plan))
        return int(codes[-1])

    confirm = not args.unconfirmed
    searches = max_lr.find(configs, watched, args.ratio, args.low, args.high, confirm=confirm)
    print(max_lr.table(searches))
    if args.csv:
        max_lr.write_csv(searches, args.csv)
    if max_lr.INTERRUPTED in codes:
        return max_lr.INTERRUPTED
    return 1 if any(s.next_runs(confirm) for s in searches) else 0


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


if __name__ == "__main__":
    pipes.run(main)

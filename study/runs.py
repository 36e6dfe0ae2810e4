"""`python -m study.runs list|show|diff|clean`: find, compare, size and tidy runs. Imports no torch."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from study import describe, pipes
from study.arguments import Parser, counted
from study.config import RunConfig, stored_config, to_mapping
from study.errors import ConfigError, StudyError, plain_disk_errors, unknown
from study.launch.cost import duration
from study.launch.results import result
from study.launch.table import console, percent
from study.leftovers import Leftovers, leftovers, reruns
from study.ownership import claimed, is_alive, observed_status, owner_of, release_unseen
from study.paths import RunPaths, run_dirs
from study.records import DamagedRunError, misnamed, read_record
from study.status import Outcome, Status

LABELS = ("norm", "lr", "seed", "model", "depth", "data", "experiment", "scale")
"""Entries of run.json that a filter may name, besides status, outcome, sweep and any setting."""

VALUES: Mapping[str, frozenset[str]] = {
    "status": frozenset(map(str, Status)),
    "outcome": frozenset(map(str, Outcome)),
}
"""All values of entries that have few."""


@dataclass(frozen=True)
class Run:
    """One run directory as it stands."""

    paths: RunPaths
    status: Status | None
    """None if run.json cannot be read."""
    record: Mapping[str, Any]
    damage: str = ""
    """Why run.json cannot be read."""

    def value(self, name: str) -> Any:
        """Return what a filter compares with; raises ConfigError for an unknown name."""
        if name == "status":
            return str(self.status)
        if name == "outcome":
            return self.record.get("outcome")
        if name == "sweep":
            return self.record.get("sweeps", [])
        if name in LABELS:
            return self.record.get(name)
        settings = {s.name: s.default for s in describe.settings().values() if s.scientific}
        if name in settings:
            return self.record.get("scientific", {}).get(name, settings[name])
        raise unknown("filter", name, {"status", "outcome", "sweep", *LABELS, *settings})


def find(runs_dir: Path, filters: Sequence[str] = ()) -> list[Run]:
    """Return the runs for which every filter NAME=VALUE[,VALUE…] holds; damaged ones always.

    Raises ConfigError for a folder that is none, and for a filter that nothing can pass.
    """
    _require(runs_dir)
    runs = [look(p) for p in run_dirs(runs_dir)]
    for text in filters:
        name, equals, wanted = text.partition("=")
        if not equals:
            raise ConfigError(f"'{text}' is not a filter; write NAME=VALUE, as in norm=bn")
        Run(RunPaths(runs_dir), None, {}).value(name)  # an unknown name is an error even without runs
        for value in wanted.split(",") if name in VALUES else ():
            if value not in VALUES[name]:
                raise unknown(name, value, VALUES[name])
        runs = [r for r in runs if r.status is None or _matches(r.value(name), wanted.split(","))]
    return runs


def look(paths: RunPaths) -> Run:
    """Read one run directory."""
    try:
        record = read_record(paths)
        return Run(paths, observed_status(paths, record), record or {})
    except DamagedRunError as error:
        return Run(paths, None, {}, str(error))


def resolve(runs_dir: Path, name: str) -> RunPaths:
    """Return the run that a path, an id or the beginning of an id names; raises StudyError."""
    if (Path(name) / "run.json").exists() or (Path(name) / "config.yaml").exists():
        return RunPaths(Path(name))
    _require(runs_dir)
    paths = run_dirs(runs_dir)
    found = [p for p in paths if p.run_id == name] or [p for p in paths if p.run_id.startswith(name)]
    if not found:
        raise unknown(f"run in {runs_dir}", name, [p.run_id for p in paths][:20])
    if len(found) > 1:
        raise StudyError(
            f"'{name}' is the beginning of {len(found)} runs: {found[0].run_id}, {found[1].run_id}, …"
        )
    return found[0]


def _require(runs_dir: Path) -> None:
    if not runs_dir.is_dir():
        raise ConfigError(f"there is no folder '{runs_dir}': --runs takes the folder that runs_dir= named")


def stored_settings(paths: RunPaths) -> dict[str, Any]:
    """Return a run's settings, flat, from its config.yaml."""
    return dict(_flat(to_mapping(stored_config(paths.config)), ""))


def size(paths: RunPaths) -> int:
    """Return the bytes of all files of a run."""
    return sum(f.stat().st_size for f in paths.root.rglob("*") if f.is_file())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = _parser().parse_args(argv)
    try:
        with plain_disk_errors(args.runs):
            code: int = args.run(args)
    except StudyError as error:
        print(f"study.runs: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m study.runs", description="Find, compare, size and tidy runs.")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of all runs")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    made = commands.add_parser("list", help="a table of runs", description="A table of runs.")
    made.add_argument("filters", nargs="*", help="as in norm=bn lr=0.1,0.01 status=failed sweep=quickstart")
    made.set_defaults(run=_list)
    made = commands.add_parser("show", help="one run: settings, outcome, files")
    made.add_argument("name", help="path, id, or the beginning of an id")
    made.set_defaults(run=_show)
    made = commands.add_parser("diff", help="settings in which two runs differ")
    made.add_argument("names", nargs=2, metavar="RUN")
    made.set_defaults(run=_diff)
    made = commands.add_parser(
        "clean",
        help="remove leftovers; only shows them unless --yes is given",
        description="Remove temporary files, claims of dead processes, and checkpoints of finished runs.",
    )
    made.add_argument("filters", nargs="*", help="as in norm=bn lr=0.1,0.01; without any, all runs")
    made.add_argument("--yes", action="store_true", help="do it")
    made.add_argument("--failed", action="store_true", help="remove failed runs altogether")
    made.add_argument("--finished", action="store_true", help="remove FINISHED runs altogether")
    made.add_argument(
        "--reruns", action="store_true", help="give up unfinished reruns, remove what they have"
    )
    made.add_argument("--release", metavar="RUN", help="drop the claim of a machine that is gone for good")
    made.set_defaults(run=_clean)
    for command in commands.choices.values():  # --runs may stand before or after the command
        command.add_argument(
            "--runs", type=Path, default=argparse.SUPPRESS, metavar="DIR", help="folder of all runs"
        )
    return parser


def _list(args: argparse.Namespace) -> int:
    runs = find(args.runs, args.filters)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "status", "outcome", "best", "last", "time", "size"):
        right = name in ("best", "last", "time", "size")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for run in runs:
        table.add_row(*_row(run))
    if runs:
        console().print(table)
    print(f"{counted(len(runs), 'run')} in {args.runs}")
    return 1 if any(r.status is None for r in runs) else 0


def _row(run: Run) -> list[str]:
    bytes_ = _bytes(size(run.paths))
    if run.status is None:
        return [run.paths.run_id, "damaged", "", "", "", "", bytes_]
    found = result(run.paths, run.status, dict(run.record) or None)
    outcome = found.outcome if run.status in (Status.FINISHED, Status.STOPPED) else ""
    seconds = "" if found.seconds is None else duration(found.seconds)
    why = misnamed(run.paths, run.record)
    status = f"{run.status} ({why})" if why else str(run.status)
    return [
        run.paths.run_id, status, outcome, percent(found.best), percent(found.last), seconds, bytes_
    ]  # fmt: skip


def _show(args: argparse.Namespace) -> int:
    paths = resolve(args.runs, args.name)
    run = look(paths)
    labels = ("run", "status", "outcome", "best test accuracy", "last test accuracy", "training time", "size")
    lines = [f"{k}: {v}" for k, v in zip(labels, _row(run), strict=True) if v]
    owner = owner_of(paths)
    if owner is not None:
        alive = {True: "alive", False: "gone", None: "cannot be seen from here"}[is_alive(owner)]
        lines.append(f"owner: {owner} ({alive})")
    shown = (
        "divergence",
        "error",
        "sweeps",
        "restarts",
        "device",
        "threads",
        "host",
        "git",
        "versions",
        "created",
    )
    lines += [f"{k}: {run.record[k]}" for k in shown if run.record.get(k) not in (None, [], "")]
    problems = [run.damage] if run.damage else []
    if paths.config.exists():
        default = dict(_flat(to_mapping(RunConfig()), ""))
        try:
            settings = stored_settings(paths)
            lines.append("settings that differ from the defaults:")
            lines += [f"  {k}={v}" for k, v in settings.items() if v != default[k]]
        except StudyError as error:
            problems.append(str(error))
    lines.append("files:")
    for file in sorted(f for f in paths.root.rglob("*") if f.is_file()):
        lines.append(f"  {_bytes(file.stat().st_size):>9}  {file.relative_to(paths.root)}")
    print("\n".join(lines), flush=True)
    for problem in problems:
        print(f"study.runs: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _diff(args: argparse.Namespace) -> int:
    left, right = (resolve(args.runs, name) for name in args.names)
    a, b = stored_settings(left), stored_settings(right)
    lines = [f"{k}: {a[k]} | {b[k]}" for k in a if a[k] != b[k]]
    one, two = look(left).record, look(right).record
    for key in ("outcome", "versions", "device", "threads", "git", "host"):
        if one.get(key) != two.get(key):
            lines.append(f"({key}: {one.get(key)} | {two.get(key)})")
    print("\n".join(lines) or "no difference")
    return 0


def _clean(args: argparse.Namespace) -> int:
    if args.release is not None:
        if not args.release:
            raise ConfigError("--release takes the path or the id of a run, and was given nothing")
        folder = Path(args.release)  # a path may name a rerun, or a run that has not got its first file yet
        paths = RunPaths(folder) if claimed(RunPaths(folder)) else resolve(args.runs, args.release)
        release_unseen(paths)
        print(f"{paths.root}: released")
        return 0
    remove = {Status.FAILED} if args.failed else set()
    remove |= {Status.FINISHED} if args.finished else set()
    found = [leftovers(r.paths, r.status, whole=r.status in remove) for r in find(args.runs, args.filters)]
    found += [] if args.filters else reruns(args.runs, give_up=args.reruns)
    found = [x for x in found if x.items]
    for item in found:
        print(_described(item))
    if not found:
        print("nothing to clean")
        return 0
    if not args.yes:
        print(f"{counted(len(found), 'run')} with leftovers; --yes removes them")
        return 0
    return 1 if sum(not _removed(x) for x in found) else 0


def _described(found: Leftovers) -> str:
    if found.whole and found.paths.root.is_symlink():
        return f"{found.paths.root}: the link to {found.paths.root.resolve()}, not the run itself"
    if found.whole:
        return f"{found.paths.root}: the whole run ({_bytes(size(found.paths))})"
    names = ", ".join(str(p.relative_to(found.paths.root)) for p in found.items)
    return f"{found.paths.root}: {names}"


def _removed(found: Leftovers) -> bool:
    try:
        with plain_disk_errors(found.paths.root):
            found.remove()
    except (StudyError, OSError) as error:
        print(f"{found.paths.root}: left alone: {error}", file=sys.stderr)
        return False
    return True


def _matches(value: Any, wanted: Sequence[str]) -> bool:
    values = value if isinstance(value, list) else [value]
    return any(_same(v, w) for v in values for w in wanted) or str(value) in wanted


def _same(value: Any, text: str) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value) == float(text)
        except ValueError:
            return False
    return str(value).lower() == text.lower() if isinstance(value, bool) else str(value) == text


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


if __name__ == "__main__":
    pipes.run(main)

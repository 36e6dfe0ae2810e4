"""How long planning takes: `python -m study.bench planning`; wall times of whole commands.

The processor's time stands in brackets: on a quiet machine the two are the same.

plan      `python -m study.sweep plan` of a grid of 10,000 trials of which nothing is on disk: at most 20 s
status    `python -m study.sweep status` of 1,000 finished trials: at most 2 s
equal     a random sample of the grid, composed the fast way and by Hydra alone: all equal
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from study.arguments import Parser, whole
from study.compose import by_hydra, compose, compose_all, expand
from study.config import RunConfig, from_mapping
from study.execute import execute, run_paths
from study.identity import run_id, scientific
from study.paths import RunPaths
from study.ratios import seconds
from study.records import read_record, write_json

Grid = dict[str, list[object]]
MOST_PLAN, MOST_STATUS = 20.0, 2.0
"""Limits, seconds."""
NORMS = ("bn", "none", "gn", "ln", "rms")
RATES = 100
SAMPLE = 20
"""Trials composed by Hydra alone as well, 0.1 s each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the three lines; return 1 if a limit is missed or a trial differs."""
    parser = Parser(prog="python -m study.bench planning", description=__doc__)
    parser.add_argument("--trials", type=whole(1), default=10_000, help="trials to plan, a multiple of 500")
    parser.add_argument("--finished", type=whole(1), default=1000, help="trials to count")
    args = parser.parse_args(arguments)
    seeds = max(1, args.trials // (RATES * len(NORMS)))
    grid: Grid = {
        "lr": [round(10 ** -(i / 25), 8) for i in range(RATES)],
        "norm": list(NORMS),
        "seed": list(range(seeds)),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        n = RATES * len(NORMS) * seeds
        planned = _command(folder, "plan", grid)
        met = _told(f"planning {n} trials, s", planned, MOST_PLAN)
        many: Grid = {
            "scale": ["smoke"],
            "epochs": [1],
            "seed": list(range(args.finished)),
        }
        _finish_all(folder / "runs", many)
        counted = _command(folder, "status", many)
        met &= _told(f"status of {args.finished} finished trials, s", counted, MOST_STATUS)
    return int(not (met & _equal(_settings(grid))))


def _command(folder: Path, command: str, grid: Grid) -> tuple[float, float]:
    """Return the wall time and the processor time of a command: on a busy machine the two differ."""
    file = folder / f"{command}.yaml"
    file.write_text(json.dumps({"method": "grid", "parameters": {k: {"values": v} for k, v in grid.items()}}))
    words = [sys.executable, "-m", "study.sweep", command, str(file), f"runs_dir={folder / 'runs'}"]
    before = _children()
    wall = seconds(lambda: subprocess.run(words, check=True, capture_output=True))
    return wall, _children() - before


def _children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _settings(grid: Grid) -> list[str]:
    return [f"{k}={','.join(map(str, v))}" for k, v in grid.items()]


def _finish_all(runs_dir: Path, grid: Grid) -> None:
    """Train the first trial and give the others copies of its files, under their own names."""
    configs = compose_all(expand([*_settings(grid), f"runs_dir={runs_dir}", "device=cpu"]))
    execute(configs[0])
    first = run_paths(configs[0])
    record = read_record(first)
    assert record is not None
    for config in configs[1:]:
        paths = RunPaths(runs_dir / run_id(config))
        shutil.copytree(first.root, paths.root)
        own = {"run_id": paths.run_id, "seed": config.seed, "scientific": scientific(config)}
        write_json(paths.record, record | own)


def _equal(grid: list[str]) -> bool:
    trials = random.Random(0).sample(expand(grid), SAMPLE)
    same = sum(compose(t) == _by_hydra_alone(t) for t in trials)
    print(f"{'equal to what Hydra alone composes:':54} {same} of {SAMPLE}", flush=True)
    return same == SAMPLE


def _by_hydra_alone(trial: list[str]) -> RunConfig:
    return from_mapping({k: v for k, v in by_hydra(trial).items() if k != "from"})


def _told(label: str, times: tuple[float, float], most: float) -> bool:
    wall, processor = times
    met = wall <= most
    shown = f"{wall:.2f} (processor: {processor:.2f})"
    print(f"{label + ':':54} {shown:28} at most {most:g}: {'met' if met else 'MISSED'}", flush=True)
    return met

"""`python -m analysis.undecided --runs DIR`: the commands that add the seeds with which claims are judged.

A claim that its first seeds leave undetermined is judged once more, with twice as many (analysis.claims.base,
LOOKS). Prints nothing where no seeds are wanted; parts of the study of which nothing was run are not begun.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from analysis.claims import Result, judge_all
from analysis.load import Frames, LoadError, load
from study import pipes
from study.paths import SEARCH_SUFFIX


def wanted(results: Iterable[Result], frames: Frames) -> dict[tuple[str, str], int]:
    """Return how many seeds per cell each (sweep, scale) should have for claims that more seeds may decide.

    Of a claim's sweeps, those that its runs belong to: another may make such runs at another setting.
    """
    of_run = frames.runs.set_index(frames.runs["run_id"].astype("str"))["sweeps"]
    found: dict[tuple[str, str], int] = {}
    for result in results:
        if result.seeds_to_add_up_to:
            names = {name for run in result.run_ids for name in json.loads(of_run[run])}
            mine = {name.removesuffix(SEARCH_SUFFIX) for name in names}
            for name in (s for s in result.claim.sweep if s in mine):
                key = (name, result.scale)
                found[key] = max(found.get(key, 0), result.seeds_to_add_up_to)
    return found


def commands(seeds: dict[tuple[str, str], int], runs: Path) -> list[str]:
    """Return one command for each number of seeds and scale."""
    found = []
    for n, scale in sorted({(k, scale) for (_, scale), k in seeds.items()}):
        names = [name for (name, at), k in seeds.items() if k == n and at == scale]
        words = ["python", "-m", "study.parts", "run", *names, f"seed=range(0,{n})", f"runs_dir={runs}"]
        words += [f"scale={scale}"] if scale not in ("", "laptop") else []
        found.append(shlex.join(words))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the commands; returns the exit code: 0, or 1 after one plain sentence on stderr."""
    parser = argparse.ArgumentParser(prog="python -m analysis.undecided", description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the runs folder (default: runs)")
    options = parser.parse_args(arguments)
    try:
        frames = load(options.runs)
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for command in commands(wanted(judge_all(frames), frames), options.runs):
        print(command)
    return 0


if __name__ == "__main__":
    pipes.run(main)

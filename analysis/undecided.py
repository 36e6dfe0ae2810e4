"""`python -m analysis.undecided --runs DIR`: the commands that add the seeds with which claims are judged.

A claim that its first seeds leave undetermined is judged once more, with twice as many (analysis.claims.base,
LOOKS). Prints nothing where no seeds are wanted; parts of the study of which nothing was run are not begun.
A command names what its runs were made with besides what the sweep's file says, so that seeds join the very
runs that were judged; where that cannot be told, the claim is left out with a sentence on stderr.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.claims import Result, judge_all
from analysis.load import Frames, LoadError, load
from analysis.select import ARCHITECTURE
from study import again, pipes
from study.paths import SEARCH_SUFFIX


@dataclass(frozen=True)
class Addition:
    """A sweep and the settings with which it makes the runs that were judged."""

    sweep: str
    scale: str
    settings: tuple[str, ...] = ()
    """As typed, without those of the file and of the scale."""


def wanted(results: Iterable[Result], frames: Frames) -> tuple[dict[Addition, int], list[str]]:
    """Return how many seeds per cell to have for claims that more seeds may decide, and what is left out.

    Of a claim's sweeps, those that its runs belong to: another may make such runs at another setting.
    """
    runs = frames.runs.assign(listed=frames.runs["sweeps"].map(json.loads))
    found: dict[Addition, int] = {}
    known: dict[tuple[str, str, frozenset[tuple[str, str]]], Addition | again.UnknownSettingsError] = {}
    left_out = []
    for result in results:
        if not result.seeds_to_add_up_to:
            continue
        judged = runs[runs["run_id"].isin(result.run_ids)]
        for name in result.claim.sweep:
            pairs = _pairs(judged[_belongs(judged, name)])
            if not pairs:
                continue
            key = name, result.scale, frozenset(pairs)
            if key not in known:
                known[key] = _addition(name, result.scale, runs[_belongs(runs, name)], key[2])
            addition = known[key]
            if isinstance(addition, Addition):
                found[addition] = max(found.get(addition, 0), result.seeds_to_add_up_to)
            else:
                left_out.append(f"{result.claim.id}: no seeds are added to {name}: {addition}")
    return found, left_out


def _belongs(runs: pd.DataFrame, sweep: str) -> "pd.Series[bool]":
    """Which runs a sweep asked for, or the search of that name."""
    names = {sweep, f"{sweep}{SEARCH_SUFFIX}"}
    return runs["listed"].map(lambda listed: not names.isdisjoint(listed)).astype(bool)


def _pairs(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """Setting and norm of every run."""
    return list(zip(runs["setting"].astype("str"), runs["norm"].astype("str"), strict=True))


def _addition(
    sweep: str, scale: str, runs: pd.DataFrame, judged: frozenset[tuple[str, str]]
) -> Addition | again.UnknownSettingsError:
    """Of a sweep's runs, those of the settings and norms that were judged: how to make more of them."""
    runs = runs[[pair in judged for pair in _pairs(runs)]]
    kinds = []
    for _, alike in runs.groupby(ARCHITECTURE, observed=True):
        fields = [found for text in alike["scientific"] if (found := json.loads(text))]
        rates = {lr for lr, names in zip(alike["lr"], alike["listed"], strict=True) if sweep in names}
        kinds.append(
            again.Kind(fields[0] if fields else {}, frozenset(rates), tuple(map(Path, alike["path"])))
        )
    try:
        return Addition(sweep, scale, again.settings_of(sweep, scale, kinds))
    except again.UnknownSettingsError as error:
        return error


def commands(seeds: Mapping[Addition, int], runs: Path) -> list[str]:
    """Return one command for each number of seeds, scale and settings."""
    together: dict[tuple[int, str, tuple[str, ...]], list[str]] = {}
    for addition, n in seeds.items():
        together.setdefault((n, addition.scale, addition.settings), []).append(addition.sweep)
    return [
        again.command(names, n, runs, scale, settings)
        for (n, scale, settings), names in sorted(together.items())
    ]


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
    seeds, left_out = wanted(judge_all(frames), frames)
    for sentence in left_out:
        print(sentence, file=sys.stderr)
    for command in commands(seeds, options.runs):
        print(command)
    return 0


if __name__ == "__main__":
    pipes.run(main)

"""`python -m analysis.undecided --runs DIR`: the commands that add the seeds with which claims are judged.

A claim that its first seeds leave undetermined is judged once more, with twice as many (analysis.claims.base,
LOOKS). Prints nothing where no seeds are wanted; parts of the study of which nothing was run are not begun.
A command names what its runs were made with besides what the sweep's file says, so that seeds join the very
runs that were judged; where that cannot be told, the claim is left out with a sentence on stderr.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.claims import Result, judge_all
from analysis.load import Frames, LoadError, load
from analysis.select import ARCHITECTURE
from study import describe, pipes
from study.compose import compose_all, expand, groups, quoted
from study.config import RunConfig, stored_config, with_values
from study.errors import StudyError
from study.identity import scientific
from study.launch.validate import buildable
from study.paths import SEARCH_SUFFIX, RunPaths
from study.sweep import SWEEPS, read_sweep

MEASURED_WITH = ("probes.", "data.")
"""Settings outside the identity that added seeds need too: what is measured, and where the images lie."""


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
    known: dict[tuple[str, str, tuple[Any, ...]], Addition | str] = {}
    left_out = []
    for result in results:
        if not result.seeds_to_add_up_to:
            continue
        judged = runs[runs["run_id"].isin(result.run_ids)]
        for name in result.claim.sweep:
            mine = judged[_belongs(judged, name)]
            if mine.empty:
                continue
            key = name, result.scale, tuple(sorted(set(zip(mine["setting"], mine["norm"], strict=True))))
            if key not in known:
                known[key] = _addition(name, result.scale, _alike(runs[_belongs(runs, name)], mine))
            addition = known[key]
            if isinstance(addition, str):
                left_out.append(f"{result.claim.id}: no seeds are added to {name}: {addition}")
            else:
                found[addition] = max(found.get(addition, 0), result.seeds_to_add_up_to)
    return found, left_out


def _belongs(runs: pd.DataFrame, sweep: str) -> "pd.Series[bool]":
    """Which runs a sweep asked for, or the search of that name."""
    return (
        runs["listed"].map(lambda names: bool({sweep, f"{sweep}{SEARCH_SUFFIX}"} & set(names))).astype(bool)
    )


def _alike(runs: pd.DataFrame, judged: pd.DataFrame) -> pd.DataFrame:
    """The runs that differ from judged ones by rate and seed only."""
    pairs = set(zip(judged["setting"], judged["norm"], strict=True))
    return runs[[pair in pairs for pair in zip(runs["setting"], runs["norm"], strict=True)]]


def _addition(sweep: str, scale: str, runs: pd.DataFrame) -> Addition | str:
    """Return the settings that make these runs of a sweep, or a sentence that says why none are known."""
    stored = [_config(alike) for _, alike in runs.groupby(ARCHITECTURE, observed=True)]
    made = [config for config in stored if config is not None]
    if len(made) < len(stored):
        return "run.json of its runs does not say with which settings they were made"
    try:
        scale = scale if scale in groups()["scale"] else "laptop"
        planned = _planned(sweep, (f"scale={scale}",))
        has, would_have = _values(made), _values(planned)
        rates = {lr for lr, names in zip(runs["lr"], runs["listed"], strict=True) if sweep in names}
        has["lr"] = sorted(rates or would_have["lr"])  # the rates of a search follow from what it finds
        settings = _norms(made, planned) + _differences(has, would_have)
        settings += _measured_with(sweep, runs, planned)
        again = _planned(sweep, (f"scale={scale}", *settings)) if settings else planned
        if settings:
            buildable(again)
    except StudyError as error:
        return f"the settings of its runs cannot be asked for again: {error}"
    if not {_key(config) for config in made} <= {_key(config) for config in again}:
        return "the settings of its runs cannot be asked for in one command"
    return Addition(sweep, scale, tuple(settings))


def _config(runs: pd.DataFrame) -> RunConfig | None:
    """What runs that differ by rate and seed share, from run.json; None if the records are too old to say."""
    texts = [text for text in runs["scientific"] if text != "{}"]
    if not texts:
        return None
    known = describe.settings()
    fields = {name: value for name, value in json.loads(texts[0]).items() if name in known}
    # JSON has no infinity: it is a text there.
    numbers = {n: float(v) for n, v in fields.items() if isinstance(v, str) and _is_number(known[n].default)}
    return with_values(RunConfig(), fields | numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _planned(sweep: str, settings: Sequence[str]) -> list[RunConfig]:
    """What a sweep makes of one seed with further settings on top."""
    return compose_all(expand(read_sweep(SWEEPS / f"{sweep}.yaml").settings([*settings, "seed=0"])))


def _values(configs: Sequence[RunConfig]) -> dict[str, list[Any]]:
    """Each scientific setting's values among configs, but for the norm's and the seed."""
    names = [s.name for s in describe.settings().values() if s.scientific]
    names = [name for name in names if name != "seed" and not name.startswith("norm.")]
    flat = [describe.values(config) for config in configs]
    return {name: list(dict.fromkeys(values[name] for values in flat)) for name in names}


def _norms(made: Sequence[RunConfig], planned: Sequence[RunConfig]) -> list[str]:
    """The setting that chooses the runs' norms, where the plan has others.

    Those that no name stands for are set switch by switch, as long as all runs share the switches.
    """
    has, would_have = ({c.norm.name: c.norm for c in configs} for configs in (made, planned))
    if set(has) <= set(would_have):
        return []
    if set(has) <= set(groups()["norm"]):
        return [f"norm={','.join(has)}"]
    flat, usual = (list(map(asdict, norms.values())) for norms in (has, would_have))
    return [
        f"norm.{name}={quoted(value)}"
        for name, value in flat[0].items()
        if name != "name" and all(x[name] == value for x in flat) and all(x[name] != value for x in usual)
    ]


def _differences(has: Mapping[str, list[Any]], would_have: Mapping[str, list[Any]]) -> list[str]:
    """Settings in which runs have values that the plan does not make."""
    return [
        f"{name}={','.join(map(quoted, values))}"
        for name, values in has.items()
        if not set(values) <= set(would_have[name])
    ]


def _measured_with(sweep: str, runs: pd.DataFrame, planned: Sequence[RunConfig]) -> list[str]:
    """What the runs that the sweep itself made share of MEASURED_WITH, where the plan has something else.

    Those that it found were made for another sweep, with the probes of that.
    """
    names = [
        s.name for s in describe.settings().values() if not s.scientific and s.name.startswith(MEASURED_WITH)
    ]
    groups_of_runs = runs.groupby(ARCHITECTURE, observed=True)
    own = [config for _, alike in groups_of_runs if (config := _first_own(sweep, alike["path"])) is not None]
    flat = [describe.values(config) for config in own]
    usual = [describe.values(config) for config in planned]
    found = []
    for name in names:
        values, expected = {v[name] for v in flat}, {v[name] for v in usual}
        if len(values) == 1 and not values <= expected:
            found.append(f"{name}={quoted(*values)}")
    return found


def _first_own(sweep: str, paths: Iterable[str]) -> RunConfig | None:
    configs = (stored_config(RunPaths(Path(path)).config) for path in paths)
    return next((c for c in configs if c.sweep.removesuffix(SEARCH_SUFFIX) == sweep), None)


def _key(config: RunConfig) -> str:
    """What runs that differ by rate and seed share."""
    fields = scientific(config)
    return repr([(name, value) for name, value in fields.items() if name not in ("lr", "seed")])


def commands(seeds: Mapping[Addition, int], runs: Path) -> list[str]:
    """Return one command for each number of seeds, scale and settings."""
    together: dict[tuple[int, str, tuple[str, ...]], list[str]] = {}
    for addition, n in seeds.items():
        together.setdefault((n, addition.scale, addition.settings), []).append(addition.sweep)
    found = []
    for (n, scale, settings), names in sorted(together.items()):
        words = [
            "python",
            "-m",
            "study.parts",
            "run",
            *names,
            f"seed=range(0,{n})",
            f"runs_dir={quoted(runs)}",
        ]
        words += [f"scale={scale}"] if scale not in ("", "laptop") else []
        found.append(shlex.join([*words, *settings]))
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
    seeds, left_out = wanted(judge_all(frames), frames)
    for sentence in left_out:
        print(sentence, file=sys.stderr)
    for command in commands(seeds, options.runs):
        print(command)
    return 0


if __name__ == "__main__":
    pipes.run(main)

"""The settings with which a sweep makes such runs as are there, at other seeds. Imports torch at need only.

A sweep's file says what it makes; settings may have been given on top of it, as in epochs=3, and whoever adds
to the runs needs the same again.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from study import describe
from study.compose import compose_all, expand, groups, quoted
from study.config import RunConfig, stored_config, with_values
from study.errors import StudyError
from study.identity import scientific
from study.launch.validate import buildable
from study.paths import SEARCH_SUFFIX, RunPaths
from study.sweep import SWEEPS, read_sweep

DEFAULT_SCALE = "laptop"
MEASURED_WITH = ("probes.", "data.")
"""Settings outside the identity that added seeds need too: what is measured, and where the images lie."""


class UnknownSettingsError(StudyError):
    """It cannot be told, or not in one command, with which settings runs were made."""


@dataclass(frozen=True)
class Kind:
    """Runs that differ by rate and seed only."""

    fields: Mapping[str, Any]
    """Scientific fields of one of them that differ from their defaults (run.json); empty in old records."""
    rates: frozenset[float]
    """Those that the sweep asked for; none of a search, whose rates follow from what it finds."""
    folders: tuple[Path, ...]
    """Their directories."""


def settings_of(sweep: str, scale: str, kinds: Sequence[Kind]) -> tuple[str, ...]:
    """Return what has to be typed besides the sweep and the scale to make runs of these kinds.

    The sweep is composed with it, and compared, before it is returned. Raises UnknownSettingsError.
    """
    if not all(kind.fields for kind in kinds):
        raise UnknownSettingsError("run.json does not say with which settings its runs were made")
    try:
        made = [_config(kind.fields) for kind in kinds]
        planned = _planned(sweep, scale, ())
        has, would_have = _values(made), _values(planned)
        has["lr"] = sorted(set().union(*(kind.rates for kind in kinds)))
        found = _norms(made, planned) + _differences(has, would_have)
        found += _measured_with(sweep, kinds, planned)
        again = _planned(sweep, scale, found) if found else planned
        if found:
            buildable(again)
    except StudyError as error:
        raise UnknownSettingsError(f"the settings of its runs cannot be asked for again: {error}") from error
    if not {_but_rate_and_seed(config) for config in made} <= {
        _but_rate_and_seed(config) for config in again
    }:
        raise UnknownSettingsError("the settings of its runs cannot be asked for in one command")
    return tuple(found)


def command(parts: Iterable[str], seeds: int, runs_dir: Path, scale: str, settings: Iterable[str]) -> str:
    """Return the command, for a shell, that brings parts of the study to so many seeds."""
    words = ["python", "-m", "study.parts", "run", *parts]
    words += [f"seed=range(0,{seeds})", f"runs_dir={quoted(runs_dir)}"]
    words += [f"scale={scale}"] if _known(scale) != DEFAULT_SCALE else []
    return shlex.join([*words, *settings])


def _known(scale: str) -> str:
    """The scale, or the default one for runs that have none, or several."""
    return scale if scale in groups()["scale"] else DEFAULT_SCALE


def _config(fields: Mapping[str, Any]) -> RunConfig:
    """What a run was made with, from run.json, where infinity is a text; the rate and seed of any one."""
    known = describe.settings()
    mine = {name: value for name, value in fields.items() if name in known}  # and not a component's version
    numbers = {n: float(v) for n, v in mine.items() if isinstance(v, str) and _is_number(known[n].default)}
    return with_values(RunConfig(), mine | numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _planned(sweep: str, scale: str, settings: Sequence[str]) -> list[RunConfig]:
    """What a sweep makes of one seed with further settings on top."""
    grid = read_sweep(SWEEPS / f"{sweep}.yaml")
    return compose_all(expand(grid.settings([f"scale={_known(scale)}", *settings, "seed=0"])))


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


def _measured_with(sweep: str, kinds: Iterable[Kind], planned: Sequence[RunConfig]) -> list[str]:
    """What the runs that the sweep itself made share of MEASURED_WITH, where the plan has something else.

    Those that it found were made for another sweep, with the probes of that.
    """
    names = [s.name for s in describe.settings().values() if not s.scientific]
    own = [config for kind in kinds if (config := _first_own(sweep, kind.folders)) is not None]
    flat, usual = ([describe.values(config) for config in configs] for configs in (own, planned))
    found = []
    for name in (name for name in names if name.startswith(MEASURED_WITH)):
        values, expected = ({v[name] for v in several} for several in (flat, usual))
        if len(values) == 1 and not values <= expected:
            found.append(f"{name}={quoted(*values)}")
    return found


def _first_own(sweep: str, folders: Iterable[Path]) -> RunConfig | None:
    configs = (stored_config(RunPaths(folder).config) for folder in folders)
    return next((c for c in configs if c.sweep.removesuffix(SEARCH_SUFFIX) == sweep), None)


def _but_rate_and_seed(config: RunConfig) -> str:
    return repr([(name, value) for name, value in scientific(config).items() if name not in ("lr", "seed")])

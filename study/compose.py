"""Command-line settings → RunConfig, through Hydra; and plain sentences for what people get wrong.

from study.compose import compose
from study.execute import execute
record = execute(compose(["lr=0.1", "norm=bn"]))
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString, ValueType
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from study import describe
from study.config import RunConfig, check_together, from_mapping, stored_config, to_mapping, with_values
from study.errors import ConfigError, StudyError, unknown
from study.paths import RunPaths

CONF = Path(__file__).resolve().parent.parent / "conf"
FROM = "from"
NOT_REPEATED = ("runs_dir", "rerun", "stop_when_decided", "sweep")
"""Settings that `from=` does not take from the stored run: where runs go, and why it was asked for."""

ConfigStore.instance().store(name="defaults", node=to_mapping(RunConfig()))


def compose(overrides: Sequence[str] = ()) -> RunConfig:
    """Return the run that command-line settings such as ["lr=0.1", "norm=bn"] describe.

    Raises ConfigError in one plain sentence for anything unknown, ill-typed or out of range.
    """
    return compose_all([overrides])[0]


def compose_all(trials: Iterable[Sequence[str]]) -> list[RunConfig]:
    """Compose many runs: Hydra once per distinct choice of groups, plain values set directly.

    Hydra takes about 0.1 s per composition, and a plain value changes nothing but itself.
    """
    bases: dict[tuple[str, ...], RunConfig | None] = {}
    return [_compose(list(overrides), bases) for overrides in trials]


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """Return the grid that comma-separated values span, first setting slowest: one list per trial.

    An experiment's own grid counts as given before the settings, which win over it; with several experiments
    that is so for each, and the experiment is slowest.
    """
    parsed = check(overrides, multirun=True)
    experiments = _experiments(parsed)
    if not any(map(brought, experiments)):
        return _product(parsed)
    own = [o.input_line for o in parsed if o.key_or_group == "experiment"]
    rest = [text for text in overrides if text not in own]
    trials = []
    for name in experiments:
        grid = unset(brought(name), parsed)
        trials += _product(check([f"experiment={name}", *grid, *rest], multirun=True))
    return trials


def unset(grid: Mapping[str, str], parsed: Sequence[Override]) -> list[str]:
    """Return, as settings, the part of a grid that no given setting replaces."""
    given = {o.key_or_group for o in parsed}
    return [f"{name}={values}" for name, values in grid.items() if name not in given]


@cache
def brought(experiment: str) -> Mapping[str, str]:
    """Return the grid an experiment brings along (hydra.sweeper.params of its yaml): values by setting."""
    params = _load([f"experiment={experiment}"]).hydra.sweeper.get("params") if experiment else None
    return {str(name): str(values) for name, values in (params or {}).items()}


def ignored_grid(overrides: Sequence[str]) -> str:
    """Return a sentence on the grid of an experiment that is run once; empty if there is none."""
    parsed = check(overrides, multirun=False)
    for name in _experiments(parsed):
        if grid := unset(brought(name), parsed):
            return f"experiment={name} brings a grid, ignored without -m: {' '.join(grid)}"
    return ""


def _experiments(parsed: Sequence[Override]) -> list[str]:
    """Names of the experiments asked for; of a setting given twice the last counts, as in Hydra."""
    for override in reversed(parsed):
        if override.key_or_group == "experiment":
            values = override.sweep_iterator() if override.is_sweep_override() else [override.value()]
            names = [v.text if isinstance(v, QuotedString) else v for v in values]
            return ["" if name is None else str(name) for name in names]
    return []


def _product(parsed: list[Override]) -> list[list[str]]:
    return [list(t) for t in BasicSweeper.split_arguments(parsed, None)[0]]


def check(overrides: Iterable[str], *, multirun: bool) -> list[Override]:
    """Parse settings and refuse the unknown ones by name; the values of fields are checked later."""
    parsed = [_checked(text) for text in overrides]
    for override in parsed:
        if override.is_sweep_override() and not override.is_hydra_override():
            if not multirun:
                raise ConfigError(
                    f"'{override.input_line}' lists several values: add -m to run all of them, or quote it "
                    f"if it is one value ({override.key_or_group}=\"'…'\")"
                )
            if not override.is_discrete_sweep():
                raise ConfigError(f"'{override.input_line}' has no end; list the values, as in lr=0.1,0.01")
    return parsed


def quoted(value: Any) -> str:
    """Write a value so that Hydra reads back the same: strings quoted, lists in brackets."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(quoted, value)) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    text = str(value)
    if text and all(c.isalnum() or c in "_-./" for c in text) and _reads_as_text(text):
        return text
    return QuotedString(text=text, quote=Quote.double).with_quotes()


def explain(error: Exception) -> str:
    """Return one plain sentence for an error of Hydra's that `check` did not foresee."""
    cause = error.__cause__
    lines = [x.strip() for x in str(error).splitlines() if x.strip()]
    first = lines[0] if lines else type(error).__name__
    if isinstance(cause, OmegaConfBaseException) and str(cause):
        first = f"{first.rstrip('.')}: {str(cause).splitlines()[0]}" if lines else str(cause).splitlines()[0]
    return first


@cache
def groups() -> dict[str, tuple[str, ...]]:
    """Names of the groups in conf/ and the choices of each."""
    folders = {d.name for d in CONF.iterdir() if d.is_dir()} - {"hydra"}
    return {name: choices(name) for name in sorted(folders | {"experiment"})}  # git keeps no empty folder


def choices(group: str) -> tuple[str, ...]:
    """Names of the yaml files of one group."""
    return tuple(sorted(p.stem for p in (CONF / group).glob("*.yaml")))


def load_stored(path: str | Path) -> RunConfig:
    """Read the config.yaml of a run, or of the run directory given."""
    file = RunPaths(Path(path)).config if Path(path).is_dir() else Path(path)
    if not file.exists():
        raise ConfigError(f"from={path}: there is no such file")
    try:
        return stored_config(file)
    except StudyError as error:
        raise ConfigError(f"from={path} is not the config of a run: {error}") from error


def by_hydra(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose one run by Hydra alone; returns nested plain values, interpolations resolved."""
    config = _load(overrides)
    ours = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
    return _named(_plain(ours, resolve=True), config)


def by_hydra_launcher(overrides: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the class and the options of the launcher that settings such as hydra/launcher=slurm choose."""
    options: Any = _plain(_load(overrides).hydra.launcher, resolve=True)
    return str(options.pop("_target_")), options


def _compose(overrides: list[str], bases: dict[tuple[str, ...], RunConfig | None]) -> RunConfig:
    parsed = check(overrides, multirun=False)
    structural = tuple(str(o.input_line) for o in parsed if not _is_plain(o) and not o.is_hydra_override())
    if structural not in bases:
        bases[structural] = _base(structural)
    base = bases[structural]
    if base is None:
        made = _finish(by_hydra(overrides))
        check_together(made)
        return made
    values = {o.key_or_group: o.value() for o in parsed if _is_plain(o)}
    made = with_values(base, values) if values else base
    check_together(made)
    return made


def _base(structural: tuple[str, ...]) -> RunConfig | None:
    """Compose what plain values are set on; None where an interpolation might depend on one of them."""
    config = _load(structural)
    base = _named(_plain(config, resolve=False), config)
    if path := base[FROM]:
        other = [s for s in structural if not s.startswith(f"{FROM}=")]
        if other:
            raise ConfigError(
                f"{FROM}= repeats a stored run; '{other[0]}' would replace a part of it. "
                "Change single values instead, as in lr=0.1"
            )
        stored = to_mapping(load_stored(path))
        return _finish(stored | {k: base[k] for k in NOT_REPEATED})
    return None if _interpolated(base) else _finish(base)


def _load(overrides: Sequence[str]) -> Any:
    try:
        return _loader().load_configuration("config", list(overrides), run_mode=RunMode.RUN)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error)) from error


def _plain(config: Any, *, resolve: bool) -> Any:
    try:
        return OmegaConf.to_container(config, resolve=resolve)
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error)) from error


@cache
def _loader() -> ConfigLoaderImpl:
    setup_globals()
    return ConfigLoaderImpl(create_config_search_path(str(CONF)))


def _named(values: Any, config: Any) -> dict[str, Any]:
    """Drop Hydra's own node and note which scale and experiment were chosen."""
    chosen = config.hydra.runtime.choices
    names = {key: chosen.get(key) or "" for key in ("scale", "experiment")}
    return {k: v for k, v in values.items() if k != "hydra"} | names


def _finish(values: Mapping[str, Any]) -> RunConfig:
    return from_mapping({k: v for k, v in values.items() if k != FROM})


def _is_plain(override: Override) -> bool:
    name, value = override.key_or_group, override.value()
    return (
        name in describe.settings()
        and name not in groups()
        and not isinstance(value, dict)
        and not _interpolated(value)
    )


def _interpolated(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_interpolated, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_interpolated, value))
    return isinstance(value, str) and "${" in value


@lru_cache(maxsize=100_000)
def _checked(text: str) -> Override:
    try:
        override = _number(text) or OverridesParser.create().parse_override(text)
    except HydraException as error:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"'{text}' is not of the form setting=value") from error
        advice = shlex.quote(f"{key}={quoted(value)}")
        raise ConfigError(
            f"cannot read '{text}'. Quote a value that holds commas, quotes, '=' or the like: {advice}"
        ) from error
    if override.key_or_group.startswith("hydra.sweeper.params"):
        raise ConfigError(f"'{text}': give a grid as settings, as in lr=0.1,0.003")
    if override.key_or_group == "hydra/launcher":
        _check_choice(override, (*choices("hydra/launcher"), "basic"))
    elif not override.is_hydra_override():
        _check_key(override, text)
    return override


def _number(text: str) -> Override | None:
    """Read setting=NUMBER as Hydra's parser does, which takes a hundred times as long; None for all else."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    name, number, fraction, exponent = found.groups()
    value = float(number) if fraction or exponent else int(number)
    return Override(OverrideType.CHANGE, name, ValueType.ELEMENT, value, input_line=text)


_NUMBER = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)=(-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?)")


def _check_key(override: Override, text: str) -> None:
    key = override.key_or_group
    known = groups()
    if override.package is not None:
        raise ConfigError(f"'{text}': a group cannot be moved with '@'")
    if key == "norm.name":
        raise ConfigError(f"'{text}': the name follows from the switches; write norm=NAME")
    if override.type is OverrideType.DEL:
        raise ConfigError(f"'{text}': a setting cannot be removed; for no normalisation write norm=none")
    if key in known:
        _check_choice(override, known[key])
    elif key not in describe.settings() and key != FROM:
        names = {*describe.settings(), *known, FROM}
        top = key.split(".")[0]
        inside = [n for n in names if n.startswith(f"{top}.")] if "." in key else []
        raise unknown("setting", key, inside or [n for n in names if "." not in n])
    if override.type is not OverrideType.CHANGE:
        raise ConfigError(f"'{text}': nothing can be added; write {text.lstrip('+')}")


def _check_choice(override: Override, valid: tuple[str, ...]) -> None:
    key = override.key_or_group
    if override.is_sweep_override() and not override.is_choice_sweep():
        raise ConfigError(f"'{override.input_line}': list the choices, as in {key}={','.join(valid[:2])}")
    if "glob(" in str(override.input_line):
        raise ConfigError(f"'{override.input_line}': list the choices, as in {key}={','.join(valid[:2])}")
    several = override.is_sweep_override()
    for value in override.sweep_iterator() if several else [override.value()]:
        name = value.text if isinstance(value, QuotedString) else value
        if name is None and key == "experiment":
            continue
        if name is None or (str(name) not in valid and str(name).lower() in ("none", "null")):
            advice = f"; for none write {key}=none" if "none" in valid else ""
            raise ConfigError(f"{key}={'null' if name is None else name} is not a choice{advice}. "
                              f"Valid: {', '.join(valid)}.")  # fmt: skip
        if isinstance(name, (dict, list)):
            raise ConfigError(f"{key}= takes the name of a choice; set single values with {key}.NAME=value")
        if str(name) not in valid:
            raise unknown(key, name, valid)


def _reads_as_text(text: str) -> bool:
    try:
        return OverridesParser.create().parse_override(f"x={text}").value() == text
    except HydraException:
        return False

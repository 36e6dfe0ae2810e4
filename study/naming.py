"""A norm's name follows from its switches, so that `norm=bn norm.center=false` is shown as `bn_no_mean`.

Every RunConfig passes its norm through `canonical`, so none carries another name. A name is a label for
tables: it may change with the files of conf/norm, and no run id depends on it. Imports no torch. The named
norms are the files of conf/norm, read once per process.
"""

import dataclasses
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from study.config import SITE_KINDS, NormConfig, norm_from_mapping
from study.errors import ConfigError

NORMS = Path(__file__).resolve().parent.parent / "conf" / "norm"


def canonical(config: NormConfig) -> NormConfig:
    """Return the same norm in its one form: sites in order and once each, and the name that follows.

    Unknown kinds of site stay, last, for the norm to refuse.
    """
    rank = {kind: i for i, kind in enumerate(SITE_KINDS)}
    sites = tuple(sorted(set(config.sites), key=lambda kind: (rank.get(kind, len(rank)), kind)))
    return _named(dataclasses.replace(config, sites=sites, gamma_init=tuple(config.gamma_init)))


@lru_cache(maxsize=10_000)
def _named(config: NormConfig) -> NormConfig:
    return dataclasses.replace(config, name=canonical_name(config))


def canonical_name(config: NormConfig) -> str:
    """Return the name of the yaml with the same switches, or else the family's plain one and what differs.

    As `bn[center=false,order=1]`: the differing fields in the order of NormConfig, lists joined by '+'.
    """
    known = norms()
    for name, norm in known.items():
        if _switches(norm) == _switches(config):
            return name
    plain = NormConfig(family=config.family)
    base = next((n for n, norm in known.items() if _switches(norm) == _switches(plain)), config.family)
    default = _switches(plain)
    differing = [f"{k}={_text(v)}" for k, v in _switches(config).items() if v != default[k]]
    return f"{base}[{','.join(differing)}]" if differing else base


@cache
def norms() -> dict[str, NormConfig]:
    """Return the named norms, by the names of their files, sorted."""
    return {path.stem: read(path) for path in sorted(NORMS.glob("*.yaml"))}


def forget() -> None:
    """Read the files anew when next asked; for tests that bring their own."""
    norms.cache_clear()
    _named.cache_clear()


def read(path: Path) -> NormConfig:
    """Return the norm of one yaml, under the file's name; raises ConfigError as for any config."""
    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(path))
        return norm_from_mapping(values | {"name": path.stem})
    except (ConfigError, yaml.YAMLError, TypeError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error


def _switches(config: NormConfig) -> dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name != "name"}


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(map(_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)

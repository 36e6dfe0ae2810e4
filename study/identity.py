"""RunConfig → run id: a readable slug and a hash of the scientific fields that differ from their defaults."""

import dataclasses
import hashlib
import json
import re
from functools import cache, lru_cache
from typing import Any

from study.config import RunConfig
from study.models import FIXED_DEPTH

VERSIONS: dict[str, int] = {}
"""Version of a component's numerics, as "model.resnet" or "norm.batch": absent means 1.

Bump it when the same config would now give other numbers; only ids of runs that use it change."""

HASH_DIGITS = 12
MAX_SLUG = 100


def scientific(config: RunConfig) -> dict[str, Any]:
    """Flat {dotted name: value} of the scientific fields that differ from the frozen defaults.

    `norm.name` is a label that follows from the switches, and is left out; the versions of the components
    used are added where they are not 1.
    """
    found = _different(config, _default(), "")
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in found}
    fields.pop("norm.name", None)
    used = {
        "data": config.data.name,
        "model": config.model.name,
        "norm": config.norm.family,
        "init": config.init.name,
    }
    for part, name in used.items():
        version = VERSIONS.get(f"{part}.{name}", 1)
        if version != 1:
            fields[f"{part}.version"] = version
    return dict(sorted(fields.items()))


def run_id(config: RunConfig) -> str:
    """Return the directory name of a run: at most 115 characters, of letters, digits, '.', '_' and '-'."""
    canonical = json.dumps(scientific(config), sort_keys=True, separators=(",", ":"), allow_nan=True)
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:HASH_DIGITS]
    return f"{slug(config)}-{digest}"


def slug(config: RunConfig) -> str:
    """Return the part of the id that a person reads, as `digits-resnet110-batch-lr0.1-s0`.

    Of the norm it shows the family: its name is a label, and a new label must not move an id.
    """
    depth = depth_of(config)
    parts = (
        config.data.name,
        config.model.name if depth is None else f"{config.model.name}{depth}",
        config.norm.family,
        f"lr{config.lr:g}".replace("+", ""),
        f"s{config.seed}",
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(parts))[:MAX_SLUG]


def depth_of(config: RunConfig) -> int | None:
    """Return the network's depth; None where it has no such setting."""
    return None if config.model.name in FIXED_DEPTH else config.model.depth


@cache
def _default() -> RunConfig:
    return RunConfig()


def _different(config: Any, default: Any, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    kind: Any = type(config)
    for name, group in _scientific_fields(kind):
        value, base = getattr(config, name), getattr(default, name)
        if group:
            found += _of_group(value, base, f"{prefix}{name}.")
        elif value != base:
            found.append((prefix + name, value))
    return found


@lru_cache(maxsize=10_000)
def _of_group(config: Any, default: Any, prefix: str) -> tuple[tuple[str, Any], ...]:
    """Trials of a grid share their groups: remembered, so that naming ten thousand trials takes a second."""
    return tuple(_different(config, default, prefix))


@cache
def _scientific_fields(cls: Any) -> tuple[tuple[str, bool], ...]:
    """Names of a config's scientific fields, and whether each is a group of settings."""
    default = cls()
    return tuple(
        (f.name, dataclasses.is_dataclass(getattr(default, f.name)))
        for f in dataclasses.fields(cls)
        if f.metadata["scientific"]
    )

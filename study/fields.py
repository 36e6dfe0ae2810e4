"""Fields of frozen dataclasses with ranges and choices: checks, and the way from plain values and back."""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from study import registry
from study.errors import ConfigError, unknown

T = TypeVar("T")


def setting(
    default: Any,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: tuple[str, ...] | None = None,
    package: str | None = None,
    pattern: str | None = None,
    scientific: bool = True,
) -> Any:
    """Declare a field with its range, its choices (given, or the modules of a package), or its pattern."""
    limits = {"≥": ge, ">": gt, "≤": le, "<": lt}
    metadata = {
        "limits": {k: v for k, v in limits.items() if v is not None},
        "choices": choices,
        "package": package,
        "pattern": pattern,
        "scientific": scientific,
    }
    if dataclasses.is_dataclass(default) and isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def build(cls: type[T], mapping: Mapping[str, Any], prefix: str = "") -> T:
    """Build a dataclass from nested plain values; raises ConfigError that names field, value and range."""
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{prefix.rstrip('.')} must be a group of settings, got {mapping!r}")
    hints = hints_of(cls)
    for key in mapping:
        if key not in hints:
            raise unknown("setting", prefix + str(key), (prefix + k for k in hints))
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        hint = hints[key]
        nested = dataclasses.is_dataclass(hint) and isinstance(hint, type)
        values[key] = build(hint, value, f"{prefix}{key}.") if nested else convert(hint, value, prefix + key)
    return cls(**values)


def to_mapping(config: Any) -> dict[str, Any]:
    """Nested plain values (tuples become lists) from which `from_mapping` builds an equal config."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            out[f.name] = to_mapping(value)
        else:
            out[f.name] = list(value) if isinstance(value, tuple) else value
    return out


def check_fields(config: Any, prefix: str = "") -> None:
    """Check every field's type, range and choice, nested ones included; raises ConfigError."""
    hints = hints_of(type(config))
    for f in dataclasses.fields(config):
        name, value = prefix + f.name, getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            check_fields(value, name + ".")
            continue
        convert(hints[f.name], value, name)
        check_field(f.metadata, value, name)


def check_field(metadata: Mapping[Any, Any], value: Any, name: str) -> None:
    """Check one converted value against the range or the choices of its field; raises ConfigError."""
    package, choices = metadata["package"], metadata["choices"]
    valid = registry.names(package) if package else choices
    for item in value if isinstance(value, tuple) else (value,):
        _check_limits(item, metadata, name)
        if valid and item not in valid:
            raise unknown(name, item, valid)
        if metadata["pattern"] and not re.fullmatch(metadata["pattern"], item):
            raise ConfigError(f"{name}={item!r} is not of the form {metadata['pattern']}")
        if isinstance(item, str) and any(c in item for c in "\n\r\0"):
            raise ConfigError(f"{name}={item!r}: control characters are not allowed")


def convert(hint: Any, value: Any, name: str) -> Any:
    """Convert without losing anything: an int may stand for a float, a list for a tuple; nothing else."""
    if get_origin(hint) is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(convert(get_args(hint)[0], v, name) for v in value)
    elif hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif hint is int:
        whole = isinstance(value, float) and value.is_integer()
        if (isinstance(value, int) and not isinstance(value, bool)) or whole:
            return int(value)
    elif isinstance(value, hint):
        return value
    raise ConfigError(f"{name}={value!r} is not {_described(hint)}")


def hints_of(cls: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, evaluated once."""
    if cls not in _known_hints:
        _known_hints[cls] = get_type_hints(cls)
    return _known_hints[cls]


_known_hints: dict[Any, dict[str, Any]] = {}


def _described(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"a list, each entry {_described(get_args(hint)[0])}"
    known = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
    return known[hint]


def _check_limits(value: Any, metadata: Mapping[Any, Any], name: str) -> None:
    tests = {
        "≥": lambda v, b: v >= b,
        ">": lambda v, b: v > b,
        "≤": lambda v, b: v <= b,
        "<": lambda v, b: v < b,
    }
    limits = metadata["limits"]
    bad = isinstance(value, float) and math.isnan(value)
    if bad or not all(tests[sign](value, bound) for sign, bound in limits.items()):
        allowed = " and ".join(f"{sign} {bound:g}" for sign, bound in limits.items()) or "a number"
        raise ConfigError(f"{name}={value!r} is out of range: it must be {allowed}")

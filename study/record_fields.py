"""What run.json holds, field by field: a check of what was read, since anybody may have edited it."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from study.status import Outcome, Status

Kind = tuple[str, Callable[[Any], bool]]
"""What a value must be, in words, and its test."""

LARGEST = 2**53
"""Whole numbers beyond it are none of ours, and not exact in a table."""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def _finite(value: Any) -> bool:
    return _whole(value) or (isinstance(value, float) and math.isfinite(value))


def _number(value: Any) -> bool:
    """Whether it is a number; strict JSON writes those that are not finite as texts."""
    return _finite(value) or (isinstance(value, str) and value in ("nan", "inf", "-inf"))


def _count(value: Any) -> bool:
    return _whole(value) and value >= 0


TEXT: Kind = ("a text", _text)
NAME: Kind = ("the name of a run", lambda v: _text(v) and v != "" and not {"/", "\0"} & {*v})
WHOLE: Kind = ("a whole number", _whole)
COUNT: Kind = ("a whole number, at least 0", _count)
FINITE: Kind = ("a finite number", _finite)
SECONDS: Kind = ("a number, at least 0", lambda v: _finite(v) and v >= 0)
NUMBER: Kind = ("a number", _number)
YES_NO: Kind = ("true or false", lambda v: isinstance(v, bool))
GROUP: Kind = ("a group of values", lambda v: isinstance(v, dict))
TEXTS: Kind = ("a list of texts", lambda v: isinstance(v, list) and all(map(_text, v)))
GROUPS: Kind = ("a list of groups", lambda v: isinstance(v, list) and all(isinstance(x, dict) for x in v))


def or_null(kind: Kind) -> Kind:
    """Return the kind that is null besides."""
    return f"{kind[0]} or null", lambda v: v is None or kind[1](v)


def one_of(names: Iterable[str]) -> Kind:
    """Return the kind of a member of an enumeration."""
    valid = [str(name) for name in names]
    return f"one of {', '.join(valid)}", lambda v: isinstance(v, str) and v in valid


FIELDS: dict[str, Kind] = {
    "status": one_of(Status), "outcome": or_null(one_of(Outcome)), "schema": COUNT, "run_id": NAME,
    "divergence": or_null(GROUP), "crossings": GROUP, "initial_loss": or_null(NUMBER),
    "plateau_reached": or_null(YES_NO), "poisoned": GROUPS, "probe_failures": GROUPS, "n_classes": COUNT,
    "chance": or_null(NUMBER), "n_train": COUNT, "n_test": COUNT, "conv_biases": GROUP, "unnormalised": TEXTS,
    "scientific": GROUP, "norm": or_null(TEXT), "lr": FINITE, "seed": WHOLE, "model": TEXT,
    "depth": or_null(COUNT), "data": TEXT, "experiment": TEXT, "scale": TEXT, "sweeps": TEXTS,
    "seconds": SECONDS, "steps_done": COUNT, "steps_total": COUNT, "versions": or_null(GROUP),
    "threads": COUNT, "device": or_null(TEXT), "git": or_null(GROUP), "host": or_null(TEXT),
    "wandb_id": or_null(TEXT), "code_changed": or_null(GROUP),
    "created": TEXT, "updated": TEXT, "restarts": COUNT, "error": or_null(TEXT),
}  # fmt: skip
"""Entries of run.json; of these only the status must be there, since older records lack some."""

INSIDE: dict[str, dict[str, Kind]] = {
    "divergence": {
        "step": or_null(COUNT), "layer": or_null(TEXT), "loss": or_null(NUMBER),
        "initial_loss": or_null(NUMBER),
    },
    "crossings": {"absolute_step": or_null(COUNT), "relative_step": or_null(COUNT)},
    "scientific": {"epochs": COUNT, "lr": FINITE, "seed": WHOLE},
    "git": {"commit": or_null(TEXT), "dirty": or_null(YES_NO)},
}  # fmt: skip
"""Entries of groups, where there are such."""


def fault(record: Any, newest: int) -> str:
    """Return what is wrong with a record that was read, naming the field; empty if nothing is.

    `newest` is the highest version of the schema that is understood.
    """
    if not isinstance(record, dict) or "status" not in record:
        return "is not the record of a run: it has no status"
    if COUNT[1](record.get("schema")) and record["schema"] > newest:
        return f"has schema={record['schema']}, written by a newer version of the study than this ({newest})"
    for name, (what, valid) in FIELDS.items():
        if name in record and not valid(record[name]):
            return f"is damaged: {name}={_short(record[name])} is not {what}"
    for group, fields in INSIDE.items():
        if wrong := _fault_inside(record.get(group) or {}, group, fields):
            return wrong
    for entry in record.get("poisoned", ()):
        if not _text(entry.get("layer")) or not _count(entry.get("step")):
            return f"is damaged: poisoned holds {_short(entry)}, which is not a layer and a step"
    return ""


def _fault_inside(values: Mapping[str, Any], group: str, fields: Mapping[str, Kind]) -> str:
    for name, (what, valid) in fields.items():
        if name in values and not valid(values[name]):
            return f"is damaged: {group}.{name}={_short(values[name])} is not {what}"
    return ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"

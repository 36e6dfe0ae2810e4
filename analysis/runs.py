"""run.json records → one tidy row per run. The columns and their types are declared here, once."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pandas as pd

COLUMNS: dict[str, tuple[tuple[str, ...], str]] = {
    "run_id": (("run_id",), "category"),
    "status": (("status",), "str"),
    "outcome": (("outcome",), "str"),
    "norm": (("norm",), "category"),
    "lr": (("lr",), "float64"),
    "seed": (("seed",), "Int64"),
    "model": (("model",), "str"),
    "depth": (("depth",), "Int64"),
    "data": (("data",), "str"),
    "experiment": (("experiment",), "str"),
    "scale": (("scale",), "str"),
    "n_classes": (("n_classes",), "Int64"),
    "chance": (("chance",), "float64"),
    "n_train": (("n_train",), "Int64"),
    "n_test": (("n_test",), "Int64"),
    "initial_loss": (("initial_loss",), "float64"),
    "plateau_reached": (("plateau_reached",), "boolean"),
    "poisoned": (("poisoned",), "boolean"),
    "diverged_step": (("divergence", "step"), "Int64"),
    "diverged_layer": (("divergence", "layer"), "str"),
    "diverged_loss": (("divergence", "loss"), "float64"),
    "crossed_absolute_step": (("crossings", "absolute_step"), "Int64"),
    "crossed_relative_step": (("crossings", "relative_step"), "Int64"),
    "seconds": (("seconds",), "float64"),
    "steps_done": (("steps_done",), "Int64"),
    "steps_total": (("steps_total",), "Int64"),
    "restarts": (("restarts",), "Int64"),
    "device": (("device",), "str"),
    "threads": (("threads",), "Int64"),
    "host": (("host",), "str"),
    "commit": (("git", "commit"), "str"),
    "dirty": (("git", "dirty"), "boolean"),
    "python": (("versions", "python"), "str"),
    "torch": (("versions", "torch"), "str"),
    "torchvision": (("versions", "torchvision"), "str"),
    "numpy": (("versions", "numpy"), "str"),
    "study": (("versions", "study"), "str"),
    "created": (("created",), "str"),
    "updated": (("updated",), "str"),
    "error": (("error",), "str"),
}
"""Column → (keys into run.json, pandas dtype). An absent or null value becomes a missing one."""

DERIVED = ("sweeps", "setting", "scientific", "switches", "poisoned_at", "path")
"""Further columns: sweeps (JSON list of names), setting and switches (see those functions), scientific (JSON
of the scientific fields that differ from their defaults), poisoned_at ("layer at step n" of the first running
statistics that met a non-finite batch, or empty), path (the run directory)."""


def frame(records: Iterable[tuple[str, Mapping[str, Any]]]) -> pd.DataFrame:
    """One row per (path, run.json); columns as declared above, categories still as text."""
    rows = [_row(path, record) for path, record in records]
    raw = pd.DataFrame(rows, columns=[*COLUMNS, *DERIVED], dtype=object)
    typed = raw.assign(**{name: _typed(raw[name], dtype) for name, (_, dtype) in COLUMNS.items()})
    typed = typed.assign(**{name: typed[name].astype("str") for name in DERIVED})
    return typed


def lacking(record: Mapping[str, Any], measured: bool) -> list[str]:
    """Names of what a record must hold for its run to be put anywhere, and does not."""
    wanted = ["norm", "lr", "seed", *(["outcome"] if measured else [])]
    return [name for name in wanted if record.get(name) is None]


def ordered(runs: pd.DataFrame) -> pd.DataFrame:
    """Sort by setting, norm, rate, seed and id."""
    return runs.sort_values(["setting", "norm", "lr", "seed", "run_id"], ignore_index=True)


def categorised(runs: pd.DataFrame) -> pd.DataFrame:
    """Hold the columns declared as categories as such."""
    names = [name for name, (_, dtype) in COLUMNS.items() if dtype == "category"]
    return runs.astype(dict.fromkeys(names, "category"))


def setting(record: Mapping[str, Any], but: Collection[str] = ()) -> str:
    """What two runs must share to be compared by norm and rate: all that is scientific but norm, lr and seed.

    Without the fields named in `but` besides; a name that ends in a point stands for all fields below it.

    Readable, as "digits · resnet110 · batch_size=64, epochs=15"; the scale's name is not part of it. Nor are
    the norm's switches: its label follows from them, one to one (study/naming.py), so equal labels mean equal
    switches.
    """
    varied = {"lr", "seed", "data.name", "model.name", "model.depth"}
    fields = record.get("scientific") or {}
    groups = ("norm.", *(name for name in but if name.endswith(".")))
    rest = [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in sorted(fields.items())
        if name not in varied and name not in but and not name.startswith(groups)
    ]
    depth = record.get("depth")
    depth = (
        "" if "model.depth" in but or pd.isna(depth) or not depth else depth
    )  # a frame's row has NA for null
    head = f"{record.get('data')} · {record.get('model')}{depth}"
    return f"{head} · {', '.join(rest)}" if rest else head


def switches(record: Mapping[str, Any]) -> str:
    """The norm's settings that differ from plain batch normalisation's, as "center=false, order=1"."""
    fields = record.get("scientific") or {}
    return ", ".join(
        f"{name.removeprefix('norm.')}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in sorted(fields.items())
        if name.startswith("norm.") and name != "norm.name"
    )


def _row(path: str, record: Mapping[str, Any]) -> dict[str, Any]:
    row = {name: _dig(record, keys) for name, (keys, _) in COLUMNS.items()}
    sweeps = record.get("sweeps") or []
    row["norm"] = "none" if row["norm"] is None else str(row["norm"])
    poisoned = record.get("poisoned") or []
    row["poisoned"] = bool(poisoned)
    first = min(poisoned, key=lambda p: p["step"]) if poisoned else None
    derived = {
        "setting": setting(record),
        "scientific": json.dumps(record.get("scientific") or {}, sort_keys=True),
        "switches": switches(record),
        "poisoned_at": f"{first['layer']} at step {first['step']}" if first else "",
        "path": path,
    }
    return row | {"sweeps": json.dumps(list(sweeps))} | derived


def _dig(record: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    value: Any = record
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _typed(column: "pd.Series[Any]", dtype: str) -> "pd.Series[Any]":
    """Convert one column; a value of the wrong kind becomes a missing one, "inf" and "nan" become numbers."""
    if dtype == "float64":
        return pd.to_numeric(column, errors="coerce").astype("float64")
    if dtype == "Int64":
        return pd.to_numeric(column, errors="coerce").round().astype("Int64")
    if dtype == "boolean":
        return column.where(column.isin([True, False]), None).astype("boolean")
    return column.map(lambda v: v if v is None or isinstance(v, str) else str(v)).astype("str")

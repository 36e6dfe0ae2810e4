"""A run's tables → the rows of a W&B history: which row stands where is a function of the tables alone.

W&B numbers history rows (`_step`) and drops what is not beyond the last one it has. Our numbers follow from
step and kind of a row, so sending a table again, after a kill or from another machine, adds only what lacks:

    POSITIONS·step      the evaluation after `step` updates, probes at init, epoch_end and final
    POSITIONS·step + 1  the training batch of the next update, probes that watched it
    POSITIONS·step + 2  probes at divergence
    after all of these  one row per layer: its probes' scalars against `depth/layer` (finished runs)
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

POSITIONS = 3
MAX_BINS = 512
"""Most bins of a histogram that W&B stores."""

Tables = Mapping[str, pa.Table]
"""Tables by name: "metrics", "probes/NAME"."""

DEPTH_SCALARS = {
    "activation_moments": ("mean", "variance"),
    "gradient_tails": ("deviation", "tail_ratio", "tail_index"),
    "activation_histogram": ("dip",),
}
"""Probe → columns shown against depth; a list (one value per channel) is shown by its mean."""


class Bins(NamedTuple):
    """A histogram: counts, and one edge more."""

    counts: list[int]
    edges: list[float]


def positions(tables: Tables) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (position, values) in ascending order; a value is a number, a bool or Bins."""
    rows: dict[int, dict[str, Any]] = defaultdict(dict)
    for row in tables["metrics"].to_pylist() if "metrics" in tables else ():
        rows[POSITIONS * row["step"] + (row["split"] == "batch")] |= _metrics(row)
    for name, table in tables.items():
        if name.startswith("probes/") and "counts" in table.schema.names:
            for row in table.to_pylist():
                position = POSITIONS * row["step"] + _place(row["when"])
                rows[position] |= {"step": row["step"]} | _histogram(name, row)
    yield from sorted(rows.items())


def by_depth(tables: Tables, steps_total: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (position, values) of one row per numbered layer, at the first and the last measurement."""
    rows: dict[int, dict[str, Any]] = defaultdict(dict)
    for probe, columns in DEPTH_SCALARS.items():
        table = tables.get(f"probes/{probe}")
        found = table.to_pylist() if table is not None else []
        listed = [r for r in found if r["number"] is not None and r.get("source") != "noise"]
        steps = [r["step"] for r in listed]
        for row in listed:
            moments = [w for w, s in (("first", min(steps)), ("last", max(steps))) if row["step"] == s]
            side = f"{row['side']}_" if row.get("side") else ""
            for column in columns:
                value = _mean(row[column])
                if value is not None:
                    rows[row["number"]] |= {f"depth/{m}/{probe}/{side}{column}": value for m in moments}
    start = POSITIONS * (steps_total + 1)
    for number, values in sorted(rows.items()):
        yield start + number, {"depth/layer": number} | values


def nonfinite(values: Mapping[str, Any]) -> int:
    """Number of NaN and ±∞ among a row's numbers."""
    return sum(isinstance(v, float) and not math.isfinite(v) for v in values.values())


def coarsened(counts: list[int], edges: list[float]) -> Bins:
    """Return a histogram of at most MAX_BINS bins: empty ends cut off, then neighbours joined."""
    filled = [i for i, n in enumerate(counts) if n] or [0]
    counts, edges = counts[filled[0] : filled[-1] + 1], edges[filled[0] : filled[-1] + 2]
    join = -(-len(counts) // MAX_BINS)
    joined = [sum(counts[i : i + join]) for i in range(0, len(counts), join)]
    return Bins(joined, [*edges[:-1:join], edges[-1]])


def _metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row of the metrics table; rows at one position agree in step, epoch, lr and poisoned."""
    split = row["split"]
    values = {k: row[k] for k in ("step", "epoch", "lr", "poisoned")}
    values |= {f"{split}/{k}": row[k] for k in ("loss", "accuracy", "n")}
    if row["predicted"] is not None:
        edges = [i - 0.5 for i in range(len(row["predicted"]) + 1)]
        # Not coarsened: the reader wants every class back. More classes than bins go without.
        if len(row["predicted"]) <= MAX_BINS:
            values[f"{split}/predicted"] = Bins(row["predicted"], edges)
    return {k: v for k, v in values.items() if v is not None}


def _place(when: str) -> int:
    return {"first": 1, "every": 1, "divergence": 2}.get(when, 0)


def _histogram(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    from study.probes import _histogram as fixed

    counts, inner = row["counts"], fixed.edges()
    if counts is None or len(counts) != len(inner) + 1:
        return {}
    layer = str(row["layer"]).replace(".", "/")
    side = f"/{row['side']}" if row.get("side") else ""
    call = f"/call{row['call']}" if row.get("call") else ""
    edges = [2 * inner[0], *inner, 2 * inner[-1]]
    return {f"{name.removeprefix('probes/')}/{layer}{side}{call}": coarsened(counts, edges)}


def _mean(value: Any) -> float | None:
    """Mean of a list's finite entries, or the finite value itself; None if there is none."""
    values = value if isinstance(value, list) else [value]
    finite = [v for v in values if isinstance(v, (int, float)) and math.isfinite(v)]
    return sum(finite) / len(finite) if finite else None

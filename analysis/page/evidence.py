"""What stands behind a verdict, number by number: each run's value as the test was given it, and how large
the effect is in units of its own spread."""

import numpy as np
import pandas as pd

from analysis import claims, stats
from analysis.page.values import MISSING, Sheet
from analysis.tidy import each

PERCENT = ("share", "accuracy")
"""Units of claims whose estimates and values are shown in percent."""

LOGARITHMIC = ("times", "level")
"""Units of claims whose tests take decimal logarithms; estimates and values are shown without."""


def measured(result: claims.Result) -> Sheet | None:
    """One row per run (or draw of matrices) in the order of the claim's cells; None where none was judged."""
    rows = [
        [str(cell), "" if pd.isna(row.seed) else f"{row.seed:.0f}", text, str(row.run_id)]
        for cell, table in zip(result.claim.cells, result.cells, strict=False)
        for row, text in zip(each(table), _texts(result.claim, table), strict=True)
    ]
    if not rows:
        return None
    return Sheet(["cell", "seed", _heading(result.claim, result.cells[0]), "run"], rows)


def effect(result: claims.Result) -> str:
    """How large a difference is beside its spread over seeds, in words; empty if there are no two cells."""
    claim = result.claim
    values = [numbers(claim, table) for table in result.cells]
    if len(values) != 2 or any(v is None for v in values) or not all(len(v) for v in values if v is not None):
        return ""
    a, b = (np.asarray(v, float) for v in values if v is not None)
    first, second = (str(cell) for cell in claim.cells)
    if not claim.paired:
        return f"Cliff's δ = {plain(stats.cliffs_delta(a, b))} ({first} over {second}; 1: all above all)"
    with np.errstate(invalid="ignore"):
        above = int((a > b).sum())
    text = f"{first} above {second} in {above} of {len(a)} pairs"
    if np.isfinite([a, b]).all() and np.isfinite(spread := stats.standardised_paired(a, b)):
        logs = " of logarithms" if claim.unit in LOGARITHMIC else ""
        text += f"; paired difference{logs} over its standard deviation: {plain(spread)}"
    return text


def averages(result: claims.Result) -> str:
    """Each cell's mean (of logarithms: geometric) with its bootstrap interval, if all are finite."""
    claim, parts = result.claim, []
    for cell, table in zip(claim.cells, result.cells, strict=False):
        values = numbers(claim, table)
        if values is None or not len(values):
            continue
        x = np.asarray(values, float)
        if not np.isfinite(x).all():
            parts.append(f"{cell}: not finite for {int((~np.isfinite(x)).sum())} of {len(x)}")
            continue
        found = stats.bootstrap_mean(x)
        text = f"{cell}: {_shown(claim, found.estimate)}"
        if np.isfinite(found.low):
            text += f" ({_shown(claim, found.low)} to {_shown(claim, found.high)})"
        parts.append(text)
    return "; ".join(parts)


def numbers(claim: claims.Claim, table: pd.DataFrame) -> "pd.Series[float] | None":
    """What the test compares, one number per run; None if that is no number (a fate, a bracket of rates)."""
    if "value" in table:
        return table["value"].astype(float)
    return None if claim.value is None else claim.value(table).astype(float)


def _texts(claim: claims.Claim, table: pd.DataFrame) -> list[str]:
    values = numbers(claim, table)
    if values is not None:
        texts = [_shown(claim, v) for v in values]
        lost = table["fate"] == "diverged" if "fate" in table else pd.Series(False, index=table.index)
        return [f"{t} (diverged)" if gone else t for t, gone in zip(texts, lost, strict=True)]
    if "works" in table:
        return [f"{_end(row.works)} to {_end(row.fails)}" for row in each(table)]
    return [str(fate) for fate in table["fate"]]


def _heading(claim: claims.Claim, table: pd.DataFrame) -> str:
    if numbers(claim, table) is not None:
        return "percent" if claim.unit in PERCENT else "value"
    return "highest that trains, lowest that fails" if "works" in table else "fate"


def _shown(claim: claims.Claim, value: float) -> str:
    """As on the page: percent of a share, ten to a decimal logarithm."""
    if np.isnan(value):
        return MISSING
    if claim.unit in PERCENT:
        return f"{100 * value:.1f}%".replace("-", "−")
    with np.errstate(over="ignore"):
        return plain(float(np.power(10.0, value)) if claim.unit in LOGARITHMIC else value)


def _end(rate: float) -> str:
    return MISSING if pd.isna(rate) else f"{rate:.3g}"


def plain(value: float) -> str:
    """A number with three digits."""
    return f"{value:.3g}".replace("-", "−").replace("inf", "∞")

"""The table of all runs, one row each."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from analysis import select, style
from analysis.page.values import MISSING, Cell, Trial
from analysis.tidy import each

COLUMNS = [
    ("norm", "text"),
    ("rate", "number"),
    ("seed", "number"),
    ("fate", "text"),
    ("last test", "number"),
    ("best test", "number"),
    ("last train", "number"),
    ("diverged at step", "number"),
    ("steps", "number"),
    ("seconds", "number"),
    ("run", "text"),
]
"""Heading and kind of each column."""


def anchors(table: pd.DataFrame) -> dict[str, str]:
    """Run id → id of its row. Numbered, since a directory's name may hold what an element's id may not."""
    return {str(run): f"run-{i}" for i, run in enumerate(table["run_id"], start=1)}


def trials(table: pd.DataFrame) -> list[Trial]:
    """One row per run of analysis.select.outcomes."""
    places, standing = anchors(table), select.standing(table)
    return [
        Trial(places[str(run.run_id)], _cells(run, text))
        for run, text in zip(each(table), standing, strict=True)
    ]


def _cells(run: Any, standing: str) -> list[Cell]:
    steps = f"{run.steps_done} of {run.steps_total}" if pd.notna(run.steps_done) else MISSING
    return [
        Cell(str(run.norm), str(run.norm)),
        _number(run.lr, style.rate_label),
        _number(run.seed, lambda v: f"{int(v)}"),
        Cell(standing, standing, standing.split()[0]),
        _number(run.last_test, _share),
        _number(run.best_test, _share),
        _number(run.last_train, _share),
        _number(run.diverged_step, lambda v: f"{int(v)}"),
        Cell(steps, float(run.steps_done) if pd.notna(run.steps_done) else -1.0),
        _number(run.seconds, lambda v: f"{v:.1f}"),
        Cell(str(run.run_id), str(run.run_id), "id"),
    ]


def _number(value: Any, show: Callable[[float], str]) -> Cell:
    return Cell(MISSING, "") if pd.isna(value) else Cell(show(float(value)), float(value))


def _share(value: float) -> str:
    return f"{100 * value:.1f}%"

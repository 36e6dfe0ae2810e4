"""The runs of one setting: outcomes by norm and rate, what each selection rule gives, and the figures."""

from typing import Any

import pandas as pd

from analysis import select, stats, style
from analysis.load import Frames
from analysis.page.pictures import Drawn
from analysis.page.values import MISSING, Group
from analysis.tables import best_rates
from analysis.tidy import each


def group(frames: Frames, name: str, anchor: str, drawn: Drawn) -> Group:
    """Collect what the page says of the runs of one setting, which `frames` holds."""
    table = select.outcomes(frames)
    shares = stats.fate_table(table)
    rates, norms = sorted(table["lr"].dropna().unique()), select.norm_order(table["norm"])
    grid = [
        (norm, [_cell(shares[(shares["norm"] == norm) & (shares["lr"] == lr)]) for lr in rates])
        for norm in norms
    ]
    return Group(
        anchor=anchor,
        name=name,
        rates=[style.rate_label(r) for r in rates],
        grid=grid,
        rules=_rules(frames, norms),
        sections=drawn.sections,
        not_drawn=drawn.not_drawn,
        scales=", ".join(sorted(set(table["scale"].dropna()) - {""})) or MISSING,
        stage=_stage(frames.runs),
        data=", ".join(sorted(set(table["data"].dropna()))),
    )


def _stage(runs: pd.DataFrame) -> str:
    if select.beyond_first_steps(runs).any():
        return "outcomes"
    return "before training" if select.untrained(runs).all() else "first steps"


def _cell(shares: pd.DataFrame) -> list[str]:
    """Say what became of one cell's runs; with one seed just its fate."""
    if shares.empty:
        return ["not run"]
    n, undecided = int(shares["n"].iloc[0]), int(shares["n_undecided"].iloc[0])
    lines = [f"{undecided} undecided"] if undecided else []
    if n == 1:
        return [str(shares.loc[shares["k"] == 1, "fate"].iloc[0]), *lines]
    if n > 1:
        fates = [f"{r.fate} {r.k} of {n} ({100 * r.low:.0f}–{100 * r.high:.0f}%)" for r in each(shares)]
        lines = fates[::-1] + lines
    return lines


def _rules(frames: Frames, norms: list[str]) -> list[tuple[str, ...]]:
    best, held_out = (best_rates(frames, norms, split) for split in ("test", "validation"))
    highest = select.highest_trainable_rate(frames).set_index("norm")
    plateaus = select.plateau(frames).groupby("norm", observed=True)[["n", "n_plateau"]].sum()
    return [
        (norm, best[norm], held_out[norm], _highest(highest, norm), _plateau(plateaus, norm))
        for norm in norms
    ]


def _highest(highest: pd.DataFrame, norm: str) -> str:
    if norm not in highest.index:
        return MISSING
    row: Any = highest.loc[norm]
    if pd.isna(row["lr"]):
        return f"none of those tried (up to {style.rate_label(row['highest_tried'])})"
    sign = "at least " if row["censored"] else ""
    return f"{sign}{style.rate_label(row['lr'])} (median of {int(row['n'])})"


def _plateau(plateaus: pd.DataFrame, norm: str) -> str:
    row: Any = plateaus.loc[norm]
    return f"{int(row['n_plateau'])} of {int(row['n'])}"

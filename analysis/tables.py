"""The tables of the paper from the runs at hand, as texts: Tables 1 to 4 of Bjorck et al. 2018, and outcomes.

Rows of several settings stand in one table with the setting's number; nothing is averaged across settings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import figures, select, stats, style
from analysis.figures import bjorck_table1
from analysis.load import Frames
from analysis.tidy import each

MISSING = "–"

PARTS = {
    "bn": "nothing",
    "bn_no_mean": "the mean",
    "bn_no_var": "the variance",
    "bn_no_gamma": "γ",
    "bn_no_beta": "β",
    "bn_no_affine": "γ and β",
    "bn_affine_only": "mean and variance",
    "none": "all of it",
}
"""Norm → what it lacks of batch normalisation (Table 2, App. F)."""


@dataclass(frozen=True)
class Table:
    """One table of texts."""

    name: str
    """Of its files."""
    title: str
    note: str
    """How to read it, and what it rests on."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(frames: Frames) -> list[Table]:
    """Every table for which there are runs; what has none is left out."""
    settings = list(dict.fromkeys(select.outcomes(frames)["setting"])) if len(frames.runs) else []
    parts = [
        (str(i), frames.subset(frames.runs.loc[frames.runs["setting"] == name, "run_id"]))
        for i, name in enumerate(settings, start=1)
    ]
    key = " ".join(f"Setting {i}: {name}." for i, name in enumerate(settings, start=1))
    made = []
    for name, title, note, columns, rows_of in TABLES:
        rows = [(number, *row) for number, mine in parts for row in rows_of(mine)]
        if not rows:
            continue
        many = len(settings) > 1
        found = tuple(row if many else row[1:] for row in rows)
        headings = ("setting", *columns) if many else columns
        made.append(Table(name, title, f"{note} {key}", headings, found))
    return made


Rows = list[tuple[str, ...]]


def outcomes(frames: Frames) -> Rows:
    """Per norm and rate: what became of the runs, and the test accuracy after the last epoch."""
    table = select.outcomes(frames)
    if not select.beyond_first_steps(table).any():
        return []
    fates = stats.fate_table(table)
    rows: Rows = []
    for cell in _ordered(stats.accuracy_table(table)):
        mine = fates[(fates["norm"] == cell.norm) & (fates["lr"] == cell.lr)].set_index("fate")["k"]
        counts = [str(int(mine.get(f, 0))) for f in select.FATES[::-1]]
        undecided = str(int(cell.n_undecided))
        head = (str(cell.norm), style.rate_label(cell.lr))
        rows.append((*head, *counts, undecided, accuracy(cell), _interval(cell)))
    return rows


def agreement(frames: Frames) -> Rows:
    """Table 1 (§4.1): a, b and a/b by layer and norm, medians over seeds with their range."""
    if figures.lacking(bjorck_table1, frames):
        return []
    try:
        table = bjorck_table1.table(frames)
    except figures.UndrawableError:
        return []
    return [tuple(map(str, row)) for row in table.itertuples(index=False)]


def parts_of_bn(frames: Frames) -> Rows:
    """Table 2 (App. F): accuracy of BN without its parts, at the best rate and at every rate."""
    table = select.outcomes(frames)
    present = [n for n in PARTS if n in set(table["norm"].astype("str"))]
    if not set(present) - {"bn", "none"} or not select.beyond_first_steps(table).any():
        return []
    best = best_rates(frames, present)
    cells = stats.accuracy_table(table)
    rows: Rows = []
    for norm in present:
        rates = [
            f"{accuracy(c)} at {style.rate_label(c.lr)}"
            for c in each(cells[cells["norm"] == norm].sort_values("lr", ascending=False))
        ]
        rows.append((norm, PARTS[norm], best[norm], "; ".join(rates)))
    return rows


def best_rates(frames: Frames, norms: Sequence[str], select_on: str = "test") -> dict[str, str]:
    """By norm of one setting: accuracy at its best rate (select.best_over_rates), or why that is not known.

    A dash alone where no run is complete, or none recorded the split to select on. Of a norm with a grid's
    runs these alone are compared: a search has other rates for every seed, and stops its runs early.
    """
    if not (frames.metrics["split"] == select_on).any():
        return dict.fromkeys(norms, MISSING)
    table = select.outcomes(frames)
    alone = figures.searched(table)
    gridded = (~alone).groupby(table["norm"], observed=True).transform("any").astype(bool)
    table = table[~(alone & gridded)]
    found = {str(r.norm): r for r in each(select.best_over_rates(frames.subset(table["run_id"]), select_on))}
    stopped = set(table.loc[select.stopped_early(table), "norm"].astype("str"))
    texts = {}
    for norm in norms:
        if norm in stopped:
            texts[norm] = f"{MISSING} (not known: runs were stopped early)"
        elif norm in found:
            best = found[norm]
            lost = f", {best.n_diverged} diverged" if best.n_diverged else ""
            texts[norm] = f"{_percent(best.accuracy)} at {style.rate_label(best.lr)} (n = {best.n}{lost})"
        else:
            texts[norm] = MISSING
    return texts


def highest_rates(frames: Frames) -> Rows:
    """Table 3 (App. H): the highest rate at which networks train, by network and norm, and seed by seed."""
    rows: Rows = []
    for row in _ordered(select.highest_trainable_rate(frames)):
        highest = MISSING if pd.isna(row.lr) else ("≥ " if row.censored else "") + style.rate_label(row.lr)
        seeds = "; ".join(_bracket(works, fails) for works, fails in row.brackets)
        rows.append((_network(frames), str(row.norm), highest, f"{row.trained} of {row.n}", seeds))
    return rows


def _bracket(works: float, fails: float) -> str:
    """As 0.01–0.03, from the rate that trains to the one that fails."""
    if np.isnan(works):
        return f"< {style.rate_label(fails)}"
    low = style.rate_label(works)
    return f"≥ {low}" if np.isnan(fails) else f"{low}–{style.rate_label(fails)}"


def schemes(frames: Frames) -> Rows:
    """Table 4 (App. K): test accuracy after the last epoch, by norm and rate, rates descending."""
    table = select.outcomes(frames)
    if not select.beyond_first_steps(table).any():
        return []
    return [
        (
            str(c.norm),
            style.rate_label(c.lr),
            accuracy(c),
            stats.of_n(c.n_observed, c.n, c.n_diverged, c.n_undecided),
        )
        for norm in select.norm_order(table["norm"])
        for c in each(_of(stats.accuracy_table(table), norm).sort_values("lr", ascending=False))
        if c.n
    ]


TABLES: Sequence[tuple[str, str, str, tuple[str, ...], Callable[[Frames], Rows]]] = (
    (
        "outcomes",
        "Outcomes by norm and learning rate",
        "Counts of runs. Accuracy: mean over the runs that did not diverge, after the last epoch, with "
        "Student's 95% interval.",
        (
            "norm",
            "rate",
            *select.FATES[::-1],
            "undecided",
            "last test accuracy",
            "95% interval",
        ),
        outcomes,
    ),
    (
        "table1",
        "Do gradients add up or cancel? After Table 1 of Bjorck et al. 2018",
        "a: mean over weights of the sum of the terms' magnitudes; b: that of the magnitude of their sum. "
        "Medians over seeds, range in brackets.",
        bjorck_table1.COLUMNS,
        agreement,
    ),
    (
        "table2",
        "Batch normalisation without its parts. After Table 2 of Bjorck et al. 2018",
        "Test accuracy after the last epoch, mean over seeds. The best rate is selected on the test set, as "
        "in the paper, with a diverged run counting as guessing; single rates leave diverged runs out.",
        ("norm", "without", "best over rates", "by rate"),
        parts_of_bn,
    ),
    (
        "table3",
        "Highest trainable learning rate. After Table 3 of Bjorck et al. 2018",
        "Median over seeds of the highest rate at which a network neither diverged nor stayed at chance (≥: "
        "no higher one failed), how many seeds trained at any rate, and by seed the rates between which "
        "training ceases to work.",
        ("network", "norm", "highest rate", "trained", "by seed"),
        highest_rates,
    ),
    (
        "table4",
        "Test accuracy by norm and rate. After Table 4 of Bjorck et al. 2018",
        "After the last epoch, mean over the seeds that did not diverge; nothing is selected.",
        ("norm", "rate", "last test accuracy", "n"),
        schemes,
    ),
)
"""Name, title, note, headings and the function that gives the rows of one setting."""


def accuracy(cell: Any) -> str:
    """Mean accuracy of a row of stats.accuracy_table, as 91.3%; – if every run diverged."""
    return _percent(cell.mean) if cell.n_observed else MISSING


def _interval(cell: Any) -> str:
    low, high = cell.low, cell.high
    return MISSING if pd.isna(low) else f"{_percent(low)} to {_percent(high)}"


def _percent(share: float) -> str:
    return MISSING if pd.isna(share) else f"{100 * share:.1f}%"


def _of(cells: pd.DataFrame, norm: str) -> pd.DataFrame:
    return cells[cells["norm"] == norm]


def _ordered(cells: pd.DataFrame) -> list[Any]:
    order = {norm: i for i, norm in enumerate(select.norm_order(cells["norm"]))}
    return sorted(each(cells), key=lambda c: (order[str(c.norm)], c.lr))


def _network(frames: Frames) -> str:
    """The network of one setting: ResNet-110 as resnet110."""
    first = next(each(frames.runs))
    return f"{first.model}{'' if pd.isna(first.depth) else first.depth}"

"""What a claim is, and how a verdict follows from it."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis import select
from analysis.claims.rules import Evidence, significant
from analysis.load import Frames
from study import describe

ALPHA = 0.05
"""Family-wise error of one explanation (one module or package of this folder): the chance that any of its
claims is called supported (or contradicted) on the runs of one setting when all nulls hold."""

MOST_CLAIMS = 46
"""Claims an explanation may make. Tests are corrected for so many (Bonferroni), however many there are so
far: the level, and the seeds needed, are known before any run, and a claim added later moves no verdict."""

LOOKS = 2
"""Times that a claim may be judged: with the first seeds from which its test can decide, and if that leaves
it undetermined once more with twice as many. Each look has half of the claim's error (Bonferroni again), so
that adding seeds where they are needed cannot add to it. Seeds in between, or beyond, are not judged."""

LEVEL = ALPHA / MOST_CLAIMS / LOOKS
"""Of each one-sided test. The exact two-sample tests then need 7 seeds a cell (1 / C(14, 7) = 1/3432), the
tests of pairs and of single cells 11 (2^−11); and twice as many at the second look."""

PLAIN: Mapping[str, Any] = {
    "model.depth": 110,
    "model.branch_scale": "none",
    "init.name": "xavier_normal",
    "init.gain": 1.0,
    "schedule.warm_start_epochs": 0,
}
"""Scientific fields that some claim compares, at the study's defaults (run.json leaves a default out). A
claim that does not vary them is judged on runs that have them so; but of depths, on the deepest there is."""

UNTRAINED = ("epochs", "momentum", "weight_decay", "schedule.")
"""Fields (a prefix where they end in a point) that play no part before the first update."""


EVERYTHING = ("*",)
"""For claims that no setting bears on: all runs are one case."""


class Verdict(StrEnum):
    """What the runs say of a claim."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    UNDETERMINED = "undetermined"
    NOT_RUN = "not run"


class NotMeasuredError(ValueError):
    """The runs have not measured what a claim is about; the text says what is missing."""


@dataclass(frozen=True)
class Cell:
    """Runs that differ by seed only, or also by rate."""

    norm: str
    lr: float | None = None
    """None: at whatever rate (measured before training, or a statistic over all rates)."""
    where: tuple[tuple[str, Any], ...] = ()
    """(Scientific field, value) that sets it apart from the claim's other cells besides norm and rate."""

    def __str__(self) -> str:
        """As in "none at 0.1, depth 32"."""
        text = self.norm if self.lr is None else f"{self.norm} at {self.lr:g}"
        return ", ".join([text, *(f"{_words(name)} {value}" for name, value in self.where)])


@dataclass(frozen=True)
class Case:
    """The runs on which claims are judged: of one setting, but for what a claim varies."""

    frames: Frames
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    """Results that are no runs', by name: random_matrices (study.randmat)."""
    known: pd.DataFrame | None = None
    """analysis.select.outcomes of at least these runs, where that has been computed before."""

    @cached_property
    def outcomes(self) -> pd.DataFrame:
        """analysis.select.outcomes of the complete runs that were trained beyond their first steps."""
        table = select.outcomes(self.frames) if self.known is None else self.known
        mine = table["run_id"].isin(set(self.frames.runs["run_id"]))
        return table[mine & (table["fate"] != select.UNDECIDED) & ~select.first_steps(table)]

    def cell(self, cell: Cell) -> pd.DataFrame:
        """Complete runs of a cell."""
        return _matching(self.outcomes, cell)


Measure = Callable[[Case], pd.DataFrame]
"""A statistic of every run that measured it: norm, seed, run_id, value (and lr, scientific if cells need it).
Raises NotMeasuredError, or analysis.figures.UndrawableError, if no run did."""


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, with all that decides it fixed beforehand."""

    id: str
    sentence: str
    source: str
    cells: tuple[Cell, ...]
    """What it compares."""
    estimator: str
    rule: str
    unit: str
    """Of the estimate: "share" or "accuracy" (both shown in percentage points), "times", "level" (a number
    whose logarithm is tested) or "" (a number)."""
    test: Callable[..., Evidence]
    """Given one frame per cell, in the order of `cells`: outcomes, or what `measure` found."""
    least_seeds: Callable[[float], int]
    """Seeds per cell that the test needs to be able to decide at a level."""
    sweep: tuple[str, ...] = ()
    """Names of the sweeps (sweeps/NAME.yaml) that make its runs."""
    figures: tuple[str, ...] = ()
    """Names of the figures (analysis.figures) that show it."""
    measure: Measure | None = None
    """What is measured of each run; None: its outcome."""
    value: Callable[[pd.DataFrame], "pd.Series[float]"] | None = None
    """Of outcomes, the number that the test compares; None: the fate."""
    paired: bool = False
    """Whether runs of the same seed are compared with each other; seeds that lack a half are left out."""
    varies: tuple[str, ...] = ()
    """Scientific fields in which its runs may differ besides norm, rate and seed (see select.apart_from)."""
    whole: bool = False
    """Whether only runs trained to their end count: a stopped run's fate is decided, its accuracy is not."""


@dataclass(frozen=True)
class Result:
    """The verdict on a claim and what stands behind it."""

    claim: Claim
    verdict: Verdict
    evidence: Evidence | None
    n: tuple[int, ...]
    """Complete runs (or draws of matrices) per cell that the verdict rests on; diverged ones included."""
    least_seeds: int
    level: float
    scale: str
    run_ids: tuple[str, ...]
    reason: str
    setting: str = ""
    """The setting judged, without what the claim varies; empty where it was not run."""
    seeds_to_add_up_to: int = 0
    """Seeds per cell with which it would be judged next; 0 if it is decided, or seeds would not decide it."""
    cells: tuple[pd.DataFrame, ...] = field(default=(), compare=False, repr=False)
    """What the test was given, one frame per cell."""


def judged(claim: Claim, case: Case) -> Result:
    """Apply a claim's rule to the runs of one setting."""
    from analysis.figures import UndrawableError

    least = claim.least_seeds(LEVEL)
    try:
        cells = _cells(claim, case)
    except (NotMeasuredError, UndrawableError) as error:
        return _not_run(claim, least, f"not measured: {error}{_made_by(claim)}")
    fewest = min(map(len, cells))
    if fewest == 0:
        named = [str(cell) for cell, rows in zip(claim.cells, cells, strict=True) if not len(rows)]
        reason = f"no complete run: {'; '.join(named)}" + (" with seeds in common" if claim.paired else "")
        return _result(claim, case, least, cells, None, Verdict.NOT_RUN, reason + _made_by(claim))
    looks = [seeds for look in range(LOOKS) if (seeds := least * 2**look) <= fewest]
    if not looks:
        reason = f"needs {least} seeds per cell to decide, has {fewest}"
        result = _result(claim, case, least, cells, claim.test(*cells), Verdict.UNDETERMINED, reason)
        return replace(result, seeds_to_add_up_to=least)
    for seeds in looks:
        looked_at = [cell.sort_values("seed", kind="stable").head(seeds) for cell in cells]
        evidence = claim.test(*looked_at)
        verdict, reason = _decide(evidence)
        if verdict is not Verdict.UNDETERMINED:
            break
    result = _result(claim, case, least, looked_at, evidence, verdict, reason)
    if verdict is not Verdict.UNDETERMINED or evidence.note:
        return result
    if len(looks) == LOOKS:
        return replace(result, reason=f"{reason}; after the last look")
    more = 2 * seeds
    return replace(
        result, reason=f"{reason}; judged once more with {more} seeds per cell", seeds_to_add_up_to=more
    )


def _result(
    claim: Claim,
    case: Case,
    least: int,
    cells: list[pd.DataFrame],
    evidence: Evidence | None,
    verdict: Verdict,
    reason: str,
) -> Result:
    rows, n = pd.concat(cells), tuple(map(len, cells))
    scale, runs = _scale(rows, case), _runs(rows, case)
    return Result(claim, verdict, evidence, n, least, LEVEL, scale, runs, reason, cells=tuple(cells))


def _made_by(claim: Claim) -> str:
    """Which sweeps make the runs that a claim lacks."""
    return f" (sweeps: {', '.join(claim.sweep)})" if claim.sweep else ""


def _decide(evidence: Evidence) -> tuple[Verdict, str]:
    if evidence.note:
        return Verdict.UNDETERMINED, evidence.note
    if significant(evidence.p_for, LEVEL):
        return Verdict.SUPPORTED, f"p = {evidence.p_for:.2g} ≤ {LEVEL:.2g}"
    if significant(evidence.p_against, LEVEL):
        return Verdict.CONTRADICTED, f"p = {evidence.p_against:.2g} ≤ {LEVEL:.2g} for the opposite"
    p = f"p = {evidence.p_for:.2g} for it, {evidence.p_against:.2g} for the opposite, level {LEVEL:.2g}"
    return Verdict.UNDETERMINED, p


def _not_run(claim: Claim, least: int, reason: str) -> Result:
    n = (0,) * len(claim.cells)
    return Result(claim, Verdict.NOT_RUN, None, n, least, LEVEL, "", (), reason)


def _cells(claim: Claim, case: Case) -> list[pd.DataFrame]:
    """One frame per cell; of a paired claim, the seeds that all cells have, in the same order."""
    if claim.measure is None:
        found = [case.cell(cell) for cell in claim.cells]
        if claim.whole:
            found = [cell[~select.stopped_early(cell)] for cell in found]
    else:
        table = claim.measure(case)
        found = [_matching(table, cell) for cell in claim.cells]
    if not claim.paired:
        return found
    shared = set.intersection(*(set(cell["seed"]) for cell in found))
    return [c[c["seed"].isin(shared)].sort_values("seed").reset_index(drop=True) for c in found]


def _matching(table: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    chosen = table["norm"].astype("str") == cell.norm
    if cell.lr is not None:
        chosen &= np.isclose(table["lr"].astype(float), cell.lr, rtol=1e-9)
    if cell.where and len(table):
        chosen &= table["scientific"].map(lambda text: has(text, cell.where)).astype(bool)
    return table[chosen]


def has(scientific: str, wanted: Iterable[tuple[str, Any]]) -> bool:
    """Whether scientific fields (JSON, as in frames.runs) have these values; run.json leaves defaults out."""
    fields = json.loads(scientific or "{}")
    return all((fields[name] if name in fields else default(name)) == value for name, value in wanted)


def default(name: str) -> Any:
    """The study's default of a scientific field; KeyError if there is no such field."""
    return describe.settings()[name].default


def _runs(rows: pd.DataFrame, case: Case) -> tuple[str, ...]:
    """Ids of the runs behind these rows; draws of matrices are no runs."""
    known = set(case.frames.runs["run_id"].astype("str"))
    return tuple(run for run in dict.fromkeys(rows["run_id"].astype("str")) if run in known)


def _scale(rows: pd.DataFrame, case: Case) -> str:
    scales = rows.get("scale")
    if scales is None:
        runs = case.frames.runs
        scales = runs.loc[runs["run_id"].isin(set(rows["run_id"].astype("str"))), "scale"]
    return ", ".join(sorted(set(scales.dropna()) - {""}))


def _words(name: str) -> str:
    return name.removesuffix(".name").rpartition(".")[2].replace("_", " ")

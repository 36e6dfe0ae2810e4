"""Claims of the papers, judged by rules fixed beforehand: per explanation a module or package with CLAIMS."""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from analysis import select
from analysis.claims.base import (
    EVERYTHING,
    MOST_CLAIMS,
    PLAIN,
    Case,
    Cell,
    Claim,
    NotMeasuredError,
    Result,
    Verdict,
    has,
    judged,
)
from analysis.claims.rules import Evidence
from analysis.load import Frames

__all__ = [
    "Case",
    "Cell",
    "Claim",
    "Evidence",
    "NotMeasuredError",
    "Result",
    "Verdict",
    "explanations",
    "judge",
    "judge_all",
    "registered",
]


def explanations() -> dict[str, tuple[Claim, ...]]:
    """Explanation (module or package of this folder) → its claims; ids are unique."""
    shared = {"base", "measured", "rules"}
    names = sorted({m.name for m in pkgutil.iter_modules(__path__)} - shared)
    found = {n: tuple(importlib.import_module(f"{__name__}.{n}").CLAIMS) for n in names}
    ids = [claim.id for claims in found.values() for claim in claims]
    if len(set(ids)) != len(ids):
        raise ValueError("two claims share an id")
    for name, claims in found.items():
        if len(claims) > MOST_CLAIMS:
            raise ValueError(f"{name} makes {len(claims)} claims: the tests are corrected for {MOST_CLAIMS}")
    return found


def registered() -> list[Claim]:
    """Every claim, in order of explanation and of its CLAIMS."""
    return [claim for claims in explanations().values() for claim in claims]


def judge(case: Case) -> list[Result]:
    """Judge all registered claims on runs of one setting, as they are."""
    return [judged(claim, case) for claim in registered()]


def judge_all(frames: Frames, tables: Mapping[str, pd.DataFrame] | None = None) -> list[Result]:
    """Judge every claim on each setting that has its runs; one without any is there once, as not run.

    Runs that differ in more than norm, rate, seed and what the claim varies are never put together. `tables`
    are results that are no runs' (see Case).
    """
    found: list[Result] = []
    whole = Case(frames, tables or {}, select.outcomes(frames))
    apart: dict[tuple[str, ...], dict[str, Case]] = {}
    for claim in registered():
        if claim.varies not in apart:
            apart[claim.varies] = _settings(whole, claim.varies)
        results = [replace(judged(claim, c), setting=name) for name, c in apart[claim.varies].items()]
        run = [r for r in results if r.verdict != Verdict.NOT_RUN]
        found += run or [replace(results[0], setting="")]
    return found


def _settings(whole: Case, varies: tuple[str, ...]) -> dict[str, Case]:
    """Name → runs that may be put together by claims that vary these fields; one without runs if none may."""
    if varies == EVERYTHING:
        return {"": whole}
    runs = whole.frames.runs
    plain = [(name, value) for name, value in PLAIN.items() if name not in (*varies, "model.depth")]
    runs = runs[runs["scientific"].map(lambda fields: has(fields, plain)).astype(bool)]
    if "model.depth" not in varies:
        runs = runs[select.deepest(runs)]
    names = select.apart_from(runs, varies)

    def only(ids: "pd.Series[str]") -> Case:
        return replace(whole, frames=whole.frames.subset(ids))

    return {n: only(runs.loc[names == n, "run_id"]) for n in dict.fromkeys(names)} or {"": only(names)}

"""Diverged runs are censored outcomes: they stay in every n, and never count as what would suit a claim."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis import select
from analysis.claims import Verdict, rules
from analysis.claims.base import judged
from analysis.claims.bjorck import parts, rates
from tests import claim_studies as studies
from tests.unit.test_analysis_claims import TRUE, Simulated

GAP = next(c for c in rates.CLAIMS if c.id == "larger_gap_with_bn_at_low_rate")
HIGHEST = next(c for c in parts.CLAIMS if c.id == "highest_rate_is_best")


def with_diverged(case, norm, seeds):
    table = case.outcomes
    gone = (table["norm"] == norm) & (table["lr"] == rates.LOW) & table["seed"].isin(seeds)
    table.loc[gone, "fate"] = select.DIVERGED
    table.loc[gone, ["last_test", "last_train"]] = math.nan
    return case


@pytest.mark.parametrize("norm", ["bn", "none"])
def test_a_run_that_diverged_counts_in_the_gaps_n_and_for_neither_side(norm):
    case = Simulated(np.random.default_rng(0), 7, TRUE)
    assert judged(GAP, case).verdict == Verdict.SUPPORTED
    found = judged(GAP, with_diverged(case, norm, [3]))
    assert found.n == (7, 7)
    assert found.verdict == Verdict.UNDETERMINED
    values = [case.cell(c) for c in GAP.cells]
    known = [(v["last_train"] - v["last_test"])[v["fate"] != select.DIVERGED].to_numpy() for v in values]
    assert sorted(map(len, known)) == [6, 7]
    assert found.evidence.p_for >= rules.larger(*known).p_for  # which leaves it out
    assert found.evidence.p_against > 0.5


def judge(frames):
    from analysis import claims

    return next(r for r in claims.judge_all(frames) if r.claim.id == HIGHEST.id)


def test_seeds_whose_lower_rates_or_all_rates_diverged_stay_in_n():
    frames = studies.trained(np.random.default_rng(1), studies.TRAINED)
    assert (judge(frames).n, judge(frames).verdict) == ((7, 7), Verdict.SUPPORTED)
    runs = frames.runs
    gone = (runs["norm"] == "bn_no_mean") & (runs["seed"] == 2)
    one = gone & (runs["lr"] < 0.05)
    for lost in (one, gone):
        changed = runs.assign(outcome=runs["outcome"].where(~lost, "diverged"))
        assert judge(replace(frames, runs=changed)).n == (7, 7)


def test_rates_that_are_all_alike_are_no_contradiction():
    """The best of several rates lies above their mean; that must not count against the highest."""
    p = []
    for seed in range(12):
        frames = studies.trained(np.random.default_rng(seed), studies.LEVELLED)
        p.append(judge(frames).evidence.p_against)
    assert sum(v <= 0.05 for v in p) <= 3
    assert np.median(p) > 0.1

"""analysis.claims.rules: exact tests are exact, and find no more than their level allows."""

import itertools
import math
import re

import numpy as np
import pytest
from scipy import stats as scipy_stats

from analysis import figures
from analysis.claims import Cell, base, explanations, registered, rules
from analysis.claims.base import LEVEL, PLAIN
from analysis.expectations import EXPECTED
from study.config import RunConfig

INF = math.inf


@pytest.mark.parametrize("n", [1, 2, 7, 10])
def test_the_signed_rank_test_is_scipys_and_counts_every_pattern_of_signs(n):
    rng = np.random.default_rng(n)
    d = rng.normal(0.3, 1, n)
    expected = scipy_stats.wilcoxon(d, alternative="greater", method="exact").pvalue
    assert rules.above(d).p_for == pytest.approx(expected)
    tied = np.round(d * 2) / 2
    tied = tied[tied != 0] if (tied != 0).any() else np.array([1.0])
    ranks = scipy_stats.rankdata(np.abs(tied))
    patterns = [
        sum(r for r, s in zip(ranks, signs, strict=True) if s)
        for signs in itertools.product([0, 1], repeat=len(tied))
    ]
    observed = ranks[tied > 0].sum()
    assert rules.above(tied).p_for == pytest.approx(np.mean(np.asarray(patterns) >= observed))


def test_infinite_and_undefined_values_keep_their_place():
    values = [INF, INF, 2.0, 3.0, math.nan, 4.0, 5.0]
    found = rules.above(values)
    assert found.p_for == pytest.approx(0.5**6)  # the undefined one has no sign
    assert found.estimate == 4.5
    assert rules.above([INF] * 3).estimate == INF
    assert rules.above([-INF, INF]).p_for == pytest.approx(0.75)
    assert rules.above([math.nan] * 4).note


@pytest.mark.parametrize("n", [6, 9, 10, 25])
def test_the_medians_interval_covers_with_at_least_its_level(n):
    ordered = np.arange(1.0, n + 1)
    found = rules.above(ordered)
    k = int(found.low)
    covered = 1 - 2 * scipy_stats.binom.cdf(k - 1, n, 0.5)
    assert covered >= 0.95
    assert 1 - 2 * scipy_stats.binom.cdf(k, n, 0.5) < 0.95
    assert found.high == n + 1 - k
    assert math.isnan(rules.above(np.arange(5.0)).low)


def test_a_ratio_is_shown_as_a_factor():
    found = rules.times(np.log10([10.0, 100.0, 1000.0] * 4), factor=5)
    assert found.estimate == pytest.approx(100)
    assert found.p_for == rules.above(np.log10([10.0, 100.0, 1000.0] * 4), math.log10(5)).p_for


def test_brackets_that_overlap_are_tied():
    assert rules.later([[1, 2]] * 6, [[2, 3]] * 6).p_against == pytest.approx(1 / 924)
    assert rules.later([[1, 3]] * 6, [[2, 4]] * 6).p_for == 1.0
    assert rules.later([[1, INF]] * 6, [[5, 6]] * 6).p_for == 1.0
    open_ended = rules.later([[4, INF]] * 6, [[-INF, 1]] * 3 + [[1, 3]] * 3)
    assert open_ended.estimate == pytest.approx(4 - 1.5)
    assert open_ended.low < open_ended.estimate < open_ended.high
    points = np.random.default_rng(0).normal(size=(2, 6))
    exact = [np.stack([p, p + 1e-9], axis=1) for p in points]
    assert rules.later(*exact).p_for == pytest.approx(rules.larger(*points).p_for)


def test_a_sum_of_means_is_welchs_test_where_there_are_two():
    x, y = np.random.default_rng(1).normal(0.5, [[1], [2]], (2, 8))
    found = rules.combination([x, y], (1.0, -1.0))
    expected = scipy_stats.ttest_ind(x, y, equal_var=False, alternative="greater")
    assert found.p_for == pytest.approx(expected.pvalue)
    assert rules.combination([[1.0] * 3, [0.5] * 3], (1.0, -1.0)).p_for == 0.0


def test_not_worse_and_near_hold_at_their_margins():
    rng = np.random.default_rng(2)
    level, n = 0.05, 400
    worse = sum(
        [rules.not_worse(*rng.normal([[0.75], [0.8]], 0.02, (2, 6)), 0.05).p_for <= level for _ in range(n)]
    )
    off = sum([rules.near(rng.normal(-0.8, 0.1, 10), -1, 0.2).p_for <= level for _ in range(n)])
    for k in (worse, off):
        assert scipy_stats.binomtest(k, n, level, "greater").pvalue > 0.01, k
    assert rules.near(rng.normal(-1, 0.05, 10), -1, 0.2).p_for < LEVEL
    assert rules.near(rng.normal(-0.5, 0.05, 10), -1, 0.2).p_against < LEVEL
    assert rules.near([math.nan] * 3, -1, 0.2).note


def test_null_values_are_found_significant_no_more_often_than_the_level():
    rng = np.random.default_rng(3)
    level, n = 0.05, 600
    pairs = sum([rules.above(rng.standard_t(2, 10)).p_for <= level for _ in range(n)])
    lows = rng.normal(0, 1, (n, 2, 6)).round(1)
    brackets = sum(
        [rules.later(*(np.stack([v, v + 0.5], axis=1) for v in pair)).p_for <= level for pair in lows]
    )
    for k in (pairs, brackets):
        assert scipy_stats.binomtest(k, n, level, "greater").pvalue > 0.01, k


def test_power_at_the_least_seeds_is_as_stated():
    rng = np.random.default_rng(4)
    n = 1000
    two = np.mean([rules.larger(*rng.normal([[3.45], [0]], 1, (2, 7))).p_for <= LEVEL for _ in range(n)])
    pairs = np.mean([rules.above(rng.normal(2.05, 1, 11)).p_for <= LEVEL for _ in range(n)])
    assert two == pytest.approx(0.8, abs=0.04)
    assert pairs == pytest.approx(0.8, abs=0.04)


def test_of_several_the_weakest_decides():
    strong, weak = rules.larger([2, 3, 4], [0, 1, 1]), rules.larger([1, 1, 2], [1, 2, 1])
    assert rules.every([strong, weak]).p_for == weak.p_for
    assert rules.every([strong, weak]).estimate == weak.estimate
    assert rules.every([strong, weak]).p_against == min(1.0, 2 * min(strong.p_against, weak.p_against))


def test_least_seeds_follow_from_test_and_correction():
    assert (rules.seeds_for_exact(LEVEL), rules.seeds_for_signs(LEVEL), rules.seeds_for_t(LEVEL)) == (
        7,
        11,
        7,
    )
    ones = np.ones(11)
    assert rules.significant(rules.above(ones).p_for, LEVEL)
    assert not rules.significant(rules.above(ones[:10]).p_for, LEVEL)


def test_two_sample_tests_are_the_share_of_all_splits():
    """Against every split written out, with ties, and against scipy's exact test beyond what can be."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        n, m = rng.integers(1, 6, 2)
        values = rng.integers(0, 5, n + m).astype(float)
        ranks = scipy_stats.rankdata(values)
        splits = [ranks[list(chosen)].sum() for chosen in itertools.combinations(range(n + m), n)]
        assert rules.larger(values[:n], values[n:]).p_for == pytest.approx(
            np.mean(np.array(splits) >= ranks[:n].sum() - 1e-9)
        )
    x, y = rng.normal([[1], [0]], 1, (2, 20))
    exact = scipy_stats.mannwhitneyu(x, y, alternative="greater", method="exact").pvalue
    assert rules.larger(x, y).p_for == pytest.approx(exact)


def test_every_claim_says_all_that_decides_it_and_points_to_figures_and_sweeps():
    names = {*figures.modules(), *figures.modules(apart=True)}
    for claim in registered():
        for text in (claim.sentence, claim.source, claim.estimator, claim.rule):
            assert text.strip() == text
            assert "  " not in text
        assert claim.sentence.endswith(".")
        assert claim.cells
        assert claim.unit in {"share", "accuracy", "times", "level", ""}
        assert set(claim.figures) <= names, claim.id
        assert not claim.paired or len(claim.cells) <= 2
    for claims in explanations().values():
        assert len(claims) <= base.MOST_CLAIMS


def test_every_figure_of_the_paper_of_which_something_is_stated_has_a_claim():
    """By the paper's own numbers, as expectations are filed."""
    sources = " ".join(c.source for c in registered())
    figures_named = {int(n) for n in re.findall(r"\d+", sources.replace("§", "s"))}
    for name in EXPECTED:
        if name.startswith("fig") and any("P" in e.marks for e in EXPECTED[name]):
            assert int(name[3:5]) in figures_named, name


def test_the_plain_values_are_the_defaults_of_the_study():
    for name, value in PLAIN.items():
        owner = RunConfig()
        for part in name.split("."):
            owner = getattr(owner, part)
        assert owner == value, name


def test_a_cell_in_words():
    assert str(Cell("none", 0.1)) == "none at 0.1"
    assert str(Cell("none", where=(("model.depth", 32),))) == "none, depth 32"
    assert str(Cell("bn", where=(("init.name", "lsuv"),))) == "bn, init lsuv"

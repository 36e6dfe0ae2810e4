"""Every registered claim is calibrated: what is null is not found, and every [P] statement has its claims.

A null study is on the very edge of what the claims say (tests/claim_studies.py). A claim that none of the
null studies can judge fails here: whoever adds one adds its null.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.stats import binomtest

from analysis import claims
from analysis.claims import Case, Verdict, registered
from analysis.claims.base import ALPHA, judged
from analysis.claims.bjorck import rates
from analysis.expectations import EXPECTED
from tests import claim_studies as studies
from tests.unit.test_analysis_claims import Simulated, null_cells

TRUE_IN_THE_NULL = {"equal_at_matched_low_rate"}
"""Of the null without any difference; its own null, a difference of the margin, is below."""


def untrained_null(seed):
    rng = np.random.default_rng(seed)
    tables = {"random_matrices": studies.products(rng, studies.NULL, draws=11)}
    case = Case(studies.untrained(rng, studies.NULL, seeds=11), tables)
    return [judged(claim, case) for claim in registered()]


def trained_null(seed):
    rng = np.random.default_rng(seed)
    found = claims.judge_all(studies.trained(rng, studies.LEVELLED, seeds=7))
    return [r for r in found if r.claim.id not in {*TRUE_IN_THE_NULL, TOP.id}] + [half_the_gain(rng)]


TOP = next(c for c in registered() if c.id == "bn_on_top_brings_most_of_the_gain")
HALF = replace(
    studies.LEVELLED,
    accuracy={**studies.LEVELLED.accuracy, "bn": (0.7,) * 3, "none": (0.5,) * 3, "bn_top": (0.6,) * 3},
    top=(0.0, 0.5),
)
"""Where all accuracies are equal nothing is gained: the null of TOP is a gain of which half is there."""


def half_the_gain(rng):
    frames = studies.trained(rng, HALF, seeds=7)
    usual = ~frames.runs["scientific"].str.contains("init|depth|schedule")
    return judged(TOP, Case(frames.subset(frames.runs.loc[usual, "run_id"])))


def grid_null(seed):
    rng = np.random.default_rng(seed)
    case = Simulated(rng, 7, null_cells(rng))
    found = [judged(claim, case) for claim in rates.CLAIMS if claim.id not in TRUE_IN_THE_NULL]
    margin = {("bn", 0.0001): (0.0, 0.0, 0.8, 0.1), ("none", 0.0001): (0.0, 0.0, 0.8 - rates.MARGIN, 0.1)}
    equal = Simulated(rng, 7, margin)
    return found + [judged(claim, equal) for claim in rates.CLAIMS if claim.id in TRUE_IN_THE_NULL]


KINDS = {"untrained": (untrained_null, 60), "trained": (trained_null, 40), "grid": (grid_null, 400)}
"""Null studies and how many of them are drawn."""


def judged_ids(results):
    """Claims that a null study judges, with the seeds they need."""
    return {
        r.claim.id
        for r in results
        if r.verdict != Verdict.NOT_RUN and min(r.n) >= r.least_seeds and not r.evidence.note
    }


@cache
def one_of_each():
    return {name: judged_ids(null(0)) for name, (null, _) in KINDS.items()}


@pytest.mark.parametrize("claim", registered(), ids=lambda c: c.id)
def test_every_registered_claim_has_a_null_that_judges_it(claim):
    assert any(claim.id in ids for ids in one_of_each().values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_null_is_found_no_more_often_than_the_level_allows(kind):
    """Three exact binomial tests, of n = 60, 40 and 400 studies.

    Whole studies, all claims together at their corrected level: hardly ever one supported, or contradicted
    (at most 5%). Each claim's own p-values: below 5% in at most 5% of studies, corrected for the claims.
    All claims' p-values: their share below 5%, averaged by study, is not above 5%.
    """
    null, n = KINDS[kind]
    wrong = {Verdict.SUPPORTED: 0, Verdict.CONTRADICTED: 0}
    low: Counter[tuple[str, str]] = Counter()
    shares, ids = [], one_of_each()[kind]
    assert ids
    for seed in range(n):
        mine = [r for r in null(seed) if r.claim.id in ids]
        found = {r.verdict for r in mine}
        for verdict in wrong:
            wrong[verdict] += verdict in found
        hits = [(r.claim.id, s) for r in mine for s in ("for", "against") if p_value(r, s) <= ALPHA]
        low.update(hits)
        shares.append(len(hits) / (2 * len(mine)))
    for verdict, k in wrong.items():
        assert binomtest(k, n, ALPHA, "greater").pvalue > 0.05, (verdict, k, n)
    for (name, side), k in low.items():
        assert binomtest(k, n, ALPHA, "greater").pvalue > 0.01 / (2 * len(ids)), (name, side, k, n)
    assert np.mean(shares) <= ALPHA + 3 * np.std(shares, ddof=1) / np.sqrt(n)
    if n >= 400:  # enough to show that the rate is below 5%, not only that it is not shown to be above
        assert binomtest(wrong[Verdict.SUPPORTED], n).proportion_ci(0.95).high <= ALPHA


def p_value(result, side):
    if result.evidence.note:
        return 1.0
    return result.evidence.p_for if side == "for" else result.evidence.p_against


STATED = {
    "Fig 1: at matched low rates, with and without BN alike": ["equal_at_matched_low_rate"],
    "Fig 1: larger rates improve BN": ["larger_rates_improve_bn"],
    "Fig 1: larger rates make none diverge": ["larger_rates_make_none_diverge", "bn_permits_larger_rates"],
    "Fig 1: at a low rate BN has the larger train–test gap": ["larger_gap_with_bn_at_low_rate"],
    "§2.1, App. D: variance of the gradient ∝ 1/|B|": ["gradient_variance_falls_as_batch_size"],
    "Fig 2: without BN wider by about two orders": ["gradients_wider_without_bn"],
    "Fig 2: without BN heavier-tailed": ["gradients_heavier_tailed_without_bn"],
    "Figs 3, 25: BN improves over a far broader range": [
        "first_step_may_be_larger_with_bn",
        "later_steps_may_be_larger_with_bn",
    ],
    "Fig 3: beyond, exponential without BN and linear with it": ["loss_grows_more_steeply_without_bn"],
    "Fig 4: later layers orders above earlier ones": ["late_layers_blow_up_in_a_large_update"],
    "Fig 5: without BN growth with depth": ["activations_grow_with_depth_without_bn"],
    "Fig 5: some channels to scales of 10²": ["channels_reach_a_hundred_without_bn"],
    "Fig 5: partly independent of the data": ["growth_with_depth_needs_no_data"],
    "Fig 6: nearly all positive gradient in one class": ["one_class_gets_the_gradient_without_bn"],
    "Table 1: a/b within about 2 without BN": ["gradient_terms_agree_without_bn"],
    "Table 1: a/b about 10² with BN": ["gradient_terms_cancel_with_bn"],
    "Fig 7: some pairs dominate": ["channel_pairs_dominate_without_bn"],
    "Figs 7, 14: tied to the means of in-channels; with BN no relation": [
        "channel_mean_drives_gradient_without_bn"
    ],
    "Fig 14: dead channels, tiny gradients": ["dead_channels_have_small_gradients"],
    "Fig 15: without BN most variation in early layers": ["channels_vary_most_in_early_layers_without_bn"],
    "Figs 16, 17: the favoured class at least ten times": ["favoured_class_has_ten_times_the_gradient"],
    "Fig 18: skewed away from zero": ["images_pull_one_way_without_bn"],
    "Fig 19: near-straight line": ["sums_follow_a_line_without_bn"],
    "Figs 22, 23: means not zero without BN, near 0 with it": ["means_not_zero_without_bn"],
    "Figs 22, 23: several modes without BN, one with it": ["deep_layers_have_several_modes_without_bn"],
    "Fig 24: late means and variances shrink": ["late_moments_shrink_in_the_first_steps"],
    "Figs 8–10, 20, 21: tails grow with M": ["largest_singular_value_grows_with_factors"],
    "Figs 8–10, 20, 21: condition number grows with M": ["condition_number_grows_with_factors"],
    "Figs 11, 12: with BN on top alone rates up to 0.03 work": ["bn_on_top_alone_permits_larger_rates"],
    "Figs 11, 12: about two thirds of the gain": ["bn_on_top_brings_most_of_the_gain"],
    "Fig 13, Table 2: normalisation more than affine": ["normalising_matters_more_than_affine"],
    "Fig 13, Table 2: affine ≈ 0.6%": ["affine_is_worth_little"],
    "Fig 13, Table 2: mean and variance both matter": [
        "subtracting_the_mean_matters",
        "dividing_by_the_deviation_matters",
    ],
    "Fig 13, Table 2: best at the highest rate that does not diverge": ["highest_rate_is_best"],
    "Table 3: shallower ≥ deeper": ["shallower_networks_train_at_higher_rates"],
    "Table 3: a warm start raises it": ["warm_start_raises_the_highest_rate"],
    "Table 3: alternating statistics do not enable high rates": [
        "alternating_statistics_lower_the_highest_rate"
    ],
    "Table 4: all schemes worsen at smaller rates": ["all_schemes_worsen_at_small_rates"],
    "Table 4: layer norm's best rate is slightly smaller": ["layer_norm_is_best_at_a_smaller_rate"],
    "§6: LSUV replaces BN at a small loss": ["lsuv_replaces_bn_at_a_small_loss"],
}
"""What a summary of Bjorck et al. 2018 states, [P], item by item → the claims that judge it. Not judged: its
protocol, and 90.1% with BN on top, an accuracy of that protocol alone."""

SHOWN = {
    "fig01": 5, "table3": 3, "table4": 3, "fig13": 4, "fig02": 1, "fig03": 2, "fig04": 1, "fig05": 1,
    "fig06": 1, "table1": 1, "fig07": 1, "fig14": 2, "fig15": 1, "fig16": 1, "fig18": 1, "fig19": 1,
    "fig22": 2, "fig24": 1, "fig25": 1, "gradient_noise": 1,
    "random_matrices": 1, "condition_number": 1,
}  # fmt: skip
"""[P] sentences that the report shows, by figure: one more needs its line in STATED."""


def test_every_statement_of_the_paper_has_its_claims_and_every_claim_its_statement():
    judging = [claim for ids in STATED.values() for claim in ids]
    assert all(STATED.values())
    assert sorted(judging) == sorted(c.id for c in claims.explanations()["bjorck"])


def test_the_statements_that_the_report_shows_are_those_that_are_listed():
    shown = {name: sum("P" in e.marks for e in found) for name, found in EXPECTED.items()}
    assert {name: n for name, n in shown.items() if n} == SHOWN

"""analysis.stats and analysis.select: every rule against hand-worked or textbook values."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta

from analysis import select, stats
from analysis.load import load
from tests import factory


def test_clopper_pearson_is_the_beta_quantile():
    found = stats.proportion(4, 5)
    assert found.low == pytest.approx(beta.ppf(0.025, 4, 2))
    assert found.high == pytest.approx(beta.ppf(0.975, 5, 1))
    assert stats.proportion(1, 1)[1:3] == pytest.approx((0.025, 1.0))


def test_wilson_is_the_textbook_formula():
    k, n, z = 3, 10, 1.959963984540054
    centre = (k / n + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n))
    assert stats.proportion(3, 10, "wilson")[1:3] == pytest.approx((centre - half, centre + half))


def test_no_runs_have_no_share():
    assert math.isnan(stats.proportion(0, 0).estimate)


def test_the_standardised_paired_difference_by_hand():
    a, b = [0.9, 0.8, 0.95, math.nan], [0.7, 0.7, 0.8, 0.6]
    d = np.array([0.2, 0.1, 0.15])
    assert stats.standardised_paired(a, b) == pytest.approx(0.15 / d.std(ddof=1))


def test_intervals_do_not_pretend_with_too_few_values():
    assert math.isnan(stats.mean_t([0.5]).low)
    assert math.isnan(stats.bootstrap_mean([0.5, 0.6]).low)
    assert stats.bootstrap_mean([0.5, 0.5, 0.5])[:3] == (0.5, 0.5, 0.5)


def test_bootstrap_interval_lies_within_the_data_and_is_reproducible():
    values = [0.1, 0.2, 0.4, 0.5, 0.9]
    first, again = stats.bootstrap_mean(values), stats.bootstrap_mean(values)
    assert first == again
    assert 0.1 <= first.low < first.estimate < first.high <= 0.9


def test_cliffs_delta_counts_pairs_and_takes_censored_values():
    a, b = [0.9, 0.8, 0.7], [0.75, -math.inf]
    wins = sum(x > y for x in a for y in b) - sum(x < y for x in a for y in b)
    assert stats.cliffs_delta(a, b) == pytest.approx(wins / 6)


def test_censored_median_ranks_diverged_runs_lowest():
    assert stats.censored_median([0.9, 0.8, 0.7], 2) == 0.7
    assert stats.censored_median([0.9, 0.8], 3) == -math.inf
    assert math.isnan(stats.censored_median([], 0))


def test_of_n_says_what_is_left_out():
    assert stats.of_n(3, 3, 0) == "n = 3"
    assert stats.of_n(2, 3, 1) == "n = 2 of 3, 1 diverged"
    assert stats.of_n(2, 3, 1, 1) == "n = 2 of 4, 1 diverged, 1 undecided"


@pytest.fixture
def five(tmp_path):
    factory.grid_runs(tmp_path, factory.FIVE_SEEDS)
    factory.write_run(tmp_path, norm="bn", lr=0.1, seed=9, status="running")
    return load([tmp_path])


def test_fates_are_those_that_were_written(five):
    table = select.outcomes(five).set_index(["norm", "lr", "seed"])["fate"]
    for (norm, lr), fates in factory.FIVE_SEEDS.items():
        for seed, fate in enumerate(fates):
            assert table[(norm, lr, seed)] == ("stuck at chance" if fate == "stuck" else fate)
    assert table[("bn", 0.1, 9)] == select.UNDECIDED


def test_a_diverged_run_stays_in_every_n(five):
    outcomes = select.outcomes(five)
    fates = stats.fate_table(outcomes).set_index(["norm", "lr", "fate"])
    assert fates.loc[("none", 0.1, "diverged"), ["k", "n"]].tolist() == [5, 5]
    assert fates.loc[("bn", 0.1, "trained"), ["k", "n", "n_undecided"]].tolist() == [4, 5, 1]
    accuracy = stats.accuracy_table(outcomes).set_index(["norm", "lr"])
    row = accuracy.loc[("none", 0.003)]
    assert row[["n", "n_observed", "n_diverged"]].tolist() == [5, 3, 2]
    assert row["median"] < 0.2
    assert accuracy.loc[("none", 0.1), "median"] == -math.inf


def test_best_over_rates_counts_a_diverged_run_as_guessing(tmp_path):
    factory.grid_runs(
        tmp_path, {("none", 0.1): ["trained", "diverged"], ("none", 0.003): ["trained"] * 2}, final=0.8
    )
    frames = load([tmp_path])
    best = select.best_over_rates(frames)
    assert best["lr"].tolist() == [0.003]
    assert best["n"].tolist() == [2]
    lone = frames.subset(frames.runs.loc[frames.runs["lr"] == 0.1, "run_id"])
    trained = select.outcomes(lone).set_index("seed")["last_test"][0]
    assert select.best_over_rates(lone)["accuracy"].iloc[0] == pytest.approx((trained + 0.102) / 2)


def test_no_best_rate_where_runs_were_stopped_early(tmp_path):
    """The rate at which they were stopped may be the best; of a run that diverged the fate says it all."""
    factory.grid_runs(tmp_path, {("bn", 0.1): "trained", ("bn", 0.5): "stuck"})
    factory.grid_runs(tmp_path, {("bn", 0.03): "trained"}, status="stopped", outcome="trained")
    factory.grid_runs(tmp_path, {("none", 0.003): "trained"})
    factory.grid_runs(tmp_path, {("none", 0.1): "diverged"}, status="stopped")
    best = select.best_over_rates(load([tmp_path]))
    assert best[["norm", "lr"]].values.tolist() == [["none", 0.003]]


def test_selection_on_validation_reports_the_test_accuracy_there(tmp_path):
    low = factory.write_run(tmp_path, lr=0.003, final=0.7, validation=True)
    factory.write_run(tmp_path, lr=0.1, final=0.9, validation=True)
    frames = load([tmp_path])
    metrics = frames.metrics
    metrics.loc[(metrics["run_id"] == low) & (metrics["split"] == "validation"), "accuracy"] = 0.99
    chosen = select.best_over_rates(frames, "validation")
    assert chosen["lr"].tolist() == [0.003]
    assert chosen["accuracy"].iloc[0] < 0.75
    assert select.best_over_rates(frames, "test")["lr"].tolist() == [0.1]


def test_without_a_validation_split_nothing_is_selected_on_it(five):
    assert select.best_over_rates(five, "validation").empty


def test_highest_trainable_rate_is_the_median_seeds_and_says_when_the_grid_ends(five):
    found = select.highest_trainable_rate(five).set_index("norm")
    assert found.loc["bn", "lr"] == 0.1
    assert found.loc["bn", "censored"]
    assert math.isnan(found.loc["none", "lr"])
    assert not found.loc["none", "censored"]


def test_a_lucky_seed_that_a_search_took_further_is_not_the_highest_rate(tmp_path):
    fates = {}
    for seed in range(7):
        limit = 0.7 if seed == 6 else 0.06
        for lr in (0.03, 0.5, 1.0) if seed == 6 else (0.03, 0.06, 0.12, 1.0):
            fates[lr, seed] = "trained" if lr <= limit else "diverged"
    for (lr, seed), fate in fates.items():
        factory.write_run(tmp_path, norm="none", lr=lr, seed=seed, fate=fate)
    (row,) = select.highest_trainable_rate(load([tmp_path])).itertuples()
    assert row.lr == 0.06
    assert (row.trained, row.n, row.censored) == (7, 7, False)
    assert row.brackets == [(0.06, 0.12)] * 6 + [(0.5, 1.0)]


def test_plateaus_are_counted_with_the_unknown(tmp_path):
    for seed, reached in enumerate((True, False, None)):
        factory.write_run(tmp_path, seed=seed, plateau_reached=reached)
    row = select.plateau(load([tmp_path])).iloc[0]
    assert row[["n", "n_plateau", "n_unknown"]].tolist() == [3, 1, 1]


def test_norms_are_ordered_bn_first_none_last():
    assert select.norm_order(pd.Series(["none", "group8", "bn", "none"])) == ["bn", "group8", "none"]

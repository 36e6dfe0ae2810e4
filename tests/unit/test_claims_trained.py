"""Claims on parts of BN, other schemes and highest rates: found when true, hardly ever when not."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis import claims, select
from analysis.claims import Verdict, rules
from analysis.claims.base import LEVEL
from analysis.claims.bjorck import max_rates, parts, schemes
from tests import claim_studies as studies

CLAIMS = (*parts.CLAIMS, *schemes.CLAIMS, *max_rates.CLAIMS)


def judge(frames):
    """The one verdict on each claim that has runs, over all settings."""
    mine = {c.id for c in CLAIMS}
    found = [r for r in claims.judge_all(frames) if r.claim.id in mine]
    run = {r.claim.id: r for r in found if r.verdict != Verdict.NOT_RUN}
    return {r.claim.id: run.get(r.claim.id, r) for r in found}


def study(seed, truth, **more):
    return studies.trained(np.random.default_rng(seed), truth, **more)


def test_what_is_true_is_found_and_the_opposite_contradicted():
    found = judge(study(0, studies.TRAINED))
    assert {k: r.verdict for k, r in found.items()} == dict.fromkeys(found, Verdict.SUPPORTED)
    assert len(found) == len(CLAIMS)
    found = judge(study(0, studies.REVERSED))
    # One of four contradicted claims, at a quarter of the level: six seeds cannot decide that.
    assert found.pop("all_schemes_worsen_at_small_rates").verdict == Verdict.UNDETERMINED
    assert {k: r.verdict for k, r in found.items()} == dict.fromkeys(found, Verdict.CONTRADICTED)


@pytest.mark.slow
def test_true_effects_are_found_in_nine_of_ten_studies():
    """At the first look, or at the second where that leaves it open."""

    def supported(seed, **more):
        return {
            k: r.verdict == Verdict.SUPPORTED for k, r in judge(study(seed, studies.TRAINED, **more)).items()
        }

    looks = [pd.DataFrame([supported(seed, seeds=n) for seed in range(10)]) for n in (7, 14)]
    found = (looks[0] | looks[1]).mean()
    assert (found >= 0.9).all(), found
    assert (looks[0].mean() >= 0.7).all(), looks[0].mean()


@pytest.mark.parametrize("seeds", [1, 6])
def test_too_few_seeds_are_undetermined_whatever_they_show(seeds):
    for result in judge(study(1, studies.TRAINED, seeds=seeds)).values():
        assert result.least_seeds == 7
        assert result.verdict == Verdict.UNDETERMINED
        assert f"has {seeds}" in result.reason


def test_the_least_seeds_are_seven_and_six_could_not_decide():
    assert 1 / math.comb(14, 7) <= LEVEL < 1 / math.comb(12, 6)


def test_nothing_run_and_everything_diverged_have_a_verdict():
    empty = judge(studies.frames([]))
    assert {r.verdict for r in empty.values()} == {Verdict.NOT_RUN}
    assert "sweeps: bn_parts" in empty["affine_is_worth_little"].reason
    frames = study(2, studies.TRAINED)
    lost = replace(frames, runs=frames.runs.assign(outcome="diverged"))
    for result in judge(lost).values():
        assert result.verdict in {Verdict.UNDETERMINED, Verdict.NOT_RUN}, result.claim.id


def test_mixed_scales_are_never_put_together():
    here, there = study(0, studies.TRAINED), study(4, studies.REVERSED, scale="paper")
    there = replace(there, runs=there.runs.assign(setting=there.runs["setting"] + " · batch_size=128"))
    there = replace(
        there,
        runs=there.runs.assign(scientific=there.runs["scientific"].str.replace("{", '{"batch_size": 128, ')),
    )
    both = studies.joined(here, there)
    found = {(r.claim.id, r.scale): r.verdict for r in claims.judge_all(both) if r.claim in CLAIMS}
    for claim in CLAIMS:
        assert found[(claim.id, "laptop")] == Verdict.SUPPORTED, claim.id
        if claim.id != "all_schemes_worsen_at_small_rates":  # seven seeds can only support it
            assert found[(claim.id, "paper")] == Verdict.CONTRADICTED, claim.id


def test_a_diverged_run_counts_as_guessing_and_stays_in_n():
    frames = study(5, studies.TRAINED)
    ids = frames.runs.loc[(frames.runs["norm"] == "bn_no_mean"), "run_id"]
    lost = frames.runs.assign(
        outcome=frames.runs["outcome"].where(~frames.runs["run_id"].isin(ids), "diverged")
    )
    result = judge(replace(frames, runs=lost))["subtracting_the_mean_matters"]
    assert result.n == (7, 7)
    assert result.verdict == Verdict.SUPPORTED
    assert result.evidence.estimate == pytest.approx(0.8, abs=0.02)


def test_accuracies_of_runs_that_were_stopped_early_do_not_count():
    frames = study(6, studies.TRAINED)
    stopped = frames.runs.assign(status="stopped")
    found = judge(replace(frames, runs=stopped))
    assert found["subtracting_the_mean_matters"].verdict == Verdict.NOT_RUN
    assert found["all_schemes_worsen_at_small_rates"].verdict == Verdict.NOT_RUN
    assert (
        found["shallower_networks_train_at_higher_rates"].verdict == Verdict.NOT_RUN
    )  # they may diverge yet


def test_seeds_whose_search_is_not_done_do_not_count():
    """A search that was killed after its first round leaves brackets that hold every rate."""
    frames = study(6, studies.TRAINED)
    ends = frames.runs["lr"].isin([frames.runs["lr"].min(), frames.runs["lr"].max()])
    unfinished = ends | (frames.runs["depth"] != 32) | (frames.runs["seed"] > 1)
    result = judge(replace(frames, runs=frames.runs[unfinished]))["shallower_networks_train_at_higher_rates"]
    assert result.n == (5, 7)
    assert result.verdict == Verdict.UNDETERMINED
    assert result.seeds_to_add_up_to == 7


def test_networks_at_chance_do_not_count_as_equal():
    flat = replace(studies.TRAINED, accuracy=dict.fromkeys(studies.TRAINED.accuracy, (0.1, 0.1, 0.1)))
    frames = study(7, flat)
    stuck = replace(
        frames,
        runs=frames.runs.assign(outcome="trained"),
        metrics=frames.metrics.assign(accuracy=0.1),
    )
    result = judge(stuck)["affine_is_worth_little"]
    assert result.verdict == Verdict.UNDETERMINED
    assert "chance" in result.reason


def outcomes(rows):
    table = pd.DataFrame(rows, columns=["norm", "seed", "lr", "fate", "last_test"])
    ids = [f"r{i}" for i in range(len(table))]
    return table.assign(setting="s", scientific="{}", status="finished", chance=0.1, run_id=ids)


def test_brackets_are_those_of_the_search():
    T, D, S = select.TRAINED, select.DIVERGED, select.STUCK
    table = outcomes(
        [("bn", 0, lr, fate, 0.5) for lr, fate in ((0.01, T), (0.1, T), (1.0, S), (3.0, T))]
        + [("bn", 1, 0.1, D, 0.5), ("bn", 2, 0.1, T, 0.5)]
        + [("bn", 3, lr, fate, 0.5) for lr, fate in ((0.01, S), (0.1, T), (1.0, D))]
    )
    found = select.rate_brackets(table).set_index("seed")
    assert found.loc[0, ["works", "fails", "tried"]].tolist() == [0.1, 1.0, 4]
    assert math.isnan(found.loc[1, "works"])
    assert found.loc[1, "fails"] == 0.1
    assert found.loc[2, "works"] == 0.1
    assert math.isnan(found.loc[2, "fails"])
    assert found.loc[3, ["works", "fails"]].tolist() == [0.1, 1.0]


def test_a_search_that_is_not_done_is_no_result_beside_one_that_is():
    T, D = select.TRAINED, select.DIVERGED
    killed = [("bn", 1, lr, fate, 0.5) for lr, fate in ((0.0005, T), (1.0, D))]
    table = outcomes([("bn", 0, lr, fate, 0.5) for lr, fate in ((0.1, T), (0.2, D))] + killed)
    assert select.done_brackets(table)["seed"].tolist() == [0]
    assert select.done_brackets(table[table["seed"] == 1])["fails"].tolist() == [1.0]  # all there is


def test_rates_beyond_those_tried_are_tied():
    """All that is known of `a` is that it trains at 0.1; `b` was tried beyond: no order follows."""
    T, D = select.TRAINED, select.DIVERGED
    a = outcomes([("bn", s, 0.1, T, 0.5) for s in range(6)])
    b = outcomes([("none", s, lr, f, 0.5) for s in range(6) for lr, f in ((1.0, T), (2.0, D))])
    cells = [select.rate_brackets(t) for t in (a, b)]
    assert max_rates._higher(*cells).p_for == 1.0
    assert max_rates._higher(*cells[::-1]).p_for == 1.0


def test_the_best_rate_is_each_seeds_own_among_the_usual_ones():
    T, D = select.TRAINED, select.DIVERGED
    rows = [
        ("bn", 0, 0.1, T, 0.7),
        ("bn", 0, 0.01, T, 0.7),
        ("bn", 0, 0.0001, T, 0.2),
        ("bn", 0, 0.2, T, 0.99),
    ]
    rows += [("bn", 1, 0.1, D, 0.9), ("bn", 1, 0.01, T, 0.6), ("bn", 1, 0.0001, T, 0.3)]
    rows += [("bn", 2, 0.1, T, 0.9)]  # lacks two rates that the others have
    found = select.best_by_seed(outcomes(rows)).set_index("seed").sort_index()
    assert found.index.tolist() == [0, 1]
    assert found["lr"].tolist() == [0.01, 0.01]
    assert found["value"].tolist() == [0.7, 0.6]
    assert select.rated(outcomes(rows)).set_index(["seed", "lr"]).loc[(1, 0.1), "score"] == 0.1


def test_no_architecture_gets_more_tries_than_another():
    T = select.TRAINED
    rows = [(n, s, lr, T, 0.5 + lr) for n in ("bn", "bn_no_mean") for s in range(2) for lr in (0.1, 0.01)]
    rows += [("bn", s, 0.003, T, 0.99) for s in range(2)]
    found = select.best_by_seed(outcomes(rows))
    assert set(found["lr"]) == {0.1}
    assert set(select.best_by_seed(outcomes([r for r in rows if r[0] == "bn"]))["lr"]) == {0.003}
    none = select.best_by_seed(outcomes([("bn", 0, 0.1, T, 0.5), ("ln", 0, 0.01, T, 0.5)]))
    assert none.empty


def test_seeds_that_a_second_look_adds_at_some_rates_change_nothing_at_the_others():
    T = select.TRAINED
    first = [("bn", s, lr, T, 0.5 + lr) for s in range(7) for lr in (0.1, 0.003, 0.0001)]
    more = [("bn", s, lr, T, 0.5 + lr) for s in range(7, 21) for lr in (0.1, 0.0001)]
    assert rules.seeds_for_exact(LEVEL) == select.MANY_SEEDS
    for rows in (first, first + more[:14], first + more):
        found = select.rated(outcomes(rows))
        assert set(found["seed"]) == set(range(7))
        assert set(found["lr"]) == {0.1, 0.003, 0.0001}


def test_rates_are_not_compared_where_each_seed_has_another():
    T = select.TRAINED
    assert select.rated(outcomes([("bn", 0, 0.1, T, 0.5), ("bn", 1, 0.01, T, 0.5)])).empty

"""Claims on untrained networks, first steps and random matrices: found when true, hardly ever when not."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis import claims
from analysis.claims import Case, Verdict
from analysis.claims.base import LEVEL, judged
from analysis.claims.bjorck import activations, gradients, noise, random_matrices, step_sizes
from tests import claim_studies as studies

CLAIMS = (
    *gradients.CLAIMS,
    *activations.CLAIMS,
    *step_sizes.CLAIMS,
    *noise.CLAIMS,
    *random_matrices.CLAIMS,
)
ELEVEN = {c.id for c in CLAIMS} - {c.id for c in noise.CLAIMS}


def study(seed, truth, seeds=11, **more):
    rng = np.random.default_rng(seed)
    tables = {"random_matrices": studies.products(rng, truth, draws=seeds)}
    return Case(studies.untrained(rng, truth, seeds=seeds, **more), tables)


def verdicts(case):
    return {claim.id: judged(claim, case).verdict for claim in CLAIMS}


def test_what_is_true_is_found_and_the_opposite_contradicted():
    """Power at the minimal seeds, for effects of about four standard deviations between seeds."""
    assert set(verdicts(study(0, studies.TRUE)).values()) == {Verdict.SUPPORTED}
    assert set(verdicts(study(0, studies.OPPOSITE)).values()) == {Verdict.CONTRADICTED}


@pytest.mark.slow
def test_true_effects_are_found_in_nine_of_ten_studies():
    found = pd.DataFrame([verdicts(study(seed, studies.TRUE)) for seed in range(10)])
    assert ((found == Verdict.SUPPORTED).mean() >= 0.9).all()


@pytest.mark.parametrize("seeds", [1, 5, 10])
def test_too_few_seeds_are_undetermined_whatever_they_show(seeds):
    case = study(1, studies.TRUE, seeds=seeds)
    for claim in CLAIMS:
        result = judged(claim, case)
        if seeds < result.least_seeds:
            assert result.verdict == Verdict.UNDETERMINED
            assert f"has {seeds}" in result.reason


def test_the_least_seeds_are_eleven_and_ten_could_not_decide():
    assert {c.least_seeds(LEVEL) for c in CLAIMS if c.id in ELEVEN} == {11}
    assert 0.5**11 <= LEVEL < 0.5**10


def test_the_verdict_names_estimate_interval_n_scale_and_runs():
    found = judged(gradients.CLAIMS[0], study(1, studies.TRUE, scale="laptop"))
    assert found.evidence.low < found.evidence.estimate < found.evidence.high
    assert found.evidence.estimate == pytest.approx(10**2.5, rel=0.5)
    assert found.n == (11, 11)
    assert found.scale == "laptop"
    assert len(found.run_ids) == 22


def test_without_tables_nothing_was_run_and_the_probe_is_named():
    case = Case(studies.frames([]))
    for claim in CLAIMS:
        result = judged(claim, case)
        assert result.verdict == Verdict.NOT_RUN
        assert result.reason.startswith("not measured: ")
    some = study(2, studies.TRUE)
    lacking = replace(
        some.frames, probes={k: v for k, v in some.frames.probes.items() if k != "gradient_tails"}
    )
    result = judged(gradients.CLAIMS[0], Case(lacking))
    assert "gradient_tails" in result.reason


def test_one_norm_alone_leaves_comparisons_undone():
    case = study(3, studies.TRUE, norms=("bn",))
    for claim in CLAIMS:
        if any(cell.norm == "none" for cell in claim.cells):
            assert judged(claim, case).verdict == Verdict.NOT_RUN


def test_seeds_without_their_other_half_are_left_out():
    case = study(4, studies.TRUE, seeds=12)
    runs = case.frames.runs
    odd = runs.loc[(runs["norm"] == "bn") & (runs["seed"] == 0), "run_id"]
    fewer = without(case.frames, set(odd))
    result = judged(gradients.CLAIMS[0], Case(fewer))
    assert result.n == (11, 11)
    assert result.verdict == Verdict.SUPPORTED


def without(frames, run_ids):
    def keep(table):
        return table[~table["run_id"].isin(run_ids)].reset_index(drop=True)

    return replace(frames, runs=keep(frames.runs), probes={k: keep(v) for k, v in frames.probes.items()})


def test_what_overflows_counts_as_large_and_what_is_undefined_as_nothing():
    case = study(6, studies.TRUE)
    tails = case.frames.probes["gradient_tails"]
    bare = tails["norm"] == "none"
    overflown = tails.assign(
        deviation=tails["deviation"].where(~bare, np.nan), nonfinite=np.where(bare, 7, 0)
    )
    probes = {**case.frames.probes, "gradient_tails": overflown}
    found = judged(gradients.CLAIMS[0], Case(replace(case.frames, probes=probes)))
    assert found.verdict == Verdict.SUPPORTED
    assert found.evidence.estimate == math.inf
    unknown = tails.assign(kurtosis=np.nan)
    probes = {**case.frames.probes, "gradient_tails": unknown}
    found = judged(gradients.CLAIMS[1], Case(replace(case.frames, probes=probes)))
    assert found.verdict == Verdict.UNDETERMINED
    assert "defined for no seed" in found.reason


def test_a_run_that_diverged_did_not_shrink_and_has_no_step_that_helps():
    case = study(7, studies.TRUE)
    runs = case.frames.runs
    early = case.frames.probes["loss_along_gradient"]
    gone = {r for r in runs["run_id"] if r.startswith("bn")}
    probes = {
        **case.frames.probes,
        "loss_along_gradient": early[~early["run_id"].isin(gone) | (early["step"] < 2)],
    }
    diverged = runs.assign(outcome="diverged")
    found = {c.id: judged(c, Case(replace(case.frames, runs=diverged, probes=probes))) for c in CLAIMS}
    assert found["late_moments_shrink_in_the_first_steps"].verdict == Verdict.CONTRADICTED
    later = found["later_steps_may_be_larger_with_bn"]
    assert later.n == (11, 11)
    assert later.verdict == Verdict.CONTRADICTED


def test_settings_are_judged_apart_but_what_training_alone_uses_does_not_part_untrained_networks():
    rng = np.random.default_rng(8)
    parts = [studies.untrained(rng, studies.TRUE, seeds=n) for n in (5, 6)]
    first, second = parts
    moved = second.runs.assign(
        seed=second.runs["seed"] + 5,
        run_id=second.runs["run_id"].astype("str") + "b",
        setting="digits · resnet110 · weight_decay=0",
        scientific='{"epochs": 3, "weight_decay": 0}',
    )
    renamed = {k: t.assign(run_id=t["run_id"].astype("str") + "b") for k, t in second.probes.items()}
    joined = studies.joined(first, replace(second, runs=moved, probes=renamed))
    results = [r for r in claims.judge_all(joined) if r.claim.id == "gradients_wider_without_bn"]
    assert [(r.n, r.verdict) for r in results] == [((11, 11), Verdict.SUPPORTED)]
    apart = [r for r in claims.judge_all(joined) if r.claim.id == "later_steps_may_be_larger_with_bn"]
    assert [r.n for r in apart] == [(5, 5), (6, 6)]


def _emptied(table):
    """Every measured value missing: numbers NaN, lists null."""
    keys = {"run_id", "norm", "step", "when", "layer", "number", "source", "side", "call", "share"}
    keys |= {"outputs", "inputs", "input_mean", "input_zeros"}
    return table.assign(**{c: None for c in table.columns if c not in keys})


def _other_options(table):
    """Without what the usual options add: noise images, gradients by logit column."""
    for column, value in (("source", "noise"), ("by", "logit"), ("estimand", "image")):
        table = table[table[column] != value] if column in table else table
    return table


MUTATIONS = {
    "one layer": lambda t: t[t["number"].isna() | (t["number"] == t["number"].min())],
    "no numbers": lambda t: t.assign(number=pd.NA),
    "nothing measured": _emptied,
    "one run": lambda t: t[t["run_id"] == t["run_id"].iloc[0]],
    "no rows": lambda t: t.iloc[:0],
    "never at init": lambda t: t[t["when"] != "init"],
    "other options": _other_options,
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_tables_that_lack_something_are_no_stack_trace(name):
    case = study(9, studies.TRUE, seeds=3)
    probes = {k: MUTATIONS[name](t).reset_index(drop=True) for k, t in case.frames.probes.items()}
    lacking = Case(
        replace(case.frames, probes=probes), {"random_matrices": case.tables["random_matrices"].iloc[:1]}
    )
    for claim in CLAIMS:
        assert judged(claim, lacking).verdict in {Verdict.NOT_RUN, Verdict.UNDETERMINED}


def test_a_large_update_is_one_at_the_rate_that_the_rule_names():
    """Of two runs of a seed, that which measured it, whatever its own rate; none did: not measured."""
    (claim,) = (c for c in CLAIMS if c.id == "late_layers_blow_up_in_a_large_update")
    truth = study(0, studies.TRUE)
    small = study(1, studies.TRUE).frames
    for table in (small.runs, *small.probes.values()):
        table["run_id"] = table["run_id"].astype("str") + "-small"
    small.runs["lr"] = 1e-6
    small.probes["update_path"]["rate"] = 1e-6
    small.probes["update_path"]["mean"] = [np.ones(1)] * len(small.probes["update_path"])
    both = judged(claim, Case(studies.joined(truth.frames, small)))
    assert both.verdict == Verdict.SUPPORTED
    assert both.evidence == judged(claim, truth).evidence
    assert not any(run.endswith("-small") for run in both.run_ids)
    alone = judged(claim, Case(small))
    assert alone.verdict == Verdict.NOT_RUN
    assert "no table of probe 'update_path' is of an update at 0.1" in alone.reason

"""The contract of claims fits other explanations: cells with conditions, norms beyond four, other networks.

The claims here are rivals' (Santurkar et al. 2018; De & Smith 2020; Luo et al. 2018), on synthetic frames.
"""

import numpy as np
import pandas as pd
import pytest

from analysis import claims, select
from analysis.claims import Cell, Claim, Verdict
from analysis.claims.base import PLAIN, UNTRAINED, default, has
from analysis.claims.measured import column, difference, ratio
from analysis.claims.rules import seeds_for_signs, seeds_for_t, within
from tests import claim_studies as studies

BATCH, BRANCH, INIT, NETWORK = "batch_size", "model.branch_scale", "init.name", "model.name"
LARGE = (BATCH, 512)
SMALL = (BATCH, 128)
"""The study's default, which run.json leaves out."""


def equally_accurate(a, b):
    return within(select.score(a, "last_test"), select.score(b, "last_test"), 0.03)


SCALED = Cell("none", 0.1, ((BRANCH, "skipinit"), (INIT, "kaiming_normal")))
RIVALS = (
    Claim(
        id="noisy_bn_trains_as_well",
        sentence="Batch normalisation followed by noise that shifts its output trains as well.",
        source="Santurkar et al. 2018, §2.2",
        cells=(Cell("bn_noisy", 0.1, (LARGE,)), Cell("bn", 0.1, (LARGE,))),
        estimator="mean last-epoch test accuracy, difference",
        rule="equivalence within 3 points",
        unit="accuracy",
        test=equally_accurate,
        least_seeds=seeds_for_t,
        varies=(BATCH,),
        whole=True,
    ),
    Claim(
        id="zero_initialised_branches_do_as_well",
        sentence="Residual branches that start at zero train as well as batch normalisation.",
        source="De & Smith 2020",
        cells=(SCALED, Cell("bn", 0.1, ((BRANCH, "none"), (INIT, "xavier_normal")))),
        estimator="mean last-epoch test accuracy, difference",
        rule="equivalence within 3 points",
        unit="accuracy",
        test=equally_accurate,
        least_seeds=seeds_for_t,
        varies=(BRANCH, INIT),
        whole=True,
    ),
    Claim(
        id="noise_shrinks_with_batch_size",
        sentence="The spread of gradients that batch statistics bring shrinks with the batch.",
        source="Luo et al. 2018",
        cells=(Cell("bn", where=(SMALL, (NETWORK, "vgg_a"))), Cell("bn", where=(LARGE, (NETWORK, "vgg_a")))),
        estimator="standard deviation of gradients, small batches over large",
        rule="signed-rank test",
        unit="times",
        test=ratio(),
        least_seeds=seeds_for_signs,
        measure=column("gradient_tails", "deviation", logs=True),
        paired=True,
        varies=(*UNTRAINED, BATCH),
    ),
    Claim(
        id="a_fifth_norm_is_measured_too",
        sentence="Weight normalisation has heavier tails than none.",
        source="Kohler et al. 2018",
        cells=(Cell("wn"), Cell("none")),
        estimator="kurtosis",
        rule="signed-rank test",
        unit="",
        test=difference,
        least_seeds=seeds_for_signs,
        measure=column("gradient_tails", "kurtosis"),
        paired=True,
        varies=UNTRAINED,
    ),
)


@pytest.fixture
def judge(monkeypatch):
    monkeypatch.setattr(claims, "registered", lambda: list(RIVALS))

    def judge(frames):
        return {r.claim.id: r for r in claims.judge_all(frames) if r.verdict != Verdict.NOT_RUN}

    return judge


def trained(accuracies, seeds=14):
    """Frames of trained runs: (norm, conditions) → mean accuracy at 0.1."""
    rng = np.random.default_rng(0)
    runs, rows = [], []
    for (norm, where), accuracy in accuracies.items():
        for seed in range(seeds):
            run = studies._run(norm, 0.1, seed, **{k: v for k, v in where if default(k) != v})
            runs.append(run)
            for split in ("train", "test"):
                value = accuracy + rng.normal(0, 0.005)
                rows.append(
                    {"run_id": run["run_id"], "step": 100, "n": 1000, "split": split, "accuracy": value}
                )
    return studies.frames(runs, metrics=rows)


@pytest.mark.parametrize(("noisy", "verdict"), [(0.8, Verdict.SUPPORTED), (0.6, Verdict.CONTRADICTED)])
def test_a_claim_whose_cells_share_a_condition(judge, noisy, verdict):
    """The runs with the default batch would say the opposite."""
    found = judge(
        trained(
            {
                ("bn", (LARGE,)): 0.8,
                ("bn_noisy", (LARGE,)): noisy,
                ("bn", (SMALL,)): 0.8,
                ("bn_noisy", (SMALL,)): 1.4 - noisy,
            }
        )
    )
    result = found["noisy_bn_trains_as_well"]
    assert result.verdict == verdict
    assert all("batch_size" in run for run in result.run_ids)
    assert "batch_size" not in result.setting
    assert str(result.claim.cells[0]) == "bn_noisy at 0.1, batch size 512"


def test_a_claim_whose_cells_differ_in_conditions_at_their_defaults(judge):
    frames = trained({("none", SCALED.where): 0.8, ("bn", ()): 0.8, ("none", ()): 0.2, ("bn", (LARGE,)): 0.1})
    result = judge(frames)["zero_initialised_branches_do_as_well"]
    assert result.verdict == Verdict.SUPPORTED
    assert not any("batch_size" in run for run in result.run_ids)


def test_a_measured_claim_whose_cells_differ_in_a_condition(judge):
    """Two networks, two batch sizes, six norms and two rates, all in one folder."""
    runs, rows = [], []
    for norm in ("bn", "none", "gn", "in", "ln", "wn"):
        for network in ("vgg_a", "resnet"):
            for batch in (128, 512):
                for seed in range(12):
                    for lr in (0.1, 0.01):
                        where = {BATCH: batch, NETWORK: network}
                        more = {k: v for k, v in where.items() if default(k) != v}
                        run = studies._run(norm, lr, seed, **more) | {"model": network}
                        run["setting"] = run["setting"].replace("resnet", network)
                        runs.append(run)
                        wide = (
                            {128: 2.0, 512: 1.0}[batch] if network == "vgg_a" else {128: 1.0, 512: 2.0}[batch]
                        )
                        rows.append(
                            {"run_id": run["run_id"], "norm": norm, "step": 0, "when": "init", "number": 1}
                            | {"layer": "stem", "deviation": wide * (1 + 0.01 * seed), "nonfinite": 0}
                            | {"kurtosis": 9.0 + 0.1 * seed if norm == "wn" else 3.0}
                        )
    found = judge(studies.frames(runs, {"gradient_tails": pd.DataFrame(rows)}))
    result = found["noise_shrinks_with_batch_size"]
    assert result.verdict == Verdict.SUPPORTED
    assert result.evidence.estimate == pytest.approx(2.0)
    assert result.n == (11, 11)
    assert len(result.run_ids) == 22  # one rate stands for both
    assert all("model.name=vgg_a" in run for run in result.run_ids)
    assert found["a_fifth_norm_is_measured_too"].verdict == Verdict.SUPPORTED


def test_a_condition_at_its_default_is_met_by_runs_that_do_not_state_it():
    assert default("batch_size") == 128
    assert has("{}", [SMALL])
    assert has('{"batch_size": 512}', [LARGE])
    assert not has("{}", [LARGE])
    with pytest.raises(KeyError):
        has("{}", [("no_such_field", 1)])
    assert all(default(name) == value for name, value in PLAIN.items())

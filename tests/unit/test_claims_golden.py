"""Sweeps that are committed, and the verdicts that were reached on them (tests/golden/README.md)."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis import claims
from analysis.load import load
from study.criteria import fate_decided

GOLDEN = Path(__file__).parents[1] / "golden"
SWEEPS = {"sweep": "verdicts.csv", "untrained": "verdicts_untrained.csv"}


def verdict_table(folder):
    """One row per claim and setting, in plain values."""
    rows = [
        {
            "claim": r.claim.id,
            "verdict": str(r.verdict),
            "estimate": r.evidence.estimate if r.evidence else None,
            "low": r.evidence.low if r.evidence else None,
            "high": r.evidence.high if r.evidence else None,
            "n": " ".join(map(str, r.n)),
            "least_seeds": r.least_seeds,
            "scale": r.scale,
            "runs": len(r.run_ids),
            "setting": r.setting,
            "reason": r.reason,
        }
        for r in claims.judge_all(load([folder]))
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_committed_sweep_has_the_verdicts_that_were_committed(tmp_path, sweep):
    found = verdict_table(GOLDEN / sweep)
    found.to_csv(tmp_path / "verdicts.csv", index=False)
    again, expected = (pd.read_csv(p) for p in (tmp_path / "verdicts.csv", GOLDEN / SWEEPS[sweep]))
    pd.testing.assert_frame_equal(again, expected, rtol=1e-9)


def test_the_committed_sweeps_decide_something_and_not_everything():
    expected = pd.concat(pd.read_csv(GOLDEN / verdicts) for verdicts in SWEEPS.values())
    assert {"supported", "contradicted", "undetermined", "not run"} == set(expected["verdict"])
    decided = expected[expected["verdict"].isin(["supported", "contradicted"])]
    assert (decided["n"].str.split().map(lambda n: min(map(int, n))) >= decided["least_seeds"]).all()
    measured = {c.id for c in claims.registered() if c.measure is not None}
    assert len(measured & set(decided["claim"])) >= 2


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_committed_sweep_is_small(sweep):
    files = [p for p in (GOLDEN / sweep).rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 300_000


def stopped_when_decided(frames):
    """What would be there had every run stopped at the first evaluation that tells its fate."""
    runs, kept = frames.runs.set_index(frames.runs["run_id"].astype("str")), []
    status = runs["status"].astype("str")
    for run_id, rows in frames.metrics.groupby("run_id", observed=True):
        run, test = runs.loc[run_id], rows[rows["split"] == "test"].sort_values("step")
        decided = [
            step
            for step, accuracy, n in zip(test["step"], test["accuracy"], test["n"], strict=True)
            if fate_decided(round(accuracy * n), n, run["chance"], len(test))
        ]
        if decided and run["outcome"] == "trained" and decided[0] < test["step"].max():
            rows, status[run_id] = rows[rows["step"] <= decided[0]], "stopped"
        kept.append(rows)
    stopped = frames.runs.assign(status=status.to_numpy())
    return replace(frames, runs=stopped, metrics=pd.concat(kept, ignore_index=True))


def test_stopping_runs_whose_fate_is_decided_changes_no_verdict_that_rests_on_fates():
    """Estimates may move a little: one run here leaves chance and falls back, as fate_decided says."""
    frames = load([GOLDEN / "sweep"])
    early = stopped_when_decided(frames)
    assert (early.runs["status"] == "stopped").sum() >= 7
    assert len(early.metrics) < len(frames.metrics)
    full, short = (verdicts_on_fates(f) for f in (frames, early))
    assert len(full) >= 2
    assert short == full


def verdicts_on_fates(frames):
    """Verdict and n of the claims that do not want runs trained to their end; of those one has none left."""
    found = [r for r in claims.judge_all(frames) if r.claim.measure is None and not r.claim.whole]
    return {(r.claim.id, r.setting): (r.verdict, r.n) for r in found}

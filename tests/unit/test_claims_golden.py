"""A sweep that is committed, and the verdicts that were reached on it (tests/golden/README.md)."""

from pathlib import Path

import pandas as pd

from analysis import claims
from analysis.load import load

GOLDEN = Path(__file__).parents[1] / "golden"


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


def test_the_committed_sweep_has_the_verdicts_that_were_committed(tmp_path):
    found = verdict_table(GOLDEN / "sweep")
    found.to_csv(tmp_path / "verdicts.csv", index=False)
    again, expected = (pd.read_csv(p) for p in (tmp_path / "verdicts.csv", GOLDEN / "verdicts.csv"))
    pd.testing.assert_frame_equal(again, expected, rtol=1e-9)


def test_the_committed_sweep_decides_something_and_not_everything():
    expected = pd.read_csv(GOLDEN / "verdicts.csv")
    assert {"supported", "undetermined", "not run"} <= set(expected["verdict"])
    decided = expected[expected["verdict"].isin(["supported", "contradicted"])]
    assert (decided["n"].str.split().map(lambda n: min(map(int, n))) >= decided["least_seeds"]).all()


def test_the_committed_sweep_is_small():
    files = [p for p in (GOLDEN / "sweep").rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 300_000

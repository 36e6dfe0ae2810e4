"""Searches for the highest rate on real images, against complete runs at every rate."""

from dataclasses import replace

import pytest

from study import max_lr
from study.compose import compose_all, expand
from study.launch import local
from study.launch.plan import make_plan

RANGE = {"ratio": 4, "low": 1e-3, "high": 16}
RATES = [float(f"{4.0**k:.5g}") for k in range(-5, 3)]


def configs(folder):
    grid = ["model.depth=8", "norm=none,bn", "seed=0,1", "epochs=4", f"runs_dir={folder}"]
    return compose_all(expand(["scale=laptop", *grid]))


@pytest.mark.slow
def test_a_search_that_stops_runs_early_finds_the_brackets_of_complete_runs(tmp_path):
    found = max_lr.find(configs(tmp_path / "early"), local.launch, **RANGE)
    assert max_lr.find(configs(tmp_path / "early"), local.launch, **RANGE) == found
    plan = make_plan(replace(c, lr=lr) for c in configs(tmp_path / "whole") for lr in RATES)
    assert local.launch(plan) == 0
    whole = max_lr.recall(configs(tmp_path / "whole"), **RANGE)
    assert [sorted(s.known) for s in whole] == [RATES] * 4
    assert not any(s.early for s in whole)
    assert [(s.works, s.fails) for s in found] == [(s.works, s.fails) for s in whole]
    assert any(s.early for s in found), "no run was stopped early"
    assert "stuck at chance" in {s.known.get(RATES[0]) for s in found}, "no rate was too low"

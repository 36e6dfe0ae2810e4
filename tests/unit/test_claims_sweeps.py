"""The sweeps that claims name make the runs they need, with the seeds their tests need."""

import json
from functools import cache

import pandas as pd
import pytest

from analysis import claims, select
from analysis.claims.base import LEVEL, Cell, _matching
from analysis.claims.bjorck.parts import AT_HIGHEST, BELOW, VARIANTS
from analysis.runs import setting
from study import parts
from study.compose import compose_all, expand
from study.identity import depth_of, scientific
from study.sweep import SWEEPS, read_sweep

MADE = [c for c in claims.registered() if c.sweep]
DERIVED = {AT_HIGHEST, BELOW}
"""Cells that are made from other cells' runs."""


@cache
def planned(name):
    """One row per trial of a sweep, as the loader would show it."""
    texts = [x for x in read_sweep(SWEEPS / f"{name}.yaml").settings() if not x.startswith("hydra")]
    rows = []
    for config in compose_all(expand(texts)):
        record = {"data": config.data.name, "model": config.model.name, "depth": depth_of(config)}
        record["scientific"] = scientific(config)
        row = {**record, "norm": config.norm.name, "lr": config.lr, "seed": config.seed}
        row["setting"], row["scientific"] = setting(record), json.dumps(record["scientific"], default=str)
        rows.append({**row, "measure": " ".join(config.probes.measure)})
    return pd.DataFrame(rows)


@pytest.mark.slow
@pytest.mark.parametrize("claim", MADE, ids=lambda c: c.id)
def test_the_sweeps_of_a_claim_make_its_runs_with_the_seeds_it_needs(claim):
    runs = pd.concat([planned(name) for name in claim.sweep], ignore_index=True)
    cells = [cell for cell in claim.cells if cell.norm not in DERIVED] or [Cell(norm) for norm in VARIANTS]
    seeds = [
        min(_matching(mine, cell)["seed"].nunique() for cell in cells)
        for _, mine in runs.groupby(select.apart_from(runs, claim.varies))
    ]
    assert max(seeds) >= claim.least_seeds(LEVEL)


def test_the_sweeps_of_every_claim_are_parts_of_the_study():
    """So that the report's command for a claim that was not run is one that works."""
    assert {name for claim in claims.registered() for name in claim.sweep} <= {p.name for p in parts.PARTS}

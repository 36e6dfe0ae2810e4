"""What stands behind a verdict on the page: every value, its cell's average, and the size of the effect."""

import dataclasses
import math
import warnings

import numpy as np
import pandas as pd
import pytest

from analysis.claims import Case
from analysis.claims.base import judged
from analysis.claims.bjorck import activations, gradients, max_rates
from analysis.page import evidence
from tests import claim_studies as studies

WIDER = gradients.CLAIMS[0]


@pytest.fixture
def result():
    return judged(WIDER, Case(studies.untrained(np.random.default_rng(0), studies.TRUE, seeds=3)))


def test_every_run_has_its_value_in_the_units_of_the_page(result):
    sheet = evidence.measured(result)
    assert sheet.columns == ["cell", "seed", "value", "run"]
    assert [row[:2] for row in sheet.rows] == [[n, str(s)] for n in ("none", "bn") for s in range(3)]
    values = [10**v for cell in result.cells for v in cell["value"]]
    assert [float(row[2]) for row in sheet.rows] == pytest.approx(values, rel=5e-3)
    assert {row[3] for row in sheet.rows} == set(result.run_ids)


def test_the_effect_of_pairs_is_how_many_agree_and_by_how_many_deviations(result):
    a, b = (cell["value"].to_numpy() for cell in result.cells)
    text = evidence.effect(result)
    assert "none above bn in 3 of 3 pairs" in text
    assert f"{(a - b).mean() / (a - b).std(ddof=1):.3g}" in text
    assert "of logarithms" in text


def test_averages_are_geometric_where_values_are_ratios(result):
    none, bn = evidence.averages(result).split("; ")
    assert float(none.split()[1]) == pytest.approx(10 ** result.cells[0]["value"].mean(), rel=5e-3)
    assert bn.startswith("bn: ")


def test_values_of_a_level_are_shown_as_its_estimate_is(result):
    """Not as the logarithms that the test compares."""
    claim = next(c for c in activations.CLAIMS if c.id == "channels_reach_a_hundred_without_bn")
    cell = result.cells[0].assign(value=[1.0, 2.0, 3.0])
    level = dataclasses.replace(result, claim=claim, cells=(cell,))
    assert [row[2] for row in evidence.measured(level).rows] == ["10", "100", "1e+03"]
    assert evidence.averages(level).startswith("none: 100 (")


def test_values_that_are_not_finite_are_counted_and_warn_nobody(result):
    cells = tuple(cell.assign(value=[math.inf, 1.0, math.nan]) for cell in result.cells)
    odd = dataclasses.replace(result, cells=cells)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evidence.effect(odd) == "none above bn in 0 of 3 pairs"
        assert evidence.averages(odd) == "none: not finite for 2 of 3; bn: not finite for 2 of 3"
        assert [row[2] for row in evidence.measured(odd).rows] == ["∞", "10", "–"] * 2


def test_brackets_of_rates_are_shown_as_such():
    cell = pd.DataFrame(
        {"seed": [0, 1], "works": [0.1, math.nan], "fails": [1.0, 0.01], "run_id": ["a", "b"]}
    )
    case = Case(studies.frames([]))
    found = dataclasses.replace(judged(max_rates.CLAIMS[0], case), cells=(cell, cell))
    assert [row[2] for row in evidence.measured(found).rows] == ["0.1 to 1", "– to 0.01"] * 2
    assert evidence.effect(found) == ""
    assert evidence.averages(found) == ""


def test_what_was_not_run_has_no_values():
    result = judged(WIDER, Case(studies.frames([])))
    assert evidence.measured(result) is None
    assert evidence.effect(result) == evidence.averages(result) == ""

import math

import pytest
from scipy.stats import binom

from study import criteria


@pytest.mark.parametrize(
    ("loss", "initial", "step", "expected"),
    [
        (math.nan, 2.3, 0, True),
        (math.inf, 2.3, 0, True),
        (math.inf, 2.3, 5, True),
        (5e5, 5e5, 0, False),  # a huge loss before any update is not divergence
        (1000.0, 0.1, 1, False),  # exactly at the bound
        (1000.1, 0.1, 1, True),  # small initial losses count as 1
        (2300.0, 2.3, 1, False),
        (2301.0, 2.3, 1, True),
        (1e5, 400.0, 9, False),  # beyond 10³ absolutely, but not relative to the start
        (4.1e5, 400.0, 9, True),
    ],
)
def test_divergence_rule(loss, initial, step, expected):
    assert criteria.diverged(loss, initial, step) is expected


def test_crossings_are_recorded_by_either_rule():
    assert criteria.crossed_absolute(1001.0)
    assert not criteria.crossed_absolute(1000.0)
    assert criteria.crossed_relative(2301.0, 2.3)
    assert not criteria.crossed_relative(2300.0, 2.3)
    assert criteria.crossed_absolute(math.nan)
    assert criteria.crossed_relative(math.inf, math.inf)


def test_stuck_at_chance_agrees_with_the_binomial_tail():
    n, chance = 297, 0.1
    for correct in range(n + 1):
        tail = binom.sf(correct - 1, n, chance)
        assert criteria.stuck_at_chance(correct, n, chance) == (tail > criteria.CHANCE_ALPHA)


@pytest.mark.parametrize("p", [1e-3, 0.1, 0.102, 0.5, 0.999])
@pytest.mark.parametrize("n", [1, 7, 450, 10_000])
def test_the_binomial_tail_is_scipy_s(n, p):
    for k in {0, 1, 2, n // 10, int(n * p), int(n * p) + 1, int(1.2 * n * p) + 1, n // 2, n, n + 1}:
        assert criteria.binomial_tail(k, n, p) == pytest.approx(binom.sf(k - 1, n, p), rel=1e-9, abs=1e-300)
    assert criteria.binomial_tail(n, n, 1.0) == 1.0
    assert criteria.binomial_tail(1, n, 0.0) == 0.0


def test_stuck_at_chance_errs_at_most_at_its_level():
    """A network that guesses leaves "stuck" in at most 1% of runs."""
    n, chance = 297, 0.1
    leaves = sum(binom.pmf(k, n, chance) for k in range(n + 1) if not criteria.stuck_at_chance(k, n, chance))
    assert leaves <= criteria.CHANCE_ALPHA


def test_a_network_that_guesses_is_called_decided_at_most_at_the_level_over_all_its_epochs():
    n, chance, evaluations = 450, 0.102, 165
    tail = sum(
        binom.pmf(k, n, chance) for k in range(n + 1) if criteria.fate_decided(k, n, chance, evaluations)
    )
    assert tail * evaluations <= criteria.CHANCE_ALPHA
    assert criteria.fate_decided(90, n, chance, evaluations)  # and 20% of 450 is enough
    # what decides early is trained by the rule for whole runs, too
    decided = [k for k in range(n + 1) if criteria.fate_decided(k, n, chance, evaluations)]
    assert not any(criteria.stuck_at_chance(k, n, chance) for k in decided)


def test_stuck_at_chance_needs_predictions():
    with pytest.raises(ValueError, match="at least one"):
        criteria.stuck_at_chance(0, 0, 0.1)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], False),
        ([2.0, 1.0], False),
        ([2.0, 1.0, 1.0], False),  # the last two did improve on the first
        ([2.0, 1.0, 1.0, 1.0], True),
        ([2.0, 1.0, 0.995], False),
        ([1.0, 0.5, 0.4999, 0.4998], True),  # below 1% of improvement
        ([2.0, 1.0, math.nan, math.nan], True),
    ],
)
def test_plateau(losses, expected):
    assert criteria.plateau_reached(losses, patience=2, threshold=0.01) is expected


def test_fate_is_one_rule_for_tables_and_analysis():
    assert criteria.fate("diverged", None, None, None) == "diverged"
    assert criteria.fate("trained", 0.9, 100, 0.1) == "trained"
    assert criteria.fate("trained", 0.11, 100, 0.1) == criteria.STUCK
    assert criteria.fate("trained", None, None, 0.1) is None
    assert criteria.fate("trained", float("nan"), 100, 0.1) is None
    assert criteria.fate("trained", float("inf"), 100, 0.1) is None
    assert criteria.fate("trained", 0.9, 100, float("nan")) is None

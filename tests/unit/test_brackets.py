"""Between which rates training ceases to work, and when a search is done."""

import pytest

from study import brackets, criteria


@pytest.mark.parametrize(
    ("fates", "bracket"),
    [
        ("", (None, None)),
        ("T", (1, None)),
        ("D", (None, 1)),
        ("S", (None, 1)),
        ("TTSD", (2, 3)),
        ("STD", (2, 3)),  # too slow below what trains is no upper limit
        ("SSTSTD", (3, 4)),
        ("SSDD", (None, 1)),
        ("DTD", (None, 1)),  # divergence is one wherever it is
        ("STDT", (2, 3)),
    ],
)
def test_a_rate_is_too_high_if_it_diverges_or_fails_above_one_that_trains(fates, bracket):
    words = {"T": "trained", "D": "diverged", "S": criteria.STUCK}
    known = {float(lr): words[letter] for lr, letter in enumerate(fates, 1)}
    assert brackets.bracket(known) == bracket
    assert brackets.bracket(dict(reversed(known.items()))) == bracket


T, D, S = "trained", "diverged", criteria.STUCK


@pytest.mark.parametrize(
    ("fates", "early", "done"),
    [
        ({0.1: T, 0.2: D}, (), True),
        ({0.1: T, 0.2: D}, (0.1,), False),  # it may diverge yet
        ({0.05: T, 0.1: T, 0.2: D}, (0.05,), True),
        ({0.1: T, 0.5: D}, (), False),
        ({0.1: T, 1.0: T}, (), True),  # the highest rate of the study's searches
        ({0.1: T}, (), False),
        ({0.00048828: S, 1.0: D}, (), False),  # slow, or too high? what lies between tells
        ({0.00048828: S, 0.0019531: S, 0.0078125: D}, (), True),
        ({0.00048828: D}, (), True),
        ({}, (), False),
    ],
)
def test_a_search_is_done_when_no_rate_is_left_to_try_and_its_lower_end_is_whole(fates, early, done):
    assert brackets.narrowed(fates, early) is done

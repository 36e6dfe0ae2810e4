"""Products of random matrices against slow arithmetic with hundreds of digits, where doubles end at 10¹⁷."""

import math

import mpmath
import numpy as np
import pytest

from study.errors import StudyError
from study.randmat import Draw
from study.randmat_product import MOST_DENSE, Product
from study.randmat_regression import log10_steps


def product_of(factors):
    product = Product(len(factors[0]))
    for factor in factors:
        product.append(factor)
    return product


def gaussian(n, m, seed=0, gain=1.0):
    return [np.random.default_rng([seed, k]).standard_normal((n, n)) * gain / math.sqrt(n) for k in range(m)]


def exact(factors):
    """Natural logarithms of all singular values, descending, by mpmath."""
    with mpmath.workdps(60 + 3 * len(factors)):
        whole = mpmath.eye(len(factors[0]))
        for factor in factors:
            whole = mpmath.matrix(factor.tolist()) * whole
        return np.array(sorted(float(mpmath.log(x)) for x in mpmath.svd_r(whole, compute_uv=False))[::-1])


@pytest.mark.parametrize(("n", "m"), [(2, 1), (5, 1), (6, 3), (8, 30), (MOST_DENSE + 3, 12)])
def test_singular_values_equal_those_of_exact_arithmetic(n, m):
    factors = gaussian(n, m, seed=n)
    product, expected = product_of(factors), exact(factors)
    np.testing.assert_allclose(product.extremes(), (expected[0], expected[-1]), atol=1e-10)
    np.testing.assert_allclose(product.singular_values(), expected, atol=1e-10)


def test_far_beyond_the_end_of_double_precision_where_a_plain_svd_is_wrong():
    factors = gaussian(8, 60)
    expected = exact(factors)
    decades = (expected[0] - expected[-1]) / math.log(10)
    assert decades > 40
    plain = np.linalg.svd(np.linalg.multi_dot(factors[::-1]), compute_uv=False)
    assert math.log10(plain[0] / plain[-1]) < 25
    largest, smallest = product_of(factors).extremes()
    assert (largest - smallest) / math.log(10) == pytest.approx(decades, abs=1e-9)


@pytest.mark.slow
def test_the_same_at_twenty_by_twenty():
    factors = gaussian(20, 40)
    expected = exact(factors)
    np.testing.assert_allclose(product_of(factors).singular_values(), expected, atol=1e-9)


def test_powers_of_a_symmetric_matrix_have_the_powers_of_its_values():
    values = np.array([2.0, 1e-1, 1e-3, 1e-2])
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0]
    product = product_of([turn @ np.diag(values) @ turn.T] * 60)
    expected = 60 * np.log(np.sort(values)[::-1])  # to 10⁻¹⁸⁰
    np.testing.assert_allclose(product.singular_values(), expected, atol=1e-9)
    np.testing.assert_allclose(product.extremes(), (expected[0], expected[-1]), atol=1e-9)


@pytest.mark.parametrize("gain", [0.5, 2.0])
def test_a_thousand_factors_neither_overflow_nor_underflow(gain, recwarn):
    m, n = 1000, 16
    plain, scaled = product_of(gaussian(n, m)), product_of(gaussian(n, m, gain=gain))
    largest, smallest = scaled.extremes()
    shift = m * math.log(gain)  # 10^±301: the product itself, far below, is no double
    assert not recwarn.list
    np.testing.assert_allclose((largest - shift, smallest - shift), plain.extremes(), atol=1e-8)
    assert (largest - smallest) / math.log(10) > 300
    with pytest.raises(StudyError, match="1000 factors span"):
        scaled.singular_values()


@pytest.mark.slow
def test_a_thousand_factors_of_a_thousand_rows_start_without_over_or_underflow(tmp_path):
    """N = 1000 as the study uses it: the first factors at gains ½ and 2 differ by exactly the gain."""
    found = {}
    for gain in (0.5, 2.0):
        draw = Draw(1000, 3, gain, 0, 0, tmp_path)
        found[gain] = np.array(product_of([draw.factor(m) for m in (1, 2, 3)]).extremes())
    np.testing.assert_allclose(found[2.0] - found[0.5], 3 * math.log(4), atol=1e-12)


def test_the_steps_are_those_of_gradient_descent():
    n, tolerance = 12, 1e-2
    matrix = gaussian(n, 1, seed=4)[0] + 0.3 * np.eye(n)
    _, values, right = np.linalg.svd(matrix)
    target = np.random.default_rng(5).standard_normal(n)
    weights, loss = log10_steps(np.log(values), right @ target, tolerance)
    w, counted, start = np.zeros(n), {}, 0.5 * np.sum((matrix @ target) ** 2)
    for step in range(1, 200_000):
        w -= matrix.T @ (matrix @ (w - target)) / values[0] ** 2
        if "loss" not in counted and 0.5 * np.sum((matrix @ (w - target)) ** 2) <= tolerance * start:
            counted["loss"] = step
        if np.linalg.norm(w - target) <= tolerance * np.linalg.norm(target):
            counted["weights"] = step
            break
    assert 10**weights == pytest.approx(counted["weights"], abs=1)
    assert 10**loss == pytest.approx(counted["loss"], abs=1)
    assert counted["weights"] > 20 * counted["loss"] > 0


def test_steps_beyond_any_loop_follow_the_condition_number():
    """For κ ≫ 1 the last component decides: steps ≈ κ²·ln(|c_N| / (tolerance·‖w*‖))."""
    values = -np.log(10) * np.array([0.0, 5.0, 20.0])
    weights, loss = log10_steps(values, np.array([1.0, 1.0, 1.0]), 1e-3)
    assert weights == pytest.approx(40 + math.log10(math.log(1 / math.sqrt(3) / 1e-3)), abs=1e-6)
    assert loss == 0.0

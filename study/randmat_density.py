"""The limit of the singular values' density for products of Gaussian matrices, and tests against it.

X_1 ⋯ X_M, N×N, entries of variance 1/N, N → ∞ (Bjorck et al. 2018, §5, App. C; the squares follow the
Fuss–Catalan law). With 0 < φ < π/(M+1):

    x(φ) = √( sin^{M+1}((M+1)φ) / (sin φ · sin^M(Mφ)) ),  falling from the edge to 0
    ρ(x) = (2/(πx)) · sin((M+1)φ)·sin φ / sin(Mφ)
"""

from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats = NDArray[np.float64]

NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)


def edge(m: int) -> float:
    """Return the largest singular value in the limit, √((M+1)^{M+1}/M^M)."""
    return float(np.exp(((m + 1) * np.log(m + 1) - m * np.log(m)) / 2))


def log_x(phi: ArrayLike, m: int) -> Floats:
    """Return ln x(φ)."""
    p = np.asarray(phi, float)
    with np.errstate(divide="ignore"):
        top = (m + 1) * np.log(np.sin((m + 1) * p))
        found: Floats = (top - np.log(np.sin(p)) - m * np.log(np.sin(m * p))) / 2
    return found


def angle(x: ArrayLike, m: int) -> Floats:
    """Return φ with x(φ) = x, by bisection; x at or below 0 gives π/(M+1), at or above the edge 0."""
    values = np.asarray(x, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = np.where(values > 0, np.log(values), -np.inf)
    low, high = np.zeros_like(wanted), np.full_like(wanted, np.pi / (m + 1))
    for _ in range(60):
        middle = (low + high) / 2
        above = log_x(middle, m) > wanted
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    found: Floats = np.where(values >= edge(m), 0.0, np.where(values > 0, (low + high) / 2, np.pi / (m + 1)))
    return found


def density(x: ArrayLike, m: int) -> Floats:
    """Return ρ(x); 0 outside (0, edge)."""
    values = np.asarray(x, float)
    inside = (values > 0) & (values < edge(m))
    safe = np.where(inside, values, edge(m) / 2)
    phi = angle(safe, m)
    found = 2 / (np.pi * safe) * np.sin((m + 1) * phi) * np.sin(phi) / np.sin(m * phi)
    return np.where(inside, found, 0.0)


def cdf(x: ArrayLike, m: int) -> Floats:
    """Return the probability of a singular value ≤ x: ∫ρ·|dx/dφ| dφ, a smooth integrand, by Gauss's rule."""
    last = np.pi / (m + 1)
    phi = angle(x, m)
    half = (last - phi) / 2
    p = phi[..., None] + half[..., None] * (1 + NODES)
    return np.asarray((_mass(p, m) * WEIGHTS).sum(-1) * half, float)


def _mass(p: Floats, m: int) -> Floats:
    """−ρ(x)·dx/dφ at the angles p, the poles of dx/dφ cancelled by ρ's zeros."""
    a, b, c = np.sin((m + 1) * p), np.sin(p), np.sin(m * p)
    # 2/π · a·b/c · ½·(−(M+1)²·cot((M+1)φ) + cot φ + M²·cot(Mφ))
    poles = -((m + 1) ** 2) * np.cos((m + 1) * p) * b / c
    rest = a * np.cos(p) / c + m**2 * np.cos(m * p) * a * b / c**2
    found: Floats = (poles + rest) / np.pi
    return found


def distance(values: ArrayLike, m: int) -> float:
    """Return the largest distance of the sample's distribution function from the limit's."""
    return fit(values, m)[0]


def fit(values: ArrayLike, m: int) -> tuple[float, float]:
    """Return (distance, p-value) of Kolmogorov's test; the values have to be independent of each other."""
    found: Any = stats.kstest(np.asarray(values, float), cast(Any, lambda x: cdf(x, m)))
    return float(found.statistic), float(found.pvalue)


def independent_values(m: int, n: int, matrices: int, seed: int) -> Floats:
    """Return one randomly chosen singular value of each of `matrices` independent products, (matrices,).

    Singular values of one matrix repel each other, which makes Kolmogorov's test far too kind; one of each
    matrix makes it exact, up to the distance of size N from the limit.
    """
    draw = np.random.default_rng([seed, m, n, 1])
    found = np.empty(matrices)
    for i in range(matrices):
        product = draw.standard_normal((n, n))
        for _ in range(m - 1):
            product = product @ draw.standard_normal((n, n))
        values = np.linalg.svd(product, compute_uv=False)
        found[i] = values[draw.integers(n)] / n ** (m / 2)
    return found

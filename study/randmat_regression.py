"""How many steps gradient descent takes on an ill-conditioned linear regression (Bjorck et al. 2018, §5).

Loss ½‖A·w − A·w*‖², w* drawn from N(0, I), from w = 0, step size 1/σ²_max: component i of w − w*, along the
i-th right singular vector, shrinks by 1 − (σ_i/σ_max)² a step, so that steps need not be taken to be counted.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def log10_steps(log_values: Floats, target: Floats, tolerance: float) -> tuple[float, float]:
    """Return log₁₀ of the steps until (‖w − w*‖ ≤ tolerance·‖w*‖, loss ≤ tolerance·initial loss).

    `log_values` are the natural logarithms of A's singular values, `target` the components of w* along its
    right singular vectors, both (N,).
    """
    share = np.exp(2 * (log_values - log_values.max()))
    with np.errstate(divide="ignore"):
        rate = np.log1p(-share)

    def weights(steps: float) -> float:
        return float(np.sqrt((target**2 * np.exp(2 * steps * rate)).sum() / (target**2).sum()))

    def loss(steps: float) -> float:
        scaled = share * target**2
        return float((scaled * np.exp(2 * steps * rate)).sum() / scaled.sum())

    most = np.log10(-np.log(tolerance) / share.min()) + 1
    return _first(weights, tolerance, most), _first(loss, tolerance, most)


def _first(error: Callable[[float], float], tolerance: float, most: float) -> float:
    """Bisect for log₁₀ of the first whole number of steps whose error is within the tolerance."""
    low, high = 0.0, most
    if error(1.0) <= tolerance:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if error(10**middle) <= tolerance else (middle, high)
    return float(np.log10(np.ceil(10**high))) if high < 15 else high

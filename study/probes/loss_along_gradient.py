"""L(w − α·∇L)/L(w) on the same batch against α (Bjorck et al. 2018, §3 and App. K, Figs 3 and 25)."""

import math
from typing import Any

import numpy as np
import pyarrow as pa

from study.config import ProbesConfig
from study.models.base import Network
from study.probes._capture import Capture, Want
from study.probes._replay import Replay

SCHEDULE = "first:7"
PASSES = "one forward pass per step size (probes.alpha_points), on shifted weights"
SCHEMA = pa.schema(
    [
        ("alpha", pa.list_(pa.float64())),  # step sizes, ascending
        ("loss", pa.list_(pa.float64())),  # nats; may be NaN or ∞
        ("ratio", pa.list_(pa.float64())),  # to the loss at α = 0
        ("initial_loss", pa.float64()),  # at α = 0
        ("past_1_05", pa.float64()),  # where the ratio first passes 1.05, log-interpolated; null if never
        ("past_10", pa.float64()),
        ("past_1000", pa.float64()),
        ("best_alpha", pa.float64()),  # of the smallest loss; null if none is below the initial one
        ("best_ratio", pa.float64()),
        ("gradient_norm", pa.float64()),
        ("nonfinite", pa.int64()),  # losses that are NaN or ∞
    ]
)


def captures(network: Network, options: ProbesConfig) -> list[Want]:
    """The gradient of every parameter."""
    return [Want("parameter_grads")]


def measure(capture: Capture, replay: Replay) -> list[dict[str, Any]]:
    """One row; all parameters move, γ and β too."""
    options = capture.options
    low, high = options.alphas[0], options.alphas[-1]
    alphas = np.geomspace(low, high, options.alpha_points).tolist()
    losses = []
    with replay.shifted(capture.parameter_grads) as shift:
        for alpha in alphas:
            shift(-alpha)
            losses.append(replay.loss())
    initial = float(capture.loss())
    ratios = [loss / initial if initial else math.nan for loss in losses]
    best = min(range(len(ratios)), key=lambda i: ratios[i] if math.isfinite(ratios[i]) else math.inf)
    improves = ratios[best] < 1
    return [
        {
            "alpha": alphas,
            "loss": losses,
            "ratio": ratios,
            "initial_loss": initial,
            "past_1_05": first_past(alphas, ratios, 1.05),
            "past_10": first_past(alphas, ratios, 10.0),
            "past_1000": first_past(alphas, ratios, 1000.0),
            "best_alpha": alphas[best] if improves else None,
            "best_ratio": ratios[best] if improves else None,
            "gradient_norm": math.sqrt(
                sum(float(g.double().square().sum()) for g in capture.parameter_grads)
            ),
            "nonfinite": sum(not math.isfinite(x) for x in losses),
        }
    ]


def first_past(alphas: list[float], ratios: list[float], bound: float) -> float | None:
    """Return the first α whose ratio is beyond `bound` (a non-finite ratio is), None if there is none.

    Between two step sizes both are interpolated in their logarithm; at the first one, or towards a non-finite
    ratio, the step size itself is returned.
    """
    for i, (alpha, ratio) in enumerate(zip(alphas, ratios, strict=True)):
        if ratio <= bound:
            continue
        if i == 0 or not math.isfinite(ratio) or ratios[i - 1] <= 0:
            return alpha
        share = math.log(bound / ratios[i - 1]) / math.log(ratio / ratios[i - 1])
        return float(alphas[i - 1] * (alpha / alphas[i - 1]) ** share)
    return None

"""How wide and how heavy-tailed each layer's weight gradients are (Bjorck et al. 2018, Figs 2 and 15).

Statistics are of the gradients that are not exactly zero; those that are (dead channels) are counted apart.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from study.config import ProbesConfig
from study.models.base import Network
from study.probes._capture import Capture, Want
from study.probes._histogram import histogram
from study.probes._layers import floats, layers_at, plain
from study.probes._moments import moments
from study.probes._replay import Replay
from study.probes._tails import compare, hill

SCHEDULE = "init"
PASSES = ""
LEVELS = (0.001, 0.005, 0.05, 0.25, 0.5, 0.75, 0.95, 0.995, 0.999)
GAUSSIAN_RATIO = 2.5758293035489 / 0.67448975019608
"""(q.995 − q.005)/(q.75 − q.25) of a Gaussian."""
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),  # gradients that are not zero; all moments and quantiles are theirs
        ("zeros", pa.int64()),  # gradients that are exactly zero
        ("nonfinite", pa.int64()),  # NaN and ±∞, counted in n; they make the moments NaN
        ("mean", pa.float64()),
        ("deviation", pa.float64()),
        ("skewness", pa.float64()),
        ("kurtosis", pa.float64()),  # 3 for a Gaussian
        ("quantiles", pa.list_(pa.float64())),  # at LEVELS; null if a gradient is not finite
        ("tail_ratio", pa.float64()),  # (q.995 − q.005)/(q.75 − q.25), 1 for a Gaussian
        ("counts", pa.list_(pa.int64())),  # by the bins of study/probes/_histogram.py; zeros left out
        ("channel_abs", pa.list_(pa.float64())),  # mean |gradient| of each output channel (Fig 15)
        # Hill's tail index about the median, on probes.tail_layers (study/probes/_tails.py)
        ("k", pa.int64()),
        ("threshold", pa.float64()),
        ("tail_index", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("heavy", pa.bool_()),
        ("curve_k", pa.list_(pa.int64())),
        ("curve_index", pa.list_(pa.float64())),
        # Vuong's ratios of the tail, with probes.tail_test; positive speaks for a power law
        ("against_exponential", pa.float64()),
        ("exponential_p", pa.float64()),
        ("against_lognormal", pa.float64()),
        ("lognormal_p", pa.float64()),
    ]
)


def captures(network: Network, options: ProbesConfig) -> list[Want]:
    """The weight gradient of every layer."""
    return [Want("weight_grad", x.name) for x in network.layers]


def measure(capture: Capture, replay: Replay) -> list[dict[str, Any]]:
    """One row per layer."""
    options = capture.options
    chosen = layers_at(capture.network, options.tail_layers)
    rows = []
    for layer in capture.network.layers:
        gradient = capture.weight_grad(layer.name)
        row = {"layer": layer.name, **bulk(gradient)}
        values = gradient[gradient != 0].double().cpu().numpy()
        if layer.name in chosen and np.isfinite(values).all():
            found = hill(values)
            row |= found._asdict() if found else {}
            tested = compare(values) if options.tail_test else None
            row |= tested._asdict() if tested else {}
        rows.append(row)
    return rows


def bulk(gradient: Tensor) -> dict[str, Any]:
    """Return a layer's statistics but those of the far tail."""
    values = gradient[gradient != 0]
    found = histogram(values) if len(values) else None
    row = {
        "n": len(values),
        "zeros": gradient.numel() - len(values),
        "nonfinite": found.nonfinite if found else 0,
        "counts": plain(found.counts) if found else None,
        "channel_abs": plain(gradient.flatten(1).double().abs().mean(1)),
    }
    if found is None:
        return row
    shape = floats(moments(values[:, None]))
    row |= {k: shape[k][0] for k in ("mean", "skewness", "kurtosis")}
    row["deviation"] = shape["variance"][0] ** 0.5
    if not found.nonfinite:
        quantiles = np.quantile(values.double().cpu().numpy(), LEVELS)
        spread = quantiles[5] - quantiles[3]
        row["quantiles"] = quantiles.tolist()
        row["tail_ratio"] = (
            float((quantiles[7] - quantiles[1]) / spread / GAUSSIAN_RATIO) if spread > 0 else None
        )
    return row

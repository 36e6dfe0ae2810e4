"""Mean |gradient| of a kernel by pair of output and input channel (Bjorck et al. 2018, Figs 7 and 14).

Without BN some pairs dominate, those whose input channel has a large mean.
"""

from typing import Any

import pyarrow as pa
import torch

from study.config import ProbesConfig
from study.models.base import Network
from study.probes._capture import Capture, Want
from study.probes._layers import layers_at, plain
from study.probes._replay import Replay

SCHEDULE = "init"
PASSES = ""
SCHEMA = pa.schema(
    [
        ("outputs", pa.int32()),  # output channels
        ("inputs", pa.int32()),  # input channels
        ("mean_abs", pa.list_(pa.float64())),  # outputs × inputs, flattened: mean |gradient| over the kernel
        ("input_mean", pa.list_(pa.float64())),  # mean of each input channel over batch, space and calls
        ("input_zeros", pa.list_(pa.float64())),  # share of exact zeros there: dead after its ReLU
        ("top_share", pa.float64()),  # σ₁/Σσ of the outputs × inputs matrix; null if it is zero or not finite
        ("nonfinite", pa.int64()),  # gradients that are NaN or ±∞
    ]
)


def captures(network: Network, options: ProbesConfig) -> list[Want]:
    """Weight gradients and the inputs' moments of the chosen layers."""
    chosen = layers_at(network, options.pair_layers)
    return [w for x in chosen for w in (Want("weight_grad", x), Want("input", x, "moments"))]


def measure(capture: Capture, replay: Replay) -> list[dict[str, Any]]:
    """One row per chosen layer."""
    rows = []
    for name in layers_at(capture.network, capture.options.pair_layers):
        gradient = capture.weight_grad(name).double()
        pairs = gradient.abs().flatten(2).mean(-1) if gradient.dim() > 2 else gradient.abs()
        inputs = capture.get("input", name, "moments")
        rows.append(
            {
                "layer": name,
                "outputs": pairs.shape[0],
                "inputs": pairs.shape[1],
                "mean_abs": plain(pairs.flatten()),
                "input_mean": plain(torch.stack([m.mean for m in inputs]).mean(0)),
                "input_zeros": plain(torch.stack([m.zeros for m in inputs]).mean(0)),
                "top_share": top_share(pairs),
                "nonfinite": int((~gradient.isfinite()).sum()),
            }
        )
    return rows


def top_share(matrix: torch.Tensor) -> float | None:
    """Return the largest singular value's share of all; None for a zero or a non-finite matrix."""
    largest = float(matrix.abs().max())
    if not 0 < largest < float("inf"):
        return None
    values = torch.linalg.svdvals(matrix / largest)
    return float(values[0] / values.sum())

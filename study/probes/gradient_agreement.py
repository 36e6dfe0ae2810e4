"""Do a weight's gradient terms agree or cancel? (Bjorck et al. 2018, §4.1, Table 1 and Fig 19)

The gradient of weight (o, i, u, v) is Σ d over images b and positions x, y with
d = ∂L/∂O[b, o, x, y]·I[b, i, x + u, y + v]. Recorded for every weight: Σ|d| over all, Σ over the images of
|Σ d over positions|, and the gradient Σd itself. Σ|d| is the ordinary weight gradient of |I| and |∂L/∂O|, so
no term is ever materialised.
"""

from typing import Any

import pyarrow as pa
import torch

from study.config import ProbesConfig
from study.models.base import Network
from study.probes._capture import Capture, Want, layer_of
from study.probes._kernels import example_chunks, weight_gradient
from study.probes._layers import layers_at, plain
from study.probes._replay import Replay

SCHEDULE = "init"
PASSES = ""
SCHEMA = pa.schema(
    [
        ("a", pa.float64()),  # mean over the weights of Σ|d|
        ("b", pa.float64()),  # mean over the weights of |Σd|
        ("ratio", pa.float64()),  # a/b
        ("image_ratio", pa.float64()),  # mean of Σ_images |Σ_positions d|, over b
        ("shape", pa.list_(pa.int32())),  # of the weight: out, in, height, width
        ("sum_abs", pa.list_(pa.float32())),  # Σ|d| by weight, flattened
        ("image_abs", pa.list_(pa.float32())),  # Σ_images |Σ_positions d| by weight
        ("gradient", pa.list_(pa.float32())),  # Σd by weight
        ("nonfinite", pa.int64()),  # weights whose Σ|d| is NaN or ±∞
    ]
)


def captures(network: Network, options: ProbesConfig) -> list[Want]:
    """Inputs and output gradients of the chosen layers."""
    chosen = layers_at(network, options.agreement_layers)
    return [Want(what, x) for x in chosen for what in ("input", "output_grad")]


def measure(capture: Capture, replay: Replay) -> list[dict[str, Any]]:
    """One row per chosen layer; the calls of a module that is called twice add up."""
    rows = []
    for name in layers_at(capture.network, capture.options.agreement_layers):
        module = layer_of(capture.network, name).module
        pairs = capture.pairs(name)
        sum_abs = sum((weight_gradient(module, i.abs(), g.abs()) for i, g in pairs), torch.zeros(()))
        gradient, image_abs = torch.zeros(()), torch.zeros(())
        for examples in example_chunks(module, pairs):
            gradient = gradient + examples.sum(0)
            image_abs = image_abs + examples.abs().sum(0)
        a, b = float(sum_abs.double().mean()), float(gradient.double().abs().mean())
        images = float(image_abs.double().mean())
        rows.append(
            {
                "layer": name,
                "a": a,
                "b": b,
                "ratio": a / b if b else None,
                "image_ratio": images / b if b else None,
                "shape": list(gradient.shape),
                "sum_abs": plain(sum_abs.flatten()),
                "image_abs": plain(image_abs.flatten()),
                "gradient": plain(gradient.flatten()),
                "nonfinite": int((~sum_abs.isfinite()).sum()),
            }
        )
    return rows

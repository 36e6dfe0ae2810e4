"""A weight's gradient, image by image (Bjorck et al. 2018, App. J, Fig 18).

Estimand ("image_terms"): the gradient of the batch's mean loss is Σ_b Σ_positions ∂L/∂O·I; recorded is each
image's term Σ_positions ∂L/∂O[b]·I[b], times the number of images. The terms' mean is the gradient. Where no
layer couples the images this is the gradient of the image's own loss; under train-mode BN ∂L/∂O[b] contains
what the image does to the others through the batch's statistics, which are as they are.
"""

from typing import Any

import pyarrow as pa
import torch

from study.config import ProbesConfig
from study.models.base import Network
from study.probes._capture import Capture, Want, layer_of
from study.probes._kernels import example_chunks
from study.probes._layers import layers_at, plain
from study.probes._replay import Replay

SCHEDULE = "init"
PASSES = ""
SCHEMA = pa.schema(
    [
        ("estimand", pa.string()),
        ("weight", pa.list_(pa.int64())),  # chosen weights, by their index in the flattened kernel
        ("images", pa.int32()),
        ("gradient", pa.list_(pa.float32())),  # chosen weights × images, flattened
        ("majority_share", pa.float64()),  # share of images with the more frequent sign, mean over the kernel
        ("mean_to_deviation", pa.float64()),  # |mean|/deviation over the images, median over the kernel
        ("skewness", pa.float64()),  # |third standardised moment| over the images, median over the kernel
        ("nonfinite", pa.int64()),
    ]
)


def captures(network: Network, options: ProbesConfig) -> list[Want]:
    """Inputs and output gradients of the chosen layers."""
    chosen = layers_at(network, options.example_layers)
    return [Want(what, x) for x in chosen for what in ("input", "output_grad")]


def measure(capture: Capture, replay: Replay) -> list[dict[str, Any]]:
    """One row per chosen layer."""
    rows = []
    for name in layers_at(capture.network, capture.options.example_layers):
        module = layer_of(capture.network, name).module
        chunks = [c.flatten(1) for c in example_chunks(module, capture.pairs(name))]
        terms = torch.cat(chunks)
        terms = terms * len(terms)  # images × weights
        weights = terms.shape[1]
        chosen = torch.arange(min(capture.options.example_weights, weights)) * weights
        chosen = (chosen // min(capture.options.example_weights, weights)).to(terms.device)
        rows.append(
            {
                "layer": name,
                "estimand": "image_terms",
                "weight": plain(chosen),
                "images": len(terms),
                "gradient": plain(terms[:, chosen].T.flatten()),
                **_summary(terms),
                "nonfinite": int((~terms.isfinite()).sum()),
            }
        )
    return rows


def _summary(terms: torch.Tensor) -> dict[str, float | None]:
    """Return how far the terms (images × weights) lean to one side; null where no weight allows it."""
    precise = terms.double()
    positive, negative = (precise > 0).double().mean(0), (precise < 0).double().mean(0)
    mean = precise.mean(0)
    deviation = (precise - mean).square().mean(0).sqrt()
    third = (precise - mean).pow(3).mean(0)
    moving = deviation > 0
    ratios = mean[moving].abs() / deviation[moving]
    skews = third[moving].abs() / deviation[moving] ** 3
    return {
        "majority_share": float(torch.maximum(positive, negative).mean()),
        "mean_to_deviation": float(ratios.median()) if len(ratios) else None,
        "skewness": float(skews.median()) if len(skews) else None,
    }

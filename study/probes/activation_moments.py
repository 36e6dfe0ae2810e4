"""Moments of every layer's input and raw output, by channel (Bjorck et al. 2018, Figs 4, 5, 14, 24).

The input of a layer behind a ReLU shows that ReLU's dead values: `zeros`. Noise images (standard normal) have
their own row, `source` = "noise": what does not depend on the data shows there as well (Fig 5).
"""

from typing import Any

import pyarrow as pa
import torch

from study.config import ProbesConfig
from study.data.batches import noise_batch
from study.models.base import Network
from study.probes._capture import Capture, Want
from study.probes._layers import floats
from study.probes._replay import Replay

SCHEDULE = "init"
PASSES = "one forward pass on probes.noise_images noise images, at init and final"
SCHEMA = pa.schema(
    [
        ("source", pa.string()),  # data or noise
        ("side", pa.string()),  # input or output of the layer, before any norm
        ("call", pa.int32()),  # which call of the module in one pass, from 0
        ("n", pa.int64()),  # values per channel
        ("mean", pa.list_(pa.float64())),  # each list: one value per channel
        ("variance", pa.list_(pa.float64())),  # biased
        ("skewness", pa.list_(pa.float64())),  # NaN for a constant channel; null with probes.moments=2
        ("kurtosis", pa.list_(pa.float64())),  # likewise; not the excess
        ("zeros", pa.list_(pa.float64())),  # share of exact zeros; null with probes.moments=2
        ("nonfinite", pa.list_(pa.int64())),  # number of NaN and ±∞
    ]
)


def captures(network: Network, options: ProbesConfig) -> list[Want]:
    """Inputs and outputs of every layer, reduced inside the pass."""
    reduce = "moments" if options.moments == 4 else "first_two"
    return [Want(side, x.name, reduce) for x in network.layers for side in options.moment_sides]  # type: ignore[arg-type]


def measure(capture: Capture, replay: Replay) -> list[dict[str, Any]]:
    """One row per layer, side and source."""
    wants = captures(capture.network, capture.options)
    rows = moment_rows(capture, wants, "data")
    n = capture.options.noise_images
    if n and capture.when in ("init", "final"):
        like = capture.images[:1].expand(n, -1, -1, -1).contiguous(memory_format=torch.channels_last)
        noise = noise_batch(like, capture.run.seed, 0)
        rows += moment_rows(replay.forward(wants, noise), wants, "noise")
    return rows


def moment_rows(capture: Capture, wants: list[Want], source: str) -> list[dict[str, Any]]:
    """Return the rows of one pass."""
    return [
        {"layer": w.layer, "source": source, "side": w.what, "call": call, **floats(value)}
        for w in wants
        for call, value in enumerate(capture.get(*w))
    ]

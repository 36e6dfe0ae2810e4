"""Histograms of activations by depth (Bjorck et al. 2018, App. K, Figs 22 and 23), and how unimodal they are.

`output` is a layer's raw output, `site` what leaves its site (the norm's output; the same where there is no
norm, and then recorded once). The dip (Hartigan & Hartigan 1985) is the largest distance of the empirical
distribution from the nearest unimodal one: small for one mode, up to ¼ for two separate ones. Of the last
hidden layer the percentiles of single channels are kept as well (Ioffe & Szegedy 2015, Fig 1).
"""

from typing import Any

import diptest
import numpy as np
import pyarrow as pa
import torch

from study.config import ProbesConfig
from study.models.base import Network
from study.probes._capture import Capture, Want, layer_of
from study.probes._histogram import Histogram
from study.probes._layers import plain
from study.probes._replay import Replay

SCHEDULE = "init"
PASSES = ""
PERCENTILES = (15, 50, 85)
SCHEMA = pa.schema(
    [
        ("side", pa.string()),  # output or site
        ("call", pa.int32()),
        ("counts", pa.list_(pa.int64())),  # by the bins of study/probes/_histogram.py, ascending
        ("zeros", pa.int64()),  # exact zeros; counted in the middle bin too
        ("nonfinite", pa.int64()),
        ("dip", pa.float64()),  # of a random sample of 2000 values; null if one is not finite
        ("unimodal_p", pa.float64()),  # p value of "unimodal" against more modes, from that sample
        ("percentiles", pa.list_(pa.list_(pa.float64()))),  # units × {15, 50, 85}; null but at the last layer
    ]
)


def captures(network: Network, options: ProbesConfig) -> list[Want]:
    """Outputs of every layer and site, reduced inside the pass; raw ones of the last hidden site."""
    wants = []
    for layer in network.layers:
        wants.append(Want("output", layer.name, "histogram"))
        if layer.at_site is not layer.module:
            wants.append(Want("site", layer.name, "histogram"))
    return [*wants, Want("site", _last_hidden(network))]


def measure(capture: Capture, replay: Replay) -> list[dict[str, Any]]:
    """One row per layer and side."""
    *histograms, units = captures(capture.network, capture.options)
    rows = []
    for want in histograms:
        at_units = want.layer == units.layer and site_is(want, capture.network)
        for call, found in enumerate(capture.get(*want)):
            unit = capture.get(*units)[call] if at_units else None
            rows.append({"layer": want.layer, "side": want.what, "call": call, **_row(found, unit, capture)})
    return rows


def site_is(want: Want, network: Network) -> bool:
    """Whether the wanted output is what leaves the layer's site."""
    layer = layer_of(network, want.layer)
    return want.what == "site" or layer.at_site is layer.module


def unit_percentiles(x: torch.Tensor, units: int) -> list[list[float]]:
    """Return units × PERCENTILES of the first channels, over batch and space (linear interpolation)."""
    channels = x.transpose(0, 1 if x.dim() == 4 else -1).flatten(1)[:units].double().cpu().numpy()
    with np.errstate(invalid="ignore"):  # ∞ − ∞ between two infinite values: NaN
        found: list[list[float]] = np.percentile(channels, PERCENTILES, axis=1).T.tolist()
    return found


def _row(found: Histogram, unit: torch.Tensor | None, capture: Capture) -> dict[str, Any]:
    sample = found.sample.double().cpu().numpy()
    dip, p = diptest.diptest(sample) if np.isfinite(sample).all() and len(sample) > 3 else (None, None)
    return {
        "counts": plain(found.counts),
        "zeros": found.zeros,
        "nonfinite": found.nonfinite,
        "dip": dip,
        "unimodal_p": p,
        "percentiles": None if unit is None else unit_percentiles(unit, capture.options.unit_channels),
    }


def _last_hidden(network: Network) -> str:
    """Return the last layer with a site on the main path."""
    return [x.name for x in network.layers if x.site is not None and x.number is not None][-1]

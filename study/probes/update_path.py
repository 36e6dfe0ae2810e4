"""Channel means and variances while one update is applied from 0 to 100% (Bjorck et al. 2018, §3, Fig 4).

The update is SGD's next one, weight decay and momentum included, at the run's rate or at `probes.path_lr`.
"""

from typing import Any

import pyarrow as pa

from study.config import ProbesConfig
from study.models.base import Network
from study.probes._capture import Capture, Want
from study.probes._layers import floats, layers_at
from study.probes._replay import Replay

SCHEDULE = "init"
PASSES = "one forward pass per point of the path (probes.path_points), on shifted weights"
SCHEMA = pa.schema(
    [
        ("rate", pa.float64()),  # learning rate of the update
        ("share", pa.float64()),  # of the update that is applied, 0 … 1
        ("loss", pa.float64()),
        ("call", pa.int32()),
        ("n", pa.int64()),  # values per channel
        ("mean", pa.list_(pa.float64())),  # of the raw output, by channel
        ("variance", pa.list_(pa.float64())),
        ("nonfinite", pa.list_(pa.int64())),
    ]
)


def captures(network: Network, options: ProbesConfig) -> list[Want]:
    """The gradient of every parameter."""
    return [Want("parameter_grads")]


def measure(capture: Capture, replay: Replay) -> list[dict[str, Any]]:
    """One row per chosen layer and point."""
    options = capture.options
    wants = [Want("output", x, "first_two") for x in layers_at(capture.network, options.path_layers)]
    shares = [i / (options.path_points - 1) for i in range(options.path_points)]
    rate, rows = options.path_lr or replay.rate, []
    with replay.shifted(replay.update(options.path_lr)) as shift:
        for share in shares:
            shift(share)
            moved = replay.forward(wants)
            loss = float(moved.loss())
            rows += [
                {"layer": w.layer, "rate": rate, "share": share, "loss": loss, "call": call, **floats(value)}
                for w in wants
                for call, value in enumerate(moved.get(*w))
            ]
    return rows

"""∂L/∂logits by image and class (Bjorck et al. 2018, Fig 6).

Without BN nearly all of the positive gradient lies in one class. The share of images predicted as one class
tells nothing (it is high with BN too); the softmax mass and the mean cosine between the rows do.
"""

from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from study.config import ProbesConfig
from study.models.base import Network
from study.probes._capture import Capture, Want
from study.probes._layers import plain
from study.probes._replay import Replay

SCHEDULE = "init"
PASSES = ""
SCHEMA = pa.schema(
    [
        ("images", pa.int32()),
        ("classes", pa.int32()),
        ("labels", pa.list_(pa.int64())),  # by image
        ("gradient", pa.list_(pa.float32())),  # images × classes, flattened; of the batch's mean loss
        ("mass", pa.list_(pa.float64())),  # mean softmax probability of each class
        ("top_mass", pa.float64()),  # the largest of these
        ("positive_share", pa.list_(pa.float64())),  # each class's share of the sum of positive gradients
        ("mean_row_cosine", pa.float64()),  # over all pairs of different images; null if undefined
        ("nonfinite", pa.int64()),  # logits that are NaN or ±∞
    ]
)


def captures(network: Network, options: ProbesConfig) -> list[Want]:
    """Nothing beyond the logits, which every pass leaves."""
    return []


def measure(capture: Capture, replay: Replay) -> list[dict[str, Any]]:
    """One row: the gradient is that of the mean cross-entropy with respect to these very logits."""
    gradient = capture.logit_grads()
    mass = capture.logits.double().softmax(1).mean(0)
    positive = gradient.double().clamp_min(0).sum(0)
    return [
        {
            "images": gradient.shape[0],
            "classes": gradient.shape[1],
            "labels": plain(capture.labels),
            "gradient": plain(gradient.flatten()),
            "mass": plain(mass),
            "top_mass": float(mass.max()),
            "positive_share": plain(positive / positive.sum().clamp_min(torch.finfo(torch.float64).tiny)),
            "mean_row_cosine": mean_row_cosine(gradient),
            "nonfinite": int((~capture.logits.isfinite()).sum()),
        }
    ]


def mean_row_cosine(rows: Tensor) -> float | None:
    """Return the mean cosine over all pairs of different rows (N×K) that are not zero; None below two."""
    rows = rows.double()
    norms = rows.norm(dim=1)
    unit = rows[norms != 0] / norms[norms != 0, None]
    n = len(unit)
    if n < 2:
        return None
    return float(((unit.sum(0) ** 2).sum() - (unit**2).sum()) / (n * (n - 1)))

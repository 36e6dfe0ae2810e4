"""Gradients of chosen kernels from one class alone (Bjorck et al. 2018, App. I and J, Figs 16 and 17).

Two estimands, named in `by`:
logit   all but one column of ∂L/∂logits are zeroed, as in the paper: what the logit of class c sends back
label   all but the rows of images labelled c are zeroed: what the images of class c send back
Either way the statistics of train-mode BN are as they are, and the gradients of all classes add up to the
ordinary one. Each product is stopped at the deepest chosen layer, and one class follows from the ordinary
gradient and the others, so the ten cost far less than ten backward passes.
"""

from typing import Any

import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional as F

from study.config import ProbesConfig
from study.models.base import Network
from study.probes._capture import Capture, Want
from study.probes._layers import layers_at, plain
from study.probes._replay import Replay

SCHEDULE = "init"
PASSES = "per estimand a backward pass for all classes but one, from the logits to the deepest chosen layer"
SCHEMA = pa.schema(
    [
        ("by", pa.string()),  # logit or label
        ("class", pa.int32()),
        ("count", pa.int64()),  # images of this class in the batch
        ("mean_abs", pa.float64()),  # mean |gradient| over the kernel
        ("max_abs", pa.float64()),
        ("kernel_norm", pa.float64()),  # Frobenius; not "norm", which is the run's in every frame
        ("shape", pa.list_(pa.int32())),  # of the weight
        ("gradient", pa.list_(pa.float32())),  # the kernel's, flattened
        ("nonfinite", pa.int64()),
    ]
)


def captures(network: Network, options: ProbesConfig) -> list[Want]:
    """The pass's graph, towards the chosen layers, and their ordinary gradients."""
    chosen = layers_at(network, options.class_layers)
    return [Want(what, x) for x in chosen for what in ("graph", "weight_grad")]


def measure(capture: Capture, replay: Replay) -> list[dict[str, Any]]:
    """One row per layer, estimand and class."""
    chosen = layers_at(capture.network, capture.options.class_layers)
    gradient = capture.logit_grads()
    classes = gradient.shape[1]
    counts = torch.bincount(capture.labels, minlength=classes).tolist()
    rows = []
    for by in capture.options.class_by:
        kernels = by_class(capture, replay, chosen, masked(gradient, capture.labels, by))
        for name in chosen:
            for c in range(classes):
                rows.append(
                    {"layer": name, "by": by, "class": c, "count": counts[c], **_row(kernels[name][c])}
                )
    return rows


def by_class(capture: Capture, replay: Replay, layers: list[str], cotangents: Tensor) -> dict[str, Tensor]:
    """Return {layer: classes×weight's shape} for cotangents (classes×N×classes) that add up to ∂L/∂logits.

    The class with the largest cotangent is the ordinary gradient less the others. Where that difference would
    lose digits (half precision, values that are not finite, or a difference below a tenth of its parts), it
    is sent back like the rest.
    """
    if len(cotangents) == 1:
        return {x: capture.weight_grad(x)[None] for x in layers}
    largest = int(cotangents.flatten(1).double().norm(dim=1).nan_to_num(nan=-1).argmax())
    others = [c for c in range(len(cotangents)) if c != largest]
    found = replay.vjp(layers, cotangents[others])
    last = {x: capture.weight_grad(x) - found[x].sum(0) for x in layers}
    exact = capture.run.precision == "fp32" and all(
        bool(last[x].norm() >= 0.1 * found[x].flatten(1).norm(dim=1).max()) for x in layers
    )  # a NaN compares as false
    if not exact:
        last = {x: kernels[0] for x, kernels in replay.vjp(layers, cotangents[[largest]]).items()}
    return {x: torch.cat([found[x][:largest], last[x][None], found[x][largest:]]) for x in layers}


def masked(gradient: Tensor, labels: Tensor, by: str) -> Tensor:
    """Return classes×N×classes: ∂L/∂logits (N×classes) with all but one class's columns or rows zero.

    Zeroed, not multiplied by zero, so that a non-finite gradient of one class stays out of the others.
    """
    classes = gradient.shape[1]
    if by == "logit":
        keep = torch.eye(classes, dtype=torch.bool, device=gradient.device)[:, None, :]
    else:
        keep = F.one_hot(labels, classes).T.bool()[:, :, None]
    return torch.where(keep, gradient, torch.zeros((), device=gradient.device))


def _row(kernel: Tensor) -> dict[str, Any]:
    precise = kernel.double()
    return {
        "mean_abs": float(precise.abs().mean()),
        "max_abs": float(precise.abs().max()),
        "kernel_norm": float(precise.norm()),
        "shape": list(kernel.shape),
        "gradient": plain(kernel.float().flatten()),
        "nonfinite": int((~kernel.isfinite()).sum()),
    }

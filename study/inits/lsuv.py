"""LSUV (Mishkin & Matas 2015, 1511.06422, Algorithm 1), made for training without a norm (norm=none).

Orthogonal weights; then, once before training, layer by layer in order of execution, the weight is divided
by the deviation of the layer's output on one batch until that output's variance is within TOLERANCE of 1, at
most ITERATIONS times. One pass does it for the whole network: every layer is rescaled as it is reached, and
hands on its rescaled output. Biases are 0 then (but for the classifier's), so one division is exact. As there
the classifier is a layer like the others, and keeps the framework's default distribution up to its scale.
"""

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from study.errors import StudyError
from study.inits.base import weight_of
from study.inits.orthogonal import fill
from study.models.base import Layer, Network
from study.norms.base import set_weight

__all__ = ["calibrate", "fill"]

TOLERANCE = 0.1
"""Accepted |variance − 1| of a layer's output."""
ITERATIONS = 10
"""Most divisions per layer."""


@torch.no_grad()
def calibrate(network: Network, images: Tensor) -> None:
    """Rescale every layer's weight on `images` (N×C×H×W, standardised), in evaluation mode.

    Raises StudyError for an output without (finite) variance, and for weights that a norm keeps at a scale of
    their own.
    """
    training = {module: module.training for module in network.modules()}
    hooks = [_rescale_when_reached(layer) for layer in network.layers]
    try:
        network.eval()
        network(images)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in training.items():
            module.training = mode


def _rescale_when_reached(layer: Layer) -> RemovableHandle:
    def hook(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        for _ in range(ITERATIONS):
            variance = output.float().var(correction=0)
            if abs(variance - 1) < TOLERANCE:
                return output
            if not (variance > 0 and variance.isfinite()):
                raise StudyError(f"init=lsuv: the output of layer '{layer.name}' has variance {variance:g}")
            set_weight(module, weight_of(module) / variance.sqrt())
            output = module.forward(*inputs)
        raise StudyError(
            f"init=lsuv cannot bring the output of layer '{layer.name}' to unit variance: its norm gives "
            "weights a scale of their own; use it with norm=none"
        )

    return layer.module.register_forward_hook(hook)

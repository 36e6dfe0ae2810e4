"""How initial weights are set: every layer draws from its own generator, whatever norm stands after it.

An initialisation is a module of this package with `fill(weight, generator)`, which overwrites a weight
(out×in, or out×in×kh×kw) in place. One that needs training images besides has `calibrate(network, images)`.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from study import registry
from study.config import InitConfig
from study.errors import StudyError
from study.models.base import Layer, Network
from study.norms.base import set_weight
from study.seeding import generator


@torch.no_grad()
def initialise(network: Network, config: InitConfig, seed: int) -> None:
    """Set all weights and biases of a network's layers: a function of (config, seed, layer name) alone.

    Layers with a site get the initialisation times `gain` and zero biases; the classifier gets the
    framework's default, whose scale only LSUV's calibration changes later. For an initialisation that
    calibrates, `gain` waits until after the calibration, which would undo it. Raises StudyError for zeros
    that a norm of weights would have to divide by their length.
    """
    module = registry.load("study.inits", config.name)
    gain = 1.0 if calibrates(config) else config.gain
    for layer in network.layers:
        random = generator(seed, "init", layer.name)
        if layer.site is None:
            _framework_default(layer.module, random)
            continue
        weight = torch.empty_like(weight_of(layer.module))
        module.fill(weight, random)
        set_weight(layer.module, weight * gain if gain != 1.0 else weight)
        if parametrize.is_parametrized(layer.module) and not weight_of(layer.module).isfinite().all():
            raise StudyError(
                f"init={config.name} leaves an output of layer '{layer.name}' no weight but 0, and its norm "
                "has no direction to give it; use another initialisation, or norm=none"
            )
        bias = layer.module.bias
        if isinstance(bias, Tensor):
            bias.zero_()


def calibrates(config: InitConfig) -> bool:
    """Whether an initialisation needs to see images."""
    return hasattr(registry.load("study.inits", config.name), "calibrate")


@torch.no_grad()
def calibrate(network: Network, config: InitConfig, images: Tensor) -> None:
    """Let an initialisation that needs images (N×C×H×W, standardised) see them."""
    module = registry.load("study.inits", config.name)
    module.calibrate(network, images)
    for layer in hidden(network):
        set_weight(layer.module, weight_of(layer.module) * config.gain)


def hidden(network: Network) -> list[Layer]:
    """Return the layers that an initialisation sets: all but the classifier."""
    return [layer for layer in network.layers if layer.site is not None]


def weight_of(layer: nn.Module) -> Tensor:
    """Return a layer's weight, detached."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def _framework_default(layer: nn.Module, random: torch.Generator) -> None:
    """Draw what `nn.Linear` draws when it is made: weight and bias uniform within ±1/√(fan in)."""
    assert isinstance(layer, nn.Linear)
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=random)
    bound = 1 / math.sqrt(layer.in_features)
    nn.init.uniform_(layer.bias, -bound, bound, generator=random)

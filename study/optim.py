"""SGD with momentum and coupled weight decay, every parameter in exactly one group."""

import torch
from torch import nn

from study.config import RunConfig
from study.models.base import Network

WEIGHTS = frozenset({"weight", "parametrizations.weight.original", "parametrizations.weight.original1"})
"""Names of a layer's weight: plain; standardised (its γ is a parameter of the norm); weight-normalised (v;
the length g, `original0`, is a parameter of the norm, as γ is)."""


def build(config: RunConfig, network: Network) -> torch.optim.SGD:
    """Return the optimiser; its rate is set before each epoch (schedules.py).

    With `decay_norm_and_bias` (the papers' way) all parameters are decayed; without, only the weights of
    convolution and linear layers, whatever stands behind them (WEIGHTS). The fused
    kernel does one pass over the parameters instead of several.
    """
    decayed, kept = groups(config, network)
    named = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(
        [g for g in named if g["params"]], lr=config.lr, momentum=config.momentum, fused=True
    )
    if config.precision == "fp16" and config.momentum:
        # A first update that loss scaling skips would leave the fused kernel's momentum uninitialised memory.
        for p in (*decayed, *kept):
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return optimizer


def groups(config: RunConfig, network: Network) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Split the parameters into (decayed, not decayed)."""
    parameters = list(network.parameters())
    if config.decay_norm_and_bias:
        return parameters, []
    weights = {
        id(p) for layer in network.layers for name, p in layer.module.named_parameters() if name in WEIGHTS
    }
    return [p for p in parameters if id(p) in weights], [p for p in parameters if id(p) not in weights]

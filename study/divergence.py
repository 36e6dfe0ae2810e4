"""Which layer a diverged run went bad in."""

from typing import Any

import torch
from torch import Tensor

from study.criteria import DIVERGENCE_FACTOR
from study.models.base import Network
from study.state import TrainState, initial_network


@torch.no_grad()
def first_bad_layer(state: TrainState, step: int) -> str:
    """Return the name of the layer in which the pass of the diverging batch (at `step`) went bad.

    The pass is repeated: same images, precision, noise and statistics. The layer is the first, in order
    of execution, whose output is not finite; if all are finite, the first whose root mean square is beyond
    10³ times that of the initial network on the same batch; if none is, the layer with the largest such
    ratio. The initial network is a function of the config, so nothing had to be kept.
    """
    epoch, index = divmod(step, state.steps_per_epoch)
    images, _ = state.epoch_batches(epoch).batch(index)
    now = _output_rms(state, state.network, images, state.before)
    for name, rms in now.items():
        if not rms < float("inf"):
            return name
    initial = _output_rms(state, initial_network(state.run, state.image_set, state.device), images, {})
    ratios = {name: rms / max(initial[name], 1e-30) for name, rms in now.items()}
    beyond = (name for name, ratio in ratios.items() if ratio > DIVERGENCE_FACTOR)
    return next(beyond, max(ratios, key=lambda name: ratios[name]))


def _output_rms(
    state: TrainState, network: Network, images: Tensor, buffers: dict[str, Tensor]
) -> dict[str, float]:
    """Root mean square of every layer's output in a training pass from `buffers`; nothing is left changed."""
    after = {name: b.detach().clone() for name, b in network.named_buffers()}
    found: dict[str, Tensor] = {}
    handles = []
    for layer in network.layers:

        def keep(_module: Any, _inputs: Any, output: Tensor, name: str = layer.name) -> None:
            found[name] = output.double().square().mean().sqrt()

        handles.append(layer.module.register_forward_hook(keep))
    try:
        network.train()
        _set_buffers(network, buffers)
        state.forward(images, network)
    finally:
        for handle in handles:
            handle.remove()
        _set_buffers(network, after)
    return {name: float(value) for name, value in found.items()}


def _set_buffers(network: Network, values: dict[str, Tensor]) -> None:
    own = dict(network.named_buffers())
    for name, value in values.items():
        own[name].copy_(value)

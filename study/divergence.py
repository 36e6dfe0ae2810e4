"""Which layer a diverged run went bad in."""

from typing import Any

import torch
from torch import Tensor

from study.criteria import DIVERGENCE_FACTOR
from study.models.base import Network
from study.state import TrainState, initial_network


@torch.no_grad()
def first_bad_layer(state: TrainState, step: int) -> str | None:
    """Return the name of the layer in which the pass of the diverging batch went bad.

    It is the first layer, in order of execution, whose output is not finite; if all are finite, the first
    whose root mean square is beyond 10³ times that of the initial network on the same batch; if none is, the
    layer with the largest such ratio. The initial network is a function of the config, so nothing had to be
    kept. On a GPU, where losses are read late, the weights may be a few updates younger than the batch.
    """
    epoch, index = divmod(step, state.steps_per_epoch)
    images, _ = state.epoch_batches(epoch).batch(index)
    fresh = initial_network(state.run, state.image_set, state.device)
    now, initial = _output_rms(state.network, images), _output_rms(fresh, images)
    for name, rms in now.items():
        if not rms < float("inf"):
            return name
    ratios = {name: rms / max(initial[name], 1e-30) for name, rms in now.items()}
    beyond = (name for name, ratio in ratios.items() if ratio > DIVERGENCE_FACTOR)
    return next(beyond, max(ratios, key=lambda name: ratios[name]))


def _output_rms(network: Network, images: Tensor) -> dict[str, float]:
    """Root mean square of every layer's output in a training-mode pass; the network is left as it was."""
    before = {k: v.clone() if isinstance(v, Tensor) else v for k, v in network.state_dict().items()}
    found: dict[str, Tensor] = {}
    handles = []
    for layer in network.layers:

        def keep(_module: Any, _inputs: Any, output: Tensor, name: str = layer.name) -> None:
            found[name] = output.double().square().mean().sqrt()

        handles.append(layer.module.register_forward_hook(keep))
    try:
        network.train()
        network(images)
    finally:
        for handle in handles:
            handle.remove()
        network.load_state_dict(before)
    return {name: float(value) for name, value in found.items()}

"""What a pass may change in a network besides its output, saved and restored."""

from typing import Any

import torch
from torch import Tensor, nn

INTERNAL = frozenset(vars(nn.Module()))
"""Attributes that every module has: parameters, submodules and hooks among them."""


class NetworkState:
    """Buffers, gradients, modes, requires_grad, modules' plain attributes and generators at one moment.

    Not the weights: whoever shifts them puts them back (Replay.shifted). Buffers are restored through
    `.data`, which leaves autograd's version counters alone, so that a graph built before stays usable.
    """

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self.network, self.device = network, device
        self.modules = list(network.modules())
        self.modes = [m.training for m in self.modules]
        self.attributes = [_plain_attributes(m) for m in self.modules]
        self.buffers = [(b, b.detach().clone()) for b in network.buffers()]
        self.parameters = [(p, p.grad, p.requires_grad) for p in network.parameters()]
        self.cpu_generator = torch.get_rng_state()
        self.cuda_generator = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        """Put all of it back, to the bit; may be called any number of times."""
        for module, mode, attributes in zip(self.modules, self.modes, self.attributes, strict=True):
            module.training = mode
            for name in _plain_attributes(module).keys() - attributes.keys():
                delattr(module, name)
            for name, value in attributes.items():
                _restore_attribute(module, name, value)
        for buffer, value in self.buffers:
            buffer.data.copy_(value)
        for parameter, grad, requires_grad in self.parameters:
            parameter.grad = grad
            parameter.requires_grad_(requires_grad)
        torch.set_rng_state(self.cpu_generator)
        if self.cuda_generator is not None:
            torch.cuda.set_rng_state(self.cuda_generator, self.device)


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Attributes that torch does not manage, as counters or cached statistics; tensors are copied."""
    own = {k: v for k, v in vars(module).items() if k not in INTERNAL}
    return {k: _copy(v) for k, v in own.items()}


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return _GeneratorState(value, value.get_state())
    if isinstance(value, Tensor):
        return _TensorState(value, value.detach().clone())
    if isinstance(value, (dict, list, set)):
        return value.copy()
    return value


def _restore_attribute(module: nn.Module, name: str, saved: Any) -> None:
    if isinstance(saved, _GeneratorState):
        saved.generator.set_state(saved.state)
        saved = saved.generator
    elif isinstance(saved, _TensorState):
        saved.tensor.data.copy_(saved.value)
        saved = saved.tensor
    elif isinstance(saved, (dict, list, set)):
        saved = saved.copy()
    vars(module)[name] = saved


class _GeneratorState:
    def __init__(self, generator: torch.Generator, state: Tensor) -> None:
        self.generator, self.state = generator, state


class _TensorState:
    def __init__(self, tensor: Tensor, value: Tensor) -> None:
        self.tensor, self.value = tensor, value

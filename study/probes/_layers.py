"""Which layer a paper's number means in another network, and tensors as plain lists."""

from typing import Any, NamedTuple

from torch import Tensor

from study.models.base import Layer, Network

PAPER_DEPTH = 110
"""Layers of the network whose numbers Bjorck et al. 2018 give."""


def layer_at(network: Network, number: int) -> Layer:
    """Return the layer that stands where `number` stands in the paper's ResNet-110.

    That very layer in a network of 110 layers; elsewhere the proportional one, of the same place in its block
    (even numbers are first convolutions, odd ones second) if the network has such.
    """
    numbered = [x for x in network.layers if x.number is not None]
    last = max(x.number or 0 for x in numbered)
    target = 1 + (number - 1) * (last - 1) / (PAPER_DEPTH - 1)
    if 1 < number < PAPER_DEPTH:
        kind = "outer" if number % 2 else "inner"
        numbered = [x for x in numbered if x.site is not None and x.site.kind == kind] or numbered
    return min(numbered, key=lambda x: (abs((x.number or 0) - target), x.number))


def layers_at(network: Network, numbers: tuple[int, ...]) -> list[str]:
    """Return the names of several such layers, each once."""
    return list(dict.fromkeys(layer_at(network, n).name for n in numbers))


def floats(values: NamedTuple) -> dict[str, Any]:
    """Return a named tuple as {name: plain number or list}."""
    return {k: plain(v) for k, v in values._asdict().items()}


def plain(value: Any) -> Any:
    """Return a tensor as a (nested) list, anything else as it is."""
    return value.cpu().tolist() if isinstance(value, Tensor) else value

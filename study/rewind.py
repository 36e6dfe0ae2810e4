"""The way back to the step that diverged, where losses are read some steps late (study.monitor.Reader)."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class _Kept(NamedTuple):
    step: int
    weights: list[Tensor]
    momenta: list[Tensor]
    """Empty before the first update, where the optimiser has none."""
    buffers: list[Tensor]


class History:
    """Weights, momenta and buffers as they were before each of the last `depth` training passes."""

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer, depth: int) -> None:
        self.network, self.optimizer, self.depth = network, optimizer, depth
        self._weights = [p.data for p in network.parameters()]
        self._buffers = list(network.buffers())
        self._kept: list[_Kept] = []

    def keep(self, step: int) -> None:
        """Remember the state before the pass of a step; never waits for the device."""
        now = (self._weights, self._momenta(), self._buffers)
        if len(self._kept) == self.depth and len(self._kept[0].momenta) == len(now[1]):
            oldest = self._kept.pop(0)
            for old, new in zip(oldest[1:], now, strict=True):
                _copy(old, new)
            self._kept.append(oldest._replace(step=step))
        else:
            self._kept = self._kept[-self.depth + 1 :]
            self._kept.append(_Kept(step, *(list(map(torch.clone, tensors)) for tensors in now)))

    def go_back(self, step: int) -> dict[str, Tensor]:
        """Undo the updates from that of `step` on, and later passes; return the buffers before its pass."""
        at = next(i for i, kept in enumerate(self._kept) if kept.step == step)
        before = self._kept[at]
        _copy(self._weights, before.weights)
        if before.momenta:
            _copy(self._momenta(), before.momenta)
        else:
            self.optimizer.state.clear()
        if at + 1 < len(self._kept):
            _copy(self._buffers, self._kept[at + 1].buffers)
        names = (name for name, _ in self.network.named_buffers())
        return dict(zip(names, before.buffers, strict=True))

    def _momenta(self) -> list[Tensor]:
        states = (self.optimizer.state.get(p, {}) for p in self.network.parameters())
        return [s["momentum_buffer"] for s in states if s.get("momentum_buffer") is not None]


@torch.no_grad()
def _copy(to: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    targets = list(to)
    if targets:
        torch._foreach_copy_(targets, list(values))

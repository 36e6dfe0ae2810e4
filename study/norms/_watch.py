"""Notices a training batch with non-finite statistics, by step and layer, without ever waiting for a device.

A batch with an infinite value, or one whose variance overflows, makes running averages non-finite for good,
as in nn.BatchNorm2d; evaluation is meaningless from then on, though a loss by batch statistics may look sound
(an infinite variance normalises everything to 0). So after each training pass of the network all running
averages are looked at together: four small operations for the whole network, against four per layer had each
layer its own check. Each average counts the passes after which it was finite; since a bad one never
recovers, that count is the 0-based step that spoiled it. The counts are a buffer of the network: they are
saved, resumed, and put back after a probe's extra passes like any other.
"""

from typing import Any

import torch
from torch import Tensor, nn

NAME = "finite_passes"
AVERAGES = ("running_mean", "running_var")


def watch(network: nn.Module) -> None:
    """Let the network count, for each of its running averages, the training passes that left it finite."""
    modules = _holders(network)
    if modules:
        flat = _flat(modules)
        network.register_buffer(NAME, torch.zeros(len(flat), dtype=torch.int32, device=flat.device))
        network.register_forward_hook(_AfterPass(modules))


def poisoned(network: nn.Module) -> list[tuple[str, int]]:
    """Return (site, step) of each layer whose running averages are not finite, earliest first.

    The step counts the network's training passes from 0. Waits for the device: ask at the end of an epoch.
    Empty for a network without running averages; any other must have been under `watch` from the start.
    """
    modules = _holders(network)
    if not modules:
        return []
    counts = network.get_buffer(NAME)
    bad = _flat(modules).isfinite().logical_not()
    if not bool(bad.any()):
        return []
    sites = [str(m.site) for m in modules for name in AVERAGES for _ in range(len(m.get_buffer(name)))]
    first: dict[str, int] = {}
    for position in bad.nonzero().flatten().tolist():
        step = int(counts[position])
        first[sites[position]] = min(step, first.get(sites[position], step))
    return sorted(first.items(), key=lambda item: item[1])


class _AfterPass:
    """Forward hook of the whole network; holds the modules, since finding them would take longest."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self.modules = modules

    @torch.no_grad()
    def __call__(self, network: nn.Module, inputs: Any, output: Any) -> None:
        if network.training:
            network.get_buffer(NAME).add_(_flat(self.modules).abs() < float("inf"))


def _holders(network: nn.Module) -> list[nn.Module]:
    """Return the modules that hold running averages, in the network's order."""
    return [m for m in network.modules() if "running_mean" in m._buffers]


def _flat(modules: list[nn.Module]) -> Tensor:
    """Return all running averages in one vector."""
    return torch.cat([m._buffers[name] for m in modules for name in AVERAGES])  # type: ignore[misc]

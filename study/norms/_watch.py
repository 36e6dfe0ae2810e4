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
    if averages := _averages(network):
        count = sum(len(average) for _, average in averages)
        network.register_buffer(NAME, torch.zeros(count, dtype=torch.int32, device=averages[0][1].device))
        network.register_forward_hook(_after_pass)


def poisoned(network: nn.Module) -> list[tuple[str, int]]:
    """Return (site, step) of each layer whose running averages are not finite, earliest first.

    The step counts the network's training passes from 0. Waits for the device: ask at the end of an epoch.
    Empty for a network without running averages; the network must have been under `watch` from the start.
    """
    averages = _averages(network)
    if not averages:
        return []
    flat = torch.cat([average for _, average in averages])
    bad = ~flat.isfinite()
    if not bool(bad.any()):
        return []
    first: dict[str, int] = {}
    sites = [site for site, average in averages for _ in range(len(average))]
    for position in bad.nonzero().flatten().tolist():
        step = int(network.get_buffer(NAME)[position])
        first[sites[position]] = min(step, first.get(sites[position], step))
    return sorted(first.items(), key=lambda item: item[1])


@torch.no_grad()
def _after_pass(network: nn.Module, inputs: Any, output: Any) -> None:
    if network.training:
        flat = torch.cat([average for _, average in _averages(network)])
        network.get_buffer(NAME).add_(flat.abs() < float("inf"))


def _averages(network: nn.Module) -> list[tuple[str, Tensor]]:
    """Return all running averages with the names of their sites, in the order of the network's modules."""
    modules = [m for m in network.modules() if "running_mean" in m._buffers]
    return [(str(m.site), m.get_buffer(name)) for m in modules for name in AVERAGES]

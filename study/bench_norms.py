"""What each norm costs: `python -m study.bench norms`.

Two ratios per norm, each the median of repetitions in turns, with its 10th to 90th percentile:

- layer: forward and backward pass of what the norm puts behind one layer, against the fused batch norm
  (`bn`) on the same activations; for a norm of weights, of what it does to the layer's weight. Two passes
  are timed at a time, so that an alternating norm is met in both its states.
- step: one training step (forward, backward, SGD) of a ResNet-20 at laptop widths, against `none`.

On the CPU the clock is the thread's own (one thread does it all), so that waiting for other programs does
not count; their traffic in caches and memory still does. Freed memory stays with the process: a network's
layers find it there, while the C library would hand a lone layer's back after every pass, and new pages cost
more than the norm itself.

The last column says what keeps a layer's cost above the fused batch norm's (`holds_up`).
"""

import contextlib
import ctypes
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from study import naming
from study.arguments import Parser, whole
from study.compose import compose
from study.config import NormConfig
from study.device import resolve
from study.errors import unknown
from study.models.base import build_network, prepare
from study.norms.base import Normed, Site, build_norm
from study.ratios import Ratio, paired, seconds, thread_seconds

BASE, ABSENT = "bn", "none"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of mallopt (malloc.h)."""


class Row(NamedTuple):
    """One line of the table."""

    name: str
    switches: str
    parameters: int
    layer: Ratio | None
    limit: float | None
    step: Ratio | None
    why: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a layer costs more than its limit."""
    parser = Parser(prog="python -m study.bench norms", description="What each norm costs.")
    parser.add_argument("names", nargs="*", help="norms (default: all of conf/norm)")
    parser.add_argument("--shape", type=whole(1), nargs=3, default=(128, 32, 16), metavar=("N", "C", "SIDE"))
    parser.add_argument("--contiguous", action="store_true", help="N×C×H×W in memory, not channels_last")
    parser.add_argument("--repetitions", type=whole(1), default=25)
    parser.add_argument(
        "--steps", type=whole(0), default=5, help="repetitions of the network step; 0 leaves it out"
    )
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(arguments)
    for name in set(given.names) - set(naming.norms()):
        parser.error(str(unknown("norm", name, naming.norms())))
    resolve(given.device)
    torch.set_num_threads(1)
    keep_memory()
    memory = torch.contiguous_format if given.contiguous else torch.channels_last
    n, c, side = given.shape
    where = f"{n}×{c}×{side}×{side}, {str(memory).removeprefix('torch.')}, {given.device}, one thread"
    print(f"layer: forward + backward ÷ bn ({where});  step: training step ÷ none (ResNet-20)")
    rows = measure(
        given.names or list(naming.norms()),
        (n, c, side),
        memory,
        given.repetitions,
        given.steps,
        given.device,
    )
    for line in table(rows):
        print(line, flush=True)
    return int(any(met(row) is False for row in rows))


def measure(
    names: Sequence[str],
    shape: tuple[int, int, int],
    memory: torch.memory_format,
    repetitions: int,
    steps: int,
    device: str,
) -> list[Row]:
    """Measure each named norm; `shape` is N, C, side of the layer's activations."""
    return [_row(name, shape, memory, repetitions, steps, device) for name in names]


def keep_memory() -> None:
    """Tell glibc's allocator (others are left alone) to give no freed memory back to the system."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            libc.mallopt(option, 2**25)  # the most that the second one takes


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the table."""
    head = (
        "norm",
        "switches",
        "parameters",
        "layer ÷ bn",
        "limit",
        "step ÷ none",
        "what costs more",
    )
    cells = [head, *[_cells(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def met(row: Row) -> bool | None:
    """Return whether a layer's cost is within its limit; None without a limit or a layer to measure."""
    if row.limit is None or row.layer is None:
        return None
    return row.layer.median <= row.limit


def limit(config: NormConfig) -> float | None:
    """Return what the layer may cost over the fused batch norm's; None where there is nothing."""
    if config.family == "none" and not config.noise:
        return None
    plain = config.family == "batch" and config.center == config.scale and config.order == 2
    if not plain or config.noise:
        return 5.0
    return 3.0 if config.detach else 1.3


def holds_up(config: NormConfig) -> str:
    """Return what makes a layer cost more than the fused batch norm; "" if its kernel does all."""
    if config.family in ("group", "instance"):
        return "no fast channels_last kernel: two copies each way"
    if config.family == "layer":
        return (
            "group norm's kernel, for one group" if config.center else "mean square and two maps, a pass each"
        )
    if config.family.startswith("weight"):
        return "small operations on the weight"
    if config.noise:
        return "noise: one pass more each way"
    if config.family == "none" or not (config.center or config.scale):
        return ""
    if config.source == "ghost":
        return "a call per virtual batch, gradients copied into place"
    if config.scale and config.order == 1:
        return "no fused kernel: passes for modulus and mean"
    if config.scale and config.order != 2:
        return "no fused kernel: passes for modulus, maximum, division"
    if config.center != config.scale:
        return "a pass for the statistic, one for the map"
    return "statistics and map are two kernels" if config.detach else ""


def _row(
    name: str,
    shape: tuple[int, int, int],
    memory: torch.memory_format,
    repetitions: int,
    steps: int,
    device: str,
) -> Row:
    clock = thread_seconds if device == "cpu" else seconds
    config = naming.norms()[name]
    base = naming.norms()[BASE]
    ours, parameters = layer_action(config, shape, memory, device)
    theirs, _ = layer_action(base, shape, memory, device)
    assert theirs is not None
    step = paired(step_action(name, device), step_action(ABSENT, device), steps, clock) if steps else None
    return Row(
        name,
        _switches(config),
        parameters,
        paired(ours, theirs, repetitions, clock) if ours else None,
        limit(config),
        step,
        holds_up(config),
    )


def layer_action(
    config: NormConfig, shape: tuple[int, int, int], memory: torch.memory_format, device: str
) -> tuple[Callable[[], Any] | None, int]:
    """Return two forward and backward passes of what the norm adds to one layer, and its parameters added."""
    n, channels, side = shape
    layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    bare = sum(p.numel() for p in layer.parameters())
    site = Site("layer", channels, config.sites[0], 0)
    module = build_norm(config).build(None if site.kind == "top" else layer, site, 4).to(device).train()
    added = sum(p.numel() for p in module.parameters()) - (0 if site.kind == "top" else bare)
    leaves = [p for name, p in module.named_parameters() if name != "layer.weight"]
    if parametrize.is_parametrized(layer):
        cotangent = torch.randn(layer.weight.shape, device=device)
        return _twice(lambda: layer.weight, leaves, cotangent), added
    if not isinstance(module, Normed):
        return None, added
    norm = nn.Sequential(*[m for name, m in module.named_children() if name != "layer"])
    x = torch.randn(n, channels, side, side, device=device).to(memory_format=memory).requires_grad_()
    return _twice(lambda: norm(x), [x, *norm.parameters()], torch.randn_like(x)), added


def step_action(name: str, device: str) -> Callable[[], Any]:
    """Return two training steps of a small ResNet with that norm, on one batch of noise."""
    run = compose(["scale=laptop", "model.depth=20", f"norm={name}", "lr=1e-6"])
    images = torch.randn(run.batch_size, 3, 16, 16, generator=torch.Generator().manual_seed(0)).to(device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = (torch.arange(run.batch_size) % 10).to(device)
    network = build_network(run, (3, 16, 16), 10)
    network.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    prepare(network, run, lambda: [images])
    network.train()
    optimiser = torch.optim.SGD(network.parameters(), run.lr, run.momentum, fused=True)

    def step() -> None:
        for _ in range(2):
            optimiser.zero_grad()
            F.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    return step


def _twice(forward: Callable[[], Tensor], leaves: list[Any], cotangent: Tensor) -> Callable[[], None]:
    def action() -> None:
        for _ in range(2):
            torch.autograd.grad(forward(), leaves, cotangent)

    return action


def _switches(config: NormConfig) -> str:
    """Return the family and the switches that are not at their defaults."""
    default = NormConfig()
    fields = (f.name for f in dataclasses.fields(config) if f.name not in ("name", "family"))
    values = ((k, getattr(config, k)) for k in fields if getattr(config, k) != getattr(default, k))
    texts = (f"{k}={'+'.join(v) if k == 'sites' else str(v).lower()}" for k, v in values)
    return ", ".join(itertools.chain([config.family], texts))


def _cells(row: Row) -> tuple[str, ...]:
    verdict = {True: " met", False: " MISSED", None: ""}[met(row)]
    return (
        row.name,
        row.switches,
        str(row.parameters),
        _ratio(row.layer),
        "–" if row.limit is None else f"{row.limit:g}{verdict}",
        _ratio(row.step),
        row.why,
    )


def _ratio(ratio: Ratio | None) -> str:
    return "–" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"

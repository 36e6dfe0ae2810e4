"""How well small settings match the full-size network at initialisation: `python -m study.bench scale`.

The full-size network is ResNet-110, widths 16/32/64, on 32×32×3 images in batches of 128. CIFAR-10 cannot be
taken for granted, so Fashion-MNIST, resized to 32×32 and replicated to three channels, stands in for it.
Every candidate is a ResNet-110 on digits. Measured on each seed's first training batch, in training mode:

initial loss   cross-entropy
tolerance      step size along −∇L at which the same batch's loss first passes 1.05 times its initial value
growth         slope over layers 1–109 of ln(mean over channels of the standard deviation of the raw
               convolution output), ×108/ln 10: decades from the first to the last convolution
cost           CPU seconds of a training step with norm=bn on one thread, candidates in turns

`mismatch` is the mean over (initial loss, tolerance, growth) × (none, bn) of the distance between the medians
of candidate and full-size network, in decades. The choice uses mismatch and cost alone, never what training
leads to.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from study.arguments import Parser, whole
from study.config import DataConfig, ModelConfig, NormConfig, RunConfig
from study.data.batches import EpochBatches
from study.data.loading import load
from study.errors import StudyError
from study.models.base import Network, build_network

NORMS = {"none": NormConfig(name="none", family="none"), "bn": NormConfig()}
RATIO = 1.05
"""Loss over initial loss that a tolerated step does not pass."""
BISECTIONS = 4
"""Halvings of the bracket (a factor of 2), in the logarithm: the tolerance is known to 2^(1/16), 4%."""
TRAINING_SHARE = 0.75
"""Of digits' 1797 images; only for the last column, the cost of a run."""


@dataclass(frozen=True)
class Setting:
    """A data setting, widths and a batch size."""

    label: str
    data: DataConfig
    widths: tuple[int, int, int]
    batch: int

    def run(self, norm: str, seed: int) -> RunConfig:
        """Return its run."""
        model = ModelConfig(widths=self.widths)
        return RunConfig(data=self.data, model=model, norm=NORMS[norm], batch_size=self.batch, seed=seed)


def digits(size: int, channels: int, widths: tuple[int, int, int], batch: int) -> Setting:
    """Return a candidate on the scikit-learn digits."""
    label = f"digits {size}×{size}×{channels}"
    return Setting(label, DataConfig(size=size, channels=channels), widths, batch)


WIDE, NARROW = (16, 32, 64), (8, 16, 32)
CANDIDATES = (
    digits(8, 1, WIDE, 128),
    digits(16, 1, NARROW, 64),
    digits(16, 3, NARROW, 64),
    digits(16, 3, NARROW, 128),
    digits(32, 1, NARROW, 64),
    digits(32, 3, NARROW, 64),
)


def full_size(root: str) -> Setting:
    """Return the full-size network's setting; on digits where Fashion-MNIST is missing."""
    data = DataConfig(name="fashion_mnist", root=root, download=False, size=32, channels=3, subset=5000)
    try:
        load(data, "cpu")
    except StudyError as error:
        print(f"{error}\nThe full-size network is measured on digits instead.")
        return replace(digits(32, 3, WIDE, 128), label="full size: digits 32×32×3")
    return Setting("full size: Fashion-MNIST 32×32×3", data, WIDE, 128)


@dataclass(frozen=True)
class Initial:
    """What one initial network does on its first batch."""

    loss: float
    tolerance: float
    growth: float


def first_batch(run: RunConfig) -> tuple[Network, Tensor, Tensor]:
    """Return the initial network in training mode, and the first batch."""
    images = load(run.data, "cpu")
    x, y = EpochBatches(run, images, 0).batch(0)
    network = build_network(run, (x.shape[1], x.shape[2], x.shape[3]), images.n_classes)
    return network.to(memory_format=torch.channels_last), x, y


def measure(run: RunConfig) -> Initial:
    """Measure one initial network."""
    network, x, y = first_batch(run)
    spread: list[tuple[float, float]] = []
    hooks = []
    for layer in network.layers:
        if layer.number is not None and layer.site is not None:

            def note(_module: object, _inputs: object, output: Tensor, number: int = layer.number) -> None:
                deviation = output.detach().std(dim=(0, 2, 3), correction=0).mean()
                spread.append((number, math.log(float(deviation))))

            hooks.append(layer.module.register_forward_hook(note))
    loss = cross_entropy(network(x), y)
    for hook in hooks:
        hook.remove()
    gradient = torch.autograd.grad(loss, list(network.parameters()))
    slope = statistics.linear_regression(*zip(*spread, strict=True)).slope
    decades = slope * (spread[-1][0] - spread[0][0]) / math.log(10)
    return Initial(loss.item(), tolerance(network, gradient, x, y, loss.item()), decades)


@torch.no_grad()
def tolerance(network: Network, gradient: Sequence[Tensor], x: Tensor, y: Tensor, initial: float) -> float:
    """Return the smallest step along −∇L that brings the loss above RATIO × `initial`.

    Searches upwards by factors of 2 from a step that is tolerated, so that a later fall of the loss does not
    count; inf if no step up to 10 does it.
    """
    start = [p.detach().clone() for p in network.parameters()]

    def passes(step: float) -> bool:
        for p, w, g in zip(network.parameters(), start, gradient, strict=True):
            p.copy_(w - step * g)
        loss = cross_entropy(network(x), y).item()
        return not loss <= RATIO * initial

    low = 1e-4
    while passes(low):
        low /= 8
    while not passes(2 * low):
        low *= 2
        if low > 10:
            return math.inf
    high = 2 * low
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if passes(middle) else (middle, high)
    return math.sqrt(low * high)


def step_costs(settings: Sequence[Setting], rounds: int) -> dict[Setting, float]:
    """Return median CPU seconds of a training step with norm=bn, the settings taking turns."""
    parts = {s: first_batch(s.run("bn", 0)) for s in settings}
    optimisers = {
        s: torch.optim.SGD(parts[s][0].parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
        for s in settings
    }
    seconds: dict[Setting, list[float]] = {s: [] for s in settings}
    for round_number in range(rounds + 1):
        for setting, (network, x, y) in parts.items():
            begin = time.process_time()
            torch.autograd.backward(cross_entropy(network(x), y))
            optimisers[setting].step()
            optimisers[setting].zero_grad()
            if round_number:  # the first is a warm-up
                seconds[setting].append(time.process_time() - begin)
    return {s: statistics.median(values) for s, values in seconds.items()}


Results = dict[Setting, dict[str, list[Initial]]]


def mismatch(candidate: dict[str, list[Initial]], full: dict[str, list[Initial]]) -> float:
    """Return the mean distance of the medians in decades; see the module's docstring."""

    def medians(results: dict[str, list[Initial]]) -> list[float]:
        return [
            value
            for initials in results.values()
            for value in (
                math.log10(statistics.median(i.loss for i in initials)),
                math.log10(min(10.0, statistics.median(i.tolerance for i in initials))),
                statistics.median(i.growth for i in initials),
            )
        ]

    return statistics.mean(abs(a - b) for a, b in zip(medians(candidate), medians(full), strict=True))


def table(results: Results, full: Setting, costs: dict[Setting, float]) -> str:
    """Return the comparison as a Markdown table: medians, with the range over seeds in brackets."""

    def cell(values: list[float]) -> str:
        return f"{statistics.median(values):.2g} [{min(values):.2g}–{max(values):.2g}]"

    head = ["images", "widths", "batch", "seeds"]
    head += [f"{what}, {norm}" for what in ("initial loss", "tolerance", "growth") for norm in NORMS]
    head += ["mismatch", "step cost", "15 epochs, CPU s"]
    lines = [head, ["---"] * len(head)]
    cheapest = min(costs.values())
    for setting, by_norm in results.items():
        row = [setting.label, "/".join(map(str, setting.widths)), str(setting.batch)]
        row.append(str(len(by_norm["none"])))
        for what in ("loss", "tolerance", "growth"):
            row += [cell([getattr(i, what) for i in by_norm[norm]]) for norm in NORMS]
        row.append("0" if setting == full else f"{mismatch(by_norm, results[full]):.2f}")
        row.append(f"{costs[setting] / cheapest:.1f}")
        steps = 15 * (int(TRAINING_SHARE * 1797) // setting.batch)
        row.append("" if setting == full else f"{steps * costs[setting]:.0f}")
        lines.append(row)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(argv: Sequence[str]) -> None:
    """Measure all settings and print the table."""
    parser = Parser(prog="python -m study.bench scale", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=whole(1), default=10, help="initial networks per setting and norm")
    parser.add_argument(
        "--full-seeds", type=whole(1), help="the same for the full-size network (default: --seeds)"
    )
    parser.add_argument("--rounds", type=whole(2), default=5, help="training steps timed per setting")
    parser.add_argument("--root", default="data", help="folder that holds Fashion-MNIST")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    full = full_size(args.root)
    results: Results = {}
    for setting in (full, *CANDIDATES):
        n = args.full_seeds or args.seeds if setting == full else args.seeds
        results[setting] = {norm: [measure(setting.run(norm, s)) for s in range(n)] for norm in NORMS}
        print(f"measured {setting.label}, batch {setting.batch}, {n} seeds", flush=True)
    print(table(results, full, step_costs(list(results), args.rounds)))

"""The cost ledger of the probes: `python -m study.bench probes`.

Every cost is the probe's own, all its passes included, the training step excluded, in units of one plain
training step (forward, backward, update). Plain and probed steps alternate within one run, so that a slower
machine moves both; shown is the median of the ratios and their spread. On one CPU thread (the default) time
is the processor's, which other programs' turns do not enter; on more (--threads) it is the wall clock's.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from study.compose import compose
from study.config import DataConfig, ModelConfig, NormConfig, ProbesConfig, RunConfig
from study.data.base import ImageSet, Split
from study.models.base import build_network
from study.probes._capture import Want, layer_of
from study.probes._layers import layers_at
from study.probes.base import ProbeEngine, parse

ONE_PASS = (
    "activation_moments",
    "activation_histogram",
    "gradient_tails",
    "gradient_agreement",
    "channel_pairs",
    "logit_gradients",
    "example_gradients",
)
"""The probes of probes=init that need one pass and no other."""

CLOCK: Callable[[], float] = time.process_time

ALPHAS = 8
"""Step sizes of the benched loss_along_gradient."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of the ledger."""

    label: str
    measure: tuple[str, ...]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    limit: float | None = None
    own_pass: bool = False
    """Measured at a moment between steps, with a pass of the engine's own."""


LINES = (
    Line(
        "activation_moments: mean, variance of outputs",
        ("activation_moments",),
        {"moments": 2, "moment_sides": ("output",)},
        0.3,
    ),
    Line("activation_moments: everything", ("activation_moments",), {}, 1.1),
    Line("gradient_agreement: three layers", ("gradient_agreement",), {}, 0.3),
    Line("gradient_agreement: three layers, own pass", ("gradient_agreement",), {}, 1.4, own_pass=True),
    Line("class_gradients: one kernel, ten classes", ("class_gradients",), {}, 2.0),
    Line("class_gradients: own pass", ("class_gradients",), {}, None, own_pass=True),
    Line(f"loss_along_gradient: {ALPHAS} step sizes", ("loss_along_gradient",), {"alpha_points": ALPHAS}),
    Line("activation_histogram", ("activation_histogram",)),
    Line("gradient_tails", ("gradient_tails",)),
    Line("channel_pairs", ("channel_pairs",)),
    Line("logit_gradients", ("logit_gradients",)),
    Line("example_gradients", ("example_gradients",)),
    Line("update_path: 11 points", ("update_path",)),
    Line(
        "gradient_noise: 16 images, batches of 4 and 8",
        ("gradient_noise",),
        {"noise_subset": 16, "noise_batches": (4, 8), "noise_draws": 2},
    ),
)


class Bench:
    """A network, a batch and plain training steps."""

    def __init__(
        self, norm: NormConfig, *, depth: int, size: int, batch: int, widths: tuple[int, ...]
    ) -> None:
        self.run = RunConfig(
            data=DataConfig(name="synthetic"),
            model=ModelConfig(depth=depth, widths=widths),
            norm=norm,
            batch_size=batch,
            lr=1e-9,
        )
        draw = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, generator=draw)
        split = Split(images, torch.arange(batch) % 10)
        self.images = ImageSet(split, split, None, 10, (0.5,) * 3, (0.25,) * 3)
        self.device = torch.device("cpu")
        self.network = build_network(self.run, (3, size, size), 10)
        self.network.to(memory_format=torch.channels_last).train()
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=self.run.lr)
        self.batch = self.engine(()).probe_batch()

    def engine(self, measure: Sequence[str], **options: Any) -> ProbeEngine:
        """Return an engine whose tables go nowhere and whose failures are raised."""
        probes = ProbesConfig(measure=tuple(measure), **options)
        run = dataclasses.replace(self.run, probes=probes)
        args = (run, self.network, self.images, self.device)
        return ProbeEngine(*args, lambda name, table: None, _raise, optimizer=self.optimizer)

    def step(self, engine: ProbeEngine) -> float:
        """Do one training step; return its seconds."""
        start = CLOCK()
        images, labels = self.batch
        with engine.step(0, 0, images, labels):
            F.cross_entropy(self.network(images), labels).backward(retain_graph=engine.retain_graph)  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return CLOCK() - start

    def cost(self, extra: Callable[[], float], repeats: int) -> list[float]:
        """Return extra()/plain step, alternating. `extra` returns the seconds beyond a plain step."""
        plain = self.engine(())
        found = []
        for _ in range(repeats):
            before = self.step(plain)
            seconds = extra()
            found.append(seconds / ((before + self.step(plain)) / 2))
        return found

    def line(self, line: Line, repeats: int) -> list[float]:
        """Return the costs of one line of the ledger."""
        if line.own_pass:
            engine = self.engine([f"{x}@init" for x in line.measure], **line.options)
            return self.cost(lambda: _timed(lambda: engine.moment("init", 0, 0)), repeats)
        engine = self.engine([f"{x}@first:1" for x in line.measure], **line.options)
        plain = self.engine(())
        # A probed step less the mean of the plain ones around it.
        found = []
        for _ in range(repeats):
            before, probed, after = self.step(plain), self.step(engine), self.step(plain)
            found.append(2 * probed / (before + after) - 1)
        return found

    def materialised(self) -> float:
        """Return the seconds that Σ|d| of gradient_agreement's layers takes if every term is written out."""
        from study.probes._capture import Capture, own_pass

        names = layers_at(self.network, ProbesConfig().agreement_layers)
        capture = Capture(0, 0, "init", *self.batch, self.network, self.run)
        own_pass(self.network, [Want(w, x) for x in names for w in ("input", "output_grad")], capture)
        return _timed(
            lambda: [materialised(layer_of(self.network, x).module, *capture.pairs(x)[0]) for x in names]
        )


def materialised(module: Any, inputs: Tensor, output_grads: Tensor) -> Tensor:
    """Return Σ|d| with every d written out, one output channel at a time (out × in·height·width)."""
    columns = F.unfold(inputs, module.kernel_size, module.dilation, module.padding, module.stride)
    grads = output_grads.flatten(2)
    return torch.stack([(columns * grads[:, o, None]).abs().sum((0, 2)) for o in range(grads.shape[1])])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the ledger; return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m study.bench probes", description=__doc__)
    parser.add_argument(
        "--small", action="store_true", help="16×16 images, widths 8/16/32, batch 64: a quick look"
    )
    parser.add_argument("--depth", type=int, default=110)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--norms", nargs="+", default=["bn", "none"], choices=["bn", "none"])
    parser.add_argument("--only", default="", help="lines whose label contains this")
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    global CLOCK
    CLOCK = time.process_time if given.threads == 1 else time.perf_counter
    missed = False
    for name in given.norms:
        size: dict[str, Any] = {"size": 32, "batch": 128, "widths": (16, 32, 64)}
        if given.small:
            size = {"size": 16, "batch": 64, "widths": (8, 16, 32)}
        norm = NormConfig() if name == "bn" else NormConfig(name="none", family="none")
        bench = Bench(norm, depth=given.depth, **size)
        missed |= _ledger(bench, name, given)
    return int(missed)


def _ledger(bench: Bench, name: str, given: argparse.Namespace) -> bool:
    """Print one line per cost as it is measured; return whether a limit was missed."""
    plain = [bench.step(bench.engine(())) for _ in range(2)][-1]
    print(f"norm={name}, ResNet-{given.depth}, {given.threads} thread(s), plain step {plain:.2f} s")
    print(f"{'probe':54} {'steps':>7}  {'spread':17} limit")
    missed = False

    def add(label: str, costs: list[float], limit: float | None) -> None:
        nonlocal missed
        middle = statistics.median(costs)
        verdict = "" if limit is None else f"{limit:.2f} {'met' if middle <= limit else 'MISSED'}"
        missed |= limit is not None and middle > limit
        print(f"{label:54} {middle:7.3f}  {min(costs):6.3f} … {max(costs):6.3f}  {verdict}", flush=True)

    for line in (x for x in LINES if given.only in x.label):
        limit = line.limit
        if line.measure == ("loss_along_gradient",):
            forward = statistics.median(bench.cost(lambda: _timed(lambda: _forward(bench)), given.repeats))
            limit = ALPHAS * forward + 1.5
        add(line.label, bench.line(line, given.repeats), limit)
    others: list[tuple[str, Callable[[int], list[float]], float | None]] = [
        ("gradient_agreement: every term materialised", lambda n: bench.cost(bench.materialised, 1), None),
        ("one pass for all / the sum of separate ones", lambda n: _together(bench, n), 0.6),
        ("probes=light, whole run, excess", lambda n: _light(bench, n), 0.05),
    ]
    for label, costs, limit in others:
        if given.only in label:
            add(label, costs(given.repeats), limit)
    return missed


def _together(bench: Bench, repeats: int) -> list[float]:
    """Return the cost of the one-pass probes together over the sum of their separate costs, at init."""
    together = bench.engine([f"{x}@init" for x in ONE_PASS])
    separate = [bench.engine([f"{x}@init"]) for x in ONE_PASS]
    return [
        _timed(lambda: together.moment("init", 0, 0))
        / sum(_timed(lambda e=e: e.moment("init", 0, 0)) for e in separate)  # type: ignore[misc]
        for _ in range(repeats)
    ]


def _light(bench: Bench, repeats: int) -> list[float]:
    """Return the excess of a run with probes=light: the cost of a measured step over its period."""
    light = compose(["probes=light"]).probes
    for due in parse(light.measure):
        if due.when != "every":
            raise ValueError(f"probes=light must measure every:N, not {due}")
    period = {due.n for due in parse(light.measure)}
    if len(period) != 1:
        raise ValueError(f"probes=light must have one cadence, not {light.measure}")
    options = {"moments": light.moments, "moment_sides": light.moment_sides}
    line = Line("", tuple(due.name for due in parse(light.measure)), options)
    return [cost / period.copy().pop() for cost in bench.line(line, repeats)]


def _forward(bench: Bench) -> None:
    with torch.no_grad():
        bench.network(bench.batch[0])


def _timed(what: Callable[[], Any]) -> float:
    start = CLOCK()
    what()
    return CLOCK() - start


def _raise(name: str, step: int, text: str) -> None:
    raise RuntimeError(f"probe {name} failed at step {step}:\n{text}")


if __name__ == "__main__":
    raise SystemExit(main())

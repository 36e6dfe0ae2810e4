"""The cost ledger of the probes: `python -m study.bench probes`.

Every cost is the probe's own, all its passes included, the training step excluded, in units of one plain
training step (forward, backward, update). "In the step": measured on the training batch, whose own forward
and backward pass the probe watches; "own pass": between steps, with a pass of the engine's own, which counts.
Plain and probed steps alternate within one run, so that a slower machine moves both; shown is the median of
the ratios and their spread. On one CPU thread (the default) time is the processor's, which other programs'
turns do not enter; on more (--threads) it is the wall clock's. The run with probes=light is composed of its
steps (--whole does them all).

The limits are for ResNet-110 at full size; a small network (--quick) pays relatively more for each operation.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional as F

from study.arguments import Parser, whole
from study.compose import compose
from study.config import DataConfig, ModelConfig, NormConfig, ProbesConfig, RunConfig
from study.data.base import ImageSet, Split
from study.models.base import build_network
from study.probes._capture import Want, layer_of
from study.probes._layers import layers_at
from study.probes.base import ProbeEngine, Write, parse
from study.records import write_table

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
    Line("gradient_agreement: three layers, in the step", ("gradient_agreement",), {}, 0.3),
    Line("gradient_agreement: three layers, own pass", ("gradient_agreement",), {}, 1.4, own_pass=True),
    Line("class_gradients: layer 52, ten logits, in the step", ("class_gradients",), {}, 2.0),
    Line(f"loss_along_gradient: {ALPHAS} step sizes", ("loss_along_gradient",), {"alpha_points": ALPHAS}),
)
"""Those with a limit."""

MORE_LINES = (
    Line("class_gradients: layer 52, ten logits, own pass", ("class_gradients",), own_pass=True),
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
    Line("sharpness: one eigenvalue on 64 images", ("sharpness",)),
)


TOGETHER = "one pass for all / the sum of separate ones"
TERMS = "gradient_agreement: every term materialised"
LIGHT = "probes=light / probes=none, whole run"
"""Lines that are no single probe's."""


def _nowhere(name: str, table: pa.Table) -> None:
    """Take a table and forget it."""


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
        self.plain = self.engine(())
        self.batch = self.plain.probe_batch()
        self.latest = 0.0
        """Seconds of the latest plain step that `cost` took."""

    def engine(self, measure: Sequence[str], write: Write = _nowhere, **options: Any) -> ProbeEngine:
        """Return an engine whose failures are raised."""
        probes = ProbesConfig(measure=tuple(measure), **options)
        run = dataclasses.replace(self.run, probes=probes)
        args = (run, self.network, self.images, self.device)
        return ProbeEngine(*args, write, _raise, optimizer=self.optimizer)

    def step(self, engine: ProbeEngine, number: int = 0) -> float:
        """Do one training step; return its seconds."""
        start = CLOCK()
        images, labels = self.batch
        with engine.step(number, 0, images, labels):
            F.cross_entropy(self.network(images), labels).backward(retain_graph=engine.retain_graph)  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return CLOCK() - start

    def cost(self, extra: Callable[[], float], repeats: int) -> list[float]:
        """Return extra()/plain step, plain steps before and after each. `extra` returns its seconds."""
        found = []
        self.latest = self.latest or self.step(self.plain)
        for _ in range(repeats):
            before, seconds = self.latest, extra()
            self.latest = self.step(self.plain)
            found.append(2 * seconds / (before + self.latest))
        return found

    def line(self, line: Line, repeats: int) -> list[float]:
        """Return the costs of one line of the ledger."""
        if line.own_pass:
            engine = self.engine([f"{x}@init" for x in line.measure], **line.options)
            return self.cost(lambda: _timed(lambda: engine.moment("init", 0, 0)), repeats)
        engine = self.engine([f"{x}@first:1" for x in line.measure], **line.options)
        return [cost - 1 for cost in self.cost(lambda: self.step(engine), repeats)]

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
    """Print the ledger; return 1 if a limit is missed at full size."""
    parser = Parser(prog="python -m study.bench probes", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="ResNet-20, 16×16 images, widths 8/16/32, batch 64: whether it runs, in a minute",
    )
    parser.add_argument("--depth", type=whole(0), default=0, help="default 110, with --quick 20")
    parser.add_argument("--repeats", type=whole(1), default=3)
    parser.add_argument("--threads", type=whole(1), default=1)
    parser.add_argument("--norms", nargs="+", default=["bn", "none"], choices=["bn", "none"])
    parser.add_argument(
        "--whole", action="store_true", help="probes=light: do every step of both runs (100 steps a norm)"
    )
    parser.add_argument("--only", default="", help="lines whose label contains this")
    given = parser.parse_args(argv)
    labels = [x.label for x in (*LINES, *MORE_LINES)] + [TOGETHER, TERMS, LIGHT]
    if not any(given.only in label for label in labels):
        parser.error(f"--only {given.only}: no line's label contains it")
    torch.set_num_threads(given.threads)
    global CLOCK
    CLOCK = time.process_time if given.threads == 1 else time.perf_counter
    missed = False
    for name in given.norms:
        size: dict[str, Any] = {"size": 32, "batch": 128, "widths": (16, 32, 64)}
        if given.quick:
            size = {"size": 16, "batch": 64, "widths": (8, 16, 32)}
        norm = NormConfig() if name == "bn" else NormConfig(name="none", family="none")
        bench = Bench(norm, depth=given.depth or (20 if given.quick else 110), **size)
        missed |= _ledger(bench, name, given)
    return int(missed and not given.quick)


def _ledger(bench: Bench, name: str, given: argparse.Namespace) -> bool:
    """Print one line per cost as it is measured; return whether a limit was missed."""
    warm_up = bench.engine([f"{x}@first:1" for x in ONE_PASS])
    plain = [bench.step(engine) for engine in (warm_up, bench.plain)][-1]
    print(f"norm={name}, {_title(bench)}, {given.threads} thread(s), plain step {plain:.2f} s")
    print(f"{'probe':54} {'steps':>7}  {'spread':17} limit")
    missed = False

    def add(label: str, costs: list[float], limit: float | None) -> None:
        nonlocal missed
        middle = statistics.median(costs)
        verdict = "" if limit is None else f"{limit:.2f} {'met' if middle <= limit else 'MISSED'}"
        missed |= limit is not None and middle > limit
        print(f"{label:54} {middle:7.3f}  {min(costs):6.3f} … {max(costs):6.3f}  {verdict}", flush=True)

    def add_lines(lines: Sequence[Line]) -> None:
        for line in (x for x in lines if given.only in x.label):
            limit = line.limit
            if line.measure == ("loss_along_gradient",):
                forward = bench.cost(lambda: _timed(lambda: _forward(bench)), given.repeats)
                limit = ALPHAS * statistics.median(forward) + 1.5
            add(line.label, bench.line(line, given.repeats), limit)

    def add_ratio(label: str, costs: Callable[[], list[float]], limit: float | None = None) -> None:
        if given.only in label:
            add(label, costs(), limit)

    add_lines(LINES)
    add_ratio(TOGETHER, lambda: _together(bench, given.repeats), 0.6)
    add_ratio(TERMS, lambda: bench.cost(bench.materialised, 1))
    add_lines(MORE_LINES)
    add_ratio(LIGHT, lambda: _light(bench, given.repeats, given.whole), 1.05)
    print(f"in one pass: {', '.join(ONE_PASS)}")
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


def _light(bench: Bench, repeats: int, whole: bool) -> list[float]:
    """Return the time of a run with probes=light over that of one without; each table is written to disk.

    The run is as long as the probes' cadence. Composed from what a step at which they are due costs, and what
    the engine costs at the others, which differ from plain steps by nothing else; or, if `whole`, with every
    step of both runs done, in turns.
    """
    light = compose(["probes=light"]).probes
    options = {f.name: getattr(light, f.name) for f in dataclasses.fields(light)}
    measure, _ = options.pop("measure"), options.pop("name")
    (period,) = {due.n for due in parse(measure)}
    with tempfile.TemporaryDirectory() as folder:
        engine = bench.engine(
            measure, lambda name, table: write_table(Path(folder, f"{name}.parquet"), table), **options
        )
        if whole:
            steps = [(bench.step(engine, n), bench.step(bench.plain, n)) for n in range(period)]
            return [sum(a for a, _ in steps) / sum(b for _, b in steps)]
        due = bench.cost(lambda: bench.step(engine), repeats)
        others = _timed(lambda: _idle(engine, bench, period - 1)) / bench.latest
        return [1 + (extra - 1 + others) / period for extra in due]


def _idle(engine: ProbeEngine, bench: Bench, steps: int) -> None:
    """Go through the engine as at `steps` steps at which nothing is due."""
    for n in range(1, steps + 1):
        with engine.step(n, 0, *bench.batch):
            pass


def _title(bench: Bench) -> str:
    run = bench.run
    widths, side = "/".join(map(str, run.model.widths)), bench.images.shape[1]
    return f"ResNet-{run.model.depth}, widths {widths}, {side}×{side}×3, batch {run.batch_size}"


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

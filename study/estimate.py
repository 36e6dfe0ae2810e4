"""What a sweep costs on a GPU, from counted operations: `python -m study.estimate NAME [scale=paper …]`.

Estimates, never measurements: one training step of each distinct network is traced without memory (device
"meta"), forward, backward and update, and every operation is charged the longest of

    arithmetic   its floating-point operations ÷ (SHARE_OF_PEAK × the GPU's fp32 peak without tensor cores)
    memory       bytes of the tensors it reads and writes ÷ (SHARE_OF_BANDWIDTH × bandwidth)
    launching    LAUNCH seconds, since eager torch submits one kernel at a time

Added: the test set after every epoch, the training set at the end. Not counted: data, probes, starting. Where
launching decides, as with ResNet-110 on 32×32 images, several trials at once on one GPU cost little more than
one.
"""

import contextlib
import dataclasses
import math
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from study import pipes
from study.arguments import Parser, counted, whole
from study.config import RunConfig
from study.errors import StudyError
from study.launch.cost import duration

if TYPE_CHECKING:
    from study.launch.slurm import Options

SHARE_OF_PEAK = 0.4
"""Of a convolution's fp32 peak that cuDNN reaches on 16 to 64 channels: assumed, an optimist's figure."""
SHARE_OF_BANDWIDTH = 0.7
LAUNCH = 6e-6
"""Seconds from one kernel to the next, of eager torch on a usual host: assumed."""


@dataclass(frozen=True)
class Gpu:
    """A GPU's data sheet."""

    flops: float
    """fp32 without tensor cores (TF32 is off), operations a second."""
    bandwidth: float
    """Bytes a second."""


GPUS = {"a100": Gpu(19.5e12, 2.0e12), "h100": Gpu(67e12, 3.35e12)}
"""A100 SXM 80 GB and H100 SXM 80 GB."""

SIZES = {"cifar10": (3, 32, 50_000, 10_000), "cifar100": (3, 32, 50_000, 10_000),
         "fashion_mnist": (1, 28, 60_000, 10_000), "mnist": (1, 28, 60_000, 10_000),
         "digits": (1, 8, 1_500, 297), "synthetic": (1, 8, 512, 256)}  # fmt: skip
"""Channels, side (pixels), training and test images of data sets, so that none has to be loaded."""


@dataclass(frozen=True)
class Step:
    """One training step, counted."""

    forward: "Counter[tuple[float, float]]"
    """(Floating-point operations, bytes) of an operation → how many of them the forward pass has."""
    rest: "Counter[tuple[float, float]]"
    """The same for backward pass and update."""

    @property
    def kernels(self) -> int:
        """Operations of the whole step."""
        return sum(self.forward.values()) + sum(self.rest.values())

    @property
    def flops(self) -> float:
        """Floating-point operations of the whole step, two for a multiplication and an addition."""
        return sum(f * n for costs in (self.forward, self.rest) for (f, _), n in costs.items())

    def seconds(self, gpu: Gpu) -> float:
        """Return the estimated time of the step."""
        return _time(self.forward, gpu) + _time(self.rest, gpu)

    def evaluation(self, gpu: Gpu) -> float:
        """Return the estimated time of evaluating as many images as a step has."""
        return _time(self.forward, gpu)


def _time(costs: "Counter[tuple[float, float]]", gpu: Gpu) -> float:
    arithmetic, memory = SHARE_OF_PEAK * gpu.flops, SHARE_OF_BANDWIDTH * gpu.bandwidth
    return sum(n * max(flops / arithmetic, moved / memory, LAUNCH) for (flops, moved), n in costs.items())


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what every operation computes and moves; views cost nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.costs: Counter[tuple[float, float]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.is_view or func.overloadpacket in FREE:
            return out
        tensors = [x for x in (*tree_leaves((args, kwargs)), *tree_leaves(out)) if isinstance(x, Tensor)]
        count = flop_registry.get(func.overloadpacket)
        flops = float(count(*args, **(kwargs or {}), out_val=out)) if count else 0.0
        self.costs[flops, float(sum(t.numel() * t.element_size() for t in tensors))] += 1
        return out


FREE = frozenset({torch.ops.aten.detach, torch.ops.aten.empty, torch.ops.aten.empty_like})
"""Operations that start no kernel."""


def count_step(run: RunConfig) -> Step:
    """Trace one training step of a run at its full batch size; takes no memory for activations.

    A norm that decides by values (statistics of every other batch) cannot be traced: bn stands for it.
    """
    from study.models.base import structure

    if run.norm.source == "periodic":
        run = dataclasses.replace(run, norm=dataclasses.replace(run.norm, source="batch"))

    channels, side, _, _ = _shape(run)
    network: nn.Module = structure(run, (channels, side, side), 10, device="meta").to("meta").train()
    images = torch.empty(run.batch_size, channels, side, side, device="meta")
    labels = torch.empty(run.batch_size, dtype=torch.int64, device="meta")
    with _Counter() as forward:
        loss = F.cross_entropy(network(images), labels)
    with _Counter() as rest:
        loss.backward()  # type: ignore[no-untyped-call]
    update = Counter({(0.0, 20.0 * sum(p.numel() for p in network.parameters())): 1})  # fused: w, g, momentum
    return Step(forward.costs, rest.costs + update)


def seconds(run: RunConfig, step: Step, gpu: Gpu) -> float:
    """Return the estimated time of a whole run: its steps, and the test set after every epoch."""
    _, _, n_train, n_test = _shape(run)
    n_train = run.data.subset or n_train
    n_train -= round(run.data.validation * n_train)
    steps, tested = n_train // run.batch_size, math.ceil(n_test / run.batch_size)
    last = steps * step.evaluation(gpu)  # the training images, once, at the end
    return run.epochs * (steps * step.seconds(gpu) + tested * step.evaluation(gpu)) + last


def _shape(run: RunConfig) -> tuple[int, int, int, int]:
    """Channels, side, training and test images of a run's data set."""
    if run.data.name not in SIZES:
        raise StudyError(f"data={run.data.name}: its size is not known beforehand; give data=cifar10, say")
    channels, side, n_train, n_test = SIZES[run.data.name]
    return run.data.channels or channels, run.data.size or side, n_train, n_test


def table(runs: Iterable[RunConfig], each: int = 1) -> str:
    """Return one line per kind of run, and the sum; `each` runs stand behind every one (a search's)."""
    kinds: dict[tuple[Any, ...], list[RunConfig]] = {}
    for run in runs:
        key = (run.model, run.norm, run.data, run.batch_size, run.epochs)
        kinds.setdefault(key, []).append(run)
    lines = ["GFLOP/step  kernels  " + "  ".join(f"{g} ms/step  {g} a run" for g in GPUS) + "  runs  network"]
    total = dict.fromkeys(GPUS, 0.0)
    for alike in kinds.values():
        run, n = alike[0], len(alike) * each
        step = count_step(run)
        cells = []
        for name, gpu in GPUS.items():
            whole = seconds(run, step, gpu)
            total[name] += whole * n
            cells += [f"{1e3 * step.seconds(gpu):{len(name) + 8}.1f}", f"{_said(whole):>{len(name) + 6}}"]
        what = (
            f"{run.model.name}{run.model.depth} {run.norm.name}, batch {run.batch_size}, {run.epochs} epochs"
        )
        lines.append(f"{step.flops / 1e9:10.1f}  {step.kernels:7d}  {'  '.join(cells)}  {n:4d}  {what}")
    sums = ", ".join(f"{_said(t)} on one {name}" for name, t in total.items())
    return "\n".join([*lines, f"all of them, one after another: {sums}"])


def _said(seconds: float) -> str:
    """As `duration`, which knows no part of a second."""
    return duration(seconds) if seconds >= 0.5 else f"{seconds:.1g} s"


def assumptions() -> str:
    """Return what the estimate takes for granted, in words."""
    sheets = "; ".join(
        f"{name} {g.flops / 1e12:g} TFLOP/s fp32, {g.bandwidth / 1e12:g} TB/s" for name, g in GPUS.items()
    )
    return (
        f"estimated, never run: each operation takes the longest of its arithmetic at {SHARE_OF_PEAK:.0%} of "
        f"the peak, its memory traffic at {SHARE_OF_BANDWIDTH:.0%} of the bandwidth, and {1e6 * LAUNCH:g} µs "
        f"({sheets}); no diverged run counted as short"
    )


def scripts(runs: Sequence[RunConfig], overrides: Sequence[str], limit: int = 1000) -> str:
    """Return the sbatch scripts that a launch with hydra/launcher=slurm would send; sends nothing.

    One for each job array, at most `limit` tasks an array. The command in them is submitit's; where jobs keep
    their files is known only once they are sent. Says so first where runs that want a GPU would get none: how
    one is asked for differs from cluster to cluster, so that the launcher does not do it by itself.
    """
    from study.compose import by_hydra_launcher
    from study.launch import slurm
    from study.launch.plan import make_plan

    _, values = by_hydra_launcher(["hydra/launcher=slurm", *overrides])
    options = slurm.options(**values)
    texts = [NO_GPU] if _wants_gpu(runs) and not _asks_for_gpu(options) else []
    with _srun_for_submitit():
        for tasks in slurm.packs(make_plan(runs).todo, options, limit):
            folder = Path(tasks[0][0].config.runs_dir) / "JOB"
            made = slurm.executor(folder, f"{options.job_name}-{tasks[0][0].config.sweep}", options)
            text = made._make_submission_file_text("COMMAND", "ID")
            n = f"{counted(len(tasks), 'task')}, {counted(sum(map(len, tasks)), 'trial')}"
            texts.append(f"# array of {n}: --array=0-{len(tasks) - 1}\n{text}")
    return "\n".join(texts)


NO_GPU = (
    "# no GPU is asked for, so that these runs may compute on a CPU: add hydra.launcher.gpus=1 "
    "(or hydra.launcher.gres=…, as the cluster has it)"
)


def _wants_gpu(runs: Sequence[RunConfig]) -> bool:
    return any(r.device.startswith("cuda") or (r.scale == "paper" and r.device == "auto") for r in runs)


def _asks_for_gpu(options: "Options") -> bool:
    flags = any(flag.startswith(("--gpu", "--gres")) for flag in options.extra)
    return bool(options.gpus or options.gres or flags)


@contextlib.contextmanager
def _srun_for_submitit() -> Iterator[None]:
    """Let submitit write scripts on a machine without SLURM: it only asks whether there is an srun."""
    if shutil.which("srun"):
        yield
        return
    path = os.environ.get("PATH", "")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "srun").touch(mode=0o755)
        os.environ["PATH"] = os.pathsep.join([folder, path])
        try:
            yield
        finally:
            os.environ["PATH"] = path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    from study.sweep import plan_of, read_sweep

    args = _parser().parse_intermixed_args(argv)
    try:
        hydra = [x for x in args.overrides if x.startswith("hydra")]
        plan = plan_of(read_sweep(args.file), [x for x in args.overrides if x not in hydra])
        runs = [trial.config for trial in plan.trials]
        if not runs:
            raise StudyError(f"{args.file.stem} with these settings has no runs: a list of values is empty")
        each = args.each or _runs_behind(args.file.stem)
        print(table(runs, each))
        if not args.each and each > 1:
            print(f"{args.file.stem} is a search: {each} runs, the most it makes, behind each of {len(runs)}")
        print(assumptions())
        if args.scripts:
            print(f"\n{scripts(runs, hydra)}")
    except StudyError as error:
        print(f"study.estimate: {error}", file=sys.stderr)
        return 2
    return 0


def _runs_behind(sweep: str) -> int:
    """How many runs each one of a sweep stands for: of a search, as many as it makes at most."""
    from study.parts import PARTS, RUNS_A_SEARCH

    return RUNS_A_SEARCH if any(part.name == sweep and part.search for part in PARTS) else 1


def _parser() -> Parser:
    from study.sweep import sweep_file

    parser = Parser(
        prog="python -m study.estimate", description="Estimate what a sweep costs on a GPU; starts nothing."
    )
    parser.add_argument("file", type=sweep_file, metavar="NAME", help="NAME, or sweeps/NAME.yaml")
    parser.add_argument("overrides", nargs="*", help="settings on top of the file's, as in scale=paper")
    parser.add_argument(
        "--each", type=whole(1), help="runs behind each one (1; of a search, the most it makes)"
    )
    parser.add_argument("--scripts", action="store_true", help="print the sbatch scripts that would be sent")
    return parser


if __name__ == "__main__":
    pipes.run(main)

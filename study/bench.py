"""What things cost: `python -m study.bench [PART …]`, each a ratio measured in one process or in turns.

Parts: step input launcher startup (all of them without a PART), and the longer norms probes scale planning.
Each ratio comes from alternating repetitions and is printed with its spread (10th to 90th percentile) and
whether its median is within its limit. What follows the last PART goes to that ledger, as in
`python -m study.bench step norms --steps 0` or `python -m study.bench probes --help`.
"""

import importlib
import math
import subprocess
import sys
import tempfile
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from study import pipes
from study.arguments import Parser
from study.compose import compose
from study.data.base import ImageSet, Split
from study.data.batches import EpochBatches
from study.data.loading import load
from study.errors import StudyError
from study.launch import machine
from study.paths import run_dirs
from study.ratios import paired, seconds, spread
from study.records import read_record
from study.state import TrainState
from study.train import Row, train

LAPTOP = ["scale=laptop", "device=cpu", "threads=1"]


class _Steps:
    """Events as a run has them between checkpoints: rows are buffered, clocks looked at, nothing written."""

    def __init__(self, state: TrainState, steps: int) -> None:
        self.state, self.steps = state, steps
        self.buffer: list[Row] = []

    def rows(self, rows: list[Row]) -> None:
        self.buffer += rows

    def progress(self, loss: float, accuracy: float) -> None:
        time.monotonic()

    def checkpoint_due(self) -> bool:
        return time.monotonic() < 0

    def checkpoint(self) -> None: ...

    def stop(self) -> bool:
        return self.state.step >= self.steps


def bench_step(repetitions: int = 50, steps: int = 8, settings: Sequence[str] = LAPTOP) -> bool:
    """(a) A training step of the harness against a bare loop over the same model, data and optimiser.

    Without checkpoints: there is one every `checkpoint_seconds`, however long a step takes.
    """
    config = compose(settings)
    device = torch.device("cpu")
    torch.set_num_threads(1)
    images = load(config.data, device)
    ours, bare = TrainState(config, images, device), TrainState(config, images, device)
    batches = ours.epoch_batches(0)
    x = torch.cat([batches.batch(i)[0] for i in range(len(batches))]).contiguous(
        memory_format=torch.channels_last
    )
    y = torch.cat([batches.batch(i)[1] for i in range(len(batches))])
    size = config.batch_size
    optimizer = torch.optim.SGD(
        bare.network.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay, fused=True
    )

    def harness() -> None:
        ours.step = 0
        ours.monitor.diverged_step = None
        train(ours, _Steps(ours, steps))

    def loop() -> None:
        for i in range(steps):
            loss = F.cross_entropy(bare.network(x[i * size : (i + 1) * size]), y[i * size : (i + 1) * size])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    ratio = paired(harness, loop, repetitions)
    return _told("training step, harness ÷ bare PyTorch loop", ratio, ratio.median, most=1.03)


def bench_input(repetitions: int = 7, n: int = 2048, workers: Sequence[int] = (0, 2)) -> bool:
    """(b) Crop, flip and standardise CIFAR-shaped images, against torchvision under a DataLoader."""
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.arange(n) % 10
    mean, std = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
    config = compose(["data=cifar10", "data.crop_padding=4", "data.flip=true", "batch_size=128"])
    split = Split(pixels, labels)
    images = ImageSet(train=split, test=split, validation=None, n_classes=10, mean=mean, std=std)
    arrays = pixels.permute(0, 2, 3, 1).contiguous().numpy()
    change = transforms.Compose(
        [
            transforms.RandomCrop(32, 4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ]
    )

    class Pictures(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return n

        def __getitem__(self, i: int) -> Any:
            return change(Image.fromarray(arrays[i])), int(labels[i])

    def ours() -> None:
        batches = EpochBatches(config, images, 0)
        for i in range(len(batches)):
            batches.batch(i)

    met = True
    for number in workers:
        loader = DataLoader(
            Pictures(), 128, shuffle=True, drop_last=True, num_workers=number, persistent_workers=number > 0
        )
        ratio = paired(lambda loader=loader: list(loader), ours, repetitions)  # type: ignore[misc]
        label = f"input per image, torchvision ({number} workers) ÷ ours"
        met &= _told(label, ratio, ratio.median, least=20)
    return met


SERIAL = """
import hydra, sys
from study.compose import CONF
from study.config import from_mapping
from study.execute import execute
from omegaconf import OmegaConf

@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def task(cfg):
    mapping = OmegaConf.to_container(cfg, resolve=True)
    mapping.pop("from")
    execute(from_mapping(mapping))

task()
"""
"""The grid as a user of Hydra alone would run it: its own sweeper and its own launcher, one run at a time."""


def bench_launcher(repetitions: int = 3, settings: Sequence[str] = ("epochs=2",)) -> bool:
    """(c) Six equal trials under the local launcher against Hydra's serial launcher with all cores."""
    cores = machine.cores()
    ratios, ideals = [], []
    for repetition in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            common = [*settings, "device=cpu"]
            grid = ["-m", "seed=0,1,2,3,4,5", *common]
            ours = ["-m", "study.run", *grid, f"runs_dir={folder}/local"]
            basic = ["hydra/launcher=basic", "hydra/sweeper=basic", f"hydra.sweep.dir={folder}"]
            own = [*basic, f"threads={cores}", f"runs_dir={folder}/serial"]
            theirs = ["-c", SERIAL, *grid, *own]
            if repetition % 2:  # in turns, so that neither always finds the caches warm
                serial, local = _python(*theirs), _python(*ours)
            else:
                local, serial = _python(*ours), _python(*theirs)
            _python("-m", "study.run", *common, f"runs_dir={folder}/alone")
            alone = read_record(run_dirs(Path(folder) / "alone")[0])
            assert alone is not None
            ratios.append(local / serial)
            ideals.append(alone["seconds"] * math.ceil(6 / cores) / serial)
    ratio = spread(ratios)
    met = _told("six trials, local launcher ÷ Hydra's serial launcher", ratio, ratio.median, most=0.90)
    _told("    ideal (perfect overlap of one-thread trials)", spread(ideals), 0.0)
    return met


def bench_startup(trials: int = 9, scales: Sequence[str] = ("smoke", "laptop")) -> bool:
    """(d) Wall time from the end of one trial to that of the next; they only build, record and end."""
    met = True
    for scale in scales:
        with tempfile.TemporaryDirectory() as folder:
            fixed = ["epochs=0", f"scale={scale}", "device=cpu", "hydra.launcher.workers=1"]
            seeds = f"seed={','.join(map(str, range(trials)))}"
            _python("-m", "study.run", "-m", seeds, *fixed, f"runs_dir={folder}")
            ends = sorted(run.record.stat().st_mtime for run in run_dirs(Path(folder)))
        each = spread([b - a for a, b in pairwise(ends)])
        met &= _told(f"start-up per trial after the first, scale={scale}, s", each, each.median, most=0.5)
    return met


def _python(*arguments: str) -> float:
    """Run a Python of its own quietly; return its wall time in seconds."""
    command = [sys.executable, *arguments]
    return seconds(lambda: subprocess.run(command, check=True, capture_output=True, text=True))


def _told(
    label: str, shown: object, value: float, *, most: float = math.inf, least: float = -math.inf
) -> bool:
    """Print one line with its limit and verdict; return whether the value is within its limit."""
    met = least <= value <= most
    limit = f"at most {most:g}" if most < math.inf else f"at least {least:g}"
    verdict = "" if math.isinf(most) and math.isinf(least) else f"{limit}: {'met' if met else 'MISSED'}"
    print(f"{label + ':':54} {shown!s:28} {verdict}".rstrip(), flush=True)
    return met


PARTS: dict[str, Callable[[], bool]] = {
    "step": bench_step,
    "input": bench_input,
    "launcher": bench_launcher,
    "startup": bench_startup,
}
"""What `python -m study.bench` alone prints; each returns whether its limits are met."""
LONGER = ("norms", "probes", "scale", "planning")
"""Parts with a module and options of their own: study/bench_NAME.py."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the costs of the named parts (default: PARTS); return 1 if a limit is missed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    n = next((i for i, word in enumerate(given) if word not in {*PARTS, *LONGER}), len(given))
    parts, options = given[:n], given[n:]
    if not parts or parts[-1] not in LONGER:
        _refuse(options)
    missed = False
    try:
        for i, part in enumerate(parts or PARTS, start=1):
            if part in PARTS:
                missed |= not PARTS[part]()
            else:
                ledger = importlib.import_module(f"study.bench_{part}").main
                missed |= bool(ledger(options if i == len(parts) else []))
    except StudyError as error:
        print(f"study.bench: {error}", file=sys.stderr)
        return 2
    if not parts:
        print(f"longer ledgers, with options of their own: python -m study.bench {'|'.join(LONGER)} [--help]")
    return int(missed)


def _refuse(options: Sequence[str]) -> None:
    """Print help where it is asked for; any other word is a mistake."""
    parser = Parser(
        prog="python -m study.bench", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", choices=[[], *PARTS, *LONGER], help=", ".join([*PARTS, *LONGER])
    )
    parser.parse_args(options)


if __name__ == "__main__":
    pipes.run(main)

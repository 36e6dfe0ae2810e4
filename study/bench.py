"""What things cost: `python -m study.bench [PART …]`, each a ratio measured in one process or in turns.

Parts: step input launcher startup norms probes scale. Absolute times mean little on a shared machine; each
ratio comes from alternating repetitions and is printed with its spread (10th to 90th percentile).
"""

import argparse
import importlib
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from study.compose import compose
from study.data.base import ImageSet, Split
from study.data.batches import EpochBatches
from study.data.loading import load
from study.launch import machine
from study.paths import run_dirs
from study.records import read_record
from study.state import TrainState
from study.train import Row, train

LAPTOP = ["scale=laptop", "device=cpu", "threads=1"]


class Ratio(NamedTuple):
    """Median of paired ratios and their 10th and 90th percentiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f}  ({self.low:.3f} to {self.high:.3f})"


def paired(ours: Callable[[], Any], theirs: Callable[[], Any], repetitions: int) -> Ratio:
    """Time two actions in turns, swapping who goes first; return ours ÷ theirs. A first pair is warm-up."""
    ratios = []
    for i in range(repetitions + 1):
        first, second = (ours, theirs) if i % 2 else (theirs, ours)
        a, b = seconds(first), seconds(second)
        ratios.append(a / b if i % 2 else b / a)
    return spread(ratios[1:])


def spread(ratios: Sequence[float]) -> Ratio:
    """Summarise repeated measurements of one ratio."""
    ordered = sorted(ratios)
    last = len(ordered) - 1
    return Ratio(statistics.median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)])


def seconds(action: Callable[[], Any]) -> float:
    """Time one call, the GPU's work included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


class _Steps:
    """Events that end the loop after a number of steps and record nothing."""

    def __init__(self, state: TrainState, steps: int) -> None:
        self.state, self.steps = state, steps

    def rows(self, rows: list[Row]) -> None: ...

    def progress(self, loss: float, accuracy: float) -> None: ...

    def checkpoint_due(self) -> bool:
        return False

    def checkpoint(self) -> None: ...

    def stop(self) -> bool:
        return self.state.step >= self.steps


def bench_step(repetitions: int = 10, steps: int = 8) -> None:
    """(a) A training step of the harness against a bare loop over the same model, data and optimiser."""
    config = compose(LAPTOP)
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
    print(f"training step, harness ÷ bare PyTorch loop:      {ratio}   limit 1.03")


def bench_input(repetitions: int = 7, n: int = 2048) -> None:
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

    for workers in (0, 2):
        loader = DataLoader(
            Pictures(), 128, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
        )
        ratio = paired(lambda loader=loader: list(loader), ours, repetitions)  # type: ignore[misc]
        print(f"input per image, torchvision ({workers} workers) ÷ ours: {ratio}   at least 20")


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


def bench_launcher(repetitions: int = 2, epochs: int = 2) -> None:
    """(c) Six equal trials under the local launcher against Hydra's serial launcher with all cores."""
    cores = machine.cores()
    ratios, ideals = [], []
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            common = [f"epochs={epochs}", "device=cpu"]
            grid = ["-m", "seed=0,1,2,3,4,5", *common]
            local = _python("-m", "study.run", *grid, f"runs_dir={folder}/local")
            basic = ["hydra/launcher=basic", "hydra/sweeper=basic", f"hydra.sweep.dir={folder}"]
            settings = [*basic, f"threads={cores}", f"runs_dir={folder}/serial"]
            serial = _python("-c", SERIAL, *grid, *settings)
            _python("-m", "study.run", *common, f"runs_dir={folder}/alone")
            alone = read_record(run_dirs(Path(folder) / "alone")[0])
            assert alone is not None
            ratios.append(local / serial)
            ideals.append(alone["seconds"] * math.ceil(6 / cores) / serial)
    print(f"six trials, local launcher ÷ Hydra's serial launcher: {spread(ratios)}   limit 0.90")
    print(f"    ideal (perfect overlap of one-thread trials):     {spread(ideals)}")


def bench_startup(trials: int = 9) -> None:
    """(d) Wall time per further trial that only builds, records and ends, one at a time."""
    for scale in ("smoke", "laptop"):
        with tempfile.TemporaryDirectory() as folder:
            fixed = ["epochs=0", f"scale={scale}", "device=cpu", "hydra.launcher.workers=1"]
            times = {}
            for n in (1, trials):
                seeds = f"seed={','.join(map(str, range(n)))}"
                times[n] = _python("-m", "study.run", "-m", seeds, *fixed, f"runs_dir={folder}/{n}")
        each = (times[trials] - times[1]) / (trials - 1)
        print(f"start-up per trial after the first, scale={scale}: {each:.3f} s   limit 0.5 s")


def _python(*arguments: str) -> float:
    """Run a Python of its own quietly; return its wall time in seconds."""
    command = [sys.executable, *arguments]
    return seconds(lambda: subprocess.run(command, check=True, capture_output=True, text=True))


PARTS: dict[str, Callable[[], None]] = {
    "step": bench_step,
    "input": bench_input,
    "launcher": bench_launcher,
    "startup": bench_startup,
}
LONGER = ("norms", "probes", "scale")
"""Parts with a module and options of their own: study/bench_NAME.py."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the costs of the named parts (default: step, input, launcher, startup)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in LONGER:
        importlib.import_module(f"study.bench_{given[0]}").main(given[1:])
        return
    parser = argparse.ArgumentParser(prog="python -m study.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS, *LONGER], help="what to measure")
    for part in parser.parse_args(given).parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()

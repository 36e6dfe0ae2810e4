"""What this machine has room for: cores, or GPUs, and which trial gets which."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from study.config import RunConfig

if TYPE_CHECKING:
    from study.launch.plan import Trial


DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""One of them exists wherever a driver for CUDA, ROCm or WSL is loaded."""


@dataclass(frozen=True)
class Place:
    """What one trial holds while it runs."""

    cores: int
    gpu: str | None
    """Value of CUDA_VISIBLE_DEVICES; None where the trial keeps the launcher's."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if not any(Path(device).exists() for device in DEVICE_FILES):
        return []  # torch would say the same, but its import takes seconds
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    return names[: torch.cuda.device_count()]


def at_once(trials: Sequence["Trial"], workers: int) -> int:
    """Return how many of the trials run at once."""
    if not trials:
        return 0
    if workers:
        return min(workers, len(trials))
    found = _gpus_for(trials)
    threads = max(t.config.threads for t in trials)
    return min(len(trials), len(found) or max(1, cores() // threads))


class Room:
    """Hands out places. With `workers` given, that many; else one per GPU, or as many as the cores allow."""

    def __init__(self, trials: Sequence["Trial"], workers: int) -> None:
        self.workers = workers
        self.gpus = _gpus_for(trials)
        self.free_gpus = list(self.gpus)
        self.taken: list[Place] = []

    def take(self, config: RunConfig) -> Place | None:
        """Return a place for a trial, or None while there is none."""
        gpu: str | None = None
        if self.workers:
            if len(self.taken) >= self.workers:
                return None
            if self.gpus and _may_use_gpu(config):
                gpu = min(self.gpus, key=lambda g: sum(p.gpu == g for p in self.taken))
        elif self.gpus and _may_use_gpu(config):
            if not self.free_gpus:
                return None
            gpu = self.free_gpus.pop(0)
        elif self.taken and sum(p.cores for p in self.taken) + config.threads > cores():
            return None
        place = Place(config.threads, gpu)
        self.taken.append(place)
        return place

    def give_back(self, place: Place) -> None:
        """Free a place."""
        self.taken.remove(place)
        if place.gpu is not None and not self.workers:
            self.free_gpus.append(place.gpu)


def _gpus_for(trials: Sequence["Trial"]) -> list[str]:
    return gpus() if any(_may_use_gpu(t.config) for t in trials) else []


def _may_use_gpu(config: RunConfig) -> bool:
    """Whether the launcher may choose the trial's GPU; `cuda:N` is the user's own choice."""
    return config.device in ("auto", "cuda")

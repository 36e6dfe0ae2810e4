"""Where a run computes, and how it is made repeatable there."""

import os

import torch

from study.config import RunConfig
from study.errors import ConfigError


def resolve(name: str) -> torch.device:
    """Return the device of `auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`; raises ConfigError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and (kind == "cpu" or not number.isdigit())):
        raise ConfigError(f"device='{name}' is not one of auto, cpu, cuda, cuda:N")
    if kind == "cuda":
        count = torch.cuda.device_count()
        if count <= int(number or 0):
            raise ConfigError(f"device='{name}' is not there: this machine shows {count} CUDA devices")
    return torch.device(name)


def prepare(run: RunConfig) -> torch.device:
    """Set threads, and arithmetic that gives the same bits on every repetition; return the device.

    fp32 means fp32: TF32 stays off.
    """
    device = resolve(run.device)
    torch.set_num_threads(run.threads)
    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)  # nothing is put on the first GPU by the way
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    return device


def describe(device: torch.device) -> str:
    """Return the name of the GPU, or of the processor."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"cpu ({names[0]})" if names else "cpu"

"""Watches the training loss: initial loss, divergence, first crossings, and the tally of an epoch."""

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from study import criteria

LAG = 4
"""Steps by which the losses of a GPU are read late, so that reading them never makes the GPU wait."""


@dataclass
class Monitor:
    """What the losses of a run have shown so far; plain values, saved with a checkpoint."""

    initial_loss: float | None = None
    """Loss of the first training batch, before any update."""
    absolute_step: int | None = None
    """First step with a loss beyond 10³."""
    relative_step: int | None = None
    """First step with a loss beyond 10³ × the initial loss."""
    diverged_step: int | None = None
    """Step whose loss ended the run (criteria.diverged)."""
    diverged_loss: float | None = None

    def see(self, step: int, loss: float) -> bool:
        """Take in the loss of one training batch; return whether it ends the run."""
        if self.initial_loss is None:
            self.initial_loss = loss
        if self.absolute_step is None and criteria.crossed_absolute(loss):
            self.absolute_step = step
        if self.relative_step is None and criteria.crossed_relative(loss, self.initial_loss):
            self.relative_step = step
        if self.diverged_step is None and criteria.diverged(loss, self.initial_loss, step):
            self.diverged_step, self.diverged_loss = step, loss
        return self.diverged_step is not None

    def state(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


@dataclass
class Tally:
    """Sums over the training batches of one epoch."""

    loss: float = 0.0
    correct: int = 0
    n: int = 0

    def add(self, loss: float, correct: int, n: int) -> None:
        """Add one batch: its mean loss, its number of correct predictions and of images."""
        self.loss, self.correct, self.n = self.loss + loss * n, self.correct + correct, self.n + n


class Reader:
    """Brings (loss, correct) of each step to the host: at once on a CPU, `LAG` steps later on a GPU.

    On a GPU the copy goes to pinned memory on the same stream, and is read when an event says it has
    arrived, so the training step never synchronises.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lag = LAG if device.type == "cuda" else 0
        self._waiting: deque[tuple[int, Tensor, Any]] = deque()

    def push(self, step: int, loss: Tensor, correct: Tensor) -> None:
        """Queue the values of one step (0-dimensional tensors on the device)."""
        pair = torch.stack([loss.detach().double(), correct.double()])
        if self.device.type != "cuda":
            self._waiting.append((step, pair, None))
            return
        host = torch.empty(2, dtype=torch.float64, pin_memory=True)
        host.copy_(pair, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(self.device))  # which is another one on another GPU
        self._waiting.append((step, host, arrived))

    def ready(self, *, all: bool = False) -> list[tuple[int, float, int]]:
        """Return (step, loss, correct) of the steps that can be read without waiting, or of all."""
        out = []
        while len(self._waiting) > (0 if all else self.lag):
            step, values, arrived = self._waiting.popleft()
            if arrived is not None:
                arrived.synchronize()
            loss, correct = values.tolist()
            out.append((step, loss, int(correct)))
        return out

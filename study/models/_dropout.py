"""Dropout whose mask is a function of (seed, step): no generator state to save, the same on every device."""

import torch
from torch import Tensor, nn

from study.norms._noise import uniform


class Dropout(nn.Module):
    """Drops each unit with probability p while training and scales the others by 1/(1−p).

    The mask is a function of (key, step, position), computed on the device of `step`: nothing waits for the
    host. `step` counts training passes and is a buffer: checkpoints and probes restore it with the others.
    """

    step: Tensor

    def __init__(self, p: float, key: int) -> None:
        super().__init__()
        self.p, self.key = p, key
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` (any shape) with a fresh mask in training mode, unchanged in evaluation mode."""
        if not self.training:
            return x
        keep: Tensor = self._keep(x)
        self.step.add_(1)
        return x * keep / (1 - self.p)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _keep(self, x: Tensor) -> Tensor:
        """Return the mask, of x's shape.

        Hidden from torch.compile: its constants are 64-bit integers, which the compiler's own arithmetic does
        not wrap, and its backward pass could draw again, after the counter has moved on.
        """
        return uniform(self.key, self.step, x.numel()).view(x.shape).ge(self.p)

    def extra_repr(self) -> str:
        """Show the probability."""
        return f"p={self.p}"

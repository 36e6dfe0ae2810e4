"""Dropout whose mask is a function of (seed, step): no generator state to save, the same on every device."""

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Drops each unit with probability p while training and scales the others by 1/(1−p).

    The mask hashes (seed, step, position) on the input's own device, so nothing waits for the host. `step`
    counts training-mode passes and is a buffer: checkpoints and probes restore it with the others.
    """

    step: Tensor

    def __init__(self, p: float, seed: int) -> None:
        super().__init__()
        self.p, self.seed = p, seed
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` (any shape) with a fresh mask in training mode, unchanged in evaluation mode."""
        if not self.training:
            return x
        keep = hashed_uniform(self.seed, self.step, x) >= self.p
        self.step.add_(1)
        return x * keep / (1 - self.p)

    def extra_repr(self) -> str:
        """Show the probability."""
        return f"p={self.p}"


def hashed_uniform(seed: int, step: Tensor, like: Tensor) -> Tensor:
    """Return numbers in [0, 1), float32, shaped like `like`; a pure function of (seed, step, position).

    MurmurHash3's 64-bit finaliser, applied to the key and then to key + position.
    """
    key = _mix(_mix(torch.full_like(step, seed)) + step)
    position = torch.arange(like.numel(), device=like.device, dtype=torch.int64)
    bits = _mix(_mix(position + key) ^ key) >> 40 & (1 << 24) - 1
    return (bits.to(torch.float32) * 2.0**-24).view(like.shape)


def _mix(x: Tensor) -> Tensor:
    """Scramble int64 (products wrap around; shifts are made logical by masking)."""
    for factor in (-0xAE502812AA7333, -0x3B314601E57A13AD):
        x = (x ^ (x >> 33 & (1 << 31) - 1)) * factor
    return x ^ (x >> 33 & (1 << 31) - 1)

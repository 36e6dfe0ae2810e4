"""The non-stationary noise of Santurkar et al. 2018 (1805.11604, §2.1), without generator state.

While training, a ← s·a + m, after the affine part of the norm. Per step and channel μ ~ U(−0.5, 0.5) and
σ ~ U(1, 1.25); per example and channel, constant over space, m ~ U(μ − 0.1, μ + 0.1) and s ~ N(σ, 0.1) (0.1
taken as the standard deviation). In evaluation a ← E[s]·a + E[m] = 1.125·a, as dropout does it: without the
factor every layer would see inputs smaller than those its statistics come from.

Every draw is a function of (seed, site, step, index): a counter-based generator of integer operations, so it
runs on the device that holds the counter, never waits for it, and needs only the counter to resume.
"""

import torch
from torch import Tensor, nn

from study.seeding import derived_seed

_MASKS = {shift: (1 << (64 - shift)) - 1 for shift in (12, 27, 30, 31)}


class Noise(nn.Module):
    """Noise for one site. Buffer `step` (int64) counts training passes."""

    step: Tensor
    EVALUATION_FACTOR = 1.125

    def __init__(self, seed: int, site: str, channels: int) -> None:
        super().__init__()
        self.key = derived_seed(seed, "noise", site)
        self.channels = channels
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return x (N×C or N×C×H×W) with noise in training, with the noise's mean in evaluation."""
        if not self.training:
            return x * self.EVALUATION_FACTOR
        factor, shift = self._draw(len(x))
        self.step.add_(1)
        shape = (len(x), self.channels, *[1] * (x.dim() - 2))
        return torch.addcmul(shift.to(x.dtype).view(shape), x, factor.to(x.dtype).view(shape))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _draw(self, n: int) -> tuple[Tensor, Tensor]:
        """Return s and m, n×C, float64.

        Hidden from torch.compile, whose backward pass would draw again, after the counter has moved on.
        """
        unit = uniform(self.key, self.step, 2 * (n + 1) * self.channels).view(2, n + 1, self.channels)
        mu, sigma = unit[0, 0] - 0.5, 1 + 0.25 * unit[1, 0]
        shift = mu + 0.2 * (unit[0, 1:] - 0.5)
        factor = sigma + 0.1 * torch.special.ndtri(unit[1, 1:])
        return factor, shift


def uniform(key: int, step: Tensor, count: int) -> Tensor:
    """Return `count` independent float64 in (0, 1), a function of (key, step, position); SplitMix64 twice."""
    stream = _mix(_wrapped(key) + step * _GOLDEN)
    position = torch.arange(1, count + 1, dtype=torch.int64, device=step.device)
    bits = _mix(stream + position * _GOLDEN)
    return ((bits >> 12 & _MASKS[12]).double() + 0.5) * 2.0**-52


def _wrapped(value: int) -> int:
    """Return a 64-bit pattern as a signed integer."""
    return (value + 2**63) % 2**64 - 2**63


_GOLDEN = _wrapped(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _wrapped(0xBF58476D1CE4E5B9), _wrapped(0x94D049BB133111EB)


def _mix(z: Tensor) -> Tensor:
    """Return SplitMix64's finaliser of int64 (Steele et al. 2014); products wrap, shifts are logical."""
    z = (z ^ (z >> 30 & _MASKS[30])) * _FIRST
    z = (z ^ (z >> 27 & _MASKS[27])) * _SECOND
    return z ^ (z >> 31 & _MASKS[31])

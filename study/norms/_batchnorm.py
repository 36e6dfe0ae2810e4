"""Batch normalisation (Ioffe & Szegedy 2015, Algorithms 1 and 2) with orthogonal switches.

In training, x̂ = (x − μ)/√(σ² + ε) per channel over batch and locations, y = γ·x̂ + β; σ² is the *biased*
variance (1/n). `running_mean` and `running_var` average μ and the *unbiased* variance (n/(n−1)·σ²):
running ← (1 − momentum)·running + momentum·new, the framework's convention (Algorithm 2 averages with equal
weights instead: see _calibration.py). With another order p, `running_var` averages the squared deviation of
that order, with the same n/(n−1); without centring the deviation is about 0 and needs no such factor. A
statistic that is not taken keeps its initial value (0, 1).

What each source does:

source    training normalises by                        running averages           num_batches_tracked
batch     this batch, gradient through it               + this batch               + 1
ghost     virtual batches of `ghost_size` consecutive   + mean over virtual        + 1
          images (the last may be smaller)              batches, whatever their size
running   the averages of the batches before this       + this batch, afterwards   + 1
          one, as constants (at the start 0 and 1)
periodic  this batch if num_batches_tracked % period    + this batch, if so        + 1
          is 0, else the latest such batch's μ and σ²
          (buffers latest_mean, latest_var: biased),
          as constants
frozen    the averages, set before training by          unchanged                  unchanged; the number of
          Norm.calibrate, as constants                                             calibration batches

Evaluation normalises by the running averages, whatever the source, and changes nothing. Going to eval() and
back changes nothing either; all state is in buffers, so state_dict restores it. Without centring and scaling
no source takes anything and no state changes.

A non-finite batch enters the averages and stays there, exactly as in nn.BatchNorm2d; _watch.py notices.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from study.config import NormConfig
from study.norms._statistics import channel_affine, moments
from study.norms._virtual import VirtualBatches
from study.norms.base import require_several


class BatchNorm(nn.Module):
    """One site's batch normalisation. x is N×C or N×C×H×W; parameters and buffers per channel are C."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    latest_mean: Tensor
    latest_var: Tensor

    def __init__(
        self,
        config: NormConfig,
        site: str,
        channels: int,
        gamma: nn.Parameter | None,
        beta: nn.Parameter | None,
    ) -> None:
        super().__init__()
        self.config, self.site = config, site
        self.takes = config.center or config.scale
        self.fused = config.center and config.scale and config.order == 2 and not config.detach
        self.eps = config.eps if config.scale else 0.0
        self.weight, self.bias = gamma, beta
        self.calibration: list[tuple[Tensor, Tensor]] | None = None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))
        if config.source == "periodic":
            self.register_buffer("latest_mean", torch.zeros(channels))
            self.register_buffer("latest_var", torch.ones(channels))
        self._counted: tuple[Tensor | None, int, int] = (None, 0, 0)

    def extra_repr(self) -> str:
        """Name and shape, for printing."""
        return f"{self.config.name}, channels={len(self.running_mean)}"

    def forward(self, x: Tensor) -> Tensor:
        """Return y, of x's shape; raises StudyError where a training batch has one value per channel."""
        if not self.takes:
            return self._given(x, self.running_mean, self.running_var)
        if self.calibration is not None:
            return self._calibrate(x, self.calibration)
        if not self.training or self.config.source == "frozen":
            return self._given(x, self.running_mean, self.running_var)
        return self._train(x)

    def _calibrate(self, x: Tensor, found: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Normalise by this batch or its virtual batches; append their means, every image counting once.

        A smaller last virtual batch is part of the one before, as a smaller last batch is (_calibration.py).
        """
        n, size = len(x), self.config.ghost_size if self.config.source == "ghost" else len(x)
        sizes = [size] * max(1, n // size)
        sizes[-1] += n - sum(sizes)
        means = self.running_mean.new_zeros(len(sizes), x.shape[1])
        variances = torch.ones_like(means)
        parts = zip(torch.split(x, sizes), means, variances, strict=True)
        y = torch.cat([self._by_batch(p, m, v, 1.0) for p, m, v in parts])
        share = means.new_tensor(sizes) / n
        found.append((share @ means, share @ variances))
        return y

    def _train(self, x: Tensor) -> Tensor:
        """Normalise a training batch by the source, and update the state."""
        momentum = self.config.momentum
        require_several(self._fewest(x), self.site)  # before any state changes
        if self.config.source == "periodic":
            return self._periodic(x)
        self.num_batches_tracked.add_(1)
        if self.config.source == "batch":
            return self._by_batch(x, self.running_mean, self.running_var, momentum)
        if self.config.source == "running":
            # Copies: the backward pass needs the averages as they are now.
            y = self._given(x, self.running_mean.clone(), self.running_var.clone())
            with torch.no_grad():
                self._average(x, *self._moments(x), self.running_mean, self.running_var, momentum)
            return y
        y, mean, var = self._current(x)
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(var, momentum)
        return y

    def _fewest(self, x: Tensor) -> int:
        """Return the number of values behind a mean: of the smallest virtual batch, for source=ghost."""
        images, size = len(x), self.config.ghost_size
        if self.config.source == "ghost" and images > size:
            images = images % size or size
        return images * (x[0].numel() // x.shape[1])

    def _periodic(self, x: Tensor) -> Tensor:
        fresh = self._count() % self.config.period == 0
        if not fresh:
            return self._given(x, self.latest_mean.clone(), self.latest_var.clone())
        y, mean, var = self._current(x)
        self.running_mean.lerp_(mean, self.config.momentum)
        self.running_var.lerp_(var, self.config.momentum)
        self.latest_mean.copy_(mean)
        self.latest_var.copy_(var / self._unbiased(x) if self.config.scale else var)
        return y

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _count(self) -> int:
        """Return num_batches_tracked, then add 1, without waiting for the device.

        A copy of the counter is kept on the host; when the buffer is another one or was written by anyone
        else (a restored state, a move to a device), its version tells, and it is read once again.
        """
        buffer, version, count = self._counted
        if buffer is not self.num_batches_tracked or version != self.num_batches_tracked._version:
            count = int(self.num_batches_tracked)
        self.num_batches_tracked.add_(1)
        self._counted = (self.num_batches_tracked, self.num_batches_tracked._version, count + 1)
        return count

    def _factor(self) -> Tensor | None:
        """Return γ for the fused kernel: ones beside β alone, since its second derivative fails without."""
        if self.weight is not None or self.bias is None:
            return self.weight
        return torch.ones_like(self.running_var)

    def _given(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """Normalise by constants."""
        return F.batch_norm(x, mean, var, self._factor(), self.bias, False, 0.0, self.eps)

    def _current(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise by this batch (or its virtual batches); return y, and what the averages should take."""
        size = self.config.ghost_size if self.config.source == "ghost" else len(x)
        parts = torch.split(x, size) if size < len(x) else (x,)
        means = self.running_mean.new_zeros(len(parts), x.shape[1])
        variances = torch.ones_like(means)
        if self.fused and len(parts) > 1 and x.dtype == means.dtype and VirtualBatches.takes(x):
            require_several(parts[-1].numel() // x.shape[1], self.site)
            y = VirtualBatches.apply(x, self._factor(), self.bias, means, variances, size, self.eps)
            return y, means.mean(0), variances.mean(0)
        out = [self._by_batch(p, m, v, 1.0) for p, m, v in zip(parts, means, variances, strict=True)]
        return (torch.cat(out) if len(out) > 1 else out[0]), means.mean(0), variances.mean(0)

    def _by_batch(self, x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float) -> Tensor:
        """Normalise by the statistics of all of x, and let the two averages take them, in place."""
        require_several(x.numel() // x.shape[1], self.site)
        if self.fused:
            eps = self.config.eps
            gamma = self._factor()
            return F.batch_norm(x, running_mean, running_var, gamma, self.bias, True, momentum, eps)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.detach):
            mean, square = self._moments(x)
        with torch.no_grad():
            self._average(x, mean, square, running_mean, running_var, momentum)
        factor = torch.ones_like(running_var) if square is None else torch.rsqrt(square + self.eps)
        return channel_affine(x, mean, factor if self.weight is None else self.weight * factor, self.bias)

    def _moments(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        require_several(x.numel() // x.shape[1], self.site)
        return moments(x, self.config.center, self.config.scale, self.config.order)

    def _average(
        self,
        x: Tensor,
        mean: Tensor | None,
        square: Tensor | None,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
    ) -> None:
        """Let the running averages take a batch's statistics, in place."""
        if mean is not None:
            running_mean.lerp_(mean, momentum)
        if square is not None:
            running_var.lerp_(square * self._unbiased(x), momentum)

    def _unbiased(self, x: Tensor) -> float:
        """Return what makes the biased squared deviation unbiased: n/(n−1) about the mean, 1 about 0."""
        n = x.numel() // x.shape[1]
        return n / (n - 1) if self.config.center else 1.0

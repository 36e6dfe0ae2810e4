"""Fused batch normalisation by virtual batches on the CPU, without a second copy of the output.

`torch.cat` of `F.batch_norm`s has the same output to the bit, but copies it once more. Two things keep
eight virtual batches above one fused batch norm (128×32×16×16, channels_last, 1.6 ms forward and backward):
the framework's kernel returns an input gradient of its own, which has to be copied into its place (0.3 ms),
and sixteen calls are made for two (0.3 to 0.4 ms, a loop of Python in both directions). The bare calls and
copies, without autograd and module around them, already take 1.36 times as long. The alternatives cost as
much or more: the kernel's variant with `out` copies as well; one affine map of x and ∂L/∂y over a virtual
batch takes two passes over memory in the place of kernel and copy; and virtual batches as the samples of a
group norm with one channel per group, for which no value need move, take 5.4 times a batch norm, since that
kernel is made for few groups.
"""

from typing import Any

import torch
from torch import Tensor


class VirtualBatches(torch.autograd.Function):
    """x, γ, β (or None) → y; fills `means` and `variances` (G×C, unbiased) of G runs of `size` images.

    Twice differentiable, by the framework's own second derivative of each virtual batch.
    """

    @staticmethod
    def takes(x: Tensor) -> bool:
        """Whether x is on the CPU and dense; given an `out`, the framework's kernel spoils anything else."""
        dense = x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))
        return x.is_cpu and dense

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        means: Tensor,
        variances: Tensor,
        size: int,
        eps: float,
    ) -> Tensor:
        y = torch.empty_like(x)
        saved = torch.empty_like(means), torch.empty_like(means)
        parts = torch.split(x, size), torch.split(y, size), means, variances, *saved
        for image, out, mean, var, save_mean, save_invstd in zip(*parts, strict=True):
            statistics = out, save_mean, save_invstd
            torch.native_batch_norm(image, gamma, beta, mean, var, True, 1.0, eps, out=statistics)
        ctx.save_for_backward(x, gamma, *saved)
        ctx.size, ctx.eps, ctx.shifted = size, eps, beta is not None
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, save_mean, save_invstd = ctx.saved_tensors
        dx = torch.empty_like(x)
        dgamma: Tensor | None = None
        dbeta: Tensor | None = None
        wanted = [True, gamma is not None, ctx.shifted]
        parts = torch.split(grads[0], ctx.size), torch.split(x, ctx.size), save_mean, save_invstd
        first = 0
        for dy, image, mean, invstd in zip(*parts, strict=True):
            part, g, b = torch.ops.aten.native_batch_norm_backward(
                dy, image, gamma, None, None, mean, invstd, True, ctx.eps, wanted
            )
            dx[first : first + len(part)].copy_(part)
            first += len(part)
            dgamma = g if dgamma is None else dgamma + g
            dbeta = b if dbeta is None else dbeta + b
        return dx, dgamma if wanted[1] else None, dbeta if wanted[2] else None, None, None, None, None

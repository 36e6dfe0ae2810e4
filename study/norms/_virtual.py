"""Fused batch normalisation by virtual batches on the CPU, without copies of its own.

`torch.cat` of `F.batch_norm`s has the same output to the bit, but copies it once more: 1.3 to 1.5 times the
cost of one fused batch norm for eight virtual batches, against 1.1 (channels_last) to 1.3 (contiguous) here.
"""

from typing import Any

import torch
from torch import Tensor

_ops = torch.ops.aten


class VirtualBatches(torch.autograd.Function):
    """x, γ, β (or None) → y; fills `means` and `variances` (G×C, unbiased) of G runs of `size` images.

    Twice differentiable, by the framework's own second derivative of each virtual batch.
    """

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
            _ops.native_batch_norm.out(
                image, gamma, beta, mean, var, True, 1.0, eps,
                out=out, save_mean=save_mean, save_invstd=save_invstd,
            )  # fmt: skip
        ctx.save_for_backward(x, gamma, *saved)
        ctx.size, ctx.eps, ctx.shifted = size, eps, beta is not None
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, save_mean, save_invstd = ctx.saved_tensors
        parts = torch.split(grads[0], ctx.size), torch.split(x, ctx.size), save_mean, save_invstd
        wanted = [True, gamma is not None, ctx.shifted]
        results = [
            _ops.native_batch_norm_backward(dy, image, gamma, None, None, mean, invstd, True, ctx.eps, wanted)
            for dy, image, mean, invstd in zip(*parts, strict=True)
        ]
        dx, dgamma, dbeta = zip(*results, strict=True)
        summed = [
            sum(d[1:], start=d[0]) if w else None for d, w in zip((dgamma, dbeta), wanted[1:], strict=True)
        ]
        return torch.cat(dx), *summed, None, None, None, None

"""Weight gradients of one layer from its input and its output's gradient, whole or image by image."""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

CHUNK_BYTES = 2**26
"""Memory for one chunk of unfolded inputs and of per-image gradients."""


def weight_gradient(module: nn.Module, inputs: Tensor, output_grads: Tensor) -> Tensor:
    """Return Σ over images and positions of output_grads × inputs, in the shape of the layer's weight."""
    if isinstance(module, nn.Linear):
        return output_grads.flatten(0, -2).T @ inputs.flatten(0, -2)
    conv = cast(nn.Conv2d, module)
    padding = cast(tuple[int, int], conv.padding)
    options = (conv.stride, padding, conv.dilation, conv.groups)
    found = conv2d_weight(inputs, conv.weight.shape, output_grads, *options)  # type: ignore[no-untyped-call]
    return cast(Tensor, found)


def example_chunks(module: nn.Module, pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
    """Yield each image's weight gradient (images × weight's shape), some images at a time, calls added up.

    `pairs` are (input, output gradient) of every call. Grouped convolutions are refused (ValueError).
    """
    images = len(pairs[0][0])
    weight = cast(Tensor, module.weight)
    step = images
    if isinstance(module, nn.Conv2d):
        if module.groups != 1:
            raise ValueError("gradients by image are not available for grouped convolutions")
        positions = pairs[0][1][0, 0].numel()
        values = weight[0].numel() * positions + 2 * weight.numel()
        step = max(1, CHUNK_BYTES // (4 * values))
    for start in range(0, images, step):
        chunk = [(i[start : start + step], g[start : start + step]) for i, g in pairs]
        total = sum((_examples(module, i, g) for i, g in chunk), torch.zeros((), device=weight.device))
        yield total.view(-1, *weight.shape)


def _examples(module: nn.Module, inputs: Tensor, output_grads: Tensor) -> Tensor:
    """Return images × out × (in·height·width)."""
    if isinstance(module, nn.Linear):
        flat = (output_grads.flatten(1, -2), inputs.flatten(1, -2)) if inputs.dim() > 2 else None
        o, i = flat if flat else (output_grads[:, None], inputs[:, None])
        return o.transpose(1, 2) @ i
    conv = cast(nn.Conv2d, module)
    padding = cast(tuple[int, int], conv.padding)
    columns = F.unfold(inputs, conv.kernel_size, conv.dilation, padding, conv.stride)
    return torch.bmm(output_grads.flatten(2), columns.transpose(1, 2))

"""Exact population statistics (Ioffe & Szegedy 2015, Algorithm 2, steps 8 to 11) of a network's layers."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from study.errors import StudyError
from study.norms._batchnorm import BatchNorm


@torch.no_grad()
def recalibrate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running averages by the means over `batches` of μ and of σ²·n/(n−1), weighted by images.

    `batches` are training images (N×C×H×W), all of one size but for the last; a smaller last one is joined to
    the one before it, so that every image counts once, and a single one left over needs no variance of its
    own. They are passed through once; every batch normalisation meanwhile normalises by the batch itself (or
    its virtual batches, joined and weighted likewise), and everything else is in evaluation mode, so no
    dropout or noise is drawn. num_batches_tracked becomes the number of batches where nothing else is ever
    tracked (source=frozen), and otherwise stays, so that a periodic norm goes on in step. Raises StudyError
    if there are no batches.
    """
    norms = [m for m in network.modules() if isinstance(m, BatchNorm) and m.takes]
    modes = [(m, m.training) for m in network.modules()]
    network.eval()
    try:
        for norm in norms:
            norm.calibration = []
        sizes = []
        for batch in _joined(batches):
            network(batch)
            sizes.append(len(batch))
        for norm in norms:
            if not norm.calibration:
                raise StudyError("population statistics need at least one batch of training images")
            means, variances = (torch.stack(s).double() for s in zip(*norm.calibration, strict=True))
            share = means.new_tensor(sizes) / sum(sizes)
            norm.running_mean.copy_(share @ means)
            norm.running_var.copy_(share @ variances)
            if norm.config.source == "frozen":
                norm.num_batches_tracked.fill_(len(sizes))
    finally:
        for norm in norms:
            norm.calibration = None
        for module, mode in modes:
            module.training = mode


def _joined(batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield batches, a smaller last one as part of the one before."""
    held: Tensor | None = None
    for batch in batches:
        if held is not None and len(batch) < len(held):
            held = torch.cat([held, batch])
            continue
        if held is not None:
            yield held
        held = batch
    if held is not None:
        yield held

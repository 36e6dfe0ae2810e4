"""Exact population statistics (Ioffe & Szegedy 2015, Algorithm 2, steps 8 to 11) of a network's layers."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from study.errors import StudyError
from study.norms._batchnorm import BatchNorm


@torch.no_grad()
def recalibrate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running averages by the means over `batches` of μ and of σ²·n/(n−1), equally weighted.

    `batches` are training images (N×C×H×W), passed through once; every batch normalisation meanwhile
    normalises by the batch itself (or its virtual batches), and everything else is in evaluation mode, so
    no dropout or noise is drawn. Sets num_batches_tracked to the number of batches. Raises StudyError if
    there are none.
    """
    norms = [m for m in network.modules() if isinstance(m, BatchNorm) and m.takes]
    modes = [(m, m.training) for m in network.modules()]
    network.eval()
    try:
        for norm in norms:
            norm.calibration = []
        for batch in batches:
            network(batch)
        for norm in norms:
            if not norm.calibration:
                raise StudyError("population statistics need at least one batch of training images")
            means, variances = (torch.stack(s) for s in zip(*norm.calibration, strict=True))
            norm.running_mean.copy_(means.double().mean(0))
            norm.running_var.copy_(variances.double().mean(0))
            norm.num_batches_tracked.fill_(len(norm.calibration))
    finally:
        for norm in norms:
            norm.calibration = None
        for module, mode in modes:
            module.training = mode

"""A trained network as Algorithm 2 of Ioffe & Szegedy (2015, 1502.03167) hands it to inference.

    from study.inference import folded, with_population_statistics
    exact = with_population_statistics(network, batches)
    small = folded(exact)

Runs are evaluated by running averages; this is for whoever wants the exact statistics of a training set, or a
network without norms. Both return a copy in evaluation mode and leave the network itself alone.
"""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from study.batchnorm_reference import Population, fold_into_conv
from study.errors import StudyError
from study.models.base import Network
from study.norms._batchnorm import BatchNorm
from study.norms._calibration import recalibrate
from study.norms.base import Normed


def with_population_statistics(network: Network, batches: Iterable[Tensor]) -> Network:
    """Return the network with the population's statistics as its running averages (Algorithm 2, steps 8–11).

    `batches` are training images (N×C×H×W, standardised, of the training batch size), on the network's
    device. Raises StudyError if there are none.
    """
    copied = copy.deepcopy(network)
    recalibrate(copied, batches)
    return copied.eval()


def folded(network: Network) -> nn.Module:
    """Return the network with each convolution and the batch normalisation behind it made one convolution.

    Outputs equal those in evaluation mode to rounding. Norms that do not stand right behind a convolution
    stay (pre-activation ones, bn_top, those with noise). Its layers are no longer the ones that
    `network.layers` lists. Raises StudyError if there is nothing to fold.
    """
    copied = copy.deepcopy(network).eval()
    pairs = [(name, m) for name, m in copied.named_modules() if isinstance(m, Normed) and _folds(m)]
    if not pairs:
        raise StudyError("this network has no convolution with a batch normalisation right behind it to fold")
    for name, pair in pairs:
        parent, _, child = name.rpartition(".")
        setattr(copied.get_submodule(parent), child, _one(*pair.children()))
    return copied


def _folds(pair: Normed) -> bool:
    kinds = [type(m) for m in pair.children()]
    return kinds == [nn.Conv2d, BatchNorm]


def _one(conv: nn.Module, norm: nn.Module) -> nn.Conv2d:
    """Return one convolution; what the norm does not learn or take is 1, 0 and no ε."""
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(norm, BatchNorm)
    mean = norm.running_mean
    gamma = torch.ones_like(mean) if norm.weight is None else norm.weight
    beta = torch.zeros_like(mean) if norm.bias is None else norm.bias
    return fold_into_conv(conv, Population(mean, norm.running_var), gamma, beta, norm.eps)

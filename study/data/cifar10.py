"""CIFAR-10 (Krizhevsky 2009): 32×32×3, ten classes, 50,000 + 10,000."""

from torchvision.datasets import CIFAR10

from study.config import DataConfig
from study.data import _published
from study.data.base import RawSet

SOURCE = _published.cifar_source("CIFAR-10", CIFAR10, n_classes=10)


def load(config: DataConfig) -> RawSet:
    """Return the set from `config.root`, downloading it if need be; raises StudyError."""
    return _published.load(config, SOURCE)

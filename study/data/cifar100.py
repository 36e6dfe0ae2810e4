"""CIFAR-100 (Krizhevsky 2009): 32×32×3, 100 fine classes, 50,000 + 10,000."""

from torchvision.datasets import CIFAR100

from study.config import DataConfig
from study.data import _published
from study.data.base import RawSet

SOURCE = _published.cifar_source("CIFAR-100", CIFAR100, n_classes=100)


def load(config: DataConfig) -> RawSet:
    """Return the set from `config.root`, downloading it if need be; raises StudyError."""
    return _published.load(config, SOURCE)

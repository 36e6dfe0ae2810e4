"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017, arXiv 1708.07747): 28×28×1, ten classes, 60,000 + 10,000."""

from torchvision.datasets import FashionMNIST

from study.config import DataConfig
from study.data import _published
from study.data.base import RawSet

SOURCE = _published.idx_source(
    "Fashion-MNIST",
    FashionMNIST,
    {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    system="/usr/share/datasets/fashion-mnist",  # Debian's package dataset-fashion-mnist
)


def load(config: DataConfig) -> RawSet:
    """Return the set from `config.root`, downloading it if need be; raises StudyError."""
    return _published.load(config, SOURCE)

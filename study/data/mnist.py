"""MNIST (LeCun, Cortes, Burges): 28×28×1, ten classes, 60,000 + 10,000."""

from torchvision.datasets import MNIST

from study.config import DataConfig
from study.data import _published
from study.data.base import RawSet

SOURCE = _published.idx_source(
    "MNIST",
    MNIST,
    {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
)


def load(config: DataConfig) -> RawSet:
    """Return the set from `config.root`, downloading it if need be; raises StudyError."""
    return _published.load(config, SOURCE)

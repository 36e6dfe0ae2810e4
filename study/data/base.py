"""What an image set is once loaded."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images and labels of one split, whole in memory, on one device."""

    images: Tensor
    """uint8, N×C×H×W."""
    labels: Tensor
    """int64, N."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ImageSet:
    """The splits of a data set after resizing, replication, subset and validation split."""

    train: Split
    test: Split
    validation: Split | None
    n_classes: int
    mean: tuple[float, ...]
    """Per channel, of the training split, in units of pixel/255."""
    std: tuple[float, ...]
    """Per channel, likewise; 1 where a channel is constant."""

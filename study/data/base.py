"""What an image set is: as its module reads it, and once loaded. All compare by identity, as tensors do."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Split:
    """Images and labels of one split, whole in memory, on one device."""

    images: Tensor
    """uint8, N×C×H×W."""
    labels: Tensor
    """int64, N."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> "Split":
        """Return the images and labels at `indices` (int64), in that order."""
        return Split(self.images.index_select(0, indices), self.labels.index_select(0, indices))


@dataclass(frozen=True, eq=False)
class RawSet:
    """What a module of this package returns: both published splits at their native size, on the CPU."""

    train: Split
    test: Split
    n_classes: int


@dataclass(frozen=True, eq=False)
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

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

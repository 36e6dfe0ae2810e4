"""Batches of standardised images: their order, crops and flips are pure functions of (seed, epoch, step).

An epoch's draws are made on the CPU, so that they are the same on every device, and moved there once. The
pixels never leave their device, and nothing here waits for it. Shapes: B images a batch, C channels, H×W.
"""

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from study.config import RunConfig
from study.data.base import ImageSet, Split
from study.errors import ConfigError
from study.seeding import generator

Batch = tuple[Tensor, Tensor]
"""Images (float32, B×C×H×W, standardised) and labels (int64, B)."""


class EpochBatches:
    """The training batches of one epoch, in any order and as often as asked for.

    The incomplete last batch is dropped, whatever the norm: a smaller batch would have other statistics and
    another gradient noise. Crops and flips follow torchvision's RandomCrop(size, padding) and
    RandomHorizontalFlip(½): the border is pixel value 0 before standardisation.
    """

    def __init__(
        self, run: RunConfig, image_set: ImageSet, epoch: int, *, channels_last: bool = True
    ) -> None:
        """Draw an epoch; raises ConfigError if there are fewer images than `batch_size`."""
        train, self._size = image_set.train, run.batch_size
        n, self._steps = len(train), len(train) // run.batch_size
        if not self._steps:
            raise ConfigError(
                f"batch_size={run.batch_size} is out of range: there are only {n} training images, and "
                "incomplete batches are dropped"
            )
        kept = self._steps * self._size
        order = torch.randperm(n, generator=generator(run.seed, "order", epoch))[:kept]
        start = order
        if padding := run.data.crop_padding:
            offsets = torch.randint(2 * padding + 1, (n, 2), generator=generator(run.seed, "crop", epoch))
            start = _window_starts(train.images, padding, order, offsets[:kept], channels_last)
        self._flips = None
        if run.data.flip:
            mirrored = torch.rand(n, generator=generator(run.seed, "flip", epoch))[:kept] < 0.5
            self._flips = _Flips(mirrored.view(self._steps, self._size), train.images.device)
        self._start = _moved(start, train.images.device)
        self._labels = train.labels.index_select(0, _moved(order, train.labels.device))
        self._windows = _windows(train, padding, channels_last)
        self._standardise = _Standardise(image_set.mean, image_set.std, train.images, channels_last)

    def __len__(self) -> int:
        return self._steps

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0 within the epoch."""
        if not 0 <= step < self._steps:
            raise IndexError(f"step {step} is not one of the epoch's {self._steps}")
        own = slice(step * self._size, (step + 1) * self._size)
        pixels = self._windows.index_select(0, self._start[own])
        if self._flips is not None:
            pixels = self._flips(pixels, step, width_dim=2 if self._standardise.channels_last else 3)
        return self._standardise(pixels), self._labels[own]


def evaluation_batches(
    split: Split,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    batch_size: int,
    *,
    channels_last: bool = True,
) -> Iterator[Batch]:
    """Yield all images of a split in their fixed order, not augmented; the last batch may be smaller."""
    standardise = _Standardise(mean, std, split.images, channels_last)
    parts = (torch.split(x, batch_size) for x in (split.images, split.labels))
    for images, labels in zip(*parts, strict=True):
        pixels = images.permute(0, 2, 3, 1).contiguous() if channels_last else images
        yield standardise(pixels), labels


def noise_batch(like: Tensor, seed: int, index: int) -> Tensor:
    """Return Gaussian noise in place of standardised images: the shape, type, device and layout of `like`."""
    noise = torch.randn(like.shape, generator=generator(seed, "noise images", index))
    return torch.empty_like(like).copy_(noise)


def majority_share(split: Split) -> float:
    """Share of a split's most frequent class: the accuracy of always guessing it."""
    return int(torch.bincount(split.labels).max()) / len(split)


class _Flips:
    """Mirrors some images of each batch of an epoch.

    Mirrored copies are appended to the batch and the right one of each pair is selected: two copies of whole
    images, several times faster on a CPU than `torch.where` or an indexed assignment.
    """

    def __init__(self, mirrored: Tensor, device: torch.device) -> None:
        """`mirrored` (bool, steps×B) tells which images of which batch."""
        steps, size = mirrored.shape
        place = torch.arange(size).expand(steps, size)
        appended = size - 1 + mirrored.long().cumsum(1)
        self._select = _moved(torch.where(mirrored, appended, place), device)
        self._which = _moved(place[mirrored], device)
        # Their numbers stay on the host, so that slicing needs no answer from the device.
        self._ends = [0, *mirrored.sum(1).cumsum(0).tolist()]

    def __call__(self, pixels: Tensor, step: int, width_dim: int) -> Tensor:
        which = self._which[self._ends[step] : self._ends[step + 1]]
        both = torch.cat([pixels, pixels.index_select(0, which).flip(width_dim)])
        return both.index_select(0, self._select[step])


class _Standardise:
    """(pixel/255 − mean)/std per channel; takes uint8 B×C×H×W, or B×H×W×C if `channels_last`."""

    def __init__(
        self, mean: tuple[float, ...], std: tuple[float, ...], images: Tensor, channels_last: bool
    ) -> None:
        self.channels_last = channels_last
        shape = (1, len(mean)) if channels_last else (len(mean), 1, 1)
        centre = torch.tensor(mean, dtype=torch.float64).mul(255).view(shape)
        factor = torch.tensor(std, dtype=torch.float64).mul(255).reciprocal().view(shape)
        if channels_last:  # a whole row of pixels at a time: on a CPU far faster than C values at a time
            width = images.shape[3]
            centre, factor = centre.repeat(1, width), factor.repeat(1, width)
        self._centre, self._factor = (_moved(x.float(), images.device) for x in (centre, factor))

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return float32 B×C×H×W, in channels_last layout if asked."""
        x = pixels.flatten(2).flatten(0, 1) if self.channels_last else pixels
        x = x.float().sub_(self._centre).mul_(self._factor)
        return x.view(pixels.shape).permute(0, 3, 1, 2) if self.channels_last else x


@lru_cache(maxsize=4)
def _windows(split: Split, padding: int, channels_last: bool) -> Tensor:
    """Return a tensor from whose first dimension images are selected, C×H×W or H×W×C each.

    With padding it is a view of the padded images that has every position in memory as the start of a
    window: overlapping, so it costs no memory, and a random crop is the selection of whole windows.
    Kept from epoch to epoch, since the padded images are a copy.
    """
    c, h, w = split.images.shape[1:]
    padded = F.pad(split.images, (padding,) * 4) if padding else split.images
    if channels_last:
        padded = padded.permute(0, 2, 3, 1)
    padded = padded.contiguous()
    if not padding:
        return padded
    shape, strides = ((h, w, c) if channels_last else (c, h, w)), padded.stride()[1:]
    span = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return padded.as_strided((padded.numel() - span, *shape), (1, *strides))


def _window_starts(
    images: Tensor, padding: int, order: Tensor, offsets: Tensor, channels_last: bool
) -> Tensor:
    """Return where in the padded images the windows of `order` (image numbers) and `offsets` (y, x) start."""
    c, h, w = images.shape[1:]
    height, width = h + 2 * padding, w + 2 * padding
    pixel = offsets[:, 0] * width + offsets[:, 1]
    return order * (c * height * width) + pixel * (c if channels_last else 1)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor on `device`, without waiting for the copy."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)

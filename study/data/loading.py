"""From a DataConfig to the images a run trains on: subset, validation split, size, channels, statistics."""

import dataclasses
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from study import registry
from study.config import DataConfig
from study.data._choice import class_counts, draw, level, proportional
from study.data.base import ImageSet, Split
from study.errors import ConfigError

CHUNK = 1024
"""Images resized at a time, which bounds the memory that their float copies take."""


def load(config: DataConfig, device: torch.device | str) -> ImageSet:
    """Return the image set on `device`, the same object whenever a process asks for it again.

    Neither split depends on a run's seed. Raises ConfigError if a value does not suit the data set, and
    StudyError if the data set is missing, damaged or unreadable.
    """
    # What only the batches read must not make another copy of the images.
    return _load(dataclasses.replace(config, crop_padding=0, flip=False), torch.device(device))


@lru_cache(maxsize=4)
def _load(config: DataConfig, device: torch.device) -> ImageSet:
    raw = registry.load("study.data", config.name).load(config)
    train = _subset(raw.train, raw.n_classes, config)
    train, validation = _held_out(train, raw.n_classes, config)
    train = _shaped(train, config)
    mean, std = channel_statistics(train.images)
    return ImageSet(
        train=_moved(train, device),
        test=_moved(_shaped(raw.test, config), device),
        validation=None if validation is None else _moved(_shaped(validation, config), device),
        n_classes=raw.n_classes,
        mean=mean,
        std=std,
    )


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation (÷ N, in units of pixel/255) per channel of uint8 N×C×H×W.

    They come from integer sums over the histogram, so they are exact and the same on every machine.
    """
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = torch.zeros(256, dtype=torch.int64)
        for chunk in torch.split(images[:, channel], CHUNK):
            counts += torch.bincount(chunk.flatten().int(), minlength=256)
        n = int(counts.sum())
        total, squares = (int((counts * torch.arange(256) ** power).sum()) for power in (1, 2))
        variance = (n * squares - total**2) / (255 * n) ** 2
        means.append(total / (255 * n))
        deviations.append(variance**0.5 if variance else 1.0)
    return tuple(means), tuple(deviations)


def _subset(train: Split, n_classes: int, config: DataConfig) -> Split:
    if not config.subset:
        return train
    if config.subset > len(train):
        raise ConfigError(
            f"data.subset={config.subset} is out of range: {config.name} has {len(train)} training images"
        )
    quotas = level(class_counts(train.labels, n_classes), config.subset)
    return train.take(_indices(draw(train.labels, quotas, "subset")))


def _held_out(train: Split, n_classes: int, config: DataConfig) -> tuple[Split, Split | None]:
    """Return what remains for training, and the validation split: stratified by class."""
    if not config.validation:
        return train, None
    n = round(config.validation * len(train))
    if not 0 < n < len(train):
        raise ConfigError(
            f"data.validation={config.validation:g} is out of range: of {len(train)} training images it "
            f"would hold out {n}; it must leave at least one on either side"
        )
    mask = draw(train.labels, proportional(class_counts(train.labels, n_classes), n), "validation")
    return train.take(_indices(~mask)), train.take(_indices(mask))


def _shaped(split: Split, config: DataConfig) -> Split:
    """Return a split with its images at the asked size and number of channels."""
    images = split.images
    if config.size and images.shape[2:] != (config.size, config.size):
        fitted = _padded if config.fit == "pad" else _resized
        images = torch.cat([fitted(chunk, config.size) for chunk in torch.split(images, CHUNK)])
    channels = images.shape[1]
    if config.channels and config.channels != channels:
        if channels != 1:
            raise ConfigError(
                f"data.channels={config.channels} does not suit {config.name}: only grey images can be "
                f"replicated, and these have {channels} channels; use 0 or {channels}"
            )
        images = images.repeat(1, config.channels, 1, 1)
    return Split(images, split.labels)


def _resized(images: Tensor, size: int) -> Tensor:
    """Resize uint8 N×C×H×W, bilinear and antialiased, rounding back to uint8."""
    resized = F.interpolate(images.float(), (size, size), mode="bilinear", antialias=True)
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def _padded(images: Tensor, size: int) -> Tensor:
    """Put uint8 N×C×H×W in the middle of size×size zero pixels."""
    height, width = images.shape[2:]
    if max(height, width) > size:
        raise ConfigError(f"data.size={size} with data.fit=pad is below the images' own {height}×{width}")
    left, top = (size - width) // 2, (size - height) // 2
    return F.pad(images, (left, size - width - left, top, size - height - top))


def _moved(split: Split, device: torch.device) -> Split:
    return Split(split.images.to(device).contiguous(), split.labels.to(device))


def _indices(mask: Tensor) -> Tensor:
    return torch.nonzero(mask).flatten()

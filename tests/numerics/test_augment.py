"""Crop, flip and standardisation against torchvision, image by image, and the law of their draws."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torchvision.transforms import functional as tv

from study.config import DataConfig, RunConfig
from study.data.base import ImageSet, Split
from study.data.batches import EpochBatches
from study.seeding import generator


def image_set(n: int, channels: int, height: int, width: int) -> ImageSet:
    shape = (n, channels, height, width)
    pixels = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    split = Split(pixels, torch.arange(n))
    mean, std = (0.4914, 0.4822, 0.4465)[:channels], (0.247, 0.2435, 0.2616)[:channels]
    return ImageSet(split, split, None, n, mean, std)


def config(padding: int, flip: bool, batch_size: int, seed: int = 7) -> RunConfig:
    data = DataConfig(crop_padding=padding, flip=flip)
    return RunConfig(data=data, batch_size=batch_size, seed=seed)


def reference(run: RunConfig, data: ImageSet, epoch: int, step: int) -> torch.Tensor:
    """One image at a time with torchvision's own functions on PIL images, as its transforms do it."""
    n, padding = len(data.train), run.data.crop_padding
    order = torch.randperm(n, generator=generator(run.seed, "order", epoch))
    offsets = torch.randint(2 * padding + 1, (n, 2), generator=generator(run.seed, "crop", epoch))
    mirrored = torch.rand(n, generator=generator(run.seed, "flip", epoch)) < 0.5
    images = []
    for place in range(step * run.batch_size, (step + 1) * run.batch_size):
        pixels = data.train.images[order[place]]
        image = tv.to_pil_image(pixels)
        if padding:
            top, left = offsets[place].tolist()
            image = tv.crop(tv.pad(image, [padding] * 4, fill=0), top, left, *pixels.shape[1:])
        if run.data.flip and mirrored[place]:
            image = tv.hflip(image)
        images.append(tv.normalize(tv.to_tensor(image), list(data.mean), list(data.std)))
    return torch.stack(images)


@settings(max_examples=40, deadline=None)
@given(
    padding=st.sampled_from([0, 1, 2, 4, 9]),
    flip=st.booleans(),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    batch_size=st.integers(1, 12),
    channels_last=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_batches_are_those_of_torchvision(
    padding, flip, channels, height, width, batch_size, channels_last, epoch
):
    data, run = image_set(25, channels, height, width), config(padding, flip, batch_size)
    batches = EpochBatches(run, data, epoch, channels_last=channels_last)
    for step in {0, len(batches) - 1}:
        images, _ = batches.batch(step)
        expected = reference(run, data, epoch, step)
        torch.testing.assert_close(images, expected, rtol=1e-5, atol=2e-6)


def test_the_border_is_black_before_standardisation():
    data = image_set(50, 3, 4, 4)
    data.train.images.fill_(255)
    images, _ = EpochBatches(config(9, False, 50), data, 0).batch(0)
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    values = images.permute(1, 0, 2, 3).flatten(1)
    black, white = -mean / std, (1 - mean) / std
    for channel in range(3):
        border = (values[channel] - black[channel]).abs() < 1e-5
        inside = (values[channel] - white[channel]).abs() < 1e-5
        assert (border ^ inside).all()
        assert border.any()
        assert inside.any()


@pytest.mark.parametrize("padding", [1, 4])
def test_offsets_are_uniform_and_flips_fair_and_independent(padding):
    # An image whose pixels are all different tells its offset and orientation; 4,000 copies of it.
    side, n = 2 * padding + 3, 4000
    numbers = torch.arange(1, side * side + 1).to(torch.uint8).view(1, 1, side, side)
    data = ImageSet(
        Split(numbers.repeat(n, 1, 1, 1), torch.zeros(n).long()), None, None, 1, (0.0,), (1 / 255,)
    )
    images = EpochBatches(config(padding, True, n), data, 0).batch(0)[0][:, 0].round().long()
    centre = images[:, side // 2, side // 2 - 1 : side // 2 + 2]  # never border: padding < side // 2
    mirrored = centre[:, 0] > centre[:, 2]
    row, column = (centre[:, 1] - 1) // side, (centre[:, 1] - 1) % side
    cells = 2 * padding + 1
    dy, dx = row - side // 2 + padding, column - side // 2 + padding
    assert int(min(dy.min(), dx.min())) >= 0
    assert int(max(dy.max(), dx.max())) < cells
    table = torch.bincount((dy * cells + dx) * 2 + mirrored.long(), minlength=2 * cells**2)
    assert stats.chisquare(table.numpy()).pvalue > 1e-3

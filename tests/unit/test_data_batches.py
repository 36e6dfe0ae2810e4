"""Batches as pure functions of (seed, epoch, step), and what every batch must be."""

import dataclasses
import itertools

import pytest
import torch

from study import naming
from study.config import DataConfig, RunConfig
from study.data.base import ImageSet, Split
from study.data.batches import EpochBatches, evaluation_batches, noise_batch
from study.errors import ConfigError

N, SIDE = 103, 6


def image_set(device: str = "cpu", channels: int = 3) -> ImageSet:
    """Random images labelled by their number, so that a batch tells which images it holds."""
    pixels = torch.randint(0, 256, (N, channels, SIDE, SIDE), generator=torch.Generator().manual_seed(0))
    split = Split(pixels.to(torch.uint8).to(device), torch.arange(N, device=device))
    mean, std = (0.3, 0.5, 0.7)[:channels], (0.2, 0.3, 0.1)[:channels]
    return ImageSet(split, split, None, N, mean, std)


SET = image_set()


def run(*, crop_padding: int = 2, flip: bool = True, batch_size: int = 10, seed: int = 3) -> RunConfig:
    data = DataConfig(crop_padding=crop_padding, flip=flip)
    return RunConfig(data=data, batch_size=batch_size, seed=seed)


def same(a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


@pytest.mark.parametrize(("crop_padding", "flip"), [(0, False), (2, False), (0, True), (2, True)])
def test_a_batch_does_not_depend_on_what_was_asked_before(crop_padding, flip):
    config = run(crop_padding=crop_padding, flip=flip)
    epoch = EpochBatches(config, SET, epoch=5)
    forward = [epoch.batch(k) for k in range(len(epoch))]
    again = {k: epoch.batch(k) for k in reversed(range(len(epoch)))}
    assert all(same(forward[k], again[k]) for k in again)
    resumed = EpochBatches(config, image_set(), epoch=5)  # as another process would, from the middle
    assert all(same(forward[k], resumed.batch(k)) for k in range(4, len(epoch)))


def test_batches_are_independent_of_the_global_generator():
    torch.manual_seed(1)
    first = EpochBatches(run(), SET, 0).batch(0)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert same(EpochBatches(run(), SET, 0).batch(0), first)
    assert torch.equal(torch.get_rng_state(), before)


def test_seeds_and_epochs_order_and_augment_differently():
    batches = [
        EpochBatches(run(seed=seed), SET, epoch).batch(0)
        for seed, epoch in itertools.product((0, 1), (0, 1, 2))
    ]
    for a, b in itertools.combinations(batches, 2):
        assert not torch.equal(a[1], b[1])
        assert not torch.equal(a[0], b[0])


def test_the_order_does_not_depend_on_augmentation_or_batch_size():
    def labels(**changes: object) -> list[int]:
        epoch = EpochBatches(run(**changes), SET, 1)
        return torch.cat([epoch.batch(k)[1] for k in range(len(epoch))]).tolist()

    assert labels() == labels(crop_padding=0) == labels(flip=False)
    assert labels(batch_size=25)[:100] == labels(batch_size=10)[:100]


@pytest.mark.parametrize("batch_size", [1, 10, 51, 52, N])
def test_an_epoch_shows_whole_batches_of_different_images(batch_size):
    epoch = EpochBatches(run(batch_size=batch_size), SET, 0)
    labels = [epoch.batch(k)[1] for k in range(len(epoch))]
    assert len(epoch) == N // batch_size
    assert all(len(x) == batch_size for x in labels)
    assert len(torch.cat(labels).unique()) == len(epoch) * batch_size


def test_every_image_is_left_out_sometimes_and_never_for_long():
    seen = torch.zeros(N, dtype=torch.int64)
    for epoch in range(40):  # three images of 103 are dropped per epoch
        batches = EpochBatches(run(), SET, epoch)
        for k in range(len(batches)):
            seen[batches.batch(k)[1]] += 1
    assert int(seen.min()) >= 33
    assert int(seen.sum()) == 40 * 100


@pytest.mark.parametrize("norm", ["none", "bn", "gn", "bn_frozen"])
def test_the_last_incomplete_batch_is_dropped_whatever_the_norm(norm):
    plain = EpochBatches(run(), SET, 0)
    other = EpochBatches(dataclasses.replace(run(), norm=naming.norms()[norm]), SET, 0)
    assert len(other) == len(plain) == N // 10
    assert all(same(other.batch(k), plain.batch(k)) for k in range(len(plain)))


def test_fewer_images_than_a_batch_are_refused():
    with pytest.raises(ConfigError, match=r"batch_size=104 .*only 103 training images"):
        EpochBatches(run(batch_size=104), SET, 0)


@pytest.mark.parametrize("step", [-1, 10])
def test_a_step_beyond_the_epoch_is_an_error(step):
    with pytest.raises(IndexError, match="10"):
        EpochBatches(run(), SET, 0).batch(step)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("crop_padding", "flip"), [(0, False), (2, False), (0, True), (2, True)])
def test_layout_is_as_asked_and_changes_no_value(crop_padding, flip, channels_last, channels):
    data, config = image_set(channels=channels), run(crop_padding=crop_padding, flip=flip)
    images, labels = EpochBatches(config, data, 0, channels_last=channels_last).batch(2)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert images.is_contiguous(memory_format=layout)
    assert images.shape == (10, channels, SIDE, SIDE)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    other = EpochBatches(config, data, 0, channels_last=not channels_last).batch(2)
    assert same((images, labels), other)


def test_batches_leave_the_images_as_they_were():
    data = image_set()
    epoch = EpochBatches(run(crop_padding=0, flip=True), data, 0, channels_last=False)
    epoch.batch(0)[0].zero_()
    assert torch.equal(data.train.images, SET.train.images)
    x, _ = next(evaluation_batches(data.test, data.mean, data.std, 10, channels_last=False))
    x.zero_()
    assert torch.equal(data.test.images, SET.test.images)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 10, N, 500])
def test_evaluation_shows_every_image_once_in_order_and_unchanged(batch_size, channels_last):
    batches = list(evaluation_batches(SET.test, SET.mean, SET.std, batch_size, channels_last=channels_last))
    assert [len(y) for _, y in batches[:-1]] == [batch_size] * (len(batches) - 1)
    images, labels = (torch.cat(x) for x in zip(*batches, strict=True))
    assert labels.tolist() == list(range(N))
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (SET.mean, SET.std))
    expected = (SET.test.images.double() / 255 - mean) / std
    torch.testing.assert_close(images.double(), expected, rtol=1e-5, atol=1e-6)


def test_noise_has_the_shape_type_and_layout_of_its_model_and_unit_moments():
    like = torch.empty(64, 3, 16, 16).to(memory_format=torch.channels_last)
    noise = noise_batch(like, seed=0, index=4)
    assert (noise.shape, noise.dtype, noise.stride()) == (like.shape, like.dtype, like.stride())
    assert abs(float(noise.mean())) < 0.02  # 49,152 draws: four standard errors
    assert abs(float(noise.std()) - 1) < 0.02
    assert torch.equal(noise, noise_batch(torch.empty(64, 3, 16, 16), seed=0, index=4))
    assert not torch.equal(noise, noise_batch(like, seed=0, index=5))
    assert not torch.equal(noise, noise_batch(like, seed=1, index=4))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("crop_padding", "flip"), [(0, False), (2, True)])
def test_a_gpu_gives_the_same_batches_without_being_waited_for(crop_padding, flip, channels_last):
    config = run(crop_padding=crop_padding, flip=flip)
    device_set = image_set("cuda")
    on_cpu = EpochBatches(config, SET, 2, channels_last=channels_last)
    torch.cuda.set_sync_debug_mode("error")
    try:
        on_gpu = EpochBatches(config, device_set, 2, channels_last=channels_last)
        batches = [on_gpu.batch(k) for k in range(len(on_gpu))]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for k, (images, labels) in enumerate(batches):
        assert images.is_cuda
        assert torch.equal(labels.cpu(), on_cpu.batch(k)[1])
        torch.testing.assert_close(images.cpu(), on_cpu.batch(k)[0], rtol=1e-6, atol=1e-6)

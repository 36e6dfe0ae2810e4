"""Subset, validation split, size, channels and statistics, on every set that needs no files."""

import hashlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from study import registry
from study.config import DataConfig, check_fields
from study.data import _choice, digits, synthetic
from study.data.base import RawSet, Split
from study.data.batches import majority_share
from study.data.loading import channel_statistics, load
from study.errors import ConfigError

SETS = ("digits", "synthetic")


def rows(split: Split) -> list[bytes]:
    """Each image with its label, as bytes."""
    return [x.numpy().tobytes() + bytes([int(k)]) for x, k in zip(split.images, split.labels, strict=True)]


def numbered(n: int, n_classes: int) -> RawSet:
    """A set in which an image's pixels spell its number, so that images are told apart for certain."""
    numbers = torch.arange(2 * n)
    spelt = torch.stack([numbers // 256, numbers % 256, numbers * 7 % 256, numbers * 11 % 256], 1)
    images, labels = spelt.to(torch.uint8).view(-1, 1, 2, 2), (numbers * numbers) % n_classes
    return RawSet(Split(images[:n], labels[:n]), Split(images[n:], labels[n:]), n_classes)


@pytest.fixture
def numbered_set(monkeypatch, tmp_path):
    """Replace the synthetic set by a numbered one; returns a function that loads it."""
    raw = numbered(600, 7)
    monkeypatch.setattr(synthetic, "load", lambda config: raw)
    return raw, lambda **kw: load(DataConfig(name="synthetic", root=str(tmp_path), **kw), "cpu")


def test_the_folder_offers_the_sets_of_the_study():
    expected = ("cifar10", "cifar100", "digits", "fashion_mnist", "image_folder", "mnist", "synthetic")
    assert registry.names("study.data") == expected


def test_every_set_has_a_yaml_of_valid_settings():
    files = {path.stem: path for path in (Path(__file__).parents[2] / "conf/data").glob("*.yaml")}
    assert set(files) == set(registry.names("study.data"))
    for name, path in files.items():
        config = DataConfig(**yaml.safe_load(path.read_text()))
        check_fields(config)
        assert config.name == name
        augmented = {"cifar10": (4, True), "cifar100": (4, True), "image_folder": (0, True)}
        assert (config.crop_padding, config.flip) == augmented.get(name, (0, False))


def test_digits_are_all_of_scikit_learns_once_and_stratified():
    raw = digits.load(DataConfig())
    bunch = load_digits()
    expected = Split(
        torch.from_numpy(np.rint(bunch.images * 255 / 16).astype(np.uint8))[:, None],
        torch.from_numpy(bunch.target),
    )
    assert (len(raw.train), len(raw.test)) == (1500, 297)
    assert sorted(rows(raw.train) + rows(raw.test)) == sorted(rows(expected))
    shares = np.bincount(bunch.target) * 297 / 1797
    assert (np.abs(torch.bincount(raw.test.labels).numpy() - shares) < 1).all()


def test_the_digits_split_never_changes():
    # If this fails, stored runs on digits no longer compare: bump "data.digits" in study/identity.py.
    raw = digits.load(DataConfig())
    digest = hashlib.sha256(b"".join(rows(raw.train)) + b"|" + b"".join(rows(raw.test))).hexdigest()
    assert digest[:16] == "0c839771f1320e13"


def test_synthetic_is_small_balanced_and_learnable():
    raw = synthetic.load(DataConfig(name="synthetic"))
    assert (len(raw.train), len(raw.test), raw.n_classes) == (512, 256, 10)
    assert raw.train.images.shape[1:] == (1, 8, 8)
    counts = torch.bincount(raw.train.labels)
    assert counts.max() - counts.min() <= 1
    x = raw.train.images.double().flatten(1)
    means = torch.stack([x[raw.train.labels == k].mean(0) for k in range(10)])
    nearest = torch.cdist(raw.test.images.double().flatten(1), means).argmin(1)
    assert (nearest == raw.test.labels).double().mean() > 0.95
    assert not set(rows(raw.train)) & set(rows(raw.test))


@pytest.mark.parametrize("name", SETS)
def test_loading_twice_gives_the_same_object_whatever_the_augmentation(name):
    plain = load(DataConfig(name=name, size=8), "cpu")
    assert load(DataConfig(name=name, size=8, crop_padding=2, flip=True), torch.device("cpu")) is plain
    assert load(DataConfig(name=name, size=9), "cpu") is not plain


@pytest.mark.parametrize("name", SETS)
def test_loading_leaves_the_global_generator_alone(name, tmp_path):
    before = torch.get_rng_state()
    load(DataConfig(name=name, root=str(tmp_path), subset=100, validation=0.2), "cpu")
    assert torch.equal(torch.get_rng_state(), before)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.data())
def test_level_quotas_are_as_equal_as_counts_allow(counts, data):
    total = data.draw(st.integers(0, sum(counts)))
    shares = _choice.level(counts, total)
    assert sum(shares) == total
    assert all(0 <= s <= c for s, c in zip(shares, counts, strict=True))
    unfilled = [s for s, c in zip(shares, counts, strict=True) if s < c]
    assert all(s >= max(shares) - 1 for s in unfilled)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any), st.data())
def test_proportional_quotas_are_within_one_of_exact(counts, data):
    n = sum(counts)
    total = data.draw(st.integers(0, n))
    shares = _choice.proportional(counts, total)
    assert sum(shares) == total
    assert all(abs(s - Fraction(c * total, n)) < 1 for s, c in zip(shares, counts, strict=True))
    assert all(0 <= s <= c for s, c in zip(shares, counts, strict=True))


@pytest.mark.parametrize("subset", [1, 7, 100, 599, 600])
def test_subset_takes_its_number_class_by_class(numbered_set, subset):
    raw, load_numbered = numbered_set
    train = load_numbered(subset=subset).train
    assert len(train) == subset
    assert set(rows(train)) <= set(rows(raw.train))
    assert len(set(rows(train))) == subset
    available = torch.bincount(raw.train.labels, minlength=7)
    counts = torch.bincount(train.labels, minlength=7)
    unfilled = counts[counts < available]
    assert (unfilled >= counts.max() - 1).all()


def test_smaller_subsets_are_part_of_larger_ones(numbered_set):
    _, load_numbered = numbered_set
    assert set(rows(load_numbered(subset=70).train)) < set(rows(load_numbered(subset=210).train))


@pytest.mark.parametrize("subset", [0, 250])
@pytest.mark.parametrize("validation", [0.1, 0.25, 0.9])
def test_train_validation_and_test_share_no_image(numbered_set, validation, subset):
    raw, load_numbered = numbered_set
    image_set = load_numbered(validation=validation, subset=subset)
    assert image_set.validation is not None
    train, held_out, test = (set(rows(s)) for s in (image_set.train, image_set.validation, image_set.test))
    assert not train & held_out
    assert not (train | held_out) & test
    assert train | held_out == set(rows(load_numbered(subset=subset).train))
    assert test == set(rows(raw.test))
    n = subset or 600
    assert len(held_out) == round(validation * n)
    exact = torch.bincount(load_numbered(subset=subset).train.labels).double() * len(held_out) / n
    assert ((torch.bincount(image_set.validation.labels, minlength=len(exact)) - exact).abs() < 1).all()


def test_validation_and_test_images_have_no_part_in_the_statistics(numbered_set, monkeypatch, tmp_path):
    raw, load_numbered = numbered_set
    image_set = load_numbered(validation=0.3)
    held_out = set(rows(image_set.validation))
    images = raw.train.images.clone()
    images[[row in held_out for row in rows(raw.train)]] = 255
    changed = RawSet(
        Split(images, raw.train.labels), Split(255 - raw.test.images, raw.test.labels), raw.n_classes
    )
    monkeypatch.setattr(synthetic, "load", lambda config: changed)
    again = load(DataConfig(name="synthetic", root=str(tmp_path / "other"), validation=0.3), "cpu")
    assert (again.validation.images == 255).all()
    assert (again.mean, again.std) == (image_set.mean, image_set.std)
    assert load_numbered(validation=0.2).mean != image_set.mean


@pytest.mark.parametrize("name", SETS)
def test_mean_and_std_are_those_of_the_training_split(name):
    image_set = load(DataConfig(name=name, size=12, channels=3, validation=0.2), "cpu")
    pixels = image_set.train.images.numpy() / 255
    np.testing.assert_allclose(image_set.mean, pixels.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(image_set.std, pixels.std((0, 2, 3)), rtol=1e-12)


def test_statistics_are_exact_and_a_constant_channel_has_deviation_one():
    images = torch.zeros(3000, 3, 2, 2, dtype=torch.uint8)
    images[:, 1] = 51
    images[:, 2, 0] = 255
    assert channel_statistics(images) == ((0.0, 0.2, 0.5), (1.0, 1.0, 0.5))


@pytest.mark.parametrize("size", [4, 8, 0, 13])
def test_size_resizes_bilinearly_with_antialiasing(size):
    native = load(DataConfig(name="digits"), "cpu")
    image_set = load(DataConfig(name="digits", size=size), "cpu")
    side = size or 8
    assert image_set.shape == (1, side, side)
    assert torch.equal(image_set.train.labels, native.train.labels)
    if size == 4:  # the triangular filter of factor 2 has weights 1, 3, 3, 1 (of 8) in each direction
        kernel = torch.tensor([1.0, 3, 3, 1], dtype=torch.float64) / 8
        patch = native.test.images[:, 0, 1:5, 1:5].double()
        wanted = torch.einsum("nij,i,j->n", patch, kernel, kernel)
        assert (image_set.test.images[:, 0, 1, 1] - wanted).abs().max() <= 0.5
    elif side == 8:
        assert torch.equal(image_set.test.images, native.test.images)
    else:
        assert (image_set.test.images.double().mean() - native.test.images.double().mean()).abs() < 2


def test_grey_is_replicated_and_colour_never_merged(numbered_set, monkeypatch):
    raw, load_numbered = numbered_set
    grey, replicated = load_numbered(), load_numbered(channels=3)
    assert torch.equal(replicated.train.images, grey.train.images.expand(-1, 3, -1, -1))
    assert len(replicated.mean) == 3
    colour = RawSet(
        *(Split(s.images.repeat(1, 3, 1, 1), s.labels) for s in (raw.train, raw.test)), raw.n_classes
    )
    monkeypatch.setattr(synthetic, "load", lambda config: colour)
    for channels in (1, 2, 4):
        with pytest.raises(ConfigError, match=rf"data\.channels={channels} .*use 0 or 3"):
            load_numbered(channels=channels)


def test_values_that_do_not_suit_the_set_are_refused(numbered_set):
    _, load_numbered = numbered_set
    with pytest.raises(ConfigError, match=r"data\.subset=601 .*600 training images"):
        load_numbered(subset=601)
    with pytest.raises(ConfigError, match=r"data\.validation=0\.0001 "):
        load_numbered(validation=0.0001)
    with pytest.raises(ConfigError, match=r"data\.validation=0\.9999 "):
        load_numbered(validation=0.9999)


def test_majority_share():
    labels = torch.tensor([2, 0, 2, 1, 2])
    assert majority_share(Split(torch.zeros(5, 1, 1, 1, dtype=torch.uint8), labels)) == 0.6


def test_padding_puts_images_in_the_middle_of_zero_pixels():
    padded = load(DataConfig(fit="pad", size=11), "cpu").train.images
    native = load(DataConfig(), "cpu").train.images
    assert padded[:, :, 1:9, 1:9].equal(native)
    assert int(padded.sum()) == int(native.sum())


def test_padding_to_less_than_the_native_size_is_refused():
    with pytest.raises(ConfigError, match=r"data.size=4 with data.fit=pad is below the images' own 8×8"):
        load(DataConfig(fit="pad", size=4), "cpu")


@pytest.mark.parametrize("name", SETS)
def test_every_option_works_on_every_set_and_pixels_stay_bytes(name):
    plain = load(DataConfig(name=name), "cpu")
    made = load(DataConfig(name=name, size=12, channels=3, subset=100, validation=0.2), "cpu")
    assert (len(made.train), len(made.validation), len(made.test)) == (80, 20, len(plain.test))
    for split in (plain.train, plain.test, made.train, made.validation, made.test):
        assert split.images.dtype == torch.uint8
    assert made.train.images.shape[1:] == made.test.images.shape[1:] == (3, 12, 12)

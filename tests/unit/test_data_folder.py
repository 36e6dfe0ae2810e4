"""Image folders: decoding, the cache, and what is said of a wrong layout."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from study.config import DataConfig
from study.data import image_folder
from study.data.loading import load as load_set
from study.errors import ConfigError, StudyError

SIZE = 8


def write_images(root: Path, test: str = "val") -> None:
    """Write two classes, of colour, grey and transparent images of several shapes."""
    rng = np.random.default_rng(0)
    shapes = {"a": [(8, 8), (20, 12)], "b": [(9, 30), (16, 16), (11, 10)]}
    for split in ("train", test):
        for name, sizes in shapes.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for k, (height, width) in enumerate(sizes):
                mode, depth = [("RGB", 3), ("RGBA", 4), ("L", 1)][k]
                pixels = rng.integers(0, 256, (height, width, depth), dtype=np.uint8).squeeze()
                Image.fromarray(pixels, mode).save(folder / f"{k}.png")


def config(root: Path, **changes: object) -> DataConfig:
    return DataConfig(name="image_folder", root=str(root), **{"size": SIZE, **changes})


def reference(path: Path) -> np.ndarray:
    """Resize the shorter side, then cut out the centre, with PIL alone."""
    image = Image.open(path).convert("RGB")
    width, height = image.size
    short = min(width, height)
    new = (SIZE * width // short, SIZE * height // short)
    image = image.resize(new, Image.Resampling.BILINEAR)
    left, top = round((new[0] - SIZE) / 2), round((new[1] - SIZE) / 2)
    return np.asarray(image.crop((left, top, left + SIZE, top + SIZE))).transpose(2, 0, 1)


@pytest.mark.parametrize("test", ["val", "test"])
def test_images_are_resized_and_cut_like_the_reference(tmp_path, test):
    write_images(tmp_path, test)
    raw = image_folder.load(config(tmp_path))
    assert raw.n_classes == 2
    for split, name in ((raw.train, "train"), (raw.test, test)):
        files = sorted((tmp_path / name).glob("*/*.png"))
        assert split.labels.tolist() == [0, 0, 1, 1, 1]
        assert split.images.dtype == torch.uint8
        np.testing.assert_array_equal(split.images.numpy(), np.stack([reference(f) for f in files]))


def test_the_cache_is_used_until_a_file_changes(tmp_path, monkeypatch):
    write_images(tmp_path)
    decoded: list[int] = []
    original = image_folder._decoded
    monkeypatch.setattr(image_folder, "_decoded", lambda s, n: decoded.append(len(s)) or original(s, n))
    first = image_folder.load(config(tmp_path))
    again = image_folder.load(config(tmp_path))
    assert decoded == [5, 5]
    assert torch.equal(first.train.images, again.train.images)
    assert torch.equal(first.test.labels, again.test.labels)
    image_folder.load(config(tmp_path, size=4))
    assert decoded == [5, 5] * 2
    Image.new("RGB", (8, 8), (7, 7, 7)).save(tmp_path / "train/a/0.png")
    changed = image_folder.load(config(tmp_path))
    assert decoded == [5, 5] * 3
    assert changed.train.images[0].unique().tolist() == [7]
    os.utime(tmp_path / "val/b/1.png", ns=(1, 1))
    image_folder.load(config(tmp_path))
    assert decoded == [5, 5] * 4
    (tmp_path / "train/b/2.png").unlink()
    assert len(image_folder.load(config(tmp_path)).train) == 4


def test_a_damaged_cache_is_made_anew(tmp_path):
    write_images(tmp_path)
    expected = image_folder.load(config(tmp_path)).train.images
    (path,) = (tmp_path / ".cache").glob("*.pt")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.warns(UserWarning, match="made anew"):
        assert torch.equal(image_folder.load(config(tmp_path)).train.images, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image_folder.load(config(tmp_path))
    assert not list((tmp_path / ".cache").glob("*.tmp"))


def test_a_root_that_cannot_be_written_works_without_a_cache(tmp_path):
    write_images(tmp_path)
    (tmp_path / ".cache").write_text("in the way, even for root")
    assert len(image_folder.load(config(tmp_path)).train) == 5


def test_size_is_required(tmp_path):
    write_images(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.size=0 .*1 to 1024"):
        image_folder.load(config(tmp_path, size=0))


def test_a_missing_layout_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.root=.* holds no image folders: .*train/CLASS"):
        image_folder.load(config(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_without_images_is_named(tmp_path):
    write_images(tmp_path)
    for path in (tmp_path / "val").glob("*/*"):
        path.rename(path.with_suffix(".txt"))
    with pytest.raises(ConfigError, match=r"val/CLASS/ holds no images"):
        image_folder.load(config(tmp_path))


def test_a_test_class_that_was_never_trained_on_is_refused(tmp_path):
    write_images(tmp_path)
    (tmp_path / "val/zebra").mkdir()
    with pytest.raises(ConfigError, match="zebra"):
        image_folder.load(config(tmp_path))


def test_an_unreadable_image_is_named(tmp_path):
    write_images(tmp_path)
    path = tmp_path / "train/b/1.png"
    path.write_bytes(b"not an image")
    with pytest.raises(StudyError, match=r"train/b/1\.png is not a readable image"):
        image_folder.load(config(tmp_path))
    path.write_bytes((tmp_path / "train/b/0.png").read_bytes()[:200])
    with pytest.raises(StudyError, match=r"train/b/1\.png is not a readable image"):
        image_folder.load(config(tmp_path))


def test_it_goes_through_the_common_loading(tmp_path):
    write_images(tmp_path)
    image_set = load_set(config(tmp_path, subset=4), "cpu")
    assert image_set.shape == (3, SIZE, SIZE)
    assert image_set.train.labels.tolist() == [0, 0, 1, 1]


def test_padding_has_no_effect_and_is_refused(tmp_path):
    write_images(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.fit=pad has no effect with data=image_folder"):
        image_folder.load(config(tmp_path, fit="pad"))


@pytest.mark.parametrize("target", ["nowhere.png", "link.png"])
def test_a_link_that_leads_nowhere_is_named(tmp_path, target):
    write_images(tmp_path)
    (tmp_path / "train/b/link.png").symlink_to(tmp_path / "train/b" / target)
    with pytest.raises(StudyError, match=r"train/b/link\.png cannot be read \(.+\); mend or remove it"):
        image_folder.load(config(tmp_path))


def test_an_image_beyond_the_decoders_limit_is_named(tmp_path, monkeypatch):
    write_images(tmp_path)
    path = tmp_path / "train/b/1.png"
    Image.new("RGB", (64, 64)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(StudyError, match=r"train/b/1\.png is not a readable image \(Image size"):
        image_folder.load(config(tmp_path))


@pytest.mark.parametrize("left", ["empty", "text"])
def test_a_class_without_training_images_is_named(tmp_path, left):
    write_images(tmp_path)
    (tmp_path / "train/zebra").mkdir()
    if left == "text":
        (tmp_path / "train/zebra/notes.txt").write_text("to be drawn")
    with pytest.raises(ConfigError, match=r"train/zebra holds no training images"):
        image_folder.load(config(tmp_path))

"""Images in one folder per class: `root`/train/CLASS/… and `root`/val/CLASS/… (or test/), as ImageNet's.

Images are decoded once to RGB at `data.size`: the shorter side resized (bilinear, antialiased), then the
centre cut out, as is usual for ImageNet. The result is kept in `root`/.cache under a hash of all files'
names, sizes and modification times, so that it is made anew when any of them changes.
"""

import hashlib
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset, pil_loader
from torchvision.transforms import functional as tv

from study.config import DataConfig
from study.data.base import RawSet, Split
from study.errors import ConfigError, StudyError

DECODING = 1
"""Version of the decoding, part of the hash."""

Samples = list[tuple[str, int]]
"""(file, class) of every image of a split."""


def load(config: DataConfig) -> RawSet:
    """Return the decoded images; raises ConfigError for a setting that does not suit or a wrong layout, and
    StudyError for a file that is not a readable image.
    """
    if not config.size:
        raise ConfigError("data.size=0 does not suit image_folder: its images differ in size; set 1 to 1024")
    if config.fit != DataConfig.fit:
        raise ConfigError(
            f"data.fit={config.fit} has no effect with data=image_folder, whose images are decoded at "
            "data.size; leave it out"
        )
    root = Path(config.root).expanduser()
    train, test, n_classes = _listed(root, config)
    path = root / ".cache" / f"{config.size}px-{_digest(root, [train, test], config.size)}.pt"
    splits = _cached(path)
    if splits is None:
        with _lock(path) as writable:  # several runs that start at once decode once
            splits = _cached(path) if writable else None
            if splits is None:
                splits = {"train": _decoded(train, config.size), "test": _decoded(test, config.size)}
                if writable:
                    _keep(path, splits)
    return RawSet(Split(*splits["train"]), Split(*splits["test"]), n_classes)


def _listed(root: Path, config: DataConfig) -> tuple[Samples, Samples, int]:
    train = root / "train"
    test = next((p for p in (root / "val", root / "test") if p.is_dir()), None)
    if not train.is_dir() or test is None:
        raise ConfigError(
            f"data.root={config.root} holds no image folders: it needs train/CLASS/… and val/CLASS/… (or "
            "test/CLASS/…)"
        )
    names = sorted(p.name for p in train.iterdir() if p.is_dir())
    unknown = sorted(p.name for p in test.iterdir() if p.is_dir() and p.name not in names)
    if unknown:
        raise ConfigError(f"{test} has classes that {train} lacks: {', '.join(unknown[:5])}")
    classes = {name: k for k, name in enumerate(names)}
    listed = [
        make_dataset(str(folder), classes, extensions=IMG_EXTENSIONS, allow_empty=True) if classes else []
        for folder in (train, test)
    ]
    for folder, samples in zip((train, test), listed, strict=True):
        if not samples:
            raise ConfigError(f"{folder}/CLASS/ holds no images of type {', '.join(IMG_EXTENSIONS)}")
    having = {k for _, k in listed[0]}
    if empty := [name for name, k in classes.items() if k not in having]:
        raise ConfigError(
            f"{train / empty[0]} holds no training images; remove the class, or fill its folder"
        )
    return listed[0], listed[1], len(names)


def _digest(root: Path, splits: list[Samples], size: int) -> str:
    """Hash what decides about the result: the files' names, classes, sizes and modification times."""
    digest = hashlib.sha256(f"{DECODING} {size}".encode())
    for samples in splits:
        for name, k in samples:
            try:
                status = os.stat(name)
            except OSError as error:  # a link that leads nowhere, or in a circle
                raise StudyError(f"{name} cannot be read ({error.strerror}); mend or remove it") from error
            entry = (os.path.relpath(name, root), k, status.st_size, status.st_mtime_ns)
            digest.update(repr(entry).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def _decoded(samples: Samples, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode in as many threads as there are cores (decoders leave Python's lock)."""
    images = torch.empty(len(samples), 3, size, size, dtype=torch.uint8)

    def decode(index: int) -> None:
        name = samples[index][0]
        try:
            image = tv.center_crop(tv.resize(pil_loader(name), size, antialias=True), [size, size])
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise StudyError(f"{name} is not a readable image ({error}); mend or remove it") from error
        images[index] = tv.pil_to_tensor(image)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(decode, range(len(samples))):
            pass
    return images, torch.tensor([k for _, k in samples], dtype=torch.int64)


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Hold the lock of a cache file and yield True, or just False where nothing can be written."""
    try:
        path.parent.mkdir(exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        lock.acquire()
    except OSError:  # a read-only folder
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _cached(path: Path) -> Any:
    """Return the kept splits, or None if there are none that can be read."""
    try:
        return torch.load(path, weights_only=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # torch.load raises many kinds for a damaged file; it is made anew
        warnings.warn(f"{path} cannot be read and is made anew: {error}", stacklevel=2)
        return None


def _keep(path: Path, splits: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Write under a temporary name, then rename; a failure costs only the next run's time."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        torch.save(splits, temporary)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        temporary.unlink(missing_ok=True)
        warnings.warn(f"the decoded images cannot be kept in {path.parent}: {error}", stacklevel=2)

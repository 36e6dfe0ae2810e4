"""Published image sets that torchvision knows: found on disk or downloaded once, every file verified.

Files are looked for below `data.root` where torchvision keeps them (as FashionMNIST/raw) and in `data.root`
itself, plain or gzipped, then where a system's package puts them. A file is read whole, its MD5 compared, and
only then parsed; so a damaged or foreign file is never unpickled.
"""

import errno
import gzip
import hashlib
import http.client
import os
import pickle
import shutil
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torchvision.datasets.utils import calculate_md5, extract_archive

from study.config import DataConfig
from study.data.base import RawSet, Split
from study.errors import ConfigError, StudyError

TIMEOUT = 60
"""Seconds without a byte after which a download is given up."""

Contents = Mapping[str, bytes]


@dataclass(frozen=True)
class Source:
    """Where a published set comes from and how its files become splits."""

    title: str
    """Name for people."""
    folder: str
    """Where torchvision keeps the files, below the root."""
    md5: Mapping[str, str]
    """Name of each file that is read → MD5 of what it holds uncompressed."""
    downloads: tuple[tuple[str, str, tuple[str, ...]], ...]
    """(archive name, its MD5, addresses to try in turn)."""
    unpacked: str
    """Folder inside the archives that holds the files; "" for none."""
    parse: Callable[[Contents], RawSet]
    system: str = ""
    """Folder of a system's package that holds the files; "" for none."""


def idx_source(title: str, dataset: Any, md5: Mapping[str, str], system: str = "") -> Source:
    """Describe a torchvision data set of the MNIST family; `md5` is that of the uncompressed files."""
    downloads = tuple(
        (name, md5, tuple(m + name for m in dataset.mirrors)) for name, md5 in dataset.resources
    )
    return Source(title, f"{dataset.__name__}/raw", md5, downloads, "", _parse_idx, system)


def cifar_source(title: str, dataset: Any, n_classes: int) -> Source:
    """Describe a torchvision data set of the CIFAR family."""
    train, test = dict(dataset.train_list), dict(dataset.test_list)

    def parse(contents: Contents) -> RawSet:
        return RawSet(_parse_cifar(contents, train), _parse_cifar(contents, test), n_classes)

    download = (dataset.filename, dataset.tgz_md5, (dataset.url,))
    return Source(title, dataset.base_folder, train | test, (download,), dataset.base_folder, parse)


def load(config: DataConfig, source: Source) -> RawSet:
    """Return the set, downloading it first if it is missing and `config.download` allows.

    Raises ConfigError if it is missing, StudyError if it is damaged or cannot be read or fetched.
    """
    root = Path(config.root).expanduser()
    folder = _find(root, source)
    if folder is None:
        if not config.download:
            packaged = f", nor is it where its package puts it ({source.system})" if source.system else ""
            raise ConfigError(
                f"{source.title} is not in data.root={config.root}{packaged}: neither {source.folder}/ there "
                f"nor the folder itself holds {', '.join(source.md5)}. Allow data.download=true or name the "
                "folder that has them."
            )
        folder = _download(root, source)
    return source.parse({name: _verified(_present(folder, name), md5) for name, md5 in source.md5.items()})


def _find(root: Path, source: Source) -> Path | None:
    system = [Path(source.system)] if source.system else []
    for folder in (root / source.folder, root, *system):
        if all(_present(folder, name) for name in source.md5):
            return folder
    return None


def _present(folder: Path, name: str) -> Path | None:
    candidates = (folder / name, folder / f"{name}.gz")
    return next((p for p in candidates if p.is_file()), None)


def _verified(path: Path | None, md5: str) -> bytes:
    """Return what a file holds, uncompressed; raises StudyError unless its MD5 is the published one."""
    assert path is not None
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise StudyError(f"{path} cannot be read ({error}). {_ADVICE}") from error
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != md5:
        raise StudyError(f"{path} is damaged or another file: its MD5 is {found}, not {md5}. {_ADVICE}")
    return data


_ADVICE = "Delete it, so that it is downloaded again, or replace it by a good copy."


def _download(root: Path, source: Source) -> Path:
    """Fetch, verify and unpack into a temporary folder, then move file by file; one process at a time."""
    target = root / source.folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / ".download.lock"):
            found = _find(root, source)  # another process may have fetched it while this one waited
            if found is None:
                with _temporary_folder(root) as folder:
                    for name, md5, urls in source.downloads:
                        _fetch(folder / name, md5, urls, source.title)
                        extract_archive(str(folder / name), str(folder), remove_finished=True)
                    target.mkdir(parents=True, exist_ok=True)
                    for path in sorted((folder / source.unpacked).iterdir()):
                        os.replace(path, target / path.name)
                found = target
    except OSError as error:
        raise StudyError(f"{source.title} cannot be stored in data.root={root}: {error}.") from error
    return found


@contextmanager
def _temporary_folder(root: Path) -> Iterator[Path]:
    for left in root.glob(".download-*"):  # of a process that was killed: we hold the lock, so it is gone
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=".download-", dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetch(path: Path, md5: str, urls: tuple[str, ...], title: str) -> None:
    """Download one archive from the first address that serves it intact; raises StudyError."""
    reasons = []
    for url in urls:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as response, path.open("wb") as file:
                shutil.copyfileobj(response, file)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                raise  # no other address helps
            reasons.append(f"{url}: {getattr(error, 'reason', error)}")
            continue
        if calculate_md5(path) == md5:
            return
        reasons.append(f"{url}: what it sent has another MD5 than the published one")
    raise StudyError(
        f"{title} could not be downloaded ({'; '.join(reasons)}). Fetch it on a machine with internet access "
        "and set data.root to the folder that holds it."
    )


def _parse_idx(contents: Contents) -> RawSet:
    """Return a set of the MNIST family from its four files."""
    train, test = (
        Split(
            _idx(contents[f"{name}-images-idx3-ubyte"]).unsqueeze(1),
            _idx(contents[f"{name}-labels-idx1-ubyte"]).long(),
        )
        for name in ("train", "t10k")
    )
    return RawSet(train, test, n_classes=10)


def _idx(data: bytes) -> torch.Tensor:
    """Return the uint8 array of an idx file: two zero bytes, type 8, its rank, big-endian sizes, the data."""
    rank = data[3]
    sizes = np.frombuffer(data, ">i4", count=rank, offset=4)
    array = np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(sizes)
    return torch.from_numpy(array.copy())


def _parse_cifar(contents: Contents, names: Mapping[str, str]) -> Split:
    """Return one split of the CIFAR family from its pickled batches, in order."""
    batches = [pickle.loads(contents[name], encoding="latin1") for name in names]
    images = np.concatenate([b["data"] for b in batches]).reshape(-1, 3, 32, 32)
    labels = [k for b in batches for k in b.get("labels", b.get("fine_labels"))]
    return Split(torch.from_numpy(images), torch.tensor(labels, dtype=torch.int64))

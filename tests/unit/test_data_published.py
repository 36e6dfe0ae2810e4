"""The four published sets: files found or downloaded, verified, parsed."""

import contextlib
import dataclasses
import gzip
import hashlib
import http.server
import io
import multiprocessing
import pickle
import struct
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from study.config import DataConfig
from study.data import _published, cifar10, cifar100, fashion_mnist, mnist
from study.data.base import RawSet
from study.data.loading import channel_statistics
from study.errors import ConfigError, StudyError

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
SIZES = {"train": 12, "t10k": 5}


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def idx_files() -> dict[str, bytes]:
    """A miniature of the MNIST files, in the real format."""
    rng = np.random.default_rng(0)
    files = {}
    for name, n in SIZES.items():
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        files[f"{name}-images-idx3-ubyte"] = struct.pack(">4i", 0x803, n, 28, 28) + images.tobytes()
        files[f"{name}-labels-idx1-ubyte"] = struct.pack(">2i", 0x801, n) + labels.tobytes()
    return files


def cifar_files(source: _published.Source, key: str) -> dict[str, bytes]:
    """A miniature of the CIFAR files, in the real format: pickled dictionaries of rows R…G…B…."""
    rng = np.random.default_rng(1)
    files = {}
    for name in source.md5:
        data = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
        files[name] = pickle.dumps({"data": data, key: rng.integers(0, 10, 4).tolist(), "batch_label": name})
    return files


def accepting(source: _published.Source, files: dict[str, bytes]) -> _published.Source:
    """The same source, with the miniature files' checksums in place of the published ones."""
    return dataclasses.replace(source, md5={name: md5(data) for name, data in files.items()})


def write(folder: Path, files: dict[str, bytes], *, zipped: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / f"{name}{'.gz' if zipped else ''}").write_bytes(gzip.compress(data) if zipped else data)


def config(root: Path, **changes: object) -> DataConfig:
    return DataConfig(root=str(root), **{"download": False, **changes})


def check_idx(raw: RawSet, files: dict[str, bytes]) -> None:
    for split, name in ((raw.train, "train"), (raw.test, "t10k")):
        n = SIZES[name]
        assert split.images.shape == (n, 1, 28, 28)
        assert split.images.dtype == torch.uint8
        assert split.images.numpy().tobytes() == files[f"{name}-images-idx3-ubyte"][16:]
        assert split.labels.dtype == torch.int64
        assert split.labels.tolist() == [k % 10 for k in range(n)]
    assert raw.n_classes == 10


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("below", ["torchvision", "."])
@pytest.mark.parametrize("module", [mnist, fashion_mnist])
def test_idx_files_are_read_where_torchvision_or_a_person_puts_them(tmp_path, module, below, zipped):
    files = idx_files()
    source = accepting(module.SOURCE, files)
    folder = {mnist: "MNIST/raw", fashion_mnist: "FashionMNIST/raw"}[module]
    write(tmp_path / (folder if below == "torchvision" else below), files, zipped=zipped)
    check_idx(_published.load(config(tmp_path), source), files)


def test_a_system_package_serves_if_the_root_has_nothing(tmp_path):
    files = idx_files()
    source = dataclasses.replace(accepting(fashion_mnist.SOURCE, files), system=str(tmp_path / "package"))
    write(tmp_path / "package", files, zipped=True)
    check_idx(_published.load(config(tmp_path / "empty"), source), files)


@pytest.mark.parametrize(("module", "key", "batches"), [(cifar10, "labels", 5), (cifar100, "fine_labels", 1)])
def test_cifar_files_are_read_in_order_of_their_batches(tmp_path, module, key, batches):
    files = cifar_files(module.SOURCE, key)
    write(tmp_path / module.SOURCE.folder, files)
    raw = _published.load(config(tmp_path), accepting(module.SOURCE, files))
    contents = [pickle.loads(data) for data in files.values()]
    assert raw.train.images.shape == (4 * batches, 3, 32, 32)
    assert raw.test.images.shape == (4, 3, 32, 32)
    assert raw.train.labels.tolist() == [k for c in contents[:-1] for k in c[key]]
    assert raw.test.labels.tolist() == contents[-1][key]
    row = contents[0]["data"][2]  # 1,024 red values row by row, then green, then blue
    assert raw.train.images[2, 1, 3, 7] == row[1024 + 3 * 32 + 7]
    assert raw.n_classes == {cifar10: 10, cifar100: 100}[module]


@pytest.mark.parametrize("module", [mnist, fashion_mnist, cifar10, cifar100])
def test_foreign_files_are_refused_by_their_checksum_and_never_unpickled(tmp_path, module, monkeypatch):
    monkeypatch.setattr(pickle, "loads", lambda *a, **k: pytest.fail("unpickled an unverified file"))
    write(tmp_path / module.SOURCE.folder, dict.fromkeys(module.SOURCE.md5, b"\0\0\x08\x01\0\0\0\0"))
    with pytest.raises(StudyError, match=r"(?s)is damaged or another file: its MD5 is .*Delete it"):
        module.load(config(tmp_path))


@pytest.mark.parametrize("damage", ["truncated", "garbled", "plain"])
def test_damaged_gzip_is_refused_in_one_sentence(tmp_path, damage):
    files = idx_files()
    write(tmp_path, files, zipped=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    data = path.read_bytes()
    broken = {
        "truncated": data[: len(data) // 2],
        "garbled": data[:100] + b"\xff" * 50 + data[150:],
        "plain": b"no gzip",
    }
    path.write_bytes(broken[damage])
    with pytest.raises(StudyError, match=r"train-images-idx3-ubyte\.gz") as caught:
        _published.load(config(tmp_path), accepting(mnist.SOURCE, files))
    assert "\n" not in str(caught.value)


def test_missing_set_names_the_folder_the_files_and_the_remedy(tmp_path):
    source = dataclasses.replace(fashion_mnist.SOURCE, system=str(tmp_path / "package"))
    with pytest.raises(ConfigError) as caught:
        _published.load(config(tmp_path / "nowhere"), source)
    for part in (
        str(tmp_path / "package"),
        str(tmp_path / "nowhere"),
        "FashionMNIST/raw",
        "train-images-idx3-ubyte",
        "data.download=true",
    ):
        assert part in str(caught.value)
    assert not (tmp_path / "nowhere").exists()


@contextlib.contextmanager
def serving(files: dict[str, bytes], *, seconds: float = 0.0, cut: bool = False):
    """Serve files on the loopback interface; yields (address, list of the paths asked for)."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            time.sleep(seconds)
            data = files.get(self.path.removeprefix("/"))
            self.send_response(200 if data is not None else 404)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write((data or b"")[: len(data or b"") // 2] if cut else data or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def idx_archives(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}


def downloadable(
    source: _published.Source, files: dict[str, bytes], archives: dict[str, bytes], *addresses: str
) -> _published.Source:
    downloads = tuple(
        (name, md5(data), tuple(a + name for a in addresses)) for name, data in archives.items()
    )
    return dataclasses.replace(accepting(source, files), downloads=downloads)


def left(root: Path) -> set[str]:
    found = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    return found - {".download.lock"}


def test_download_verifies_unpacks_and_leaves_torchvisions_layout(tmp_path):
    files = idx_files()
    archives = idx_archives(files)
    with serving(archives) as (address, asked):
        source = downloadable(mnist.SOURCE, files, archives, address)
        check_idx(_published.load(config(tmp_path / "new", download=True), source), files)
        check_idx(_published.load(config(tmp_path / "new", download=True), source), files)
    assert len(asked) == 4
    assert left(tmp_path / "new") == {f"MNIST/raw/{name}" for name in files}


def test_cifar_archive_is_unpacked(tmp_path):
    files = cifar_files(cifar10.SOURCE, "labels")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in {**files, "batches.meta": b"names"}.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    archives = {"cifar-10-python.tar.gz": packed.getvalue()}
    with serving(archives) as (address, _):
        source = downloadable(cifar10.SOURCE, files, archives, address)
        raw = _published.load(config(tmp_path, download=True), source)
    assert len(raw.train) == 20
    assert left(tmp_path) == {f"cifar-10-batches-py/{name}" for name in [*files, "batches.meta"]}


def test_a_bad_mirror_is_skipped_for_a_good_one(tmp_path):
    files = idx_files()
    archives = idx_archives(files)
    wrong = {name: data[:-1] + b"?" for name, data in archives.items()}
    with serving(wrong) as (bad, asked_bad), serving(archives) as (good, asked_good):
        source = downloadable(mnist.SOURCE, files, archives, bad, good)
        check_idx(_published.load(config(tmp_path, download=True), source), files)
    assert len(asked_bad) == len(asked_good) == 4


@pytest.mark.parametrize("fault", ["wrong", "cut", "absent", "refused"])
def test_a_failed_download_says_why_and_leaves_nothing(tmp_path, fault):
    files = idx_files()
    archives = idx_archives(files)
    served = {"wrong": dict.fromkeys(archives, b"other"), "absent": {}}.get(fault, archives)
    with serving(served, cut=fault == "cut") as (address, _):
        address = "http://127.0.0.1:9/" if fault == "refused" else address
        source = downloadable(mnist.SOURCE, files, archives, address)
        with pytest.raises(StudyError, match="MNIST could not be downloaded") as caught:
            _published.load(config(tmp_path, download=True), source)
    assert address in str(caught.value)
    assert left(tmp_path) == set()


def test_what_a_killed_download_left_is_removed(tmp_path):
    files = idx_files()
    archives = idx_archives(files)
    write(tmp_path / ".download-killed", {"half": b"x"})
    write(tmp_path / "MNIST/raw", {"train-images-idx3-ubyte": b"half"})
    with serving(archives) as (address, _):
        source = downloadable(mnist.SOURCE, files, archives, address)
        check_idx(_published.load(config(tmp_path, download=True), source), files)
    assert left(tmp_path) == {f"MNIST/raw/{name}" for name in files}


def test_an_unwritable_root_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StudyError, match=r"MNIST cannot be stored in data\.root=.*file"):
        mnist.load(config(tmp_path / "file", download=True))


def _load_in_process(root: str, source: _published.Source, barrier, results) -> None:
    barrier.wait()
    raw = _published.load(config(Path(root), download=True), source)
    results.put(int(raw.train.images.sum()))


def test_processes_that_start_at_once_download_once(tmp_path):
    files = idx_files()
    archives = idx_archives(files)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    with serving(archives, seconds=0.05) as (address, asked):
        source = downloadable(mnist.SOURCE, files, archives, address)
        arguments = (str(tmp_path), source, barrier, results)
        processes = [context.Process(target=_load_in_process, args=arguments) for _ in range(2)]
        for process in processes:
            process.start()
        sums = {results.get(timeout=30) for _ in processes}
        for process in processes:
            process.join(timeout=30)
    assert [p.exitcode for p in processes] == [0, 0]
    assert sorted(asked) == sorted(f"/{name}" for name in archives)
    assert len(sums) == 1
    assert left(tmp_path) == {f"MNIST/raw/{name}" for name in files}


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_whole_fashion_mnist_as_debian_packs_it():
    raw = fashion_mnist.load(config(DEBIAN))
    assert raw.train.images.shape == (60_000, 1, 28, 28)
    assert raw.test.images.shape == (10_000, 1, 28, 28)
    assert torch.bincount(raw.train.labels).tolist() == [6000] * 10
    assert torch.bincount(raw.test.labels).tolist() == [1000] * 10
    (mean,), (std,) = channel_statistics(raw.train.images)
    assert (round(mean, 4), round(std, 4)) == (0.2860, 0.3530)  # as widely published

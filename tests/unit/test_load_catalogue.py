"""analysis.catalogue: never another answer than the run directories give, whatever happened to it."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import catalogue
from analysis import load as loader
from analysis.load import load
from study.paths import CATALOGUE, RunPaths
from study.records import METRICS
from tests import factory

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _small_folders_count(monkeypatch):
    monkeypatch.setattr(catalogue, "LEAST_RUNS", 1)
    monkeypatch.setattr(catalogue, "SETTLED_SECONDS", -1.0)


@pytest.fixture
def reads(monkeypatch):
    """Ids of the run directories that were opened."""
    opened = []
    original = loader.read_record
    monkeypatch.setattr(loader, "read_record", lambda run: opened.append(run.run_id) or original(run))
    return opened


@pytest.fixture
def runs(tmp_path):
    probe = {"moments": pa.table({"step": [0], "layer": ["stem"], "std": [1.0]})}
    ids = [factory.write_run(tmp_path, seed=s, epochs=2, probes=probe) for s in range(3)]
    ids.append(factory.write_run(tmp_path, norm="none", fate="diverged"))
    return tmp_path, ids


def assert_same(a, b):
    pd.testing.assert_frame_equal(a.runs, b.runs)
    pd.testing.assert_frame_equal(a.metrics, b.metrics)
    assert set(a.probes) == set(b.probes)
    for name in a.probes:
        pd.testing.assert_frame_equal(a.probes[name], b.probes[name])
    pd.testing.assert_frame_equal(a.problems, b.problems)


def change(run):
    table = pq.read_table(run.metrics)
    losses = pa.array([9.0] * table.num_rows, pa.float64())
    new = table.set_column(METRICS.get_field_index("loss"), "loss", losses)
    pq.write_table(new, run.root / "new")
    os.replace(run.root / "new", run.metrics)


def test_the_second_load_opens_no_run_directory_and_gives_the_same(runs, reads):
    folder, ids = runs
    first = load([folder])
    assert sorted(reads) == sorted(ids)
    reads.clear()
    second = load([folder])
    assert reads == []
    assert_same(first, second)
    assert_same(second, load([folder], use_catalogue=False))


@pytest.mark.parametrize(
    "what", ["metrics", "record", "probe", "removed", "new", "unfinished", "probe added"]
)
def test_a_changed_run_is_read_again_at_once_and_only_that_one(runs, reads, what):
    folder, ids = runs
    load([folder])
    reads.clear()
    run = RunPaths(folder / ids[1])
    expected = [ids[1]]
    if what == "metrics":
        change(run)
    elif what == "record":
        record = json.loads(run.record.read_text()) | {"seconds": 1.0}
        run.record.write_text(json.dumps(record))
    elif what == "unfinished":
        record = json.loads(run.record.read_text()) | {"status": "running"}
        run.record.write_text(json.dumps(record))
    elif what == "probe":
        run.probe("moments").unlink()
    elif what == "probe added":
        pq.write_table(pa.table({"x": [1]}), run.probe("other"))
    elif what == "removed":
        shutil.rmtree(run.root)
        expected = []
    else:
        expected = [factory.write_run(folder, seed=77)]
    found = load([folder])
    assert reads == expected
    assert_same(found, load([folder], use_catalogue=False))
    assert_same(load([folder]), load([folder], use_catalogue=False))


def test_a_change_within_the_clocks_tick_is_not_trusted(runs, reads, monkeypatch):
    monkeypatch.setattr(catalogue, "SETTLED_SECONDS", 3600.0)
    folder, ids = runs
    load([folder])
    reads.clear()
    load([folder])
    assert sorted(reads) == sorted(ids)


@pytest.mark.parametrize("file", ["metrics.parquet", "runs.parquet", "probe-moments.parquet"])
@pytest.mark.parametrize("damage", ["truncated", "removed", "other"])
def test_a_damaged_catalogue_is_ignored(runs, file, damage):
    folder, _ = runs
    expected = load([folder])
    (generation,) = (folder / CATALOGUE).iterdir()
    path = generation / file
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "removed" and not file.startswith("probe"):
        path.unlink()
    else:
        path.write_text("not a table")
    assert_same(load([folder]), expected)


def test_another_formats_catalogue_is_ignored(runs, reads, monkeypatch):
    folder, ids = runs
    load([folder])
    reads.clear()
    monkeypatch.setattr(catalogue, "FORMAT", 999)
    load([folder])
    assert sorted(reads) == sorted(ids)


def test_a_folder_that_cannot_be_written_to_still_loads(runs, monkeypatch):
    folder, _ = runs

    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "read-only")

    monkeypatch.setattr(catalogue.Path, "mkdir", refuse)
    assert len(load([folder]).runs) == 4
    assert not (folder / CATALOGUE).exists()
    assert folder.stat().st_mode & stat.S_IRUSR


def test_generations_do_not_pile_up_and_leave_nothing_temporary(runs):
    folder, ids = runs
    for _ in range(3):
        load([folder])
        change(RunPaths(folder / ids[0]))
    load([folder])
    assert len(list((folder / CATALOGUE).iterdir())) == 1


KILLED = """
import os, signal, sys
from analysis import catalogue, load
catalogue.LEAST_RUNS, catalogue.SETTLED_SECONDS = 1, -1.0
calls, write = [], catalogue.pq.write_table
def killed(*args, **more):
    calls.append(1)
    write(*args, **more)
    if len(calls) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
catalogue.pq.write_table = killed
load.load(sys.argv[1])
"""


@pytest.mark.parametrize("tables", [1, 2])
def test_a_writer_that_is_killed_leaves_no_wrong_catalogue_and_is_cleared_away(runs, monkeypatch, tables):
    folder, _ = runs
    done = subprocess.run([sys.executable, "-c", KILLED, folder, str(tables)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = (folder / CATALOGUE).iterdir()
    assert left.name.endswith(".tmp")
    expected = load([folder], use_catalogue=False)
    assert_same(load([folder]), expected)
    assert left.exists()  # it might be somebody's who is still writing
    monkeypatch.setattr(catalogue, "ABANDONED_SECONDS", -1.0)
    change(RunPaths(folder / sorted(p.name for p in folder.iterdir() if p.name[0] != ".")[0]))
    load([folder])
    assert not left.exists()
    assert_same(load([folder]), load([folder], use_catalogue=False))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_real_disk_that_is_full_or_read_only_still_loads(runs, tmp_path_factory, kind):
    folder, _ = runs
    disk = tmp_path_factory.mktemp("disk")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False).returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        shutil.copytree(folder, disk / "runs")
        if kind == "full":
            with contextlib.suppress(OSError), open(disk / "ballast", "wb", buffering=0) as ballast:
                while True:
                    ballast.write(b"0" * 4096)
        else:
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        expected = load([folder], use_catalogue=False)
        for _ in range(2):
            pd.testing.assert_frame_equal(load([disk / "runs"]).metrics, expected.metrics)
        left = disk / "runs" / CATALOGUE
        assert not left.exists() or not list(left.iterdir())
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_readers_at_the_same_time_agree(runs):
    folder, ids = runs
    expected = load([folder], use_catalogue=False)
    for _ in range(2):
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _: load([folder]), range(4)):
                assert_same(found, expected)
        change(RunPaths(folder / ids[0]))
        expected = load([folder], use_catalogue=False)


def test_a_moved_folder_keeps_working(runs, tmp_path_factory):
    folder, _ = runs
    load([folder])
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "runs"
    shutil.copytree(folder, elsewhere)
    assert set(load([elsewhere]).runs["path"].map(lambda p: p.startswith(str(elsewhere)))) == {True}
    assert_same(load([elsewhere]), load([elsewhere], use_catalogue=False))

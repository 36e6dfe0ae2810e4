"""analysis.catalogue: never another answer than the run directories give, whatever happened to it."""

import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor

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

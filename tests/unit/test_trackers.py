"""What a tracker sends and under which id, without W&B."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from study import trackers
from study.config import RunConfig, TrackerConfig
from study.identity import run_id
from study.records import METRICS
from study.trackers import history
from study.trackers.offline import BLOCK, CHUNK_HEADER, FIRST, FULL, LAST, MIDDLE, _records

TRACKED = dataclasses.replace(RunConfig(), tracker=TrackerConfig(name="wandb"))


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in ("WANDB_MODE", "WANDB_RUN_ID", "WANDB_SWEEP_ID"):
        monkeypatch.delenv(name, raising=False)


def row(step, split="batch", **values):
    base = dict.fromkeys(METRICS.names) | {"step": step, "epoch": 0, "split": split, "lr": 0.1, "n": 8}
    return base | {"loss": 1.0, "accuracy": 0.5, "poisoned": False} | values


def table(*rows):
    return {"metrics": pa.Table.from_pylist(list(rows), METRICS)}


def test_the_tracker_is_no_part_of_the_identity():
    tracker = TrackerConfig(name="wandb", project="x", entity="y", patience=1.0)
    assert run_id(dataclasses.replace(RunConfig(), tracker=tracker)) == run_id(RunConfig())


def test_ids_are_kept_and_drawn_and_the_agents_go_first(monkeypatch):
    name = run_id(RunConfig())
    first, second = (trackers.identity(TRACKED, name, None) for _ in range(2))
    assert first != second
    assert first is not None
    assert first.startswith(name.rpartition("-")[2])
    assert trackers.identity(TRACKED, name, first) == first
    assert trackers.identity(RunConfig(), name, None) is None
    assert trackers.identity(RunConfig(), name, "old") == "old"
    monkeypatch.setenv("WANDB_RUN_ID", "agents")
    assert trackers.identity(TRACKED, name, first) == first  # an id alone is no agent
    monkeypatch.setenv("WANDB_SWEEP_ID", "s")
    assert trackers.identity(RunConfig(), name, first) == "agents"


def test_disabled_means_no_mirror(monkeypatch, tmp_path):
    from study.paths import RunPaths

    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert isinstance(trackers.build(TRACKED, RunPaths(tmp_path), {}), trackers.NoTracker)


def test_positions_ascend_in_the_order_of_events():
    epoch = [row(2, s) for s in ("train", "test", "validation")]
    found = list(history.positions(table(row(1), row(2), *epoch, row(0), row(3))))
    assert [p for p, _ in found] == [
        1,
        4,
        6,
        7,
        10,
    ]  # the evaluation after two updates precedes the third batch
    assert {k for k in found[2][1] if k.endswith("/loss")} == {"train/loss", "test/loss", "validation/loss"}


def test_numbers_that_json_lacks_are_counted():
    found = [v for _, v in history.positions(table(row(0, loss=math.inf), row(1, loss=math.nan), row(2)))]
    assert [history.nonfinite(v) for v in found] == [1, 1, 0]


@pytest.mark.parametrize("n", [1, 5, 512, 513, 5000])
def test_histograms_are_bounded_and_lose_nothing(n):
    counts = [0] * 7 + [i % 3 for i in range(n)] + [1, 0, 0]
    found = history.coarsened(counts, list(map(float, range(len(counts) + 1))))
    assert sum(found.counts) == sum(counts)
    assert len(found.counts) <= history.MAX_BINS
    assert len(found.edges) == len(found.counts) + 1
    assert found.edges == sorted(set(found.edges))


def test_an_empty_histogram_has_one_bin():
    assert history.coarsened([0, 0, 0], [0.0, 1.0, 2.0, 3.0]) == history.Bins([0], [0.0, 1.0])


def test_by_depth_shows_the_first_and_the_last_moment():
    rows = [
        {"step": s, "number": n, "source": source, "side": "output", "mean": [v, math.nan], "variance": [1.0]}
        for s, v in ((0, 1.0), (5, 2.0), (9, 3.0))
        for n in (1, None, 2)
        for source in ("data", "noise")
    ]
    found = list(history.by_depth({"probes/activation_moments": pa.Table.from_pylist(rows)}, 9))
    assert [v["depth/layer"] for _, v in found] == [1, 2]
    assert found[0][1]["depth/first/activation_moments/output_mean"] == 1.0
    assert found[0][1]["depth/last/activation_moments/output_mean"] == 3.0
    assert found[0][0] > 3 * 9 + 2


def test_records_of_wandbs_log_across_blocks():
    """Twin of the reader: written by the format's rules, sizes around the edges of a block."""
    sizes = [1, BLOCK - 40, 5, 3 * BLOCK, 0, BLOCK - CHUNK_HEADER, 77]
    wanted = [bytes([i]) * size for i, size in enumerate(sizes)]
    data = b"header!"
    for record in wanted:
        first = True
        while True:
            left = BLOCK - len(data) % BLOCK
            if left < CHUNK_HEADER:
                data += bytes(left)
                continue
            part, record = record[: left - CHUNK_HEADER], record[left - CHUNK_HEADER :]
            kind = (LAST, FULL)[first] if not record else (MIDDLE, FIRST)[first]
            data += b"crc!" + len(part).to_bytes(2, "little") + bytes([kind]) + part
            first = False
            if not record:
                break
    assert list(_records(data)) == wanted
    assert list(_records(data[:-1])) == wanted[:-1]


def test_the_dashboard_prints_its_specification_and_reaches_nothing():
    command = [sys.executable, "-m", "study.dashboard", "team/p", "--sweep", "quickstart", "--dry-run"]
    environment = {"PATH": "", "WANDB_BASE_URL": "http://127.0.0.1:9"}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    assert (printed["entity"], printed["project"], printed["name"]) == ("team", "p", "Sweep quickstart")
    text = json.dumps(printed["spec"])
    metrics = ("test/accuracy", "test/loss", "diverged_at_step", "gradient_tails/tail_ratio", "output_mean")
    assert all(m in text for m in metrics)
    assert '"quickstart"' in text
    assert "norm.value.name" in text


def test_without_a_tracker_wandb_is_not_imported():
    code = "import sys, study.trackers, study.sweep, study.launch.local; sys.exit('wandb' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_an_upload_is_stale_once_a_probe_table_is_added(tmp_path):
    from study.paths import RunPaths
    from study.trackers.mirror import uploaded_as

    paths = RunPaths(tmp_path)
    paths.probes.mkdir()
    before = uploaded_as(paths, {"wandb_id": "x"})
    assert uploaded_as(paths, {"wandb_id": "x"}) == before
    paths.probe("gradient_tails").write_bytes(b"rows")
    assert uploaded_as(paths, {"wandb_id": "x"}) != before

"""tracker=wandb with the real client against a small server: every row once, through kills and resumes."""

import json
import math
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from study.execute import execute, run_paths
from study.paths import run_dirs
from study.records import read_record
from study.trackers import history
from tests.runs import assert_same_results, tiny
from tests.wandb_fixtures import PROBES, server, stopped_after, tracked, warnings_of  # noqa: F401


def metrics(run):
    """(step, split, loss, accuracy) of every history row, in order."""
    rows = []
    for row in run.history:
        splits = sorted({key.split("/")[0] for key in row if key.endswith("/loss")})
        rows += [(row["step"], s, row[f"{s}/loss"], row[f"{s}/accuracy"]) for s in splits]
    return rows


def recorded(config):
    """The same of the records."""
    table = pq.read_table(run_paths(config).metrics).to_pylist()
    rows = [(r["step"], r["split"], r["loss"], r["accuracy"]) for r in table]
    return sorted(rows, key=lambda r: (3 * r[0] + (r[1] == "batch"), r[1]))


def same(a, b):
    return len(a) == len(b) and all(
        x == y or (isinstance(x, float) and math.isnan(x) and math.isnan(y))
        for p, q in zip(a, b, strict=True)
        for x, y in zip(p, q, strict=True)
    )


def test_a_run_is_mirrored_whole(tmp_path, server):  # noqa: F811
    config = tracked(tmp_path / "runs", probes=PROBES, sweep="first", experiment="bjorck_init")
    record = execute(config)
    assert warnings_of(config) == []
    run = server.run(record["wandb_id"])
    assert same(metrics(run), recorded(config))
    assert (run.state, run.exit_code) == ("finished", 0)
    assert (run.display, run.tags, run.project) == (record["run_id"], ["first"], "p")
    assert run.group == "bjorck_init"
    assert read_record(run_paths(config))["wandb_id"] == record["wandb_id"]

    settings = {k: v["value"] for k, v in run.config.items() if k != "_wandb"}
    assert settings["lr"] == 0.05
    assert isinstance(settings["lr"], float)
    assert settings["norm"]["eps"] == 1e-5
    assert settings["model"]["widths"] == [2, 3, 4]
    assert (run.summary["status"], run.summary["outcome"], run.summary["n_nonfinite"]) == (
        "finished",
        "trained",
        0,
    )
    assert json.loads(run.summary["record"]) == read_record(run_paths(config))

    steps = run.config["_wandb"]["value"]["m"]  # what define_metric said: fields by number, as W&B packs them
    names = [m.get("1") or m.get("2") for m in steps]
    assert "step" in names
    assert {m.get("2"): names[m["5"] - 1] for m in steps if "5" in m} == {
        "*": "step",
        "depth/*": "depth/layer",
    }

    bins = [len(v["values"]) for r in run.history for v in r.values() if isinstance(v, dict)]
    assert max(bins) <= 512
    assert [r["test/predicted"]["values"] for r in run.history if "test/predicted" in r] == [
        r["predicted"] for r in pq.read_table(run_paths(config).metrics).to_pylist() if r["split"] == "test"
    ]
    assert any(key.startswith("gradient_tails/block1/conv1") for key in run.history[0])

    (name,) = run.artifacts
    (version,) = server.artifacts[name].values()
    paths = run_paths(config)
    stored = {file: server.blobs[url] for file, url in version["files"].items()}
    assert stored.keys() >= {f"probes/{p.partition('@')[0]}.parquet" for p in PROBES} | {
        "metrics.parquet",
        "run.json",
    }
    assert all(data == (paths.root / file).read_bytes() for file, data in stored.items())
    assert server.unknown == []


def test_training_does_not_depend_on_the_mirror(tmp_path, server):  # noqa: F811
    plain, mirrored = tiny(tmp_path / "plain"), tracked(tmp_path / "mirrored")
    execute(plain)
    execute(mirrored)
    assert_same_results(run_paths(plain), run_paths(mirrored))


@pytest.mark.parametrize("steps", [2, 5])
def test_a_resumed_run_continues_its_wandb_run(tmp_path, server, steps):  # noqa: F811
    config = tracked(tmp_path)
    first = stopped_after(config, steps)
    assert first["status"] == "preempted"
    assert server.run().state == "preempted"
    half = metrics(server.run())
    assert 0 < len(half) < len(recorded_after := metrics(server.run())) + 1
    record = execute(config)
    assert record["wandb_id"] == first["wandb_id"]
    assert same(metrics(server.run()), recorded(config))
    assert recorded_after == half == metrics(server.run())[: len(half)]
    assert server.run().state == "finished"


def test_rows_lost_on_the_way_are_sent_at_the_next_start(tmp_path, server):  # noqa: F811
    config = tracked(tmp_path)
    first = stopped_after(config, 5)
    run = server.run()
    for offset in sorted(run.lines)[2:]:  # as if the process had died before these were sent
        del run.lines[offset]
    run.summary = run.history[-1]
    assert execute(config)["wandb_id"] == first["wandb_id"]
    assert same(metrics(run), recorded(config))


def test_a_failed_run_is_marked_failed(tmp_path, server, monkeypatch):  # noqa: F811
    def broken(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("study.train.evaluate", broken)
    config = tracked(tmp_path)
    with pytest.raises(RuntimeError):
        execute(config)
    run = server.run()
    assert (run.state, run.exit_code, run.summary["status"]) == ("failed", 1, "failed")
    assert "out of luck" in run.summary["error"]
    monkeypatch.undo()


def test_divergence_and_non_finite_numbers(tmp_path, server):  # noqa: F811
    config = tracked(tmp_path, lr=1e6, norm={"family": "none"}, probes=("gradient_tails@divergence",))
    record = execute(config)
    assert record["outcome"] == "diverged"
    assert warnings_of(config) == []
    run = server.run()
    assert (run.state, run.summary["outcome"]) == ("finished", "diverged")
    assert run.summary["diverged_at_step"] == record["divergence"]["step"]
    lost = [r for r in recorded(config) if not math.isfinite(r[2])]
    assert run.summary["n_nonfinite"] == len(lost)
    assert same(metrics(run), recorded(config))


def test_parallel_runs_never_mix(tmp_path, server):  # noqa: F811
    configs = [tracked(tmp_path, seed=seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        records = list(pool.map(execute, configs))
    assert len({r["wandb_id"] for r in records}) == 3
    for config, record in zip(configs, records, strict=True):
        run = server.run(record["wandb_id"])
        assert same(metrics(run), recorded(config))
        assert run.config["seed"]["value"] == config.seed


@pytest.mark.slow
def test_offline_runs_go_up_once_by_wandb_sync(tmp_path, server, monkeypatch):  # noqa: F811
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_API_KEY")
    config = tracked(tmp_path / "runs")
    stopped_after(config, 5)
    record = execute(config)
    assert warnings_of(config) == []
    assert not server.calls
    (folder,) = run_paths(config).wandb.glob("offline-run-*")
    monkeypatch.undo()
    environment = server.environment(tmp_path) | {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    for _ in range(2):
        command = [sys.executable, "-m", "wandb", "sync", str(folder)]
        subprocess.run(command, env=environment, check=True, capture_output=True, cwd=tmp_path)
    run = server.run(record["wandb_id"])
    assert same(metrics(run), recorded(config))
    assert run.state == "finished"
    assert json.loads(run.summary["record"])["status"] == "finished"


def test_a_rerun_is_a_new_wandb_run(tmp_path, server):  # noqa: F811
    import dataclasses

    config = tracked(tmp_path)
    first = execute(config)
    second = execute(dataclasses.replace(config, rerun=True))
    assert first["wandb_id"] != second["wandb_id"]
    assert same(metrics(server.run(first["wandb_id"])), metrics(server.run(second["wandb_id"])))


@pytest.mark.slow
def test_two_trials_at_once_from_the_fork_server_never_mix(tmp_path):
    """Offline, as launched: each run's W&B file holds its own rows, all of them, and no other's."""
    from wandb.proto.wandb_internal_pb2 import Record

    from study.trackers.offline import _records

    command = [sys.executable, "-m", "study.run", "-m", "scale=smoke", "epochs=2", "norm=bn,none", "seed=0,1"]
    command += [f"runs_dir={tmp_path}", "tracker=wandb", "hydra.launcher.workers=2", "log_every=1"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    environment["HOME"] = str(tmp_path / "home")
    subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, check=True, capture_output=True)
    runs = [paths for paths in run_dirs(tmp_path) if paths.record.exists()]
    assert len(runs) == 4
    ids = set()
    for paths in runs:
        record = read_record(paths)
        ids.add(record["wandb_id"])
        (file,) = paths.wandb.glob(f"offline-run-*-{record['wandb_id']}/*.wandb")
        assert len(list(paths.wandb.glob("offline-run-*"))) == 1
        assert "W&B:" not in paths.log.read_text()
        kinds = {}
        for data in _records(file.read_bytes()):
            entry = Record.FromString(data)
            kinds.setdefault(entry.WhichOneof("record_type"), []).append(entry)
        (run,) = (entry.run for entry in kinds["run"])
        assert (run.run_id, run.display_name) == (record["wandb_id"], record["run_id"])
        rows = [
            {item.key or item.nested_key[0]: item.value_json for item in e.history.item}
            for e in kinds["history"]
        ]
        sent = sorted((int(r["step"]), float(r["batch/loss"])) for r in rows if "batch/loss" in r)
        table = pq.read_table(paths.metrics).to_pylist()
        assert sent == sorted((r["step"], r["loss"]) for r in table if r["split"] == "batch")
    assert len(ids) == 4


@pytest.mark.slow
def test_without_a_tracker_wandb_is_not_imported():
    code = "import sys, study.execute, study.trackers; sys.exit('wandb' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode
        == 0
    )


def test_positions_are_the_same_from_parts_and_from_the_whole(tmp_path, server):  # noqa: F811
    """What makes every row go up once: where a row stands does not depend on when it is sent."""
    config = tracked(tmp_path / "whole", probes=PROBES)
    execute(config)
    from study.trackers.session import read_tables

    tables = read_tables(run_paths(config))
    whole = dict(history.positions(tables))
    by_step = {}
    for step in range(9):
        part = {}
        for name, table in tables.items():
            part[name] = table.filter(pc.equal(table["step"], step))
        rows = list(history.positions(part))
        assert not by_step.keys() & dict(rows).keys()
        by_step |= rows
    assert list(by_step) == list(whole)
    assert {k: sorted(v) for k, v in by_step.items()} == {k: sorted(v) for k, v in whole.items()}
    shutil.rmtree(tmp_path / "whole")

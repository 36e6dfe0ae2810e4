"""What went to W&B comes back as the same frames: from live runs, from `sync`, from an agent's runs."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis import wandb_source
from analysis.load import load
from study import sweep
from study.config import ProbesConfig
from study.execute import execute, run_paths
from study.launch.plan import make_plan, mark
from study.probe import probe_run
from study.records import read_record
from study.trackers.upload import sync
from tests.wandb_fixtures import PROBES, server, stopped_after, tracked  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]

GRID = """
program: study/run.py
method: grid
parameters:
  runs_dir: {{value: {runs}}}
  sweep: {{value: grid}}
  data: {{value: synthetic}}
  data.subset: {{value: 160}}
  model: {{value: resnet8}}
  model.widths: {{value: [2, 3, 4]}}
  batch_size: {{value: 32}}
  epochs: {{value: 1}}
  norm: {{values: [bn, none]}}
command: ['${{env}}', '${{interpreter}}', -m, study.run, '${{args_no_hyphens}}']
"""


@pytest.fixture
def grid(tmp_path):
    """A sweep file of two trials."""
    file = tmp_path / "grid.yaml"
    file.write_text(GRID.format(runs=tmp_path / "runs"))
    return file


def trials(file):
    return sweep.plan_of(sweep.read_sweep(file), []).trials


def assert_same_frames(here, there):
    a, b = load([here]), load([there])
    pd.testing.assert_frame_equal(a.runs.drop(columns="path"), b.runs.drop(columns="path"))
    pd.testing.assert_frame_equal(a.metrics, b.metrics)
    assert a.probes.keys() == b.probes.keys()
    for name in a.probes:
        pd.testing.assert_frame_equal(a.probes[name], b.probes[name])
    assert (a.problems["run_id"].tolist(), a.problems["kind"].tolist()) == (
        b.problems["run_id"].tolist(),
        b.problems["kind"].tolist(),
    )


def test_a_project_gives_the_frames_of_the_local_store(tmp_path, server, monkeypatch):  # noqa: F811
    here, there = tmp_path / "runs", tmp_path / "fetched"
    execute(tracked(here, probes=PROBES))
    execute(tracked(here, lr=1e6, norm={"family": "none"}, probes=PROBES))
    stopped_after(tracked(here, seed=1), 5)
    server.page = 1
    failing = {"Runs", "HistoryPage", "RunOutputArtifacts", "RunParquetHistory"}
    server.calls.clear()
    server.fault = lambda name: 500 if name in failing and server.calls[name] == 1 else None
    monkeypatch.setattr(wandb_source, "WAIT_SECONDS", 0.01)
    assert wandb_source.fetch("tester/p", there) == []
    assert_same_frames(here, there)
    assert server.calls["Runs"] >= 3

    server.fault = None
    before = server.calls["HistoryPage"]
    assert wandb_source.fetch("tester/p", there) == []
    assert server.calls["HistoryPage"] == before  # nothing has changed


def test_the_history_is_read_page_by_page(tmp_path, server):  # noqa: F811
    record = execute(tracked(tmp_path / "runs"))
    line = json.loads(server.run().lines[0])
    for i in range(2500):  # a long run: more rows than one page holds
        extra = {**line, "_step": 1000 + 3 * i, "step": 1000 + i}
        server.run().lines[len(server.run().lines)] = json.dumps(extra)
    assert wandb_source.fetch("tester/p", tmp_path / "fetched") == []
    steps = load([tmp_path / "fetched"]).metrics["step"]
    assert set(range(1000, 3500)) <= set(steps)
    assert record["run_id"] in os.listdir(tmp_path / "fetched")


def test_a_server_that_stays_down_is_one_sentence(tmp_path, server, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(wandb_source, "WAIT_SECONDS", 0.01)
    server.fault = lambda name: 403
    assert wandb_source.main(["tester/p", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip().count("\n") == 0


def test_sync_uploads_each_run_once(tmp_path, server, grid, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setenv("WANDB_MODE", "offline")
    first, second = trials(grid)
    execute(first.config)  # without a tracker: the records are enough
    assert sweep.main(["sync", str(grid), "tracker=wandb"]) == 0
    assert capsys.readouterr().out.strip() == "grid: 1 not finished, 1 uploaded"
    execute(second.config)
    assert sweep.main(["sync", str(grid), "tracker=wandb"]) == 0
    assert capsys.readouterr().out.strip() == "grid: 1 there already, 1 uploaded"
    sent = server.calls["file_stream"]
    assert sweep.main(["sync", str(grid)]) == 0
    assert server.calls["file_stream"] == sent
    assert sorted(server.runs) == sorted(read_record(t.paths)["wandb_id"] for t in (first, second))
    assert all(r.tags == ["grid"] for r in server.runs.values())
    server.run(read_record(first.paths)["wandb_id"])
    wandb_source.fetch("tester/why-batchnorm", tmp_path / "fetched")
    assert_same_frames(tmp_path / "runs", tmp_path / "fetched")


def test_what_is_added_to_a_finished_run_goes_up_and_comes_back(tmp_path, server, monkeypatch):  # noqa: F811
    """Another sweep that shares the run becomes a tag; a probe measured later, a table of the reader's."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    here, there = tmp_path / "runs", tmp_path / "fetched"
    config = tracked(here, sweep="first", probes=PROBES)
    execute(config)
    paths = run_paths(config)
    assert sync(config, paths) == (True, "")
    assert wandb_source.fetch("tester/p", there) == []
    assert server.run().tags == ["first"]

    other = dataclasses.replace(config, sweep="second")
    assert list(mark(make_plan([other]).trials)) == []
    assert sync(other, paths) == (True, "")
    assert server.run().tags == ["first", "second"]
    assert wandb_source.fetch("tester/p", there) == []
    assert_same_frames(here, there)

    rows = len(server.run().lines)
    added = ProbesConfig(measure=("logit_gradients",))
    assert probe_run(paths, added, "init") == (["logit_gradients"], [])
    assert sync(other, paths) == (True, "")
    assert sync(other, paths) == (False, "")
    assert len(server.run().lines) == rows
    assert wandb_source.fetch("tester/p", there) == []
    assert "logit_gradients" in load([there]).probes
    assert_same_frames(here, there)


@pytest.mark.slow
def test_sync_of_an_offline_run_leaves_nothing_for_wandb_sync(tmp_path, server, monkeypatch):  # noqa: F811
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = tracked(tmp_path / "runs")
    execute(config)
    paths = run_paths(config)
    assert sync(config, paths) == (True, "")
    rows = len(server.run().lines)
    command = [sys.executable, "-m", "wandb", "sync", str(paths.wandb)]
    subprocess.run(command, env={**os.environ}, check=True, capture_output=True, cwd=tmp_path)
    assert len(server.run().lines) == rows


def test_sync_says_why_it_stopped(tmp_path, server, grid, capsys):  # noqa: F811
    first, _ = trials(grid)
    execute(first.config)
    server.fault = lambda name: 403
    assert sweep.main(["sync", str(grid), "tracker.patience=1"]) == 1
    out, err = capsys.readouterr()
    assert "stopped: " in out
    assert err == ""
    server.fault = None
    assert sweep.main(["sync", str(grid)]) == 0
    assert "1 uploaded" in capsys.readouterr().out


@pytest.mark.slow
def test_an_agent_runs_the_very_trials(tmp_path, server, grid):  # noqa: F811
    first, second = trials(grid)
    execute(first.config)  # one is finished before
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | server.environment(tmp_path)
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment.pop("WANDB_MODE")

    def wandb(*words):
        command = [sys.executable, "-m", "wandb", *words]
        subprocess.run(command, env=environment, check=True, cwd=tmp_path, timeout=300, capture_output=True)

    wandb("sweep", "--project", "p", str(grid))
    wandb("agent", "tester/p/sweep0")
    assert [t.status for t in trials(grid)] == ["finished", "finished"]
    assert sorted(os.listdir(tmp_path / "runs")) == sorted(t.run_id for t in (first, second))
    assert [server.run(f"trial{i}").display for i in range(2)] == [first.run_id, second.run_id]
    states = {name: (r.state, r.sweep) for name, r in server.runs.items()}
    assert states == dict.fromkeys(("trial0", "trial1"), ("finished", "sweep0"))
    assert server.run("trial1").config["norm"]["value"]["family"] == "none"
    wandb_source.fetch("tester/p", tmp_path / "fetched")
    assert_same_frames(tmp_path / "runs", tmp_path / "fetched")


def test_the_dashboard_is_made_once_and_then_brought_up_to_date(server, capsys):  # noqa: F811
    from study import dashboard

    addresses = []
    for _ in range(2):
        assert dashboard.main(["tester/p", "--sweep", "grid"]) == 0
        addresses.append(capsys.readouterr().out.strip())
    assert addresses[0] == addresses[1]
    (view,) = server.views.values()
    assert (view["displayName"], view["projectName"]) == ("Sweep grid", "p")
    assert "test/accuracy" in view["spec"]
    assert dashboard.main(["tester/p"]) == 0
    assert len(server.views) == 2
    assert server.unknown == []


def test_figures_of_a_report_go_up_as_images(tmp_path, server, monkeypatch, capsys):  # noqa: F811
    from PIL import Image

    from analysis import wandb_figures

    monkeypatch.chdir(tmp_path)
    report = tmp_path / "report"
    (report / "figures").mkdir(parents=True)
    assert wandb_figures.main([str(report), "tester/p"]) == 2
    assert "no figure" in capsys.readouterr().err
    Image.new("RGB", (4, 3)).save(report / "figures" / "fates.png")
    assert wandb_figures.main([str(report), "tester/p"]) == 0
    assert not (tmp_path / "wandb").exists()
    (row,) = server.run().history
    shown = row["figures/figures/fates"]
    assert (shown["_type"], shown["width"], shown["height"]) == ("image-file", 4, 3)
    assert any(url.endswith(shown["path"]) for url in server.blobs)
    assert (
        wandb_source.fetch("tester/p", tmp_path / "fetched") != []
    )  # it is no run of the study, and is named

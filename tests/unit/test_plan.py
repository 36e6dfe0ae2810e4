"""What a launch finds to do: duplicates, what is on disk, conflicts, costs; nothing is written."""

import json
from pathlib import Path

import pytest

from study.config import RunConfig, from_mapping, with_values
from study.errors import ConfigError
from study.identity import run_id, scientific
from study.launch import cost, local
from study.launch.plan import differing, make_plan, mark
from study.launch.table import label
from study.paths import RunPaths
from study.records import read_record, write_json
from study.status import Status


def config(tmp_path, **values):
    return with_values(RunConfig(), {"runs_dir": str(tmp_path / "runs"), "epochs": 4} | values)


def stored(run, status="finished", **entries):
    """Write the record that `run` would have."""
    paths = RunPaths(Path(run.runs_dir) / run_id(run))
    paths.root.mkdir(parents=True)
    record = {
        "status": status,
        "outcome": "trained" if status == "finished" else None,
        "scientific": scientific(run),
        "steps_done": 40,
        "steps_total": 40,
        "seconds": 20.0,
        "sweeps": [],
    }
    write_json(paths.record, record | entries)
    return paths


def test_planning_writes_nothing_and_drops_duplicates(tmp_path):
    runs = [config(tmp_path), config(tmp_path, lr=0.2), config(tmp_path, threads=2)]
    plan = make_plan(runs)
    assert [t.config.lr for t in plan.trials] == [0.1, 0.2]
    assert plan.duplicates == 1
    assert plan.counts() == {Status.WAITING: 2}
    assert list(tmp_path.iterdir()) == []


def test_finished_runs_are_left_alone_and_others_are_not(tmp_path):
    runs = [config(tmp_path, seed=i) for i in range(5)]
    for run, status in zip(runs, ("finished", "running", "failed", "preempted"), strict=False):
        stored(run, status, steps_done=10)
    plan = make_plan(runs)
    assert [t.status for t in plan.trials] == ["finished", "lost", "failed", "preempted", "waiting"]
    assert [t.config.seed for t in plan.todo] == [1, 2, 3, 4]
    assert plan.trials[1].share == 0.25
    again = make_plan([with_values(runs[0], {"rerun": True})])
    assert len(again.todo) == 1


def test_another_config_under_the_same_id_is_refused(tmp_path):
    run = config(tmp_path)
    stored(run, scientific=scientific(run) | {"lr": 7})
    with pytest.raises(ConfigError, match=run_id(run)):
        make_plan([run])


def test_a_non_finite_setting_is_recognised_when_read_back(tmp_path):
    run = config(tmp_path, **{"norm.order": float("inf")})
    stored(run)
    assert make_plan([run]).todo == ()


def test_finished_runs_are_marked_with_the_sweep_once(tmp_path):
    run = config(tmp_path, sweep="second")
    paths = stored(run, sweeps=["first"])
    for _ in range(2):
        mark(make_plan([run]).trials)
    assert read_record(paths)["sweeps"] == ["first", "second"]


def test_runs_that_another_launch_finishes_meanwhile_are_marked_too(tmp_path, monkeypatch):
    run = config(tmp_path, sweep="second")
    monkeypatch.setattr(local, "_refuse_unrunnable", lambda plan, context: None)
    monkeypatch.setattr(local.Pool, "run", lambda pool: stored(run, sweeps=["first"]))
    local.launch(make_plan([run]))
    assert read_record(RunPaths(tmp_path / "runs" / run_id(run)))["sweeps"] == ["first", "second"]


def test_costs_come_from_runs_of_the_same_kind(tmp_path):
    bare = {"norm.family": "none", "norm.name": "none"}
    stored(config(tmp_path, seed=1), seconds=20.0)  # 5 s an epoch
    stored(config(tmp_path, seed=2), seconds=28.0)
    stored(config(tmp_path, seed=3), seconds=24.0)
    stored(config(tmp_path, **bare), seconds=8.0)
    stored(config(tmp_path, **{"model.depth": 20}), seconds=4.0)
    stored(config(tmp_path, seed=4), status="failed", steps_done=2, seconds=100.0)  # too short to tell
    measured = cost.measure([tmp_path / "runs"])
    assert cost.remaining(config(tmp_path, lr=0.5), 0.0, measured) == pytest.approx(24.0)
    assert cost.remaining(config(tmp_path, epochs=8), 0.5, measured) == pytest.approx(24.0)
    assert cost.remaining(config(tmp_path, seed=9, **bare), 0.0, measured) == pytest.approx(8.0)
    assert cost.remaining(config(tmp_path, **{"model.depth": 20}), 0.0, measured) == pytest.approx(4.0)
    other_norm = config(tmp_path, **{"norm.family": "layer", "norm.name": "ln"})
    assert cost.remaining(other_norm, 0.0, measured) == pytest.approx(22.0)  # median of 20, 28, 24, 8
    assert cost.remaining(config(tmp_path, batch_size=16), 0.0, measured) is None


def test_half_a_run_that_ended_early_is_not_taken_for_a_whole_one(tmp_path):
    stored(config(tmp_path, seed=1), steps_done=10, steps_total=40, seconds=5.0)
    measured = cost.measure([tmp_path / "runs"])
    assert cost.remaining(config(tmp_path), 0.0, measured) == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (120, "2 min"), (7200, "2.0 h"), (200_000, "2.3 days")]
)
def test_durations(seconds, text):
    assert cost.duration(seconds) == text


def test_trials_are_labelled_by_what_differs(tmp_path):
    bare = {"norm.family": "none", "norm.name": "none"}
    runs = [config(tmp_path), config(tmp_path, lr=3e-3, **bare), config(tmp_path, seed=2)]
    names = differing(runs)
    assert [label(r, names) for r in runs] == [
        "lr=0.1 norm=bn seed=0",
        "lr=0.003 norm=none seed=0",
        "lr=0.1 norm=bn seed=2",
    ]


def test_a_damaged_record_is_one_failed_trial_of_the_plan(tmp_path):
    run, other = config(tmp_path), config(tmp_path, seed=1)
    paths = stored(run)
    paths.record.write_text(json.dumps({"status": "finished"})[:-4])
    plan = make_plan([run, other])
    assert [t.status for t in plan.trials] == [Status.FAILED, Status.WAITING]
    assert "run.json cannot be read" in plan.trials[0].damage
    assert plan.todo == plan.trials


def test_a_rerun_is_as_far_as_the_repetition_and_says_what_it_drops(tmp_path):
    run = config(tmp_path, rerun=True)
    paths = stored(run)
    paths.probes.mkdir()
    paths.probe("gradient_tails").touch()
    assert make_plan([run]).todo[0].share == 0
    paths.rerun.root.mkdir(parents=True)
    write_json(paths.rerun.record, {"status": "preempted", "steps_done": 10, "steps_total": 40})
    plan = make_plan([run])
    assert plan.todo[0].share == 0.25
    assert "the rerun drops probe tables that were added later to 1 run" in plan.summary()
    assert "drops" not in make_plan([with_values(run, {"rerun": False})]).summary()


def test_runs_that_finished_without_wandb_are_pointed_to_sync(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    mirrored, unsent, waiting = (config(tmp_path, seed=i, **{"tracker.name": "wandb"}) for i in range(3))
    stored(mirrored, wandb_id="0123456789-89abcdef")
    stored(unsent, wandb_id=None)
    summary = make_plan([mirrored, unsent, waiting]).summary()
    assert "1 finished without W&B" in summary
    assert "python -m study.sweep sync" in summary
    assert "W&B" not in make_plan([with_values(unsent, {"tracker.name": "none"})]).summary()
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert "W&B" not in make_plan([unsent]).summary()


def test_a_finished_run_without_the_probes_asked_for_is_pointed_to_study_probe(tmp_path):
    asked = {"data": {"name": "synthetic"}, "runs_dir": str(tmp_path)}
    config = from_mapping({**asked, "probes": {"name": "light", "measure": ["activation_moments@epoch_end"]}})
    paths = RunPaths(tmp_path / run_id(config))
    paths.root.mkdir()
    write_json(paths.record, {"status": "finished", "scientific": scientific(config), "sweeps": []})
    told = f"python -m study.probe {paths.root} probes=light"
    assert told in make_plan([config]).summary()
    assert "study.probe" not in make_plan([from_mapping(asked)]).summary()
    paths.probes.mkdir()
    paths.probe("activation_moments").touch()
    assert "study.probe" not in make_plan([config]).summary()
    listed = from_mapping({**asked, "probes": {"measure": ["gradient_tails@init", "channel_pairs"]}})
    told = f"python -m study.probe {paths.root} 'probes.measure=[channel_pairs,gradient_tails]'"
    assert told in make_plan([listed]).summary()


@pytest.mark.parametrize(
    ("when", "epochs", "outcome", "told"),
    [
        ("divergence", 3, "trained", False),
        ("final", 3, "trained", True),
        ("final", 3, "diverged", False),
        ("epoch_end", 3, "trained", True),
        ("epoch_end", 3, "diverged", False),
        ("epoch_end", 0, "trained", False),
        ("first:7", 3, "diverged", True),
        ("first:7", 0, "trained", False),
        ("init", 0, "trained", True),
    ],
)
def test_probes_that_never_came_due_are_not_missed(tmp_path, when, epochs, outcome, told):
    asked = {"runs_dir": str(tmp_path), "epochs": epochs, "probes": {"measure": [f"logit_gradients@{when}"]}}
    config = from_mapping(asked)
    paths = RunPaths(tmp_path / run_id(config))
    paths.root.mkdir()
    record = {"status": "finished", "outcome": outcome, "scientific": scientific(config), "sweeps": []}
    write_json(paths.record, record)
    assert ("study.probe" in make_plan([config]).summary()) == told

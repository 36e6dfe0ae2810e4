"""Sweep files: W&B's syntax in, the same grid as on the command line out."""

import shlex
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from study import sweep
from study.compose import compose_all, expand
from study.errors import ConfigError
from study.identity import run_id, scientific
from study.records import METRICS, write_json, write_table

SWEEPS = Path(__file__).parents[2] / "sweeps"


def written(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_sweep_plans(path, tmp_path):
    plan = sweep.plan_of(sweep.read_sweep(path), [f"runs_dir={tmp_path}"])
    assert plan.trials
    assert {t.config.sweep for t in plan.trials} == {path.stem}
    assert list(tmp_path.iterdir()) == []


def test_quickstart_is_the_basic_grid(tmp_path):
    read = sweep.read_sweep(SWEEPS / "quickstart.yaml")
    found = {t.run_id for t in sweep.plan_of(read, [f"runs_dir={tmp_path}"]).trials}
    grid = expand(["lr=0.1,0.003,0.0001", "norm=bn,none", "seed=0,1,2,3,4", "scale=laptop"])
    assert found == {run_id(c) for c in compose_all(grid)}
    assert len(found) == 30


def test_values_keep_their_types_and_texts(tmp_path):
    path = written(
        tmp_path,
        "method: grid\nparameters:\n  lr: {values: [1e-4, 3]}\n  model.widths: {value: [4, 8, 16]}\n"
        '  data.root: {value: "it\'s, a=b"}\n  norm.order: {value: .inf}\n  rerun: {value: true}\n'
        "  norm: {value: bn_linf}\n",
    )
    trials = [t.config for t in sweep.plan_of(sweep.read_sweep(path), []).trials]
    assert [c.lr for c in trials] == [1e-4, 3.0]
    assert trials[0].model.widths == (4, 8, 16)
    assert trials[0].data.root == "it's, a=b"
    assert trials[0].norm.order == float("inf")
    assert trials[0].rerun is True
    assert trials[0].sweep == "mine"


def test_the_printed_command_is_the_same_grid(tmp_path):
    path = written(tmp_path, 'method: grid\nparameters:\n  data.root: {value: "a b,c"}\n  seed: {value: 1}\n')
    read = sweep.read_sweep(path)
    words = shlex.split(read.command(["lr=0.1,0.2", "seed=2"]))
    assert words[:4] == ["python", "-m", "study.run", "-m"]
    mine = sweep.plan_of(read, ["lr=0.1,0.2", "seed=2"]).trials
    assert [t.config for t in mine] == compose_all(expand(words[4:]))
    assert {t.config.seed for t in mine} == {2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method: bayes\nparameters: {lr: {value: 1}}", "method: grid"),
        ("method: grid", "parameters"),
        ("method: grid\nparameters: {lr: {min: 0, max: 1}}", "value and values"),
        ("method: grid\nparameters: {lr: {values: []}}", "must be a list"),
        ("method: grid\nparameter: {}\nparameters: {}", "Did you mean 'parameters'"),
        ("method: grid\nparameters: {lr: {value: 1}}\ncommand: [python, x.py]", "command must end in"),
        ("method: [", "cannot be read"),
        ("[" * 5000, "cannot be read"),
        ("method: grid\nparameters: {lr: {value: 1}}\ncommand: 5", "command must end in"),
        ("method: grid\nparameters: {lr: {value: 1}}\ncommand: null", "command must end in"),
        ("method: grid\nparameters: {lr: {value: 1}}\ncommand: {a: 1}", "command must end in"),
        ("method: grid\nparameters: {}", "parameters is empty"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        sweep.read_sweep(written(tmp_path, text))


def test_a_sweep_of_an_experiment_plans_the_grid_it_brings(tmp_path):
    path = written(
        tmp_path, "method: grid\nparameters: {experiment: {value: norm_parade}, seed: {values: [0, 1]}}"
    )
    planned = [t.config for t in sweep.plan_of(sweep.read_sweep(path), []).trials]
    assert len({c.norm.name for c in planned}) == 24
    assert len(planned) == 48


GRID = "method: grid\nparameters: {lr: {value: 1}}\n"


@pytest.mark.parametrize("name", ["my sweep", "a,b", "it's", 'say "so"', "a=b", "1e3", "null", "back\\slash"])
def test_a_sweep_is_called_as_its_file_whatever_that_is(tmp_path, name, capsys):
    path = tmp_path / f"{name}.yaml"
    path.write_text(GRID)
    read = sweep.read_sweep(path)
    assert read.name == name
    (trial,) = sweep.plan_of(read, [f"runs_dir={tmp_path}"]).trials
    assert trial.config.sweep == name
    assert sweep.main(["status", str(path), f"runs_dir='{tmp_path}'"]) == 0
    assert capsys.readouterr().out.startswith(name)


def test_a_file_called_as_a_reference_is_refused(tmp_path):
    path = tmp_path / "${x}.yaml"
    path.write_text(GRID)
    with pytest.raises(ConfigError, match="rename the file"):
        sweep.read_sweep(path)
    path.write_text("method: grid\nparameters: {sweep: {value: mine}, lr: {value: 1}}")
    read = sweep.read_sweep(path)
    assert read.name == "mine"
    assert [t.config.sweep for t in sweep.plan_of(read, []).trials] == ["mine"]


def test_watching_needs_no_number(tmp_path, capsys, monkeypatch):
    naps = []

    def nap(seconds):
        naps.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr("study.sweep.time.sleep", nap)
    for words in (["--watch"], ["--watch", "3"]):
        assert sweep.main(["status", str(written(tmp_path, GRID)), *words]) == 130
    assert naps == [10.0, 3.0]


@pytest.mark.parametrize("pause", ["-1", "nan", "inf", "0", "1e300", "x"])
def test_a_pause_out_of_range_is_refused(tmp_path, pause, capsys):
    with pytest.raises(SystemExit) as end:
        sweep.main(["status", str(written(tmp_path, GRID)), f"--watch={pause}"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "--watch" in error
    assert pause in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "option", ["--high=inf", "--high=nan", "--low=nan", "--low=-1", "--ratio=nan", "--high=1e9"]
)
def test_a_search_out_of_range_is_refused(tmp_path, option, capsys):
    assert sweep.main(["max_lr", str(written(tmp_path, GRID)), f"runs_dir={tmp_path / 'runs'}", option]) == 2
    assert option.lstrip("-").partition("=")[0] in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_unknown_settings_in_a_sweep_are_named(tmp_path, capsys):
    path = written(tmp_path, "method: grid\nparameters: {lrr: {values: [1, 2]}}")
    assert sweep.main(["plan", str(path)]) == 2
    assert "Did you mean 'lr'?" in capsys.readouterr().err
    assert sweep.main(["status", str(tmp_path / "no.yaml")]) == 2


def test_status_exits_non_zero_if_any_trial_failed(tmp_path, capsys):
    path = written(tmp_path, "method: grid\nparameters: {scale: {value: smoke}, seed: {values: [0, 1]}}")
    args = ["status", str(path), f"runs_dir={tmp_path / 'runs'}"]
    assert sweep.main(args) == 0
    assert "2 waiting" in capsys.readouterr().out
    trial = sweep.plan_of(sweep.read_sweep(path), args[2:]).trials[0]
    trial.paths.root.mkdir(parents=True)
    record = {"status": "failed", "error": "ValueError: odd", "scientific": {}, "steps_done": 0}
    write_json(trial.paths.record, record | {"scientific": scientific(trial.config), "sweeps": []})
    assert sweep.main(args) == 1
    printed = capsys.readouterr().out
    assert "1 failed" in printed
    assert "ValueError: odd" in printed
    assert str(trial.paths.log) in printed


def test_plan_shows_what_is_done_partly_done_and_missing_and_what_the_rest_costs(tmp_path, capsys):
    path = written(tmp_path, "method: grid\nparameters: {scale: {value: smoke}, seed: {values: [0, 1, 2]}}")
    settings = [f"runs_dir={tmp_path / 'runs'}", "epochs=4"]
    done, half, missing = sweep.plan_of(sweep.read_sweep(path), settings).trials
    for trial, status, steps in ((done, "finished", 40), (half, "preempted", 20)):
        record = {"status": status, "scientific": scientific(trial.config), "sweeps": []}
        trial.paths.root.mkdir(parents=True)
        write_json(
            trial.paths.record, record | {"seconds": steps / 4, "steps_done": steps, "steps_total": 40}
        )
    assert sweep.main(["plan", str(path), *settings]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        f"finished\tseed=0\t{done.run_id}",
        f"preempted 50%\tseed=1\t{half.run_id}",
        f"waiting\tseed=2\t{missing.run_id}",
    ]
    assert "3 trials: 1 finished, 1 preempted, 1 waiting; 2 to run" in lines
    assert "1 partly done, 50% of their steps on average" in lines
    assert "about 15 s of run time left (from measured runs)" in lines
    assert lines[-1] == f"launch with: {sweep.read_sweep(path).command(settings)}"


@pytest.mark.parametrize("code", [0, 1, 130])
def test_launch_prints_the_command_that_it_is_and_ends_as_that_does(tmp_path, capsys, monkeypatch, code):
    path = written(tmp_path, "method: grid\nparameters: {scale: {value: smoke}, seed: {values: [0, 1]}}")
    heard = []

    def main():
        heard.extend(sys.argv[1:])
        raise SystemExit(code)

    monkeypatch.setattr("study.run.main", main)
    monkeypatch.setattr(sys, "argv", [])
    assert sweep.main(["launch", str(path), "hydra/launcher=slurm"]) == code
    words = shlex.split(capsys.readouterr().out)
    assert words == ["python", "-m", "study.run", *heard]
    assert heard == ["-m", "scale=smoke", "seed=0,1", "sweep=mine", "hydra/launcher=slurm"]


def test_status_counts_statuses_and_outcomes_and_says_what_is_left(tmp_path, capsys):
    path = written(
        tmp_path, "method: grid\nparameters: {scale: {value: smoke}, seed: {values: [0, 1, 2, 3, 4, 5]}}"
    )
    args = ["status", str(path), f"runs_dir={tmp_path / 'runs'}"]
    trials = sweep.plan_of(sweep.read_sweep(path), args[2:]).trials
    ends = [("diverged", None), ("trained", 0.9), ("trained", 0.1), None, None]
    for trial, end in zip(trials, ends, strict=False):  # two by nobody any more, one never begun
        record = {"status": "finished" if end else "running", "outcome": end and end[0], "chance": 0.1}
        record |= {"scientific": scientific(trial.config), "seconds": 20.0, "sweeps": []}
        trial.paths.root.mkdir(parents=True)
        write_json(trial.paths.record, record | {"steps_done": 40 if end else 20, "steps_total": 40})
        row = {"step": 40, "epoch": 2, "split": "test", "accuracy": end and end[1], "n": 100}
        write_table(trial.paths.metrics, pa.Table.from_pylist([row] if end and end[1] else [], METRICS))
    assert sweep.main(args) == 0
    assert capsys.readouterr().out.splitlines() == [
        "mine: 6 trials",
        "       3 finished",
        "       2 lost",
        "       1 waiting",
        "outcomes of the finished: 1 diverged, 1 stuck at chance, 1 trained",
        "about 40 s of run time left (40 s at 1 at once)",
    ]


@pytest.mark.parametrize("given", ["quickstrat", "quickstrat.yaml", str(SWEEPS / "quickstrat.yaml")])
def test_an_unknown_sweep_is_told_with_the_nearest_and_all_others(given, capsys):
    assert sweep.main(["status", given]) == 2
    error = capsys.readouterr().err
    assert "unknown sweep 'quickstrat'. Did you mean 'quickstart'? Valid: batch_rate, " in error
    assert error.count("\n") == 1


def test_a_file_elsewhere_that_is_missing_is_named(tmp_path, capsys):
    assert sweep.main(["plan", str(tmp_path / "mine.yaml")]) == 2
    assert "mine.yaml: there is no such file" in capsys.readouterr().err

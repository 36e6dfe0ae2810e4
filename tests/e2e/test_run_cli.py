"""`python -m study.run` as people type it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from study import naming
from study.paths import run_dirs
from study.records import read_record

ROOT = Path(__file__).parents[2]


def study_run(*args, cwd=ROOT, timeout=300):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "study.run", *args],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def test_a_grid_then_nothing_left_to_do(tmp_path):
    """Also: a folder with a space, duplicates, and that Hydra leaves nothing behind where it was started."""
    (tmp_path / "cwd").mkdir()
    args = ("-m", "scale=smoke", "epochs=1", "lr=0.1,1e-1", "norm=bn,none", "runs_dir=../my runs")
    first = study_run(*args, cwd=tmp_path / "cwd")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "2 trials (2 duplicates dropped): 2 waiting; 2 to run" in first.stdout
    runs = sorted((tmp_path / "my runs").iterdir())
    assert len(runs) == 2
    assert list((tmp_path / "cwd").iterdir()) == []
    stamps = [(r / "run.json").stat().st_mtime_ns for r in runs]
    second = study_run(*args, "sweep=again", cwd=tmp_path / "cwd")
    assert second.returncode == 0
    assert "2 finished; 0 to run" in second.stdout
    for run, stamp in zip(runs, stamps, strict=True):
        assert str(run.name) in second.stdout
        assert "again" in (run / "run.json").read_text()
        assert (run / "run.json").stat().st_mtime_ns != stamp

    stored = runs[0] / "config.yaml"
    third = study_run(f"from={str(stored)!r}", f"runs_dir={tmp_path / 'copy'!s}", cwd=tmp_path / "cwd")
    assert third.returncode == 0, third.stderr
    assert [p.name for p in (tmp_path / "copy").iterdir()] == [runs[0].name]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["lrr=0.1"], "Did you mean 'lr'?"),
        (["lr=0.1,0.003"], "add -m"),
        (["norm=null"], "norm=none"),
        (["-m", "lr=0.1,-1"], "lr=-1"),
        (["-m", "hydra.launcher.workers=-1"], "hydra.launcher.workers"),
        (["hydra/launcher=nope"], "nope"),
        (["-m", "model=resnet,resnet8", "model.depth=9"], "9"),
        (["norm=none", "norm.center=false"], "norm.center"),
        (["--foo"], "--foo"),
        (["device=cuda:99"], "cuda:99"),
        (["-m", "lr=0.1,0.01", "--cfg", "job"], "leave out -m"),
        (["batch_size=100000"], "only 160 training images"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path, args, words):
    done = study_run("scale=smoke", f"runs_dir={tmp_path / 'runs'}", *args, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert done.stderr.startswith("study.run: ")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_every_norm_runs_to_its_end(tmp_path):
    done = study_run("-m", "experiment=norm_parade", f"runs_dir={tmp_path}", timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [read_record(paths) for paths in run_dirs(tmp_path)]
    assert {r["norm"] for r in records} == set(naming.norms())
    assert [r["status"] for r in records] == ["finished"] * len(naming.norms())


def test_an_experiment_run_once_says_that_it_ignores_its_grid(tmp_path):
    done = study_run("experiment=norm_parade", "epochs=0", f"runs_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "ignored without -m: norm=none,bn," in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert len(run_dirs(tmp_path)) == 1


def test_help_is_for_newcomers(tmp_path):
    done = study_run("--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in (
        "python -m study.run -m lr=0.1,0.003,0.0001 norm=bn,none",
        "scale: ",
        "Initial learning rate.",
    ):
        assert words in done.stdout
    assert "$" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_three_lines_of_python(tmp_path):
    code = (
        "from study.compose import compose\nfrom study.execute import execute\n"
        "print(execute(compose(['scale=smoke', 'epochs=1', 'lr=0.1', 'norm=bn']))['status'])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "finished"

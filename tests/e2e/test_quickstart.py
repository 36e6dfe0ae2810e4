"""The README's first command."""

import shlex
import subprocess
from pathlib import Path

import pytest

from study.compose import compose_all, expand
from study.paths import run_dirs
from study.records import read_record

ROOT = Path(__file__).parents[2]


def make(*arguments):
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )


def test_quickstart_is_the_grid_at_the_laptop_scale():
    told = make("-n", "quickstart").stdout.replace("\\\n", " ")
    command = next(line for line in told.splitlines() if "study.run" in line)
    words = shlex.split(command.partition(";")[0])
    trials = compose_all(expand(words[words.index("-m", words.index("study.run")) + 1 :]))
    assert {(t.lr, t.norm.name) for t in trials} == {
        (r, n) for r in (0.1, 0.003, 0.0001) for n in ("bn", "none")
    }
    assert {(t.scale, t.data.name, t.model.depth, t.epochs, t.seed) for t in trials} == {
        ("laptop", "digits", 110, 12, 0)
    }
    assert {t.sweep for t in trials} == {"quickstart-seed0"}
    assert "analysis.report --runs runs --sweep quickstart-seed0 --out report" in told


@pytest.mark.slow
def test_quickstart_twice(tmp_path):
    at = ("SCALE=smoke", f"RUNS={tmp_path / 'runs'}", f"REPORT={tmp_path / 'report'}")
    first = make("quickstart", *at)
    assert first.returncode == 0, first.stdout + first.stderr
    assert (tmp_path / "report" / "index.html").exists()
    assert str(tmp_path / "report" / "index.html") in first.stdout
    second = make("quickstart", *at)
    assert second.returncode == 0
    for told in (first.stdout, second.stdout):
        for run in run_dirs(tmp_path / "runs"):
            assert told.count(run.run_id) == 1, "one table of outcomes, not two"
    assert "6 finished; 0 to run" in second.stdout
    runs = run_dirs(tmp_path / "runs")
    runs[0].record.write_text("{")
    third = make("quickstart", *at)
    assert third.returncode != 0, "a failed trial must show"
    assert "index.html" in third.stdout, "the report is for those that did not fail"
    assert all(read_record(r)["status"] == "finished" for r in runs[1:])

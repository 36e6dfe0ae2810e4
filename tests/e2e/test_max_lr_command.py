"""The search for the highest trainable rate, through the real launcher on real (small) runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from study.paths import run_dirs
from study.records import read_record

ROOT = Path(__file__).parents[2]


def max_lr(*words):
    command = [sys.executable, "-m", "study.sweep", "max_lr", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def table(printed):
    """The rows of the table at the end."""
    return printed.partition("highest trainable rate")[2].splitlines()[1:]


@pytest.mark.slow
def test_a_search_stops_early_confirms_its_answer_and_reuses_everything(tmp_path):
    file, runs = tmp_path / "mine.yaml", tmp_path / "runs"
    file.write_text(
        "method: grid\nparameters:\n  scale: {value: smoke}\n  epochs: {value: 8}\n"
        "  norm: {values: [bn, none]}\n"
    )
    words = [str(file), f"runs_dir={runs}", "--ratio", "10", "--low", "0.001", "--high", "1e4"]
    printed = max_lr(*words)
    rows = table(printed)
    assert len(rows) == 2
    assert " – " in next(row for row in rows if "norm=bn" in row)
    assert "trained to its end" not in printed
    records = [read_record(paths) for paths in run_dirs(runs)]
    kinds = {(r["status"], r["outcome"]) for r in records}
    assert ("stopped", "trained") in kinds  # it had left chance
    assert ("finished", "trained") in kinds  # the lower end, whole
    stopped = [r for r in records if r["status"] == "stopped"]
    assert all(r["steps_done"] < r["steps_total"] for r in stopped)
    assert {name for r in records for name in r["sweeps"]} == {"mine-max_lr"}
    before = {p.record: p.record.stat().st_mtime_ns for p in run_dirs(runs)}
    assert table(max_lr(*words)) == rows
    assert {p.record: p.record.stat().st_mtime_ns for p in run_dirs(runs)} == before

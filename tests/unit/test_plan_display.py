"""What a launch shows: live on a terminal, plain lines elsewhere, and the end of it."""

import io
from dataclasses import replace

import pyarrow as pa
import pytest
from rich.console import Console

from study.config import RunConfig, with_values
from study.launch import table
from study.launch.plan import Trial, make_plan
from study.launch.table import Display, State
from study.records import METRICS, write_json, write_table
from study.status import Status


def begun(tmp_path, *, terminal, seeds=3):
    """Return a display of waiting trials, and what it prints to."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=120, height=30, color_system=None)
    runs = [with_values(RunConfig(), {"runs_dir": str(tmp_path), "seed": i}) for i in range(seeds)]
    plan = make_plan(runs)
    display = Display(console)
    display.plan(plan, 2)
    return display, plan.trials, screen


def ended(trial, status="finished"):
    """Return a trial as it stands once it is over; it has no evaluation."""
    record = {"status": status, "outcome": "trained", "chance": 0.1, "seconds": 61.0, "error": None}
    trial.paths.root.mkdir()
    write_json(trial.paths.record, record)
    write_table(trial.paths.metrics, METRICS.empty_table())
    return Trial(trial.config, trial.paths, Status(status), record)


def clocked(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(table.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_tell_starts_ends_and_now_and_then_progress(tmp_path, monkeypatch):
    now = clocked(monkeypatch)
    display, trials, screen = begun(tmp_path, terminal=False)
    with display:
        display.line(trials[0]).start(0.25)
        display.line(trials[1]).start(0.0)
        display.refresh()
        assert "running" not in screen.getvalue()
        now[0] += table.PLAIN_SECONDS + 1
        display.refresh()
        display.line(trials[0]).finish(State.DONE, ended(trials[0]))
        display.line(trials[1]).finish(State.FAILED, trials[1], "ValueError: odd")
    assert display.final() == 1
    printed = screen.getvalue()
    assert "started again, 25% done: seed=0" in printed
    assert "started: seed=1" in printed
    assert "1 waiting, 2 running" in printed
    assert "[1/3] seed=0: trained, 1 min" not in printed
    assert "[1/3] seed=0: trained, 61 s" in printed
    assert "[2/3] seed=1: failed: ValueError: odd" in printed
    assert "failed: seed=1: ValueError: odd" in printed
    assert "the same command goes on where this one stopped" in printed
    assert "\x1b" not in printed


def test_the_table_at_the_end_gives_outcome_accuracies_time_and_place(tmp_path):
    display, trials, screen = begun(tmp_path, terminal=False, seeds=2)
    over = ended(trials[0])
    rows = [
        {"step": 10 * e, "epoch": e, "split": "test", "accuracy": a, "n": 100, "loss": 1.0}
        for e, a in enumerate((0.25, 0.5, 0.4), start=1)
    ]
    write_table(over.paths.metrics, pa.Table.from_pylist(rows, METRICS))
    display.line(trials[0]).finish(State.DONE, over)
    display.line(trials[1]).finish(State.DONE, ended(trials[1]))
    shown = screen.tell()
    assert display.final() == 0
    head, first, *others = screen.getvalue()[shown:].splitlines()
    assert head.split() == ["trial", "outcome", "best", "last", "time", "run", "directory"]
    assert " ".join(first.split()).startswith("seed=0 trained 50.0% 40.0% 61 s /")
    assert any(line.startswith("seed=1  trained ") for line in others)


def test_the_table_says_which_runs_had_their_code_edited_after_the_submission(tmp_path):
    display, trials, screen = begun(tmp_path, terminal=False, seeds=2)
    for trial, change in zip(trials, (None, {"submitted": {}, "started": {}}), strict=True):
        over = ended(trial)
        display.line(trial).finish(State.DONE, replace(over, record=over.record | {"code_changed": change}))
    display.console.width, shown = 400, screen.tell()
    display.final()
    _, first, second = screen.getvalue()[shown:].splitlines()
    assert "edited" not in first
    assert "seed=1  trained; code edited since submission" in second


def test_the_table_names_probes_that_failed(tmp_path):
    display, trials, screen = begun(tmp_path, terminal=False, seeds=2)
    odd = [{"probe": "gradient_noise", "step": step, "error": "odd"} for step in (0, 50)]
    for trial, failures in zip(trials, ([], odd), strict=True):
        over = ended(trial)
        display.line(trial).finish(
            State.DONE, replace(over, record=over.record | {"probe_failures": failures})
        )
    display.console.width, shown = 400, screen.tell()
    assert display.final() == 0
    _, first, second = screen.getvalue()[shown:].splitlines()
    assert "failed" not in first
    assert "seed=1  trained; failed in part or whole: gradient_noise (log.txt)" in second


def test_a_terminal_shows_a_live_table_instead(tmp_path, monkeypatch):
    display, trials, screen = begun(tmp_path, terminal=True)
    with display:
        line = display.line(trials[0])
        line.start(0.0)
        line.progress(10, 100, 0, 2.0, 0.375)
        display.live.refresh()
        assert "10/100" in screen.getvalue()
        assert "37.5%" in screen.getvalue()
        assert "started: " not in screen.getvalue()
        line.finish(State.DONE, ended(trials[0]))
        display.live.refresh()
    printed = screen.getvalue()
    assert "trained" in printed
    assert "\x1b" in printed


def test_time_left_counts_what_runs_and_what_waits(tmp_path, monkeypatch):
    now = clocked(monkeypatch)
    display, trials, _ = begun(tmp_path, terminal=False, seeds=4)
    assert display._seconds_left() is None
    for trial in trials[:2]:
        display.line(trial).start(0.0)
        display.line(trial).progress(0, 100, 0, 2.0, 0.1)
    assert display._seconds_left() is None  # one report shows no speed
    now[0] += 10
    for trial in trials[:2]:
        display.line(trial).progress(20, 100, 0, 2.0, 0.1)
    assert display.line(trials[0]).seconds_left == pytest.approx(40)
    # two at once: 40 s for the two that run, then 50 s for the two that wait
    assert display._seconds_left() == pytest.approx(90)
    assert "about 90 s left" in display._progress()


def test_a_trial_left_to_another_process_is_told_once(tmp_path):
    display, trials, screen = begun(tmp_path, terminal=False)
    for _ in range(2):
        display.line(trials[0]).share("process 7 on there")
    assert screen.getvalue().count("left to process 7 on there: seed=0") == 1


def test_brackets_in_names_are_no_markup(capsys):
    """As in norm=bn[gamma=false], or a folder called my[/b]runs."""
    table.console().print("bn[gamma=false] my[/b]runs", highlight=False)
    assert capsys.readouterr().out.strip() == "bn[gamma=false] my[/b]runs"

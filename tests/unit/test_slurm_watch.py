"""What a launcher that waits concludes from run directories, notes, and a scheduler that may not answer."""

import io

import pytest
from rich.console import Console

from study import sweep
from study.compose import compose_all, expand
from study.errors import ConfigError, StudyError
from study.identity import scientific
from study.launch import slurm, slurm_queue, slurm_watch
from study.launch.plan import make_plan
from study.launch.slurm_queue import Submission, Task, add_note
from study.launch.standing import standing
from study.launch.table import Display, State
from study.records import read_record, write_json


@pytest.fixture
def three(tmp_path):
    """Three trials submitted as one array; and what the display of a launcher says."""
    runs = tmp_path / "runs"
    plan = make_plan(compose_all(expand(["scale=smoke", "seed=0,1,2", f"runs_dir={runs}"])))
    submission = Submission(runs / ".slurm" / "study-1", "", tuple((t.run_id,) for t in plan.trials), {})
    submission.write()
    for index in range(3):
        (submission.folder / f"7_{index}_0_log.out").touch()
    display = Display(Console(file=io.StringIO(), width=300))
    display.plan(plan, 1)
    return plan, submission, display


def ended(display):
    return [x.reason for x in display.lines.values() if x.state is State.FAILED]


def test_an_accounting_that_does_not_answer_is_asked_once(three, monkeypatch):
    plan, _, display = three
    asked = []

    def hangs(*command):
        asked.append(command[0])
        if command[0] == "sacct":
            raise StudyError("sacct did not answer within 60 s")
        return ""

    monkeypatch.setattr(slurm_queue, "ask", hangs)
    monkeypatch.setattr(slurm_watch, "POLL_SECONDS", 0.0)
    assert slurm_watch.watch(plan, display) == 1
    assert asked.count("sacct") == 1
    assert display.console.file.getvalue().count("warning: sacct did not answer") == 1
    assert all("ended without a word" in reason for reason in ended(display))


def test_the_accounting_s_word_is_passed_on(three, monkeypatch):
    plan, _, display = three
    monkeypatch.setattr(slurm_queue, "ask", lambda *c: "OUT_OF_MEMORY\n" if c[0] == "sacct" else "")
    monkeypatch.setattr(slurm_watch, "POLL_SECONDS", 0.0)
    slurm_watch.watch(plan, display)
    assert all("SLURM says OUT_OF_MEMORY" in reason for reason in ended(display))


def test_a_task_s_note_comes_before_all_else(three, monkeypatch):
    plan, submission, display = three
    add_note(submission.note(1), failed={plan.trials[1].run_id: "batch_size=9 is out of range"})
    monkeypatch.setattr(slurm_queue, "ask", lambda *c: "")
    monkeypatch.setattr(slurm_watch, "POLL_SECONDS", 0.0)
    slurm_watch.watch(plan, display)
    assert sum("batch_size=9" in reason for reason in ended(display)) == 1
    found = standing("mine", plan)
    assert found.failed
    assert found.text.count("failed:") == 1
    assert "batch_size=9 is out of range" in found.text


def test_a_folder_that_takes_nothing_says_why(tmp_path):
    assert slurm_watch._fault(tmp_path) == ""
    assert "No such file" in slurm_watch._fault(tmp_path / "gone")


@pytest.mark.parametrize(
    ("queue", "is_open"),
    [({}, True), ({("study-1", i): Task(f"7_{i}", True, "Priority") for i in range(3)}, True)],
)
def test_what_waits_keeps_a_watched_sweep_open(three, monkeypatch, queue, is_open):
    plan, _, _ = three
    monkeypatch.setattr(slurm_queue, "live", lambda: queue)
    found = standing("mine", plan)
    assert not found.failed
    assert found.open is is_open
    assert f"{len(queue)} trials in tasks that wait" in found.text


def test_preempted_and_no_longer_queued_is_not_waited_for(three, monkeypatch):
    plan, submission, _ = three
    for index, trial in enumerate(plan.trials):
        trial.paths.root.mkdir()
        record = {
            "status": "preempted",
            "scientific": scientific(trial.config),
            "steps_done": 1,
            "steps_total": 4,
        }
        write_json(trial.paths.record, record)
        add_note(submission.note(index), ended="gave up after 3 time limits (max_timeouts=2)")
    monkeypatch.setattr(slurm_queue, "live", dict)
    found = standing("mine", make_plan(t.config for t in plan.trials))
    assert found.failed
    assert not found.open
    assert found.text.count("gave up after 3 time limits") == 3


def test_names_of_jobs_and_runs_are_short_and_safe_for_any_shell(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(slurm, "_sbatch", lambda folder, options, work: seen.append(folder.name) or "1")
    monkeypatch.setattr(slurm_queue, "ask", lambda *c: "")
    odd = "näme with $(spaces); " * 20
    words = [
        "scale=smoke",
        f"sweep='{odd}'",
        f"runs_dir={tmp_path}",
        "lr=1e-06",
        "norm=bn_l1",
        "norm.momentum=0.3",
    ]
    plan = make_plan(compose_all([words]))
    slurm.launch(plan, slurm.options(job_name="jöb " * 40), Display(Console(file=io.StringIO())))
    for name in (*seen, plan.trials[0].run_id):
        assert len(name.encode()) < 200
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def test_a_sweep_is_found_by_its_name_or_its_path(tmp_path):
    assert sweep.sweep_file("quickstart") == sweep.SWEEPS / "quickstart.yaml"
    assert sweep.sweep_file("sweeps/quickstart.yaml").name == "quickstart.yaml"
    assert sweep.sweep_file(str(tmp_path / "no.yaml")) == tmp_path / "no.yaml"


def test_nothing_is_said_or_written_before_all_trials_are_known_to_be_buildable(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_queue, "live", dict)
    plan = make_plan(compose_all([["scale=smoke", "model.depth=9", f"runs_dir={tmp_path / 'runs'}"]]))
    display = Display(Console(file=io.StringIO()))
    with pytest.raises(ConfigError, match="depth"):
        slurm.launch(plan, display=display)
    assert display.console.file.getvalue() == ""
    assert not (tmp_path / "runs").exists()


def test_a_launch_that_waited_notes_its_sweep_in_what_others_have_finished(tmp_path, monkeypatch):
    plan = make_plan(compose_all([["scale=smoke", "sweep=mine", f"runs_dir={tmp_path}"]]))
    (trial,) = plan.trials

    def watch(*_):  # meanwhile a launch without a sweep finishes the run
        trial.paths.root.mkdir()
        record = {"status": "finished", "sweeps": [], "scientific": scientific(trial.config)}
        write_json(trial.paths.record, record)
        return 0

    monkeypatch.setattr(slurm_queue, "live", dict)
    monkeypatch.setattr(slurm, "_submit", lambda *_: [])
    monkeypatch.setattr(slurm_watch, "watch", watch)
    assert slurm.launch(plan, slurm.options(wait=True), Display(Console(file=io.StringIO()))) == 0
    assert read_record(trial.paths)["sweeps"] == ["mine"]

"""Tasks interrupted in every way: their trials resume in the same directories, equal to the bit."""

import itertools

import psutil
import pyarrow.parquet as pq
import pytest

from study.execute import execute, run_paths
from study.launch import slurm_queue
from study.ownership import owner_of
from study.records import read_record
from tests.runs import assert_same_results, leftovers
from tests.slurm.cluster import until
from tests.slurm.helpers import (
    ENDLESS,
    LONG,
    are,
    config,
    finished,
    idle,
    jobs_of,
    launch,
    status,
    trained_a_little,
)

pytestmark = pytest.mark.slurm


def test_interrupted_runs_resume_to_the_bit(slurm, tmp_path):
    """By the warning signal, by scontrol requeue, by draining a node, by a job of a higher tier."""
    here, there = tmp_path / "cluster", tmp_path / "alone"
    epochs = (40, 41, 42, 150)  # jobs of their own, not one array; a higher tier takes some seconds
    runs = [
        [config(d, *LONG, f"seed={s}", f"epochs={n}") for s, n in enumerate(epochs)] for d in (here, there)
    ]
    launch(runs[0], extra=["--hold"])
    for number, run in enumerate(runs[0]):
        task = jobs_of(here)[run_paths(run).run_id]
        slurm.run("scontrol", "release", task.job)
        trained_a_little(run)
        task = jobs_of(here)[run_paths(run).run_id]
        if number == 0:
            slurm.run("scancel", "--signal=USR2", task.job)
        elif number == 1:
            slurm.run("scontrol", "requeue", task.job)
        elif number == 2:
            slurm.run("scontrol", "update", f"nodename={task.reason}", "state=drain", "reason=test")
            slurm.run("scontrol", "requeue", task.job)
        else:
            slurm.run("sbatch", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
        are("preempted", [run], 60)
        if number == 2:
            slurm.run("scontrol", "update", f"nodename={task.reason}", "state=resume")
    finished(slurm, runs[0])
    for mine, alone in zip(*runs, strict=True):
        execute(alone)
        assert read_record(run_paths(mine))["restarts"] >= 1
        assert leftovers(run_paths(mine)) == []
        assert_same_results(run_paths(mine), run_paths(alone))


def test_trials_side_by_side_hear_usr1_and_keep_their_wandb_runs(slurm, tmp_path):
    """Three trials at once in one task, each in a process of its own with a fate of its own."""
    trackers = ("wandb", "wandb", "none")
    runs = [config(tmp_path, *LONG, f"seed={s}", f"tracker={name}") for s, name in enumerate(trackers)]
    launch(runs, trials_per_task=3, concurrent=3, signal="USR1")
    assert len({task.job for task in jobs_of(tmp_path).values()}) == 1
    trained_a_little(*runs)
    owners = [owner_of(run_paths(c)) for c in runs]
    assert len({o.pid for o in owners}) == 3
    assert len({o.job_id for o in owners}) == 1
    ids = [read_record(run_paths(c))["wandb_id"] for c in runs]
    psutil.Process(owners[2].pid).kill()  # which is the others' business as little as its log is
    are("lost", runs[2:])
    slurm.run("scancel", "--signal=USR1", next(iter(jobs_of(tmp_path).values())).job)
    are("preempted", runs[:2])
    finished(slurm, runs[:2])
    assert [read_record(run_paths(c))["wandb_id"] for c in runs] == ids
    assert len(set(ids[:2])) == 2
    for run in runs[:2]:
        assert read_record(run_paths(run))["restarts"] == 1
        log = run_paths(run).log.read_text()
        assert "preempted" in log
        assert "resumed" in log
        stored = {p.name.split("-", 3)[3] for p in run_paths(run).wandb.glob("offline-run-*")}
        assert stored == {read_record(run_paths(run))["wandb_id"]}


def test_a_node_without_a_word_loses_its_trial_and_the_next_launch_resumes_it(slurm, tmp_path):
    here, alone = (config(tmp_path / d, *LONG) for d in ("cluster", "alone"))
    launch([here])
    trained_a_little(here)
    node = jobs_of(tmp_path / "cluster")[run_paths(here).run_id].reason
    slurm.stop_node(node)
    try:
        are("lost", [here])
        slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=silent")  # or in minutes
        slurm.clear()  # SLURM would run the job again by itself
        launch([here])
        finished(slurm, [here])
    finally:
        slurm.start_node(node)
    assert read_record(run_paths(here))["restarts"] == 1
    execute(alone)
    assert leftovers(run_paths(here)) == []
    assert_same_results(run_paths(here), run_paths(alone))
    slurm.clear()
    slurm.wait_idle()


def test_a_time_limit_requeues_until_the_cap(slurm, tmp_path):
    """Rows once each until the end of patience, equal to the bit to those of a run without a limit."""
    run = config(tmp_path, *ENDLESS)
    paths = run_paths(run)
    launch([run], time=1, warn_seconds=10, max_timeouts=1)
    (submission,) = slurm_queue.submissions(tmp_path)

    def gave_up():
        slurm.hasten()
        return "gave up" in slurm_queue.read_note(submission.note(0)).get("ended", "")

    until(gave_up, "the end of patience", 240)
    idle(tmp_path)
    assert status(paths) == "preempted"
    record = read_record(paths)
    assert "requeueing" in submission.last_log(0).read_text()
    assert record["restarts"] <= 1
    alone, asked = config(tmp_path / "alone", *ENDLESS), itertools.count(1)
    execute(alone, stop=lambda: next(asked) >= record["steps_done"])  # asked once after every step
    mine, other = (sorted(map(repr, pq.read_table(p.parts).to_pylist())) for p in (paths, run_paths(alone)))
    assert sum("'batch'" in row for row in mine) == record["steps_done"]
    assert mine == other

"""Grids on a real SLURM: every way a trial can end, every way a task can be interrupted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from study import sweep
from study.compose import compose
from study.execute import execute, run_paths
from study.launch import slurm, slurm_queue
from study.launch.plan import make_plan
from study.ownership import observed_status, owner_of
from study.paths import RunPaths, run_dirs
from study.records import read_record
from tests.runs import assert_same_results, leftovers
from tests.slurm.cluster import until

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
TINY = ("scale=smoke", "epochs=1", "model.widths=[2,3,4]", "probes=none")
LONG = ("scale=smoke", "epochs=60", "model.widths=[2,3,4]", "probes=none", "checkpoint_seconds=1")


def config(runs_dir, *settings):
    return compose([*settings, f"runs_dir={runs_dir}"])


def launch(configs, **options):
    return slurm.launch(make_plan(configs), slurm.options(**{"time": 30} | options))


def status(paths):
    return str(observed_status(paths))


def statuses(folder):
    return sorted(map(status, run_dirs(folder)))


def jobs_of(folder):
    """Ids of the tasks in the queue for a runs folder, by run id."""
    queued = slurm_queue.queued([Path(folder)], slurm_queue.live())
    return {Path(run).name: task for run, (_, _, task) in queued.items()}


def finished(slurm, configs, seconds=240):
    """Wait until all are finished; what waits for its start time after a requeue is let go at once."""

    def all_done():
        slurm.hasten()
        return all(status(run_paths(c)) == "finished" for c in configs)

    until(all_done, f"the end of {len(configs)} trials", seconds)


def trained_a_little(paths):
    until(lambda: paths.checkpoint.exists(), "a checkpoint")


def test_a_grid_goes_to_the_cluster_by_one_word(slurm, tmp_path):
    words = [
        "-m",
        *TINY,
        "lr=0.1,1e5",
        f"runs_dir={tmp_path}",
        "hydra/launcher=slurm",
        "hydra.launcher.wait=true",
    ]
    command = [sys.executable, "-m", "study.run", *words, "hydra.launcher.trials_per_task=2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 trials in 1 tasks" in done.stdout
    assert "diverged" in done.stdout
    assert statuses(tmp_path) == ["finished"] * 2
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "submitted" not in again.stdout


def test_however_a_trial_ends_it_harms_no_other(slurm, tmp_path, shim, capsys):
    shim("sacct", "exit 1")
    bad = {
        "raises": config(tmp_path, *TINY, "batch_size=100000"),
        "memory": config(tmp_path, *TINY, "model.widths=[400,400,400]", "model.width_multiplier=64"),
        "victim": config(tmp_path, *TINY, "epochs=100000", "checkpoint_seconds=1000"),
        "gone": config(tmp_path, *TINY, "epochs=99999", "checkpoint_seconds=1000"),
    }
    good = [config(tmp_path, *TINY, lr) for lr in ("lr=0.1", "lr=1e5")]

    def kill(name, whom):
        paths = run_paths(bad[name])
        until(lambda: paths.record.exists() and owner_of(paths), name, 400)
        whom(paths)

    def one(paths):
        os.kill(owner_of(paths).pid, signal.SIGKILL)

    def all_of_the_task(paths):  # as when its node is gone
        _, task, *_ = psutil.Process(owner_of(paths).pid).parents()
        for process in [task, *task.children(recursive=True)]:
            process.kill()

    killers = [threading.Thread(target=kill, args=x) for x in (("victim", one), ("gone", all_of_the_task))]
    for killer in killers:
        killer.start()
    limit = ["ulimit -v 20000000"]
    code = launch([*good, *bad.values()], wait=True, trials_per_task=1, setup=limit)
    printed = capsys.readouterr().out
    assert code == 1
    assert [status(run_paths(c)) for c in good] == ["finished"] * 2
    assert read_record(run_paths(good[1]))["outcome"] == "diverged"
    assert "batch_size=100000" in printed
    assert "can't allocate memory" in printed
    assert [status(run_paths(bad[n])) for n in ("victim", "gone")] == ["lost"] * 2
    assert printed.count("warning:") <= 1


def test_interrupted_runs_resume_to_the_bit(slurm, tmp_path):
    """By the warning signal, by scontrol requeue, by draining a node, by a job of a higher tier."""
    here, there = tmp_path / "cluster", tmp_path / "alone"
    runs = [[config(d, *LONG, f"seed={s}") for s in range(4)] for d in (here, there)]
    launch(runs[0])
    for number, run in enumerate(runs[0]):
        paths = run_paths(run)
        trained_a_little(paths)
        task = jobs_of(here)[paths.run_id]
        if number == 0:
            slurm.run("scancel", "--signal=USR2", task.job)
        elif number == 1:
            slurm.run("scontrol", "requeue", task.job)
        elif number == 2:
            slurm.run("scontrol", "update", f"nodename={task.reason}", "state=drain", "reason=test")
            slurm.run("scontrol", "requeue", task.job)
        else:
            slurm.run("sbatch", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
        until(lambda p=paths: status(p) == "preempted", f"preemption {number}", 60)
        if number == 2:
            slurm.run("scontrol", "update", f"nodename={task.reason}", "state=resume")
    finished(slurm, runs[0])
    for mine, alone in zip(*runs, strict=True):
        execute(alone)
        assert read_record(run_paths(mine))["restarts"] >= 1
        assert leftovers(run_paths(mine)) == []
        assert_same_results(run_paths(mine), run_paths(alone))


def test_a_time_limit_requeues_until_the_cap(slurm, tmp_path, capsys):
    run = config(tmp_path, *TINY, "epochs=100000", "checkpoint_seconds=1000")
    paths = run_paths(run)
    launch([run], time=1, warn_seconds=10, max_timeouts=1)
    (submission,) = slurm_queue.submissions(tmp_path)

    def gave_up():
        slurm.hasten()
        return "gave up" in slurm_queue.read_note(submission.note(0)).get("ended", "")

    until(gave_up, "the end of patience", 240)
    until(lambda: not jobs_of(tmp_path), "the end of the job", 60)
    assert status(paths) == "preempted"
    record = read_record(paths)
    assert "requeueing" in submission.folder.glob("*_log.out").__next__().read_text()
    assert record["restarts"] <= 1
    steps = pq.read_table(paths.parts, columns=["step", "split"]).to_pylist()
    batch = [r["step"] for r in steps if r["split"] == "batch"]
    assert sorted(batch) == list(range(record["steps_done"]))


def test_a_refused_submission_is_an_error_in_sbatch_s_words(slurm, tmp_path):
    command = [sys.executable, "-m", "study.run", *TINY, f"runs_dir={tmp_path}", "hydra/launcher=slurm"]
    done = subprocess.run(
        [*command, "hydra.launcher.partition=nowhere"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "sbatch refused the job" in done.stderr
    assert "invalid partition" in done.stderr


def test_launches_at_once_and_a_killed_launcher_double_nothing(slurm, tmp_path):
    command = [sys.executable, "-m", "study.run", "-m", *TINY, "seed=range(0,6)", f"runs_dir={tmp_path}"]
    command += ["hydra/launcher=slurm", "hydra.launcher.trials_per_task=3"]
    killed = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    until(lambda: list(tmp_path.glob(".slurm/*/.submission_file*")), "a submission")
    killed.kill()
    killed.wait()
    both = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [p.wait(timeout=240) for p in both] == [0, 0]
    configs = [config(tmp_path, *TINY, f"seed={s}") for s in range(6)]
    until(lambda: not jobs_of(tmp_path), "the end of all jobs", 200)
    if statuses(tmp_path) != ["finished"] * 6:  # the killed launcher's tasks may have found no work
        launch(configs)
    finished(slurm, configs)
    assert [read_record(run_paths(c))["restarts"] for c in configs] == [0] * 6
    assert all(leftovers(run_paths(c)) == [] for c in configs)


@pytest.mark.slow
def test_code_edited_after_the_submission_is_told_or_refused(slurm, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("study", "conf", "hydra_plugins"):
        shutil.copytree(ROOT / name, copy / name)
    command = [
        sys.executable,
        "-m",
        "study.run",
        *TINY,
        "hydra/launcher=slurm",
        f"runs_dir={tmp_path / 'runs'}",
    ]
    hold = "hydra.launcher.extra=[--hold]"
    for change, seed in (("report", 0), ("refuse", 1)):
        words = [f"seed={seed}", hold, f"hydra.launcher.on_code_change={change}"]
        environment = os.environ | {"PYTHONPATH": str(copy)}
        done = subprocess.run([*command, *words], cwd=copy, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    (copy / "study" / "later.py").write_text("# an edit\n")
    tasks = jobs_of(tmp_path / "runs")
    slurm.run("scontrol", "release", *(t.job for t in tasks.values()))
    until(lambda: not jobs_of(tmp_path / "runs"), "the end of the jobs")
    told, refused = (RunPaths(run_paths(config(tmp_path / "runs", *TINY, f"seed={s}")).root) for s in (0, 1))
    change = read_record(told)["code_changed"]
    assert change["submitted"]["files"] != change["started"]["files"]
    assert not refused.root.exists()
    notes = [json.loads(f.read_text()) for f in (tmp_path / "runs" / ".slurm").glob("*/task_0.json")]
    assert any("on_code_change=refuse" in n.get("ended", "") for n in notes)


def test_an_allocation_does_not_leak_into_the_jobs_it_submits(slurm, tmp_path):
    seen = tmp_path / "seen.txt"
    words = [*TINY, f"runs_dir={tmp_path / 'runs'}", "hydra/launcher=slurm", "hydra.launcher.time=7"]
    words.append(f"hydra.launcher.setup=['env > {seen}']")
    inside = ["srun", "--ntasks=1", "--time=3", "--mem=300", "--job-name=outer"]
    command = [*inside, sys.executable, "-m", "study.run", *words]
    environment = os.environ | {"SBATCH_TIMELIMIT": "2", "SLURM_HINT": "nomultithread"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    until(seen.exists, "the job's environment")
    found = dict(line.split("=", 1) for line in seen.read_text().splitlines() if "=" in line)
    assert found["SLURM_CONF"] == str(slurm.conf)
    assert found["SLURM_JOB_NAME"] != "outer"
    leaked = {
        "SLURM_STEP_ID",
        "SLURM_STEPID",
        "SLURM_HINT",
        "SLURM_SRUN_COMM_PORT",
        "SLURM_LAUNCH_NODE_IPADDR",
    }
    assert leaked & set(found) == set()
    until(lambda: not jobs_of(tmp_path / "runs"), "the end of the job")


def test_cancel_takes_only_the_sweep_s_own_jobs(slurm, tmp_path, capsys):
    files = {}
    for number, name in enumerate(("mine", "other")):
        files[name] = tmp_path / f"{name}.yaml"
        parameters = [f"  {k}: {{value: {v}}}" for k, v in (x.split("=") for x in TINY if "[" not in x)]
        parameters.append(f"  seed: {{values: [{number}, {number + 5}]}}")
        files[name].write_text("\n".join(["method: grid", "parameters:", *parameters]))
        launch([t.config for t in plan_of(files[name], tmp_path).trials], extra=["--hold"])
    assert len(jobs_of(tmp_path / "runs")) == 4
    capsys.readouterr()
    assert sweep.main(["cancel", str(files["mine"]), f"runs_dir={tmp_path / 'runs'}"]) == 0
    assert "2 tasks with 2 trials" in capsys.readouterr().out
    until(lambda: len(jobs_of(tmp_path / "runs")) == 2, "the end of the cancelled")
    left = set(jobs_of(tmp_path / "runs"))
    assert left == {t.run_id for t in plan_of(files["other"], tmp_path).trials}
    assert sweep.main(["status", str(files["other"]), f"runs_dir={tmp_path / 'runs'}"]) == 0
    assert "2 trials in tasks that wait" in capsys.readouterr().out


def plan_of(file, tmp_path):
    return sweep.plan_of(sweep.read_sweep(file), [f"runs_dir={tmp_path / 'runs'}"])


def many(slurm, tmp_path, shim, n, **options):
    calls = tmp_path / "calls"
    shim("sbatch", f'echo call >> {calls}\nexec $REAL "$@"')
    runs = tmp_path / "runs"
    configs = [config(runs, *TINY, f"seed={s}") for s in range(n)]
    launch(configs, **options)
    finished(slurm, configs, 1200)
    assert len(calls.read_text().split()) <= 10
    records = [read_record(run_paths(c)) for c in configs]
    assert [r["restarts"] for r in records] == [0] * n
    assert all(leftovers(run_paths(c)) == [] for c in configs)


def test_a_hundred_trials_finish_once_each(slurm, tmp_path, shim):
    many(slurm, tmp_path, shim, 100, trials_per_task=25)


@pytest.mark.slow
def test_a_thousand_trials_finish_once_each(slurm, tmp_path, shim):
    many(slurm, tmp_path, shim, 1000, trials_per_task=50)


@pytest.mark.slow
def test_fifty_kills_at_random_lose_nothing(slurm, tmp_path):
    import random

    dice = random.Random(0)
    configs = [config(tmp_path, *LONG, "epochs=40", f"seed={s}") for s in range(8)]
    kills = 0
    until_when = time.monotonic() + 1800
    while any(status(run_paths(c)) != "finished" for c in configs) and time.monotonic() < until_when:
        launch(configs, trials_per_task=2)
        time.sleep(dice.uniform(0, 8))
        owners = [o for c in configs if (o := owner_of(run_paths(c)))]
        if owners and kills < 50:
            kills += 1
            victim = dice.choice(owners)
            if dice.random() < 0.5:
                os.kill(victim.pid, signal.SIGKILL)
            else:
                slurm.run("scancel", "--signal=KILL", "--full", victim.job_id, check=False)
        slurm.hasten()
    finished(slurm, configs)
    for c in configs:
        assert leftovers(run_paths(c)) == []
        table = pq.read_table(run_paths(c).metrics).to_pandas()
        assert not table.duplicated(["step", "split"]).any()
        assert (table["split"] == "batch").sum() == read_record(run_paths(c))["steps_total"]

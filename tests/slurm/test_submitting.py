"""Launches that meet, die, or come from elsewhere; code that changes under way."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from study.execute import run_paths
from study.records import read_record
from tests.runs import leftovers
from tests.slurm.cluster import until
from tests.slurm.helpers import ROOT, TINY, config, finished, idle, jobs_of, launch, statuses

pytestmark = pytest.mark.slurm


def test_launches_that_meet_and_a_killed_launcher_double_nothing(slurm, tmp_path):
    """One is killed in the midst of submission; then two at once, and a third a second later."""
    command = [sys.executable, "-m", "study.run", "-m", *TINY, "seed=range(0,6)", f"runs_dir={tmp_path}"]
    command += ["hydra/launcher=slurm", "hydra.launcher.trials_per_task=3"]
    killed = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    until(lambda: list(tmp_path.glob(".slurm/*/.submission_file*")), "a submission")
    killed.kill()
    killed.wait()
    others = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    time.sleep(1)
    others.append(subprocess.Popen(command, cwd=ROOT))
    assert [p.wait(timeout=240) for p in others] == [0, 0, 0]
    configs = [config(tmp_path, *TINY, f"seed={s}") for s in range(6)]
    idle(tmp_path, 200)
    if statuses(tmp_path) != ["finished"] * 6:  # the killed launcher's tasks may have found no work
        launch(configs)
    finished(slurm, configs)
    assert [read_record(run_paths(c))["restarts"] for c in configs] == [0] * 6
    assert all(leftovers(run_paths(c)) == [] for c in configs)


def test_code_edited_after_the_submission_is_told_or_refused(slurm, tmp_path):
    copy, runs = tmp_path / "copy", tmp_path / "runs"
    copy.mkdir()
    for name in ("study", "conf", "hydra_plugins"):
        shutil.copytree(ROOT / name, copy / name)
    command = [sys.executable, "-m", "study.run", *TINY, "hydra/launcher=slurm", f"runs_dir={runs}"]
    started = []
    for change, seed in (("report", 0), ("refuse", 1)):
        words = [f"seed={seed}", "hydra.launcher.extra=[--hold]", f"hydra.launcher.on_code_change={change}"]
        environment = os.environ | {"PYTHONPATH": str(copy)}
        started.append(subprocess.Popen([*command, *words], cwd=copy, env=environment))
    assert [p.wait(timeout=240) for p in started] == [0, 0]
    (copy / "study" / "later.py").write_text("# an edit\n")
    slurm.run("scontrol", "release", *(t.job for t in jobs_of(runs).values()))
    idle(runs)
    told, refused = (run_paths(config(runs, *TINY, f"seed={s}")) for s in (0, 1))
    change = read_record(told)["code_changed"]
    assert change["submitted"]["files"] != change["started"]["files"]
    assert not refused.root.exists()
    notes = [json.loads(f.read_text()) for f in (runs / ".slurm").glob("*/task_0.json")]
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
    idle(tmp_path / "runs")

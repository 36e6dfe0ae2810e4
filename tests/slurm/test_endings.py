"""However a trial ends on the cluster, it is told, and the others finish."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from study import sweep
from study.errors import StudyError
from study.execute import execute, run_paths
from study.launch import slurm_watch
from study.launch.plan import make_plan
from study.launch.table import Display
from study.ownership import owner_of
from study.records import read_record
from tests.runs import assert_same_results
from tests.slurm.cluster import until
from tests.slurm.helpers import ENDLESS, ROOT, TINY, config, jobs_of, launch, status, statuses

pytestmark = pytest.mark.slurm


def test_a_grid_goes_to_the_cluster_by_one_word(slurm, tmp_path):
    words = [*TINY, "lr=0.1,1e5", f"runs_dir={tmp_path}", "hydra/launcher=slurm", "hydra.launcher.wait=true"]
    command = [sys.executable, "-m", "study.run", "-m", *words, "hydra.launcher.trials_per_task=2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 trials in 1 tasks" in done.stdout
    assert "diverged" in done.stdout
    assert statuses(tmp_path) == ["finished"] * 2
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "submitted" not in again.stdout


def test_however_a_trial_ends_it_harms_no_other(slurm, tmp_path, shim, capsys):
    calls = tmp_path / "sacct_calls"
    shim("sacct", f"echo call >> {calls}; exit 1")
    runs = tmp_path / "runs"
    bad = {
        "refused": config(runs, *TINY, "batch_size=100000"),
        "memory": config(runs, *TINY, "model.widths=[400,400,400]", "model.width_multiplier=64"),
        "victim": config(runs, *ENDLESS),
        "gone": config(runs, *ENDLESS, "seed=1"),
    }
    good = [config(runs, *TINY, lr) for lr in ("lr=0.1", "lr=1e5")]

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
    code = launch([*good, *bad.values()], wait=True, trials_per_task=1, setup=["ulimit -v 20000000"])
    printed = capsys.readouterr().out
    assert code == 1
    assert [status(run_paths(c)) for c in good] == ["finished"] * 2
    assert read_record(run_paths(good[1]))["outcome"] == "diverged"
    assert "batch_size=100000" in printed
    assert "can't allocate memory" in printed
    assert status(run_paths(bad["memory"])) == "failed"  # it raised before it could train
    assert "Traceback" in run_paths(bad["memory"]).log.read_text()
    assert [status(run_paths(bad[n])) for n in ("victim", "gone")] == ["lost"] * 2
    assert printed.count("warning:") <= 1
    assert len(calls.read_text().split()) == 1  # an accounting that does not answer is not asked again
    again = shown_status(tmp_path, [*good, *bad.values()], capsys)
    assert "batch_size=100000 is out of range" in again  # it left no run directory, but is no secret


def shown_status(tmp_path, configs, capsys):
    """What `study.sweep status` says of trials, however they were launched."""
    from study.launch.standing import standing

    found = standing("mine", make_plan(configs))
    assert found.failed
    return found.text


def test_a_refused_submission_is_an_error_in_sbatch_s_words(slurm, tmp_path):
    command = [sys.executable, "-m", "study.run", *TINY, f"runs_dir={tmp_path}", "hydra/launcher=slurm"]
    done = subprocess.run(
        [*command, "hydra.launcher.partition=nowhere"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "sbatch refused the job" in done.stderr
    assert "invalid partition" in done.stderr


@pytest.fixture
def small_disk(tmp_path):
    """Return a folder on a disk of 4 MB of its own, and a function that mounts it anew with other options."""
    folder = tmp_path / "small"
    folder.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        return subprocess.run(command, capture_output=True, text=True)

    if (done := mount("size=4m")).returncode:
        pytest.skip(f"a disk of its own cannot be mounted here: {done.stderr.strip()}")
    yield folder, mount
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_takes_nothing_is_one_sentence_and_the_trial_resumes(
    slurm, small_disk, tmp_path, capsys, fault
):
    """At the launch, and once the job is submitted; what ran earlier stays intact."""
    folder, mount = small_disk
    runs = folder / "runs"
    before, later = config(runs, *TINY), config(runs, *TINY, "seed=1")
    execute(before)
    kept = {f: f.read_bytes() for f in run_paths(before).root.rglob("*") if f.is_file()}
    launch([later], extra=["--hold"])
    filler = folder / "filler"

    if fault == "full":
        with contextlib.suppress(OSError), open(filler, "ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        assert shutil.disk_usage(folder).free == 0
        words = "No space left on device"
    else:
        mount("remount,ro")
        words = "Read-only file system"
    with pytest.raises(StudyError, match=words) as refusal:
        launch([config(runs, *TINY, "seed=2")])
    assert "\n" not in str(refusal.value)
    slurm.run("scontrol", "release", *(task.job for task in jobs_of(runs).values()))
    capsys.readouterr()
    plan, display = make_plan([later]), Display()
    display.plan(plan, 1)
    code = slurm_watch.watch(plan, display)
    printed = capsys.readouterr().out
    assert code == 1
    assert words in printed, printed
    assert {f: f.read_bytes() for f in kept} == kept

    if fault == "full":
        filler.unlink()
    else:
        mount("remount,rw")
    slurm.clear()
    assert launch([later], wait=True) == 0
    alone = config(tmp_path / "alone", *TINY, "seed=1")
    execute(alone)
    assert_same_results(run_paths(later), run_paths(alone))


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

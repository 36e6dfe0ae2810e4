"""The local launcher under fire: crashes, interrupts, a second launch, its own death."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from study.compose import compose
from study.launch.local import fork_server
from study.launch.plan import make_plan
from study.ownership import observed_status, owner_of
from study.paths import run_dirs
from study.provenance import git
from study.records import read_record, write_json

ROOT = Path(__file__).parents[2]
LONG = ("scale=smoke", "epochs=100000", "checkpoint_seconds=1000")
SHORT = ("scale=smoke", "epochs=2")


@pytest.fixture
def launched():
    """Start launches; kill at the end what a failed test has left."""
    processes = []

    def start(*args):
        process = subprocess.Popen(
            [sys.executable, "-m", "study.run", *args],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def owners(folder):
    found = [owner_of(p) for p in run_dirs(folder) if p.record.exists()]
    return [o for o in found if o is not None]


def training(folder, n):
    """Return the owners of the runs of a folder once n of them have begun to train."""
    return until(lambda: len(found := owners(folder)) == n and found)


def statuses(folder):
    return sorted(str(observed_status(p)) for p in run_dirs(folder))


def gone(pids):
    return all(not psutil.pid_exists(p) or psutil.Process(p).status() == "zombie" for p in pids)


@pytest.mark.slow
def test_a_killed_trial_harms_no_other_and_the_next_launch_takes_it_up(tmp_path, launched):
    args = ("-m", *SHORT, "seed=0,1,2", f"runs_dir={tmp_path}", "hydra.launcher.workers=2")
    launch = launched(*args)
    victim = until(lambda: owners(tmp_path))[0]
    os.kill(victim.pid, signal.SIGKILL)
    printed, _ = launch.communicate(timeout=300)
    assert launch.returncode == 1, printed
    assert "killed by SIGKILL" in printed
    assert statuses(tmp_path) == ["finished", "finished", "lost"]
    again = launched(*args)
    printed, _ = again.communicate(timeout=300)
    assert again.returncode == 0, printed
    assert statuses(tmp_path) == ["finished"] * 3


def test_a_trial_that_raises_is_named_and_its_log_has_the_traceback(tmp_path, launched):
    args = (*SHORT, f"runs_dir={tmp_path}", "checkpoint_seconds=0")
    paths = make_plan([compose([*args, "seed=1"])]).trials[0].paths
    paths.root.mkdir()
    paths.parts.write_text("")  # the first checkpoint cannot make its folder here
    launch = launched("-m", *args, "seed=0,1")
    printed, _ = launch.communicate(timeout=300)
    assert launch.returncode == 1, printed
    assert statuses(tmp_path) == ["failed", "finished"]
    assert f"failed: seed=1: cannot write to {paths.parts}: File exists" in printed
    assert f"(see {paths.log})" in printed
    text = paths.log.read_text()
    assert "Traceback (most recent call last)" in text
    assert "in checkpoint" in text  # it was raised in the midst of training


def test_a_trial_that_is_refused_is_named_and_leaves_nothing(tmp_path, launched):
    launch = launched("-m", *SHORT, "data.subset=0", "batch_size=32,100000", f"runs_dir={tmp_path}")
    printed, _ = launch.communicate(timeout=300)
    assert launch.returncode == 1
    assert "batch_size=100000" in printed
    assert "out of range" in printed
    assert statuses(tmp_path) == ["finished"]


@pytest.mark.slow
def test_damaged_runs_are_named_harm_no_other_and_are_mended_by_a_rerun(tmp_path, launched):
    args = ("-m", "scale=smoke", "epochs=1", "seed=0,1,2", f"runs_dir={tmp_path}")
    assert launched(*args).wait() == 0
    first, second, third = run_dirs(tmp_path)
    first.record.write_text('{"status":')
    second.metrics.write_bytes(b"PAR1")
    third.metrics.unlink()
    launch = launched(*args, "seed=0,1,2,3")
    told = launch.communicate()[0]
    assert launch.returncode == 1
    assert f"delete {first.root} to run it again" in told
    assert "metrics.parquet is damaged" in told
    assert "metrics.parquet is missing" in told
    assert len(run_dirs(tmp_path)) == 4
    mended = launched(*args, "rerun=true")
    told = mended.communicate()[0]
    assert mended.returncode == 0, told
    assert statuses(tmp_path) == ["finished"] * 4
    assert all(p.metrics.exists() for p in run_dirs(tmp_path))


def test_an_interrupted_rerun_is_not_taken_for_the_run_it_repeats(tmp_path, launched):
    long = (*LONG, f"runs_dir={tmp_path}")
    plan = make_plan([compose([*long, "rerun=true"])])
    first = launched(*long)
    training(tmp_path, 1)
    first.send_signal(signal.SIGINT)
    assert first.wait() == 130
    (run,) = run_dirs(tmp_path)
    record = read_record(run)
    write_json(run.record, {**record, "status": "finished", "outcome": "trained"})
    again = launched(*long, "rerun=true")
    until(lambda: owner_of(run.rerun) and run.rerun.record.exists())
    again.send_signal(signal.SIGINT)
    told = again.communicate()[0]
    assert again.returncode == 130, told
    assert "interrupted at" in told
    assert plan.trials[0].look().status == "preempted"
    assert read_record(run)["status"] == "finished"


def test_a_second_interrupt_kills_at_once(tmp_path, launched):
    patient = ("hydra.launcher.workers=2", "hydra.launcher.grace_seconds=1000")
    launch = launched("-m", *LONG, "seed=0,1", f"runs_dir={tmp_path}", *patient)
    pids = [o.pid for o in training(tmp_path, 2)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # deaf to the first one
    os.kill(launch.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        launch.communicate(timeout=3)
    os.kill(launch.pid, signal.SIGINT)
    printed, _ = launch.communicate(timeout=120)  # far below the grace period
    assert launch.returncode == 130, printed
    assert "interrupt again to kill them" in printed
    until(lambda: gone(pids))
    assert statuses(tmp_path) == ["lost", "lost"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupt_leaves_resumable_runs_and_no_orphans(tmp_path, launched, number):
    launch = launched("-m", *LONG, "seed=0,1,2", f"runs_dir={tmp_path}", "hydra.launcher.workers=2")
    pids = [o.pid for o in training(tmp_path, 2)]
    family = [p.pid for p in psutil.Process(launch.pid).children(recursive=True)]  # and the fork server
    assert {*pids} < {*family}
    os.killpg(launch.pid, number)  # as a terminal does: to the launcher, the fork server and the trials
    printed, _ = launch.communicate(timeout=120)
    assert launch.returncode == 130, printed
    assert "resumable" in printed
    assert statuses(tmp_path) == ["preempted", "preempted"]
    assert all(p.checkpoint.exists() for p in run_dirs(tmp_path))
    assert owners(tmp_path) == []
    until(lambda: gone(family))


@pytest.mark.slow
def test_trials_stop_when_their_launcher_is_killed(tmp_path, launched):
    launch = launched("-m", *LONG, "seed=0,1", f"runs_dir={tmp_path}", "hydra.launcher.workers=2")
    pids = [o.pid for o in training(tmp_path, 2)]
    os.kill(launch.pid, signal.SIGKILL)
    until(lambda: gone(pids))
    assert statuses(tmp_path) == ["preempted", "preempted"]


@pytest.mark.slow
def test_two_identical_grids_share_the_work(tmp_path, launched):
    args = ("-m", *SHORT, "seed=0,1,2,3", f"runs_dir={tmp_path}", "hydra.launcher.workers=2")
    both = [launched(*args, f"sweep={name}") for name in ("one", "two")]
    printed = [launch.communicate(timeout=300)[0] for launch in both]
    assert [launch.returncode for launch in both] == [0, 0], printed
    assert statuses(tmp_path) == ["finished"] * 4
    records = [read_record(p) for p in run_dirs(tmp_path)]
    assert [r["restarts"] for r in records] == [0, 0, 0, 0]
    assert [sorted(r["sweeps"]) for r in records] == [["one", "two"]] * 4


@pytest.mark.slow
def test_a_crash_in_c_code_reaches_the_log(tmp_path, launched):
    launch = launched(*LONG, f"runs_dir={tmp_path}")
    (owner,) = training(tmp_path, 1)
    os.kill(owner.pid, signal.SIGSEGV)
    printed, _ = launch.communicate(timeout=120)
    assert launch.returncode == 1
    assert "killed by SIGSEGV" in printed
    (paths,) = run_dirs(tmp_path)
    assert "Segmentation fault" in paths.log.read_text()
    assert str(paths.log) in printed


def _shared(pipe):
    pipe.send((gc.get_freeze_count(), git.cache_info().currsize, "torch" in sys.modules))


def test_what_trials_share_is_done_once_by_the_fork_server():
    context = fork_server([compose(["scale=smoke"])])
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_shared, args=(theirs,))
    process.start()
    frozen, known, torch_there = mine.recv()
    process.join()
    assert frozen > 100_000, "memory of the imports is not frozen"
    assert known == 1, "each trial asks git again"
    assert torch_there

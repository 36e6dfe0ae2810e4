"""A run that was killed and started again equals one that never was, to the bit."""

import errno
import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from study.execute import execute, run_paths
from study.identity import run_id
from study.launch.local import note_sweeps
from study.launch.plan import make_plan
from study.ownership import observed_status
from study.records import DamagedRunError, read_record
from study.status import Status
from tests.runs import assert_same_results, leftovers, tiny

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["study.execute", "study.models.resnet", "study.norms.batch"])

FILE_CALLS = ("replace", "rename", "fsync", "unlink", "rmdir", "mkdir")


def attempt(config, kill_at):
    """Execute, but die by SIGKILL just before the `kill_at`-th call that changes a file."""
    calls = 0

    def deadly(call):
        def wrapped(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapped

    for name in FILE_CALLS:
        setattr(os, name, deadly(getattr(os, name)))
    execute(config)


def run_in_process(config, kill_at=0, kill_after=None):
    """Return the exit code of an attempt in a process of its own."""
    process = FORKSERVER.Process(target=attempt, args=(config, kill_at))
    process.start()
    if kill_after is not None:
        process.join(kill_after)
        process.kill()
    process.join()
    return process.exitcode


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody disturbed."""
    config = tiny(tmp_path_factory.mktemp("whole"))
    execute(config)
    return run_paths(config)


def killed_then_resumed(tmp_path, whole, kill_at):
    """Kill at one file call, resume, compare; return whether the attempt was killed at all."""
    config = tiny(tmp_path / str(kill_at))
    code = run_in_process(config, kill_at)
    if code == 0:
        return False
    assert code == -signal.SIGKILL
    paths = run_paths(config)
    assert observed_status(paths) in (Status.WAITING, Status.LOST, Status.FINISHED)
    execute(config)
    assert_same_results(paths, whole)
    assert leftovers(paths) == []
    shutil.rmtree(paths.root)
    return True


@pytest.mark.parametrize("kill_at", [1, 3, 5, 8, 13, 27, 40, 55, 60])
def test_killed_at_a_file_call(tmp_path, whole, kill_at):
    assert killed_then_resumed(tmp_path, whole, kill_at)


VARIANTS = {
    "alternating": {"norm": {"source": "periodic", "name": "bn_alternating"}},
    "running": {"norm": {"source": "running", "name": "bn_running"}},
    "frozen": {"norm": {"source": "frozen", "name": "bn_frozen"}},
    "noisy": {"norm": {"noise": True, "name": "bn_noisy"}},
    "lsuv": {"init": {"name": "lsuv"}, "norm": {"family": "none", "name": "none"}},
    "plateau": {"schedule": {"name": "plateau", "patience": 1, "threshold": 0.9}, "epochs": 4},
    "warm start": {"schedule": {"warm_start_epochs": 1, "warm_start_lr": 1e-4}},
    "fp16": {"precision": "fp16"},
    "diverging": {"lr": 1e5, "norm": {"family": "none", "name": "none"}},
    "probes": {"probes": {"measure": ["activation_moments@every:3", "gradient_tails@epoch_end"]}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_state_survives_a_kill(tmp_path, variant):
    """Killed while publishing its third checkpoint: statistics, counters, scaler, losses, probe rows."""
    undisturbed = tiny(tmp_path / "whole", **VARIANTS[variant])
    execute(undisturbed)
    config = tiny(tmp_path / "killed", **VARIANTS[variant])
    assert run_in_process(config, kill_at=16 if variant == "diverging" else 27) == -signal.SIGKILL
    execute(config)
    assert_same_results(run_paths(config), run_paths(undisturbed))
    assert leftovers(run_paths(config)) == []


@pytest.mark.slow
def test_killed_at_every_file_call(tmp_path, whole):
    """From the claim over every part and checkpoint to the last deletion."""
    kill_at = 1
    while killed_then_resumed(tmp_path, whole, kill_at):
        kill_at += 1
    assert kill_at > 60


@pytest.mark.slow
def test_killed_again_and_again_at_random_times(tmp_path, whole):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    for round_number in range(4):
        config = tiny(tmp_path / str(round_number))
        for _ in range(8):
            run_in_process(config, kill_after=moments.uniform(0.02, 0.5))
        execute(config)
        assert_same_results(run_paths(config), whole)


def test_stopped_after_every_update(tmp_path, whole):
    """Preempted at each step in turn, the run comes to the same end."""
    config = tiny(tmp_path)
    statuses = []
    for _ in range(20):
        polls = iter([False, True])
        record = execute(config, stop=lambda polls=polls: next(polls, True))
        statuses.append(record["status"])
        if record["status"] == Status.FINISHED:
            break
        assert observed_status(run_paths(config)) is Status.PREEMPTED
    assert statuses[-1] == Status.FINISHED
    assert statuses.count(Status.PREEMPTED) >= 3
    assert_same_results(run_paths(config), whole)


def test_checkpoints_do_not_change_the_run(tmp_path, whole):
    config = tiny(tmp_path, checkpoint_seconds=1e9)
    execute(config)
    assert_same_results(run_paths(config), whole)


def test_a_finished_run_is_not_repeated(whole):
    config = tiny(whole.root.parent)
    before = {p: p.stat().st_mtime_ns for p in whole.root.iterdir()}
    execute(config)
    assert {p: p.stat().st_mtime_ns for p in whole.root.iterdir()} == before


def test_rerun_trains_beside_and_swaps(tmp_path, whole):
    config = tiny(tmp_path, sweep="first")
    execute(config)
    paths = run_paths(config)
    created = paths.weights.stat().st_ino
    again = tiny(tmp_path, rerun=True, sweep="second")
    assert run_id(again) == run_id(config)
    stopped = execute(again, stop=lambda: True)
    assert stopped["status"] == Status.PREEMPTED
    assert read_record(paths)["status"] == Status.FINISHED
    execute(again)
    assert paths.weights.stat().st_ino != created
    assert read_record(paths)["sweeps"] == ["first", "second"]
    assert_same_results(paths, whole)
    assert [p.name for p in tmp_path.iterdir()] == [paths.run_id]


def test_a_run_directory_can_be_moved(tmp_path, whole):
    copy = tmp_path / "elsewhere" / whole.run_id
    shutil.copytree(whole.root, copy)
    before = (copy / "metrics.parquet").stat().st_mtime_ns
    record = execute(tiny(tmp_path / "elsewhere"))
    assert record["status"] == Status.FINISHED
    assert (copy / "metrics.parquet").stat().st_mtime_ns == before


def test_a_finished_run_on_a_read_only_disk_is_a_result(tmp_path, whole, monkeypatch):
    copy = tmp_path / whole.run_id
    shutil.copytree(whole.root, copy)
    (copy / "checkpoint.pt").write_bytes(b"left by a kill")

    def refuse(path, *args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    record = execute(tiny(tmp_path, sweep="later"))
    assert record["status"] == Status.FINISHED
    assert "later" not in record["sweeps"]
    said = []
    trials = make_plan([tiny(tmp_path, sweep="later")]).trials
    note_sweeps(trials, SimpleNamespace(say=said.append))
    assert said == [f"{whole.run_id} cannot be written to: sweep=later not noted"]


def test_a_half_done_run_can_be_moved_and_resumed(tmp_path, whole):
    config = tiny(tmp_path / "here")
    execute(config, stop=lambda: True)
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = tiny(tmp_path / "there")
    execute(moved)
    assert_same_results(run_paths(moved), whole)


def test_seconds_add_up_over_resumes(tmp_path):
    config = tiny(tmp_path)
    first = execute(config, stop=lambda: True)
    time.sleep(1.0)
    second = execute(config)
    assert second["seconds"] >= first["seconds"]
    assert second["restarts"] == 1


def test_a_rerun_killed_in_its_swap_loses_nothing(tmp_path, whole):
    config = tiny(tmp_path)
    execute(config)
    paths = run_paths(config)
    aside = tmp_path / ".rerun" / f"{paths.run_id}.old"
    aside.parent.mkdir()
    paths.root.rename(aside)  # as if killed between the two renames
    before = (aside / "metrics.parquet").stat().st_ino
    execute(config)
    assert (paths.root / "metrics.parquet").stat().st_ino == before
    assert [p.name for p in tmp_path.iterdir()] == [paths.run_id]


def garble(path: Path, how: str) -> None:
    """Damage a checkpoint."""
    saved = torch.load(path, weights_only=True)
    if how == "another dictionary":
        saved = {"epoch": 3}
    elif how == "a list":
        saved = [1, 2]
    elif how == "another shape":
        network = saved["state"]["network"]
        name = next(name for name, value in network.items() if value.ndim == 4)
        network[name] = network[name][:, :, :1]
    elif how == "no parts":
        saved["parts"] = None
    torch.save(saved, path)
    if how == "garbage":
        path.write_bytes(b"garbage")
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:-100])


HOW = ["garbage", "truncated", "another dictionary", "a list", "another shape", "no parts"]


def test_a_damaged_checkpoint_is_one_sentence_with_the_way_out(tmp_path, whole):
    config = tiny(tmp_path)
    execute(config, stop=lambda: True)
    paths = run_paths(config)
    sound = paths.checkpoint.read_bytes()
    for how in HOW:
        paths.checkpoint.write_bytes(sound)
        garble(paths.checkpoint, how)
        before = paths.record.read_bytes()
        with pytest.raises(DamagedRunError, match=r"checkpoint\.pt is damaged; delete it to start") as error:
            execute(config)
        assert "\n" not in str(error.value)
        assert paths.record.read_bytes() == before
    paths.checkpoint.unlink()
    execute(config)
    assert_same_results(paths, whole)


def test_a_truncated_part_is_found_before_training_and_costs_one_file(tmp_path, whole):
    config = tiny(tmp_path)
    told = iter([False, False, False, True])
    execute(config, stop=lambda: next(told))
    paths = run_paths(config)
    part = min(paths.parts.iterdir())
    part.write_bytes(part.read_bytes()[:-20])
    heard = []
    with pytest.raises(DamagedRunError, match=rf"{part.name} is damaged, .*delete .*checkpoint\.pt to start"):
        execute(config, report=heard.append)
    assert heard == []
    paths.checkpoint.unlink()
    execute(config)
    assert_same_results(paths, whole)

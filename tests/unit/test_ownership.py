import contextlib
import dataclasses
import errno
import json
import multiprocessing
import os
import subprocess
import sys
import time

import pytest

from study import ownership, records
from study.errors import OwnedElsewhereError
from study.paths import RunPaths
from study.status import Status


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path / "run")


def plant(paths, number=1, **changes):
    """Write a claim by somebody else."""
    owner = dataclasses.replace(ownership.this_process(), **changes)
    folder = paths.root / f"owner.{number}"
    folder.mkdir(parents=True)
    records.write_json(folder / "owner.json", dataclasses.asdict(owner))
    return owner


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_claim_is_exclusive_and_released(paths):
    with ownership.claim(paths) as held:
        held.check()
        with pytest.raises(OwnedElsewhereError, match="being worked on by process"), ownership.claim(paths):
            pass
        held.check()
    assert ownership.owner_of(paths) is None
    with ownership.claim(paths):
        pass


def test_a_dead_owner_is_succeeded(paths):
    plant(paths, 3, pid=dead_pid())
    with ownership.claim(paths) as held:
        assert held.number == 4
    assert ownership.owner_of(paths) is None


def test_a_reused_pid_is_not_the_owner(paths):
    owner = plant(paths, pid=os.getppid(), started=1.0)
    assert ownership.is_alive(owner) is False


def test_a_rebooted_host_has_no_live_owners(paths):
    owner = plant(paths, boot="another-boot/pid:[1]")
    assert ownership.is_alive(owner) is False


def test_an_owner_on_an_unseen_host_is_not_robbed(paths, monkeypatch):
    plant(paths, host="elsewhere")
    with (
        pytest.raises(OwnedElsewhereError, match=r"cannot be seen from here.*--release"),
        ownership.claim(paths),
    ):
        pass
    ownership.release_unseen(paths)
    with ownership.claim(paths):
        pass


def test_a_requeued_job_succeeds_itself(paths, monkeypatch):
    plant(paths, host="elsewhere", job_id="17_4", restart=0)
    for key, value in {"ARRAY_JOB_ID": "17", "ARRAY_TASK_ID": "4", "RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(f"SLURM_{key}", value)
    with ownership.claim(paths) as held:
        assert held.number == 2


def test_an_owner_that_was_succeeded_must_stop(paths):
    with ownership.claim(paths) as held:
        plant(paths, held.number + 1)
        with pytest.raises(ownership.OwnershipLostError):
            held.check()


def test_releasing_leaves_a_successor_alone(paths):
    with ownership.claim(paths) as held:
        successor = plant(paths, held.number + 1)
    assert ownership.owner_of(paths) == successor


def test_an_unused_directory_is_not_left_behind(paths):
    with ownership.claim(paths):
        pass
    assert not paths.root.exists()


def test_an_observer_tells_lost_from_running(paths):
    assert ownership.observed_status(paths) is Status.WAITING
    with ownership.claim(paths):
        records.write_json(paths.record, {"status": "running"})
        assert ownership.observed_status(paths) is Status.RUNNING
    assert ownership.observed_status(paths) is Status.LOST
    plant(paths, pid=dead_pid())
    assert ownership.observed_status(paths) is Status.LOST
    records.write_json(paths.record, {"status": "finished"})
    assert ownership.observed_status(paths) is Status.FINISHED


def _compete(root, barrier, log):
    barrier.wait()
    for _ in range(20):
        try:
            with ownership.claim(RunPaths(root)) as held:
                with open(log, "a") as file:
                    file.write(json.dumps(["in", os.getpid()]) + "\n")
                held.check()
                time.sleep(0.001)
                with open(log, "a") as file:
                    file.write(json.dumps(["out", os.getpid()]) + "\n")
        except OwnedElsewhereError:
            time.sleep(0.0005)


def test_of_many_claimants_one_at_a_time_wins(tmp_path):
    """Four processes claim a run over and over: the stays never overlap."""
    root, log = tmp_path / "run", tmp_path / "log"
    root.mkdir()
    (root / "keep").touch()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    workers = [context.Process(target=_compete, args=(root, barrier, log)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(events) >= 8
    for (enter, pid_in), (leave, pid_out) in zip(events[::2], events[1::2], strict=True):
        assert (enter, leave) == ("in", "out")
        assert pid_in == pid_out


def note(paths, names):
    for name in names:
        assert ownership.tag(paths, name, patience=60)


def test_sweeps_that_note_themselves_at_once_all_stay(paths):
    paths.root.mkdir()
    records.write_json(paths.record, {"status": "finished", "sweeps": []})
    names = [[f"{who}{i}" for i in range(8)] for who in "abc"]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=note, args=(paths, mine)) for mine in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0, 0, 0]
    assert sorted(records.read_record(paths)["sweeps"]) == sorted(name for mine in names for name in mine)
    assert ownership.owner_of(paths) is None


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_on_a_disk_that_cannot_be_written_a_sweep_is_not_noted(paths, number, owned, monkeypatch):
    paths.root.mkdir()
    records.write_json(paths.record, {"status": "finished", "sweeps": []})
    with ownership.claim(paths) if owned else contextlib.nullcontext():

        def refuse(*args, **kwargs):
            raise OSError(number, os.strerror(number), "x")

        for name in ("mkdir", "replace"):
            monkeypatch.setattr(os, name, refuse)
        assert not ownership.tag(paths, "mine")
    assert records.read_record(paths)["sweeps"] == []
    assert [p.name for p in paths.root.iterdir()] == ["run.json"]


def test_a_sweep_is_noted_by_the_owner_and_not_past_one_that_cannot_be_seen(paths):
    paths.root.mkdir()
    records.write_json(paths.record, {"status": "finished", "sweeps": []})
    with ownership.claim(paths):
        assert ownership.tag(paths, "mine")
    plant(paths, 1, host="elsewhere", boot="other")
    assert not ownership.tag(paths, "theirs")
    assert ownership.tag(paths, "mine")
    assert records.read_record(paths)["sweeps"] == ["mine"]


@pytest.mark.parametrize(
    "text", ["", '{"token": "ab', "[]", "5", '{"odd": 1}', '{"token": "x"}', "WHOLE", "[" * 100_000, "FOLDER"]
)
def test_a_claim_that_cannot_be_read_counts_as_one_that_cannot_be_seen(paths, text):
    file = paths.root / "owner.1" / "owner.json"
    file.parent.mkdir(parents=True)
    if text == "WHOLE":
        text = json.dumps(dataclasses.asdict(ownership.this_process()) | {"pid": "many"})
    file.mkdir() if text == "FOLDER" else file.write_text(text)
    records.write_json(paths.record, {"status": "running", "sweeps": []})
    assert ownership.is_alive(ownership.owner_of(paths)) is None
    assert ownership.observed_status(paths) is Status.RUNNING
    assert not ownership.tag(paths, "mine")
    with (
        pytest.raises(OwnedElsewhereError, match=r"owner\.json cannot be read.*--release"),
        ownership.claim(paths),
    ):
        pass
    ownership.release_unseen(paths)
    assert not file.parent.exists()
    with ownership.claim(paths) as held:
        assert held.number == 1


@pytest.mark.parametrize("what", ["a file", "no owner.json"])
def test_a_claim_that_is_no_claim_keeps_nobody_waiting_for_ever(paths, what, monkeypatch):
    monkeypatch.setattr(ownership, "REMOVAL_SECONDS", 0.0)
    paths.root.mkdir()
    if what == "a file":
        (paths.root / "owner.1").write_text("x")
    else:
        (paths.root / "owner.1").mkdir()
        (paths.root / "owner.1" / "else").write_text("x")
    with pytest.raises(OwnedElsewhereError, match="--release"), ownership.claim(paths):
        pass
    ownership.release_unseen(paths)
    with ownership.claim(paths):
        pass


def test_release_leaves_all_claims_while_one_is_alive(paths):
    plant(paths, 2, host="elsewhere", boot="other")
    plant(paths, 1)
    with pytest.raises(OwnedElsewhereError, match="alive"):
        ownership.release_unseen(paths)
    assert ownership.owner_of(paths).host == "elsewhere"

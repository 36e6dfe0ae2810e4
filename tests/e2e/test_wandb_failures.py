"""Whatever W&B does, the run and its records are what they would be without it, and one warning says so."""

import contextlib
import os
import signal
import subprocess
import threading
import time

import psutil
import pytest

from study.execute import execute, run_paths
from study.trackers import mirror
from tests.runs import assert_same_results, tiny
from tests.wandb_fixtures import server, tracked, warnings_of  # noqa: F401

FAULTS = {
    "every answer 500": lambda name: 500,
    "file stream 500": lambda name: 500 if name == "file_stream" else None,
    "file stream 429": lambda name: 429 if name == "file_stream" else None,
    "quota: file stream 403": lambda name: 403 if name == "file_stream" else None,
    "run refused 403": lambda name: 403 if name == "UpsertBucket" else None,
    "upload 500": lambda name: 500 if name == "upload" else None,
    "every connection dropped": lambda name: "drop",
    "file stream dropped": lambda name: "drop" if name == "file_stream" else None,
    "slow": lambda name: 300.0,
    "file stream slow": lambda name: 300.0 if name == "file_stream" else None,
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The run without a mirror."""
    config = tiny(tmp_path_factory.mktemp("plain"))
    execute(config)
    return run_paths(config)


FACTOR = 4
"""How much longer than its limits a wait may take on a busy machine."""


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """How long each run waited for its mirror at the end, never much longer than its patience allows."""
    found = []
    finish = mirror.Mirror.finish

    def timed(self, record):
        begin = time.monotonic()
        finish(self, record)
        found.append((time.monotonic() - begin, 3 * self.patience + 4 * mirror.GRACE_SECONDS))

    monkeypatch.setattr(mirror.Mirror, "finish", timed)
    yield found
    assert found
    for waited, allowed in found:
        assert waited <= FACTOR * allowed


def assert_unharmed(config, plain, capfd):
    assert_same_results(run_paths(config), plain)
    (line,) = warnings_of(config)
    assert "records are not affected" in line
    assert [x.startswith("W&B: ") for x in capfd.readouterr().err.splitlines() if x.strip()] == [True]


QUICK = ("every answer 500", "quota: file stream 403", "slow", "every connection dropped")
CHOICES = [f if f in QUICK else pytest.param(f, marks=pytest.mark.slow) for f in FAULTS]


@pytest.mark.parametrize("fault", CHOICES)
def test_a_failing_server(tmp_path, server, plain, capfd, fault):  # noqa: F811
    server.fault = FAULTS[fault]
    config = tracked(tmp_path / "runs", patience=1.5)
    execute(config)
    assert_unharmed(config, plain, capfd)
    assert not run_paths(config).uploaded.exists()


@pytest.mark.slow
def test_a_short_outage_goes_unnoticed(tmp_path, server):  # noqa: F811
    """The client tries again; every row arrives, once."""
    server.fault = lambda name: 500 if name == "file_stream" and server.calls[name] == 1 else None
    config = tracked(tmp_path / "runs", patience=60.0)
    record = execute(config)
    assert warnings_of(config) == []
    steps = [r["step"] for r in server.run(record["wandb_id"]).history]
    assert steps == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8]


def test_no_account(tmp_path, server, plain, capfd, monkeypatch):  # noqa: F811
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    import wandb

    wandb.teardown()
    config = tracked(tmp_path / "runs")
    execute(config)
    assert_unharmed(config, plain, capfd)
    assert "wandb login" in warnings_of(config)[0]
    wandb.teardown()


def test_a_service_that_hangs_is_killed(tmp_path, server, plain, capfd, monkeypatch):  # noqa: F811
    monkeypatch.setattr(mirror, "GRACE_SECONDS", 1.0)
    config = tracked(tmp_path / "runs", patience=1.0)
    stuck = []

    def freeze(name):
        for child in psutil.Process().children():
            if child.name().startswith(mirror.SERVICE):
                stuck.append(child)
                os.kill(child.pid, signal.SIGSTOP)

    server.fault = lambda name: freeze(name) if name == "UpsertBucket" else None
    execute(config)
    server.fault = None
    assert_unharmed(config, plain, capfd)
    assert stuck
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in stuck)

    again = tracked(tmp_path / "again")  # and the next run of this process is mirrored as ever
    execute(again)
    assert warnings_of(again) == []


def test_a_folder_that_cannot_be_written(tmp_path, server, plain, capfd, monkeypatch):  # noqa: F811
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = tracked(tmp_path / "runs")
    run_paths(config).root.mkdir(parents=True)
    run_paths(config).wandb.write_text("not a folder")
    execute(config)
    assert_unharmed(config, plain, capfd)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize(
    ("options", "mode"), [("size=4k", "offline"), ("size=64k", "online"), ("ro", "offline")]
)
def test_a_full_or_read_only_disk(tmp_path, server, plain, capfd, monkeypatch, options, mode):  # noqa: F811
    monkeypatch.setenv("WANDB_MODE", mode)
    config = tracked(tmp_path / "runs", patience=3.0)
    folder = run_paths(config).wandb
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        if options != "ro":
            with contextlib.suppress(OSError), open(folder / "ballast", "wb", buffering=0) as ballast:
                while True:
                    ballast.write(b"0" * 1024)
        execute(config)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
    assert_unharmed(config, plain, capfd)


def test_no_thread_is_left_behind(tmp_path, server):  # noqa: F811
    execute(tracked(tmp_path))
    assert not [t for t in threading.enumerate() if t.name.startswith("wandb synthetic")]

"""One cluster for all these tests; they skip where none can be started."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing

ROOT = Path(__file__).parents[2]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Let a failed test say what the cluster was doing."""
    report = yield
    if report.failed and call.when == "call" and (cluster := item.funcargs.get("slurm")):
        report.sections.append(("the cluster", cluster.describe()))
    return report


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if reason := missing():
        pytest.skip(reason)
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def slurm(cluster, monkeypatch):
    """The cluster, spoken to by this process; its queue is emptied afterwards."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield cluster
    cluster.clear()


@pytest.fixture
def shim(tmp_path, monkeypatch):
    """Put a script of our own before a program; in the script, $REAL is the program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{Path('/usr/bin')}:/bin:{Path(sys.executable).parent}")

    def put(name, text):
        real = subprocess.run(["which", "-a", name], capture_output=True, text=True).stdout.split()
        file = folder / name
        file.write_text(f"#!/bin/bash\nREAL={real[-1]}\n{text}\n")
        file.chmod(0o755)
        return file

    return put

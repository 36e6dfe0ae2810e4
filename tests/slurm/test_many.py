"""Many trials, and many kills: each is finished once, and nothing is damaged."""

import os
import random
import signal
import time

import pyarrow.parquet as pq
import pytest

from study.compose import compose_all, expand
from study.execute import run_paths
from study.ownership import is_alive, owner_of
from study.records import read_record
from tests.runs import leftovers
from tests.slurm.helpers import LONG, TINY, config, finished, launch, status

pytestmark = pytest.mark.slurm

KILLS = 50
"""SIGKILLs of a trial or of its whole task."""


def many(slurm, tmp_path, shim, n, **options):
    calls = tmp_path / "calls"
    shim("sbatch", f'echo call >> {calls}\nexec $REAL "$@"')
    runs = tmp_path / "runs"
    configs = compose_all(expand([*TINY, f"seed=range(0,{n})", f"runs_dir={runs}"]))
    assert len(configs) == n
    launch(configs, **options)
    finished(slurm, configs, 2400)
    assert len(calls.read_text().split()) <= 10
    records = [read_record(run_paths(c)) for c in configs]
    assert [r["restarts"] for r in records] == [0] * n
    assert all(leftovers(run_paths(c)) == [] for c in configs)


def test_a_hundred_trials_finish_once_each(slurm, tmp_path, shim):
    many(slurm, tmp_path, shim, 100, trials_per_task=50)


@pytest.mark.slow
def test_a_thousand_trials_finish_once_each(slurm, tmp_path, shim):
    many(slurm, tmp_path, shim, 1000, trials_per_task=50)


def left(configs):
    return [c for c in configs if status(run_paths(c)) != "finished"]


def killed(slurm, owner, whole_task):
    """Send SIGKILL to a trial, or to all of its task; return whether there was one left to kill."""
    if whole_task:
        slurm.run("scancel", "--signal=KILL", "--full", owner.job_id, check=False)
        return True
    try:
        os.kill(owner.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_fifty_kills_at_random_lose_nothing(slurm, tmp_path):
    dice, configs, kills = random.Random(0), [], 0
    end = time.monotonic() + 1800
    while (kills < KILLS or left(configs)) and time.monotonic() < end:
        while kills < KILLS and len(left(configs)) < 6:  # the grid grows until enough have been killed
            configs.append(config(tmp_path, *LONG, f"seed={len(configs)}"))
        launch(configs, trials_per_task=2)
        time.sleep(dice.uniform(0, 8))
        owners = [o for c in left(configs) if (o := owner_of(run_paths(c))) and is_alive(o)]
        if owners and kills < KILLS:
            kills += killed(slurm, dice.choice(owners), whole_task=dice.random() < 0.5)
        slurm.hasten()
    assert kills == KILLS
    finished(slurm, configs)
    for c in configs:
        assert leftovers(run_paths(c)) == []
        table = pq.read_table(run_paths(c).metrics).to_pandas()
        assert not table.duplicated(["step", "split"]).any()
        assert (table["split"] == "batch").sum() == read_record(run_paths(c))["steps_total"]

"""What the tests on the cluster share: small trials, launches, and how to see what came of them."""

from pathlib import Path

from study.compose import compose
from study.execute import run_paths
from study.launch import slurm, slurm_queue
from study.launch.plan import make_plan
from study.ownership import observed_status
from study.paths import run_dirs
from tests.slurm.cluster import until

ROOT = Path(__file__).parents[2]
TINY = ("scale=smoke", "epochs=1", "model.widths=[2,3,4]", "probes=none")
LONG = ("scale=smoke", "epochs=60", "model.widths=[2,3,4]", "probes=none", "checkpoint_seconds=0.5")
ENDLESS = (*TINY, "epochs=100000", "checkpoint_seconds=1000")


def config(runs_dir, *settings):
    return compose([*settings, f"runs_dir={runs_dir}"])


def launch(configs, **options):
    return slurm.launch(make_plan(configs), slurm.options(**{"time": 30} | options))


def status(paths):
    return str(observed_status(paths))


def statuses(folder):
    return sorted(map(status, run_dirs(folder)))


def jobs_of(folder):
    """Tasks in the queue for a runs folder, by run id."""
    queued = slurm_queue.queued([Path(folder)], slurm_queue.live())
    return {Path(run).name: task for run, (_, _, task) in queued.items()}


def finished(slurm, configs, seconds=240):
    """Wait until all are finished; what waits for its start time after a requeue is let go at once."""

    def all_done():
        slurm.hasten()
        return all(status(run_paths(c)) == "finished" for c in configs)

    until(all_done, f"the end of {len(configs)} trials", seconds)


def trained_a_little(*configs):
    until(lambda: all(run_paths(c).checkpoint.exists() for c in configs), "a checkpoint of each", 120)


def are(wanted, configs, seconds=120):
    """Wait until all have a status."""
    until(lambda: all(status(run_paths(c)) == wanted for c in configs), f"{wanted}", seconds)


def idle(folder, seconds=120):
    """Wait until nothing of a runs folder is in the queue."""
    until(lambda: not jobs_of(folder), "the end of the jobs", seconds)

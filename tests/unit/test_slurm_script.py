"""What reaches sbatch: exactly the flags asked for, arrays within the limit, no foreign environment."""

import dataclasses
import os
import re

import pytest

from study import provenance
from study.compose import compose_all, expand
from study.errors import ConfigError
from study.launch import slurm, slurm_queue
from study.launch.plan import make_plan
from study.launch.slurm_queue import Submission, Task
from tests.slurm import cluster

ALWAYS = {"job-name", "nodes", "open-mode", "output", "requeue", "signal", "time"}
"""Flags without which a task could not be found, warned, or requeued."""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return the flags (and the whole text) of the script that options lead to."""
    (tmp_path / "srun").touch(mode=0o755)  # submitit asks whether it is there
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def write(**values):
        made = slurm.executor(tmp_path / "jobs", "mine", slurm.options(**values))
        text = made._make_submission_file_text("COMMAND", "uid")
        found = re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", text, re.MULTILINE)
        return dict(found), text

    return write


def test_the_yaml_offers_every_option_with_its_default_and_help():
    from study.compose import CONF, by_hydra_launcher
    from study.describe import launcher_help

    target, offered = by_hydra_launcher(["hydra/launcher=slurm"])
    assert target.endswith("SlurmLauncher")
    assert slurm.options(**offered) == slurm.Options()
    assert list(offered) == [f.name for f in dataclasses.fields(slurm.Options)]
    text = launcher_help(CONF / "hydra" / "launcher")
    assert all(re.search(rf"^    {name}=\S+ +\S", text, re.MULTILINE) for name in (*offered, "workers"))


def test_without_options_only_what_a_task_needs_is_set(script):
    flags, _ = script()
    assert set(flags) == ALWAYS
    assert flags["time"] == "60"
    assert flags["signal"] == "USR2@90"
    assert flags["job-name"] == "mine"


def test_exactly_the_flags_asked_for_reach_the_script(script):
    flags, text = script(
        partition="gpu", account="abc", qos="long", time=120, mem="8G", cpus=4, gpus=1, gres="shard:2",
        constraint="a100&ib", setup=["module load cuda", "export A='b c'"], signal="USR1", warn_seconds=33,
        extra=["--exclude=n1,n2", "--exclusive"],
    )  # fmt: skip
    wanted = {
        "partition": "gpu", "account": "abc", "qos": "long", "time": "120", "mem": "8G", "cpus-per-task": "4",
        "gpus-per-node": "1", "gres": "shard:2", "constraint": "'a100&ib'", "exclude": "n1,n2",
        "exclusive": "", "signal": "USR1@33",
    }  # fmt: skip
    assert {k: v for k, v in flags.items() if k not in ALWAYS - {"time", "signal"}} == wanted
    assert "module load cuda\nexport A='b c'\n" in text
    assert "--cpus-per-task=4" in next(x for x in text.splitlines() if x.startswith("srun"))


def test_kinds_of_gpus_and_shards_reach_the_script_as_they_are(script):
    assert script(gpus="a100:2")[0]["gpus-per-node"] == "a100:2"
    assert script(gres="gpu:a100:1,shard:4")[0]["gres"] == "gpu:a100:1,shard:4"
    assert "gres" not in script(gpus=1)[0]


def test_short_limits_are_warned_of_later(script):
    assert script(time=2)[0]["signal"] == "USR2@30"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"partion": "x"}, "Did you mean 'partition'"),
        ({"time": 0}, "time=0 is out of range"),
        ({"time": "1:00"}, "whole number"),
        ({"trials_per_task": 0}, "trials_per_task=0"),
        ({"time": 1, "warn_seconds": 60}, "below the time limit"),
        ({"signal": "KILL"}, "USR1 or USR2"),
        ({"on_code_change": "ignore"}, "report or refuse"),
        ({"wait": "yes"}, "true or false"),
        ({"extra": ["--time=3"]}, "is set by an option"),
        ({"extra": ["exclude=n1"]}, "a flag of sbatch such as"),
    ],
)
def test_bad_options_are_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        slurm.options(**values)


def trials(tmp_path, *settings):
    return make_plan(compose_all(expand(["scale=smoke", f"runs_dir={tmp_path}", *settings]))).trials


def test_arrays_keep_the_limit_and_hold_trials_of_like_cost(tmp_path):
    found = trials(tmp_path, "seed=range(0,7)", "epochs=1,50", "norm=bn,none")
    arrays = slurm.packs(found, slurm.options(trials_per_task=2), limit=3)
    assert [len(a) for a in arrays] == [3, 3, 1, 3, 3, 1]
    assert all(len({t.config.epochs for task in array for t in task}) == 1 for array in arrays)
    packed = [t.run_id for array in arrays for task in array for t in task]
    assert sorted(packed) == sorted(t.run_id for t in found)


def test_arrays_are_cut_as_the_cluster_says_and_written_down(tmp_path, monkeypatch, capsys):
    """Detached: the ids of the jobs are printed with how to watch and stop them, and the launcher ends."""
    asked = {"scontrol": "MaxArraySize            = 2\nMaxJobCount             = 10000\n"}
    monkeypatch.setattr(slurm_queue, "ask", lambda *c: asked.get(c[0], ""))
    made = []
    monkeypatch.setattr(slurm, "_sbatch", lambda _, __, work: made.append(len(work)) or str(70 + len(made)))
    plan = make_plan([t.config for t in trials(tmp_path, "seed=range(0,5)", "sweep=mine")])
    assert slurm.launch(plan, slurm.options()) == 0
    assert made == [2, 2, 1]
    printed = capsys.readouterr().out
    assert "submitted job 71: 2 trials in 2 tasks" in printed
    assert "watch: squeue --jobs=71,72,73   stop: scancel 71 72 73" in printed
    written = slurm_queue.submissions(tmp_path)
    assert [s.sweep for s in written] == ["mine"] * 3
    assert sorted(run for s in written for task in s.tasks for run in task) == sorted(
        t.run_id for t in plan.trials
    )
    assert [s.code for s in written] == [provenance.code()] * 3
    assert {"commit", "diff", "files"} == set(written[0].code)


def test_the_environment_of_an_allocation_is_hidden_and_comes_back(monkeypatch):
    inside = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SRUN_DEBUG": "1", "CUDA_VISIBLE_DEVICES": "3"}
    defaults = {"SBATCH_PARTITION": "mine", "SBATCH_ACCOUNT": "ours", "SLURM_CONF": "/etc/x", "STUDY": "1"}
    names = "JOB_NAME TIMELIMIT SIGNAL REQUEUE NO_REQUEUE ARRAY_INX OUTPUT ERROR OPEN_MODE WAIT"
    ours = {f"SBATCH_{name}": "1" for name in names.split()}
    for name, value in {**inside, **defaults, **ours}.items():
        monkeypatch.setenv(name, value)
    with slurm.clean_environment(slurm.options(partition="gpu")):
        assert not set(inside) & set(os.environ)
        assert not set(ours) & set(os.environ)  # what the launcher sets itself
        assert "SBATCH_PARTITION" not in os.environ  # it would win over the script
        assert os.environ["SBATCH_ACCOUNT"] == "ours"
        assert os.environ["SLURM_CONF"] == "/etc/x"
    assert {k: os.environ[k] for k in inside} == inside


def test_what_is_queued_is_told_from_folder_and_queue(tmp_path):
    folder = tmp_path / ".slurm" / "study-1"
    Submission(folder, "grid", (("a", "b"), ("c",)), {"files": "x"}).write()
    live = {("study-1", 1): Task("12_1", True, "Priority"), ("other", 0): Task("13", False, "n1")}
    found = slurm_queue.queued([tmp_path], live)
    assert {run: (s.sweep, index, task.job) for run, (s, index, task) in found.items()} == {
        str(tmp_path / "c"): ("grid", 1, "12_1")
    }
    (tmp_path / ".slurm" / "study-2").mkdir()  # a launcher killed before it wrote anything
    assert [s.name for s in slurm_queue.submissions(tmp_path)] == ["study-1"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45", 45), ("1:30", 90), ("2:00:01", 7201), ("1-00:00:00", 86400), ("UNLIMITED", None), ("", None)],
)
def test_squeue_s_times_are_read(text, seconds):
    assert slurm_queue._seconds(text) == seconds


def test_a_machine_without_slurm_gets_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(slurm.StudyError, match="squeue was not found"):
        slurm.launch(make_plan([t.config for t in trials(tmp_path / "runs")]))
    assert not (tmp_path / "runs").exists()


def test_where_no_cluster_can_be_started_its_tests_say_what_is_missing(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in cluster.missing()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cluster, "_program", lambda name: None if name == "slurmdbd" else name)
    assert cluster.missing() == f"slurmdbd not found: apt-get install {' '.join(cluster.PACKAGES)}"

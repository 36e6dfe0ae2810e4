"""`python -m study.runs`: finds, compares, sizes and tidies; never removes what is needed or alive."""

import dataclasses
import json
import shlex
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from study import ownership, runs
from study.config import RunConfig, stored_config, to_mapping, with_values
from study.errors import OwnedElsewhereError
from study.identity import run_id, scientific
from study.launch.plan import make_plan, mark
from study.paths import RunPaths, run_dirs
from study.records import METRICS, write_json


def make(folder, status="finished", accuracies=(0.2, 0.9, 0.8), **values):
    run = with_values(RunConfig(), {"runs_dir": str(folder)} | values)
    paths = RunPaths(folder / run_id(run))
    paths.root.mkdir(parents=True)
    paths.config.write_text(yaml.safe_dump(to_mapping(run)))
    record = {
        "status": status, "outcome": "trained" if status == "finished" else None, "norm": run.norm.name,
        "lr": run.lr, "seed": run.seed, "scientific": scientific(run), "sweeps": ["grid"], "chance": 0.1,
        "seconds": 61.0, "steps_done": 30, "steps_total": 30,
        "error": "ValueError: odd" if status == "failed" else None,
    }  # fmt: skip
    write_json(paths.record, record)
    rows = [
        {"step": 10 * (i + 1), "epoch": i + 1, "split": "test", "accuracy": a, "n": 100, "loss": 1.0}
        for i, a in enumerate(accuracies)
    ]
    pq.write_table(pa.Table.from_pylist(rows, METRICS), paths.metrics)
    return paths


def command(folder, *args):
    return runs.main([*args, "--runs", str(folder)])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs"


def test_list_filters_by_value(folder, capsys):
    bare = {"norm.family": "none", "norm.name": "none"}
    make(folder, lr=0.1)
    make(folder, lr=1e-4, **bare)
    make(folder, lr=0.1, status="failed", seed=3)
    assert [r.record["seed"] for r in runs.find(folder, ["lr=1e-1", "seed=3"])] == [3]
    assert len(runs.find(folder, ["norm=bn"])) == 2
    assert len(runs.find(folder, ["norm=bn,none", "status=finished"])) == 2
    assert len(runs.find(folder, ["norm.family=none", "sweep=grid"])) == 1
    assert len(runs.find(folder, ["epochs=165"])) == 3
    assert command(folder, "list", "norm=none") == 0
    printed = capsys.readouterr().out
    assert "90.0%" in printed
    assert "80.0%" in printed
    assert "1 run in" in printed
    assert command(folder, "list", "nrm=bn") == 2
    assert "Did you mean 'norm'?" in capsys.readouterr().err


def test_a_run_stuck_at_chance_is_called_that(folder, capsys):
    make(folder, accuracies=(0.3, 0.11))
    command(folder, "list")
    assert "stuck at chance" in capsys.readouterr().out


def test_a_damaged_run_is_listed_by_name(folder, capsys):
    paths = make(folder)
    paths.record.write_text("{")
    assert command(folder, "list", "lr=7") == 1
    printed = capsys.readouterr().out
    assert paths.run_id in printed
    assert "damaged" in printed


def test_metrics_with_an_accuracy_that_is_no_number_are_called_damaged(folder, capsys):
    """So that no search takes the outcome on trust."""
    sound, odd = make(folder, lr=0.1), make(folder, lr=0.2, accuracies=(0.2, float("nan")))
    command(folder, "list")
    lines = {run: x for x in capsys.readouterr().out.splitlines() for run in (sound, odd) if run.run_id in x}
    assert "damaged" in lines[odd]
    assert "damaged" not in lines[sound]


DAMAGE = {
    "status": "done", "outcome": 3, "seconds": "long", "sweeps": 5, "scientific": [], "steps_done": None,
    "restarts": {}, "schema": 99, "chance": [], "error": 4, "poisoned": 1,
}  # fmt: skip


@pytest.mark.parametrize("field", DAMAGE)
def test_one_field_of_the_wrong_kind_harms_that_run_alone(folder, capsys, field):
    sound, paths = make(folder, seed=1), make(folder)
    write_json(paths.record, json.loads(paths.record.read_text()) | {field: DAMAGE[field]})
    for words in (["list"], ["list", "sweep=grid", "outcome=trained"], ["show", paths.run_id]):
        assert command(folder, *words) == 1
        printed = capsys.readouterr().out
        assert "damaged" in printed
        assert (sound.run_id in printed) == (words[0] == "list")
    plan = make_plan([stored_config(p.config) for p in (sound, paths)])
    assert [t.status for t in plan.trials] == ["finished", "failed"]
    assert field in plan.trials[1].damage
    litter(paths)
    assert command(folder, "clean", "--yes", "--finished") == 0
    assert paths.checkpoint.exists()
    assert not sound.root.exists()


def test_a_record_with_nothing_but_a_status_is_listed(folder, capsys):
    for seed, status in enumerate(("finished", "stopped", "running", "failed", "preempted")):
        write_json(make(folder, seed=seed).record, {"status": status})
    assert command(folder, "list") == 0
    assert "5 runs" in capsys.readouterr().out
    plan = make_plan(stored_config(p.config) for p in run_dirs(folder))
    assert plan.summary()
    assert len(mark(plan.trials)) == 0


def test_a_copied_or_renamed_run_is_marked(folder, capsys):
    kept, renamed = make(folder), make(folder, seed=1)
    for paths in (kept, renamed):
        write_json(paths.record, json.loads(paths.record.read_text()) | {"run_id": paths.run_id})
    shutil.copytree(kept.root, folder / "copy")
    renamed.root.rename(folder / "mine")
    assert command(folder, "list") == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert f"finished (a copy of {kept.run_id})" in lines["copy"]
    assert f"(its folder is not named after its run, {renamed.run_id})" in lines["mine"]
    assert "(" not in lines[kept.run_id]


def test_list_and_show_give_the_size_of_all_files(folder, capsys):
    paths = make(folder)
    (paths.root / "probes").mkdir()
    (paths.root / "probes" / "one.parquet").write_bytes(bytes(2_500_000))
    whole = sum(f.stat().st_size for f in paths.root.rglob("*") if f.is_file())
    assert runs.size(paths) == whole
    for words in (["list"], ["show", paths.run_id]):
        assert command(folder, *words) == 0
        assert "2.5 MB" in capsys.readouterr().out


def test_show_by_the_beginning_of_an_id(folder, capsys):
    paths = make(folder, lr=0.25)
    beginning = paths.run_id.partition("-s0")[0]
    assert command(folder, "show", beginning) == 0
    printed = capsys.readouterr().out
    assert "lr=0.25" in printed
    assert "epochs=165" not in printed
    assert "metrics.parquet" in printed
    make(folder, lr=0.25, seed=1)
    assert command(folder, "show", beginning) == 2
    assert command(folder, "show", str(paths.root)) == 0
    assert command(folder, "show", "nothing") == 2


def test_diff_names_the_settings_that_differ(folder, capsys):
    a, b = make(folder, lr=0.25), make(folder, lr=0.5, batch_size=64)
    assert command(folder, "diff", a.run_id, b.run_id) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["lr: 0.25 | 0.5", "batch_size: 128 | 64"]
    command(folder, "diff", a.run_id, a.run_id)
    assert capsys.readouterr().out == "no difference\n"


def test_a_copied_folder_keeps_working(folder, tmp_path):
    make(folder)
    moved = tmp_path / "another place"
    folder.rename(moved)
    (found,) = runs.find(moved)
    assert runs.stored_settings(found.paths)["lr"] == 0.1


def litter(paths):
    (paths.root / ".run.json.0123456789ab.tmp").write_text("x")
    paths.parts.mkdir()
    (paths.parts / "metrics-000000010-000000.parquet").write_text("x")
    paths.checkpoint.write_text("x")


def test_clean_shows_first_and_removes_only_leftovers(folder, capsys):
    finished, failed = make(folder), make(folder, status="failed", seed=1)
    kept = {p.name for p in finished.root.iterdir()}
    litter(finished)
    litter(failed)
    assert command(folder, "clean") == 0
    assert "--yes removes them" in capsys.readouterr().out
    assert finished.checkpoint.exists()
    assert command(folder, "clean", "--yes") == 0
    assert {p.name for p in finished.root.iterdir()} == kept
    assert failed.checkpoint.exists()  # a failed run can go on from here
    assert failed.parts.exists()
    assert not list(failed.root.glob(".*.tmp"))


def test_clean_removes_whole_runs_only_when_asked_by_status(folder):
    finished, failed = make(folder), make(folder, status="failed", seed=1)
    command(folder, "clean", "--failed", "--yes")
    assert finished.root.exists()
    assert not failed.root.exists()
    command(folder, "clean", "--finished", "--yes", "lr=0.3")
    assert finished.root.exists()
    command(folder, "clean", "--finished", "--yes", "lr=0.1")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command_", [["list"], ["show", "x"], ["clean"], ["diff", "x", "y"]])
@pytest.mark.parametrize("what", ["nothing", "a file"])
def test_a_folder_that_is_none_is_refused(tmp_path, command_, what, capsys):
    if what == "a file":
        (tmp_path / "nope").write_text("x")
    folder = tmp_path / "nope"
    assert command(folder, *command_) == 2
    assert capsys.readouterr().err == (
        f"study.runs: there is no folder '{folder}': --runs takes the folder that runs_dir= named\n"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["list", "status=finish"],
            "unknown status 'finish'. Did you mean 'finished'? Valid: failed, finished,",
        ),
        (["list", "status=finished,nope"], "unknown status 'nope'. Valid:"),
        (["list", "outcome=nope"], "unknown outcome 'nope'. Valid: diverged, trained."),
        (["clean", "--release", ""], "--release takes the path or the id of a run"),
        (["clean", "outcome=trained,"], "unknown outcome ''"),
    ],
)
def test_values_that_nothing_can_have_are_refused(folder, words, says, capsys):
    make(folder)
    assert command(folder, *words) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--yes"], ["--yes", "--failed"]])
def test_nothing_to_clean_is_said(folder, words, capsys):
    make(folder)
    assert command(folder, "clean", *words) == 0
    assert capsys.readouterr().out == "nothing to clean\n"


def test_of_a_linked_run_the_link_alone_is_removed(folder, tmp_path, capsys):
    paths = make(folder)
    before = sorted(p.name for p in paths.root.iterdir())
    elsewhere = tmp_path / "elsewhere"
    paths.root.rename(elsewhere)
    paths.root.symlink_to(elsewhere)
    assert command(folder, "clean", "--finished") == 0
    assert f"the link to {elsewhere}" in capsys.readouterr().out
    assert command(folder, "clean", "--finished", "--yes") == 0
    assert list(folder.iterdir()) == []
    assert sorted(p.name for p in elsewhere.iterdir()) == before


@pytest.mark.parametrize("text", ["", "[1, 2]", "5", "odd: 1", "lr: [", "lr: -1", "FOLDER", "[" * 5000])
def test_show_names_a_damaged_config_and_shows_the_rest(folder, text, capsys):
    paths = make(folder)
    if text == "FOLDER":
        paths.config.unlink()
        paths.config.mkdir()
    else:
        paths.config.write_text(text)
    assert command(folder, "show", paths.run_id) == 1
    out, error = capsys.readouterr()
    assert "best test accuracy: 90.0%" in out
    assert "metrics.parquet" in out
    assert error.startswith(f"study.runs: {paths.config} ")
    assert len(error.splitlines()) == 1
    assert command(folder, "diff", paths.run_id, paths.run_id) == 2
    assert str(paths.config) in capsys.readouterr().err


def test_show_says_why_a_record_is_damaged(folder, capsys):
    paths = make(folder)
    write_json(paths.record, {"status": "done"})
    assert command(folder, "show", paths.run_id) == 1
    assert "status='done' is not one of" in capsys.readouterr().err


def test_clean_leaves_a_live_owners_run_alone(folder):
    paths = make(folder)
    litter(paths)
    with ownership.claim(paths):
        command(folder, "clean", "--yes", "--finished")
        assert paths.checkpoint.exists()


def test_clean_removes_the_claim_of_a_dead_process(folder):
    paths = make(folder, status="running")
    code = (
        "import os, sys; from pathlib import Path; from study.ownership import claim; "
        "from study.paths import RunPaths; c = claim(RunPaths(Path(sys.argv[1]))); c.__enter__(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(paths.root)], check=True)
    assert runs.look(paths).status == "lost"
    assert list(paths.root.glob("owner.*"))
    command(folder, "clean", "--yes")
    assert not list(paths.root.glob("owner.*"))
    assert runs.look(paths).status == "lost"


def test_clean_sees_what_reruns_left(folder, capsys):
    final = make(folder)
    under_way, aside = make(folder / ".rerun", status="preempted"), folder / ".rerun" / f"{final.run_id}.old"
    shutil.copytree(final.root, aside)
    (under_way.root / ".run.json.0123456789ab.tmp").write_text("x")
    assert command(folder, "clean") == 0
    assert str(aside) in capsys.readouterr().out
    command(folder, "clean", "--yes")
    assert not aside.exists()
    assert under_way.record.exists()  # it can go on
    assert not list(under_way.root.glob(".*.tmp"))
    command(folder, "clean", "--yes", "--reruns")
    assert not under_way.root.exists()
    assert final.record.exists()


def test_clean_passes_over_a_damaged_rerun(folder, capsys):
    other, damaged = make(folder, seed=1), make(folder / ".rerun", status="preempted")
    litter(other)
    damaged.record.write_text('{"status": 5}')
    assert command(folder, "clean", "--yes", "--reruns") == 0
    assert not other.checkpoint.exists()
    assert damaged.record.exists()


def test_clean_keeps_a_run_set_aside_whose_successor_never_came(folder):
    aside = make(folder / ".rerun").root
    aside = aside.rename(aside.with_name(f"{aside.name}.old"))
    command(folder, "clean", "--yes", "--reruns")
    assert (aside / "run.json").exists()


def test_the_advice_on_a_claim_of_an_unseen_machine_is_right(folder, capsys):
    for paths in (make(folder, status="running"), RunPaths(folder / "no-file-yet")):
        (paths.root / "owner.1").mkdir(parents=True)
        gone = dataclasses.replace(ownership.this_process(), host="elsewhere", boot="other")
        write_json(paths.root / "owner.1" / "owner.json", dataclasses.asdict(gone))
        with pytest.raises(OwnedElsewhereError) as error, ownership.claim(paths):
            pass
        advice = shlex.split(str(error.value).partition("python -m study.runs ")[2])
        assert runs.main(advice) == 0
        assert "released" in capsys.readouterr().out
        with ownership.claim(paths):
            pass


def test_importing_runs_needs_no_torch():
    code = "import sys, study.runs, study.sweep, study.launch.local; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_link_to_itself_is_no_run(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    assert [p.root.name for p in run_dirs(tmp_path)] == ["run"]

"""analysis.load: tidy frames of any set of run directories, and everything left out listed by name."""

import ast
import json
import math
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import runs as runs_table
from analysis import select
from analysis.load import LoadError, load
from analysis.report import left_out_lines
from study import probes
from study.paths import RunPaths
from study.probe_schemas import schema
from study.probes import base
from study.records import METRICS
from tests import factory

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "again",
    "brackets",
    "describe",
    "records",
    "paths",
    "status",
    "criteria",
    "ownership",
    "pipes",
    "probe_schemas",
}


def test_importing_the_analysis_imports_no_torch():
    modules = [
        ".".join(p.relative_to(ROOT).with_suffix("").parts)
        for p in (ROOT / "analysis").rglob("*.py")
        if p.name != "__init__.py"
    ]
    assert "analysis.report" in modules
    code = f"import sys, {', '.join(modules)}; print([m for m in sys.modules if m.split('.')[0] == 'torch'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_analysis_imports_only_what_says_what_the_files_mean():
    for path in (ROOT / "analysis").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                named = [f"study.{alias.name}" for alias in node.names]
                names = named if node.module == "study" else [node.module]
            used = {n.split(".")[1] for n in names if n.startswith("study.")}
            assert used <= ALLOWED, f"{path} imports {used - ALLOWED}"
            assert "study" not in names, path


def test_rows_and_types_are_those_that_were_written(tmp_path):
    ids = factory.grid_runs(tmp_path, factory.QUICKSTART)
    frames = load([tmp_path])
    assert set(frames.runs["run_id"]) == set(ids)
    written = [pq.read_table(RunPaths(tmp_path / i).metrics).num_rows for i in ids]
    assert len(frames.metrics) == sum(written)
    assert frames.problems.empty
    assert list(frames.metrics.columns) == ["run_id", "norm", *METRICS.names]
    dtypes = frames.metrics.dtypes.astype(str).to_dict()
    assert dtypes["run_id"] == dtypes["norm"] == dtypes["split"] == "category"
    assert dtypes["step"] == "int64"
    assert dtypes["epoch"] == "int32"
    assert dtypes["loss"] == "float64"
    for run, rows in frames.metrics.groupby("run_id", observed=True):
        table = pq.read_table(RunPaths(tmp_path / str(run)).metrics)
        assert rows["loss"].tolist() == table["loss"].to_pylist()
        lists = [None if v is pd.NA else list(v) for v in rows["predicted"]]
        assert lists == table["predicted"].to_pylist()


def test_one_folder_may_be_given_as_it_is(tmp_path):
    run_id = factory.write_run(tmp_path)
    for given in (tmp_path, str(tmp_path), [tmp_path]):
        assert load(given).runs["run_id"].tolist() == [run_id]


def test_norm_none_stays_the_string_none(tmp_path):
    factory.grid_runs(tmp_path, {("none", 0.1): "diverged", ("bn", 0.1): "trained"})
    frames = load([tmp_path])
    assert sorted(frames.runs["norm"].astype(str)) == ["bn", "none"]
    assert frames.metrics["norm"].isna().sum() == 0
    assert set(frames.metrics.groupby("norm", observed=True).size().index) == {"bn", "none"}
    frames.runs.to_csv(tmp_path / "runs.csv", index=False)
    assert set(pd.read_csv(tmp_path / "runs.csv")["norm"]) == {"bn", "none"}


def test_what_is_left_out_is_named(tmp_path):
    good = factory.write_run(tmp_path, seed=0)
    running = factory.write_run(tmp_path, seed=1, status="running")
    failed = factory.write_run(tmp_path, seed=2, status="failed")
    truncated = factory.write_run(tmp_path, seed=3)
    path = RunPaths(tmp_path / truncated).metrics
    path.write_bytes(path.read_bytes()[:-30])
    no_metrics = factory.write_run(tmp_path, seed=4)
    RunPaths(tmp_path / no_metrics).metrics.unlink()
    unreadable = factory.write_run(tmp_path, seed=5)
    RunPaths(tmp_path / unreadable).record.write_text('{"status": "fin')
    unstarted = factory.write_run(tmp_path, seed=6)
    RunPaths(tmp_path / unstarted).record.unlink()
    wrong = factory.write_run(tmp_path, seed=7)
    pq.write_table(
        pa.table({"loss": ["a", "b"], "split": ["test", "test"]}), RunPaths(tmp_path / wrong).metrics
    )
    frames = load([tmp_path])
    kinds = dict(zip(frames.problems["run_id"], frames.problems["kind"], strict=True))
    assert kinds == {
        running: "unfinished",
        failed: "failed",
        truncated: "damaged",
        no_metrics: "missing",
        unreadable: "damaged",
        unstarted: "missing",
        wrong: "damaged",
    }
    assert set(frames.metrics["run_id"].cat.remove_unused_categories().cat.categories) == {good}


def test_a_column_that_older_runs_lack_is_missing_not_an_error(tmp_path):
    old, new = (factory.write_run(tmp_path, seed=s) for s in (0, 1))
    path = RunPaths(tmp_path / old).metrics
    pq.write_table(pq.read_table(path).drop_columns(["poisoned"]), path)
    frames = load([tmp_path])
    assert frames.problems.empty
    assert frames.metrics.loc[frames.metrics["run_id"] == old, "poisoned"].isna().all()
    assert frames.metrics.loc[frames.metrics["run_id"] == new, "poisoned"].notna().all()


def test_probe_tables_unite_and_runs_without_one_are_named(tmp_path):
    table = pa.table({"step": [0, 0], "layer": ["stem", "classifier"], "std": [0.5, float("inf")]})
    wider = table.append_column("mean", pa.array([1.0, 2.0]))
    first = factory.write_run(tmp_path, seed=0, probes={"moments": table})
    second = factory.write_run(tmp_path, seed=1, probes={"moments": wider})
    third = factory.write_run(tmp_path, seed=2)
    frames = load([tmp_path])
    probe = frames.probes["moments"]
    assert len(probe) == 4
    assert probe.loc[probe["run_id"] == first, "mean"].isna().all()
    assert probe.loc[probe["run_id"] == second, "mean"].tolist() == [1.0, 2.0]
    assert frames.problems["run_id"].tolist() == [third]
    assert frames.problems["kind"].tolist() == ["probe"]
    assert frames.subset([third]).probes == {}


def test_the_declared_columns_of_every_probe_are_read_without_torch():
    names = [m.name for m in pkgutil.iter_modules(probes.__path__) if not m.name.startswith("_")]
    names.remove("base")
    assert "gradient_tails" in names
    for name in names:
        assert schema(name).equals(base.schema(name)), name
    assert schema("base") is schema("_tails") is schema("moments") is None


TAILS = [{"step": 0, "epoch": 0, "when": "init", "layer": "stem", "number": 1, "n": 9, "deviation": 0.5}]
ODD = {
    "as declared": lambda t: t,
    "whole numbers for fractions": lambda t: _with(t, "deviation", pa.array([2])),
    "single precision": lambda t: _with(t, "deviation", pa.array([2.0], pa.float32())),
    "wider whole numbers": lambda t: _with(t, "number", pa.array([7], pa.int64())),
    "all null": lambda t: pa.table(
        {n: t[n] if n in ("step", "epoch") else pa.nulls(len(t)) for n in t.schema.names}
    ),
    "null numbers": lambda t: _with(t, "deviation", pa.nulls(1)),
    "a column less": lambda t: t.drop_columns(["deviation", "counts"]),
    "a column more": lambda t: t.append_column("later", pa.array(["x"])),
    "another order": lambda t: t.select(t.schema.names[::-1]),
    "no rows": lambda t: t.slice(0, 0),
}


def _with(table, name, values):
    return table.set_column(table.schema.get_field_index(name), name, values)


@pytest.mark.parametrize("first", ODD)
def test_a_probes_frame_has_the_declared_types_whatever_its_files_hold(tmp_path, first):
    """Alone, and before or behind another run's table: the types are always those of the declaration."""
    declared = schema("gradient_tails")
    sound = pa.Table.from_pylist(TAILS, schema=declared)
    odd = ODD[first](sound)
    usual = _frame(tmp_path / "usual", [sound])
    for place, order in enumerate(([odd], [odd, sound], [sound, odd])):
        found = _frame(tmp_path / str(place), order)
        assert found.dtypes.astype(str).to_dict() == usual.dtypes.astype(str).to_dict()
        assert list(found.columns) == ["run_id", "norm", *declared.names]
        assert len(found) == sum(map(len, order))
        assert set(found["norm"]) <= {"none"}
        if place:
            seed = f"-s{order.index(sound)}-"
            assert found.loc[found["run_id"].str.contains(seed), "deviation"].tolist() == [0.5]


def _frame(folder, tables):
    for seed, table in enumerate(tables):
        factory.write_run(folder, norm="none", seed=seed, probes={"gradient_tails": table})
    frames = load([folder])
    empty = sum(not len(table) for table in tables)
    assert frames.problems["kind"].tolist() == ["probe"] * empty
    return frames.probes["gradient_tails"]


@pytest.mark.parametrize("values", [["much"], [1.5]])
def test_a_probes_table_that_would_lose_values_is_damaged_and_the_others_load(tmp_path, values):
    sound = pa.Table.from_pylist(TAILS, schema=schema("gradient_tails"))
    kept = factory.write_run(tmp_path, seed=0, probes={"gradient_tails": sound})
    odd = factory.write_run(
        tmp_path, seed=1, probes={"gradient_tails": _with(sound, "number", pa.array(values))}
    )
    frames = load([tmp_path])
    assert set(frames.probes["gradient_tails"]["run_id"]) == {kept}
    assert frames.problems.loc[frames.problems["kind"] == "damaged", "run_id"].tolist() == [odd]


@pytest.mark.parametrize("accuracy", [math.nan, math.inf, -0.5, None])
@pytest.mark.parametrize("n", [2, 60])  # without and with a catalogue
def test_a_run_whose_accuracy_is_no_share_is_named_and_the_others_load(tmp_path, accuracy, n):
    *sound, odd = (factory.write_run(tmp_path, seed=seed, epochs=2) for seed in range(n))
    path = RunPaths(tmp_path / odd).metrics
    rows = pq.read_table(path).to_pylist()
    rows[-1]["accuracy"] = accuracy
    pq.write_table(pa.Table.from_pylist(rows, schema=METRICS), path)
    for _ in range(2):
        frames = load([tmp_path])
        assert set(frames.metrics["run_id"]) == set(sound)
        assert frames.problems[["run_id", "kind"]].values.tolist() == [[odd, "damaged"]]
        assert "accuracy" in frames.problems["problem"].item()
        assert select.fates(frames).value_counts().to_dict() == {"trained": n - 1, "undecided": 1}


def test_metrics_have_the_declared_types_whichever_run_comes_first(tmp_path):
    ids = sorted(factory.write_run(tmp_path, seed=s) for s in range(2))
    usual = load([tmp_path]).metrics
    for run_id in ids:
        path = RunPaths(tmp_path / run_id).metrics
        table = pq.read_table(path)
        ones = _with(_with(table, "loss", pa.array([1] * len(table))), "poisoned", pa.nulls(len(table)))
        pq.write_table(ones, path)
        found = load([tmp_path]).metrics
        assert found.dtypes.astype(str).to_dict() == usual.dtypes.astype(str).to_dict()
        others = found["run_id"] != run_id
        assert found.loc[others, "loss"].tolist() == usual.loc[others, "loss"].tolist()
        pq.write_table(table, path)


def test_run_directories_and_folders_may_be_mixed_and_doubles_are_named(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    one = factory.write_run(a, seed=0)
    two = factory.write_run(b, seed=1)
    shutil.copytree(a / one, b / one)
    frames = load([a, b / two, b])
    assert set(frames.runs["run_id"]) == {one, two}
    assert frames.problems[["run_id", "kind"]].values.tolist() == [[one, "duplicate"]]


def test_nothing_to_load_gives_empty_frames_of_the_same_types(tmp_path):
    empty = load([tmp_path])
    factory.write_run(tmp_path)
    full = load([tmp_path])
    assert empty.runs.dtypes.astype(str).to_dict() == full.runs.dtypes.astype(str).to_dict()
    assert empty.metrics.dtypes.astype(str).to_dict() == full.metrics.dtypes.astype(str).to_dict()


def test_a_missing_folder_is_one_sentence(tmp_path):
    with pytest.raises(LoadError, match="there is no folder"):
        load([tmp_path / "nowhere"])


def test_an_unknown_sweep_names_the_nearest(tmp_path):
    factory.write_run(tmp_path, sweeps=("quickstart",))
    frames = load([tmp_path])
    assert len(frames.sweep("quickstart").runs) == 1
    with pytest.raises(LoadError, match="Did you mean 'quickstart'"):
        frames.sweep("quikstart")


def test_of_a_sweep_that_was_only_searched_the_searchs_runs_are_meant(tmp_path):
    factory.write_run(tmp_path, sweeps=("max_lr-max_lr",), seed=0)
    factory.write_run(tmp_path, sweeps=("fig01-max_lr",), seed=1)
    factory.write_run(tmp_path, sweeps=("fig01",), seed=2)
    frames = load([tmp_path])
    assert frames.sweep("max_lr").runs["seed"].tolist() == [0]
    assert frames.sweep("fig01").runs["seed"].tolist() == [2]


def test_settings_tell_runs_apart_that_differ_in_more_than_norm_rate_and_seed(tmp_path):
    for norm, lr, seed in (("bn", 0.1, 0), ("none", 0.1, 0), ("bn", 0.003, 1)):
        factory.write_run(tmp_path, norm=norm, lr=lr, seed=seed)
    assert load([tmp_path]).runs["setting"].nunique() == 1
    factory.write_run(tmp_path, extra={"batch_size": 64})
    assert load([tmp_path]).runs["setting"].nunique() == 2


def test_a_record_with_odd_values_is_damaged_and_the_others_load(tmp_path):
    changes = {"depth": "deep", "divergence": [1], "schema": 99, "sweeps": 5}
    odd = []
    for seed, (field, value) in enumerate(changes.items()):
        odd.append(factory.write_run(tmp_path, seed=seed))
        path = RunPaths(tmp_path / odd[-1]).record
        path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    sparse = factory.write_run(tmp_path, seed=9, git=None, chance=None, sweeps_extra=["x"])
    frames = load([tmp_path])
    assert sorted(frames.problems["run_id"]) == sorted(odd)
    assert set(frames.problems["kind"]) == {"damaged"}
    for field in changes:
        assert frames.problems["problem"].str.contains(rf"run\.json .*{field}=").sum() == 1
    assert frames.runs["run_id"].tolist() == [sparse]
    assert frames.runs["commit"].isna().all()


@pytest.mark.parametrize("n", [0, 60])  # without and with a catalogue
def test_a_copied_run_counts_once_and_a_renamed_one_is_named(tmp_path, n):
    folder = tmp_path / "runs"
    kept, renamed = (factory.write_run(folder, seed=s) for s in (100, 101))
    for seed in range(n):
        factory.write_run(folder, seed=seed)
    shutil.copytree(folder / kept, folder / "copy")
    shutil.copytree(folder / kept, folder / "zcopy")
    (folder / renamed).rename(folder / "mine")
    for _ in range(2):
        frames = load([folder])
        assert len(frames.runs) == n + 1
        assert frames.metrics["run_id"].nunique() == n + 1
        assert kept in set(frames.runs["run_id"])
        assert frames.problems.set_index("run_id")["problem"].to_dict() == {
            "copy": f"a copy of {kept}",
            "zcopy": f"a copy of {kept}",
            "mine": f"its folder is not named after its run, {renamed}",
        }
        assert "a copy of" in left_out_lines(frames)


@pytest.mark.parametrize(
    "lacking", [["norm"], ["lr"], ["seed"], ["outcome"], ["norm", "lr", "seed", "outcome"]]
)
def test_a_record_that_says_not_what_was_run_is_left_out_by_name(tmp_path, lacking):
    kept, run = (factory.write_run(tmp_path, seed=s) for s in (0, 1))
    path = RunPaths(tmp_path / run).record
    record = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in record.items() if k not in lacking}))
    frames = load([tmp_path])
    assert frames.runs["run_id"].tolist() == [kept]
    (problem,) = frames.problems.to_dict("records")
    assert problem["run_id"] == run
    assert f"run.json lacks {', '.join(lacking)}," in problem["problem"]


def test_a_record_with_little_else_loads(tmp_path):
    run = factory.write_run(tmp_path)
    record = {"status": "finished", "outcome": "trained", "norm": "bn", "lr": 0.1, "seed": 0}
    RunPaths(tmp_path / run).record.write_text(json.dumps(record))
    frames = load([tmp_path])
    assert frames.runs["run_id"].tolist() == [run]
    assert frames.problems.empty
    row = frames.runs.to_dict("records")[0]
    assert "NA" not in runs_table.setting({**row, "scientific": {}})

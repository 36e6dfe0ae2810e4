import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from study import records
from study.paths import RunPaths

PROBE = pa.schema([("step", pa.int64()), ("x", pa.float64())])


def metrics(step, loss=1.0):
    row = {"step": step, "epoch": 0, "split": "batch", "lr": 0.1, "loss": loss, "accuracy": 0.5, "n": 4}
    return pa.Table.from_pylist([row], records.METRICS)


def probe(step):
    return pa.table({"step": [step], "x": [0.5]}, PROBE)


def steps(path):
    return pq.read_table(path)["step"].to_pylist()


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path / "run")


def test_rows_are_joined_once_and_in_order(paths):
    rows = records.Rows(paths)
    for step in range(3):
        rows.add("metrics", metrics(step))
        rows.add("probes/moments", probe(step))
        rows.flush(step)
    rows.add("metrics", metrics(3))
    rows.join()
    rows.join()
    assert steps(paths.metrics) == [0, 1, 2, 3]
    assert steps(paths.probe("moments")) == [0, 1, 2]
    assert pq.read_schema(paths.metrics).equals(records.METRICS)


def test_resuming_drops_parts_that_the_checkpoint_does_not_name(paths):
    rows = records.Rows(paths)
    rows.add("metrics", metrics(0))
    kept = rows.flush(0)
    rows.add("metrics", metrics(1))
    rows.flush(1)
    resumed = records.Rows(paths, kept)
    resumed.add("metrics", metrics(1, loss=7.0))
    resumed.join()
    table = pq.read_table(paths.metrics)
    assert table["step"].to_pylist() == [0, 1]
    assert table["loss"].to_pylist() == [1.0, 7.0]


@pytest.mark.parametrize("what", ["missing", "damaged", "empty", "a folder"])
def test_a_missing_or_damaged_part_is_named_at_once_with_the_way_out(paths, what):
    rows = records.Rows(paths)
    rows.add("metrics", metrics(0))
    rows.flush(0)
    rows.add("metrics", metrics(1))
    kept = rows.flush(1)
    part = paths.parts / kept[1]
    content = part.read_bytes()
    part.unlink()
    if what == "a folder":
        part.mkdir()
    elif what != "missing":
        part.write_bytes(content[:-9] if what == "damaged" else b"")
    word = "missing" if what == "missing" else "damaged"
    with pytest.raises(records.DamagedRunError) as error:
        records.Rows(paths, kept)
    assert str(error.value) == (
        f"{part} is {word}, but {paths.checkpoint} needs it; delete {paths.checkpoint} to start this run over"
    )
    assert (paths.parts / kept[0]).exists()


def test_a_run_without_rows_has_an_empty_table(paths):
    paths.root.mkdir()
    records.Rows(paths).join()
    assert pq.read_table(paths.metrics).num_rows == 0


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.json"
    records.write_json(path, {"a": 1})

    def fails(tmp):
        tmp.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        records.write_with(path, fails)
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_json_is_strict(tmp_path):
    path = tmp_path / "x.json"
    records.write_json(path, {"loss": float("nan"), "all": [float("inf"), -float("inf"), 1.0]})
    assert json.loads(path.read_text()) == {"loss": "nan", "all": ["inf", "-inf", 1.0]}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"x"'])
def test_a_damaged_record_is_named(paths, text):
    paths.root.mkdir()
    paths.record.write_text(text)
    with pytest.raises(records.DamagedRunError, match=r"run\.json"):
        records.read_record(paths)


def test_no_record_is_none(paths):
    assert records.read_record(paths) is None


GOOD = {
    "status": "finished", "outcome": "trained", "schema": 1, "divergence": None, "chance": 0.1, "lr": 0.1,
    "initial_loss": "inf", "sweeps": ["a"], "seconds": 1, "poisoned": [{"layer": "stem", "step": 3}],
    "crossings": {"absolute_step": 3, "relative_step": None}, "git": {"commit": None, "dirty": None},
    "depth": None, "scientific": {"norm.order": "inf"}, "probe_failures": [], "a_later_field": 5,
}  # fmt: skip


def test_a_sound_record_is_read_as_it_is(paths):
    paths.root.mkdir()
    for record in (GOOD, {"status": "running"}):
        paths.record.write_text(json.dumps(record))
        assert records.read_record(paths) == record


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "done"), ("status", None), ("status", ["finished"]), ("outcome", "won"),
        ("seconds", "1.0"),
        ("seconds", None), ("seconds", -1), ("steps_done", "3"), ("steps_total", 2.5), ("steps_done", True),
        ("restarts", None), ("restarts", {}), ("sweeps", "grid"), ("sweeps", [1]), ("sweeps", None),
        ("scientific", []), ("crossings", None), ("git", "abc"), ("versions", 3), ("poisoned", {}),
        ("poisoned", [3]), ("poisoned", [{"layer": "stem"}]), ("probe_failures", "none"), ("chance", "low"),
        ("lr", "nan"), ("lr", 10**400), ("steps_done", 10**400), ("depth", "deep"),
        ("divergence", {"step": "x"}), ("scientific", {"epochs": "x"}), ("schema", 2), ("schema", "one"),
        ("run_id", ""), ("run_id", "../x"), ("run_id", None),
        ("error", {}), ("norm", 7), ("n_classes", -1),
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_kind_is_named(paths, field, value):
    paths.root.mkdir()
    paths.record.write_text(json.dumps(GOOD | {field: value}))
    with pytest.raises(records.DamagedRunError, match=rf"run\.json .*\b{field}\b") as error:
        records.read_record(paths)
    assert "delete" not in str(error.value)
    assert len(str(error.value)) < 400 + len(str(paths.record))


def test_only_what_is_no_json_may_be_deleted_on_advice(paths):
    paths.root.mkdir()
    for text in ("{", "[" * 100_000, ""):
        paths.record.write_text(text)
        with pytest.raises(records.DamagedRunError, match=r"delete .* to run it again"):
            records.read_record(paths)
    paths.record.unlink()
    paths.record.mkdir()
    for read in (paths, RunPaths(paths.root / "file" / "run")):
        (paths.root / "file").touch()
        with pytest.raises(records.DamagedRunError, match=r"cannot be read: (Is|Not) a directory$"):
            records.read_record(read)

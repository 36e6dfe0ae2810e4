"""Runs that stop once they have left chance, and runs that cannot even be built."""

import pyarrow.parquet as pq
import pytest

from study import execute as executing
from study.compose import compose
from study.criteria import fate_decided
from study.execute import execute, run_paths
from study.launch.plan import make_plan
from study.launch.results import result
from study.ownership import observed_status
from study.records import read_record
from study.status import Status
from tests.runs import assert_same_results, leftovers, tiny


def learner(runs_dir, **changes):
    """A run that leaves chance in its third epoch of six."""
    return tiny(
        runs_dir,
        epochs=6,
        lr=0.1,
        model={"depth": 8, "widths": [4, 8, 8], "dropout": 0.1},
        data={"name": "synthetic", "subset": 320, "crop_padding": 1, "flip": True},
        checkpoint_seconds=1000.0,
        **changes,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody stopped."""
    config = learner(tmp_path_factory.mktemp("whole"))
    execute(config)
    return run_paths(config)


def test_it_stops_at_the_first_evaluation_that_decides_and_resumes_to_the_bit(tmp_path, whole):
    config = learner(tmp_path, stop_when_decided=True, sweep="search")
    record = execute(config)
    paths = run_paths(config)
    assert record["status"] == Status.STOPPED
    assert record["outcome"] == "trained"
    rows = pq.read_table(paths.metrics, filters=[("split", "=", "test")]).to_pylist()
    decided = [fate_decided(round(r["accuracy"] * r["n"]), r["n"], record["chance"], 6) for r in rows]
    assert decided == [False] * (len(rows) - 1) + [True]
    assert record["steps_done"] == rows[-1]["step"] < record["steps_total"]
    assert result(paths, Status.STOPPED, record).outcome == "trained"

    before = paths.record.stat().st_mtime_ns  # to stop again is to do nothing
    execute(config)
    assert paths.record.stat().st_mtime_ns == before

    execute(learner(tmp_path, sweep="grid"))
    assert read_record(paths)["sweeps"] == ["search", "grid"]
    assert leftovers(paths) == []
    assert_same_results(paths, whole)


def test_only_who_wants_it_whole_has_something_left_to_do(tmp_path):
    stopping = learner(tmp_path, stop_when_decided=True)
    execute(stopping)
    assert make_plan([stopping]).todo == ()
    assert len(make_plan([learner(tmp_path)]).todo) == 1
    (both,) = make_plan([stopping, learner(tmp_path)]).trials
    assert not both.done


def test_a_finished_run_is_taken_as_it_is(whole):
    record = execute(learner(whole.root.parent, stop_when_decided=True))
    assert record["status"] == Status.FINISHED


def test_a_run_that_never_leaves_chance_is_trained_to_its_end(tmp_path):
    config = tiny(tmp_path, lr=1e-6, stop_when_decided=True)
    assert execute(config)["status"] == Status.FINISHED


def test_a_stored_config_does_not_stop_who_repeats_it(tmp_path):
    config = learner(tmp_path, stop_when_decided=True)
    execute(config)
    assert not compose([f"from={run_paths(config).config}"]).stop_when_decided


@pytest.mark.parametrize("begun", [False, True])
def test_what_raises_while_it_is_built_has_failed_with_its_traceback(tmp_path, monkeypatch, begun, whole):
    config = learner(tmp_path, sweep="mine")
    if begun:
        execute(config, stop=lambda: True)
    built = executing.TrainState

    def raising(*_):
        raise ValueError("no such weight")

    monkeypatch.setattr(executing, "TrainState", raising)
    with pytest.raises(ValueError, match="no such weight"):
        execute(config)
    paths = run_paths(config)
    assert observed_status(paths) is Status.FAILED
    record = read_record(paths)
    assert record["error"] == "ValueError: no such weight"
    assert record["sweeps"] == ["mine"]
    assert (record["steps_done"] == 1) if begun else ("steps_done" not in record)
    assert "Traceback" in paths.log.read_text()
    assert "in raising" in paths.log.read_text()
    monkeypatch.setattr(executing, "TrainState", built)
    execute(config)
    assert_same_results(paths, whole)

"""A run whose running statistics one batch has spoiled says so, by step and layer, and marks what follows."""

import pyarrow.parquet as pq

from study.compose import compose
from study.data.batches import EpochBatches
from study.execute import execute, run_paths


def test_one_bad_batch_is_flagged_and_later_evaluations_are_marked(tmp_path, monkeypatch):
    """A value of 10³⁰ squares to infinity: the batch's loss stays finite, so that nothing else would tell."""
    run = compose(
        ["scale=smoke", "norm=bn", "lr=0.01", "data.subset=64", "batch_size=16", "epochs=3", "device=cpu",
         "log_every=1", f"runs_dir={tmp_path}"]
    )  # fmt: skip
    batch, drawn = EpochBatches.batch, []

    def spoiled(self, step):
        images, labels = batch(self, step)
        drawn.append(step)
        if len(drawn) == 6:
            images = images.clone()
            images[3, 0, 2, 2] = 1e30
        return images, labels

    monkeypatch.setattr(EpochBatches, "batch", spoiled)
    record = execute(run)
    assert (record["status"], record["outcome"]) == ("finished", "trained")
    assert len(drawn) == 12
    assert record["poisoned"][0] == {"layer": "stem", "step": 5}
    rows = pq.read_table(run_paths(run).metrics).to_pylist()
    marked = {r["poisoned"] for r in rows if (r["split"], r["epoch"]) == ("test", 1)}
    assert marked == {False}
    assert {r["poisoned"] for r in rows if r["split"] == "test" and r["epoch"] > 1} == {True}
    assert all(r["poisoned"] == (r["step"] >= 8) for r in rows if r["split"] != "batch")

"""`python -m study.probe`: tables for a finished run, at init and at the end."""

import errno
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from study import identity
from study.compose import compose
from study.execute import execute, run_paths
from study.ownership import claim
from study.paths import RunPaths
from study.probe import main
from study.records import read_record, write_json
from study.registry import names

COMMON = ["scale=smoke", "data.subset=40", "batch_size=16", "epochs=1", "device=cpu"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    folder = tmp_path_factory.mktemp("runs")
    run = compose(
        [*COMMON, f"runs_dir={folder}", "probes.measure=[logit_gradients@init,logit_gradients@final]"]
    )
    record = execute(run)
    assert record["probe_failures"] == []
    return run_paths(run)


def test_a_run_with_probes_is_the_run_without(finished: RunPaths, tmp_path: Path) -> None:
    """The whole of it: batches, evaluation, records and weights, every probe on every schedule."""
    every = ",".join(
        f"{n}@{s}" for n in names("study.probes") for s in ("init", "every:1", "epoch_end", "final")
    )
    small = ["probes.noise_subset=8", "probes.noise_batches=[4]", "probes.alpha_points=3"]
    probed = compose([*COMMON, f"runs_dir={tmp_path}", f"probes.measure=[{every}]", *small])
    assert execute(probed)["probe_failures"] == []
    paths = run_paths(probed)
    assert paths.run_id == finished.run_id
    assert pq.read_table(paths.metrics).equals(pq.read_table(finished.metrics))
    one, other = (torch.load(p.weights, weights_only=True) for p in (paths, finished))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[k], other[k]) for k in one)


def test_a_probe_that_raises_is_recorded_and_the_run_goes_on(
    finished: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("half-way")

    monkeypatch.setattr("study.probes.gradient_tails.measure", broken)
    run = compose(
        [*COMMON, f"runs_dir={tmp_path}", "probes.measure=[gradient_tails@every:1,logit_gradients@every:1]"]
    )
    record = execute(run)
    assert record["status"] == "finished"
    failures = [(f["probe"], f["step"], f["error"]) for f in record["probe_failures"]]
    assert failures == [("gradient_tails", step, "RuntimeError: half-way") for step in range(2)]
    paths = run_paths(run)
    assert {p.stem for p in paths.probes.iterdir()} == {"logit_gradients"}
    assert pq.read_table(paths.metrics).equals(pq.read_table(finished.metrics))


def rows(paths: RunPaths, name: str) -> list[dict[str, object]]:
    return pq.read_table(paths.probe(name)).to_pylist()  # type: ignore[no-any-return]


def test_the_same_numbers_as_in_the_run(finished: RunPaths) -> None:
    before = rows(finished, "logit_gradients")
    assert [r["when"] for r in before] == ["init", "final"]
    for at in ("init", "final"):
        assert main([str(finished.root), "probes.measure=[logit_gradients]", f"at={at}"]) == 0
    after = rows(finished, "logit_gradients")
    assert sorted(after, key=lambda r: str(r["when"])) == sorted(before, key=lambda r: str(r["when"]))


def test_new_tables(finished: RunPaths) -> None:
    words = [finished.run_id, "probes=light", f"runs_dir={finished.root.parent}", "at=final"]
    assert main(words) == 0
    found = rows(finished, "gradient_agreement")
    assert {r["when"] for r in found} == {"final"}
    assert {r["step"] for r in found} == {2}
    assert not list(finished.probes.glob(".*"))


def test_all_probes_of_a_finished_run(finished: RunPaths, tmp_path: Path) -> None:
    copy = RunPaths(tmp_path / finished.run_id)
    shutil.copytree(finished.root, copy.root)
    words = [f"probes.measure=[{','.join(names('study.probes'))}]", "probes.sharpness_images=16"]
    words += ["probes.noise_subset=8", "probes.noise_batches=[4]", "probes.alpha_points=3"]
    for at in ("init", "final"):
        assert main([str(copy.root), *words, f"at={at}"]) == 0
    assert {p.stem for p in copy.probes.iterdir()} == set(names("study.probes"))
    for name in names("study.probes"):
        found = rows(copy, name)
        assert {(r["when"], r["step"]) for r in found} == {("init", 0), ("final", 2)}, name


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere", "probes=init"], "no run at"),
        (["{run}", "probes=none"], "nothing to measure"),
        (["{run}", "probes=init", "at=end"], "unknown moment"),
        (["{run}", "probes=inti"], "init"),
        (["{run}", "lr=0.1", "probes=init"], "lr"),
        (["{run}", "probes.measure=[gradient_tail]"], "gradient_tails"),
    ],
)
def test_mistakes_get_one_sentence(
    finished: RunPaths, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([w.format(run=finished.root) for w in words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1


def test_a_probe_that_cannot_measure_says_so_in_one_sentence(
    finished: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = ["probes.measure=[gradient_noise,logit_gradients]", "probes.noise_batches=[40]"]
    assert main([str(finished.root), *noise, "probes.noise_subset=64"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "measured: logit_gradients\n"
    assert printed.err == (
        "study.probe: gradient_noise failed: probes.noise_batches: none is below the 40 images there are, "
        "where batches of two are the smallest\n"
    )


def test_a_full_disk_is_one_sentence(
    finished: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, table: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("study.probe.write_table", full)
    assert main([str(finished.root), "probes.measure=[logit_gradients]"]) == 2
    assert capsys.readouterr().err == (
        f"study.probe: cannot write to {finished.probe('logit_gradients')}: No space left on device\n"
    )


def test_a_run_that_is_not_finished_is_not_measured(
    finished: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = RunPaths(tmp_path / finished.run_id)
    shutil.copytree(finished.root, copy.root)
    record = read_record(copy)
    assert record is not None
    write_json(copy.record, record | {"status": "running"})

    def said() -> str:
        assert main([str(copy.root), "probes=light"]) == 2
        return capsys.readouterr().err

    ending = f"study.probe: {copy.run_id} is {{}}\n"
    with claim(copy):
        assert said() == ending.format("running, not finished; wait for its end")
    assert said() == ending.format("lost, not finished; launch it again to finish it")
    write_json(copy.record, record | {"status": "failed"})
    assert said() == ending.format("failed, not finished; launch it again to finish it")


def test_a_network_that_would_be_another_is_not_measured(
    finished: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its initial weights, or what it makes of them, are not those of the run."""
    copy = RunPaths(tmp_path / finished.run_id)
    shutil.copytree(finished.root, copy.root)
    text = copy.config.read_text()
    assert "\nseed: 0\n" in text
    copy.config.write_text(text.replace("\nseed: 0\n", "\nseed: 1\n"))
    assert main([str(copy.root), "probes=light"]) == 2
    edited = capsys.readouterr().err
    copy.config.write_text(text)
    monkeypatch.setitem(identity.VERSIONS, "norm.batch", 2)
    assert main([str(copy.root), "probes=light"]) == 2
    for error in (edited, capsys.readouterr().err):
        assert error.startswith(f"study.probe: {copy.config} is not the config of this run")
        assert len(error.splitlines()) == 1


def test_weights_cut_short_are_named(
    finished: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = RunPaths(tmp_path / finished.run_id)
    shutil.copytree(finished.root, copy.root)
    copy.weights.write_bytes(finished.weights.read_bytes()[:1000])
    assert main([str(copy.root), "probes=light", "at=final"]) == 2
    assert capsys.readouterr().err == (
        f"study.probe: {copy.weights} is damaged or of another network; rerun=true trains it again\n"
    )
    assert main([str(copy.root), "probes=light", "at=init"]) == 0


def test_a_diverged_run_is_measured_where_it_ended(tmp_path: Path) -> None:
    run = compose([*COMMON, f"runs_dir={tmp_path}", "epochs=3", "norm=none", "lr=1e5"])
    record = execute(run)
    assert record["outcome"] == "diverged"
    assert record["steps_done"] < 2
    paths = run_paths(run)
    for at in ("init", "final"):
        assert main([str(paths.root), "probes.measure=[logit_gradients,class_gradients]", f"at={at}"]) == 0
    found = [(r["when"], r["step"], r["epoch"]) for r in rows(paths, "logit_gradients")]
    assert found == [("init", 0, 0), ("final", record["steps_done"], 0)]


def test_without_weights_only_init(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = compose([*COMMON, f"runs_dir={tmp_path}", "keep_weights=false", "seed=1"])
    execute(run)
    assert main([str(run_paths(run).root), "probes=light", "at=final"]) == 2
    assert "kept no final weights (keep_weights=false)" in capsys.readouterr().err


def test_weights_that_were_deleted_are_missing_not_unwanted(
    finished: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = RunPaths(tmp_path / finished.run_id)
    shutil.copytree(finished.root, copy.root)
    copy.weights.unlink()
    assert main([str(copy.root), "probes=light", "at=final"]) == 2
    error = capsys.readouterr().err
    assert f"{copy.weights} is missing" in error
    assert "keep_weights" not in error
    for text in ("", "[1]", "odd: 1", "lr: [", "lr: -1"):
        copy.config.write_text(text)
        assert main([str(copy.root), "probes=light", "at=final"]) == 2
        error = capsys.readouterr().err
        assert f"{copy.config} " in error
        assert len(error.splitlines()) == 1

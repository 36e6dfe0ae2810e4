"""Every figure and table of the paper has an experiment and a sweep; all compose, plan and take a step."""

import dataclasses
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from study import estimate, parts, sweep
from study.compose import CONF, compose, compose_all, expand
from study.config import RunConfig
from study.estimate import GPUS, count_step, scripts, seconds, table
from study.execute import execute
from study.identity import run_id, scientific
from study.launch.validate import buildable
from study.paths import RunPaths
from study.probes.base import parse

SWEEPS = Path(__file__).parents[2] / "sweeps"
PAPER = {
    "bjorck_init": "Figs 2-7, 14-19, 22, 23, Table 1",
    "fig01": "Fig 1",
    "bn_on_top": "Figs 11, 12",
    "bn_parts": "Fig 13, Table 2",
    "max_lr": "Table 3",
    "schemes": "Table 4",
    "loss_along_gradient": "Figs 3, 25",
    "diverging_update": "Fig 4",
    "early_moments": "Fig 24",
    "lsuv": "§6",
    "zero_or_large": "§5",
    "gradient_noise": "§2.1, App. D",
    "batch_rate": "§2.1",
}
SCALES = ("smoke", "laptop", "workstation", "paper")
OTHERS = {"norm_parade"}
TINY = ["scale=smoke", "data=synthetic", "data.subset=96", "batch_size=16"]
TINY += ["data.size=0", "data.fit=resize", "data.channels=0", "model=resnet8", "model.depth=8"]
WHOLE_GRID = {"max_lr": "max_lr_table"}
"""Sweep with all of an experiment's grid where that of the same name has a part of it."""
PAPER_SEARCHES = ("max_lr_alternating", "max_lr_table", "max_lr_warm_start")


def header(path):
    lines = [x[2:] for x in path.read_text().splitlines() if x.startswith("# ") and "@package" not in x]
    return " ".join(" ".join(lines).split())


def test_every_part_of_the_paper_has_an_experiment_and_a_sweep():
    found = {p.stem for p in (CONF / "experiment").glob("*.yaml")}
    assert found == set(PAPER) | OTHERS
    assert {p.stem for p in SWEEPS.glob("*.yaml")} == {*PAPER, *PAPER_SEARCHES, "quickstart"}


@pytest.mark.parametrize("name", PAPER)
def test_the_header_says_what_is_reproduced_expected_and_paid(name):
    text = header(CONF / "experiment" / f"{name}.yaml")
    assert PAPER[name] in text
    assert "1806.02375" in text
    if name != "bjorck_init":  # its figures' expectations stand in the report, each with its mark
        expected = text.partition("Expected:")[2].partition("Cost:")[0]
        assert re.search(r"\[(P|R|O|M|\?|the thesis)", expected), expected
    cost = text.partition("Cost:")[2]
    assert all(re.search(rf"\b{scale}\b", cost) for scale in SCALES), cost
    assert "estimated, never run" in cost


@pytest.mark.parametrize("name", PAPER)
def test_it_composes_at_every_scale(name):
    for scale in SCALES:
        run = compose([f"experiment={name}", f"scale={scale}"])
        assert (run.experiment, run.scale) == (name, scale)
    buildable([run])


@cache
def planned(name):
    """Run ids of a sweep, as if nothing had been run."""
    trials = sweep.plan_of(sweep.read_sweep(SWEEPS / f"{name}.yaml"), ["runs_dir=no-such-folder"]).trials
    return {t.run_id for t in trials}


@pytest.mark.parametrize("name", PAPER)
def test_the_sweep_is_the_experiments_grid(name):
    own = [run_id(r) for r in compose_all(expand([f"experiment={name}", "scale=laptop"]))]
    assert len(set(own)) == len(own)
    whole = planned(WHOLE_GRID.get(name, name))
    assert set(own) <= whole
    assert name == "bjorck_init" or set(own) == whole
    assert planned(name) <= whole


@pytest.mark.parametrize("name", [*PAPER_SEARCHES, *PAPER])
def test_the_sweep_is_one_for_wandb_too(name):
    content = yaml.safe_load((SWEEPS / f"{name}.yaml").read_text())
    assert content["method"] == "grid"
    assert content["parameters"]["sweep"] == {"value": name}
    assert content["parameters"]["scale"] == {"value": "laptop"}
    assert all(set(p) in ({"value"}, {"values"}) for p in content["parameters"].values())
    assert content["command"][-3:] == list(sweep.COMMAND)


def test_seeds_are_as_many_as_the_claims_need():
    from analysis.claims import registered
    from analysis.claims.base import LEVEL

    for claim in registered():
        for name in set(claim.sweep) & set(PAPER):
            values = yaml.safe_load((SWEEPS / f"{name}.yaml").read_text())["parameters"]["seed"]["values"]
            assert len(values) >= claim.least_seeds(LEVEL), (claim.id, name)


def test_sweeps_share_the_runs_they_have_in_common():
    assert len(planned("fig01") & planned("quickstart")) == 30
    assert len(planned("fig01") & planned("schemes")) == 21
    assert len(planned("fig01") & planned("bn_parts")) == 7
    assert planned("early_moments") | planned("diverging_update") == planned("loss_along_gradient")


@pytest.mark.parametrize("name", PAPER)
def test_it_runs_in_little(name, tmp_path):
    """One run with its probes, an epoch of six steps at most, at smoke scale."""
    short = compose([f"experiment={name}", *TINY])
    few = ["probes.noise_images=4", "probes.noise_subset=8", "probes.noise_batches=[2]"]
    few += ["probes.sharpness_images=8", "probes.alpha_points=3", "probes.noise_draws=2"]
    epochs = min(1, short.epochs)
    run = compose([f"experiment={name}", *TINY, *few, f"epochs={epochs}", f"runs_dir={tmp_path}"])
    record = execute(run)
    assert record["status"] == "finished"
    paths = RunPaths(tmp_path / run_id(run))
    wanted = {d.name for d in parse(run.probes.measure) if d.when in ("init", "final")}
    wanted |= {d.name for d in parse(run.probes.measure) if d.when in ("first", "every") and epochs}
    assert {p.stem for p in paths.probes.glob("*.parquet")} >= wanted


def distinct_at(scale):
    """One config for each distinct network, norm, initialisation, schedule and batch of all sweeps."""
    found = {}
    for name in (*PAPER, *PAPER_SEARCHES):
        extra = ["batch_size=32,128,512"] if name == "batch_rate" and scale == "paper" else []
        settings = sweep.read_sweep(SWEEPS / f"{name}.yaml").settings([f"scale={scale}", "seed=0", *extra])
        for run in compose_all(expand(settings)):
            found.setdefault((run.model, run.norm, run.init, run.schedule, run.batch_size), run)
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["workstation", "paper"])
def test_one_step_of_every_configuration_at_full_size(scale, tmp_path):
    """On random images of the real set's shape: the data need not be there."""
    for run in distinct_at(scale):
        channels, side = run.data.channels or 3, run.data.size or 32
        data = dataclasses.replace(
            run.data, name="synthetic", size=side, channels=channels, fit="resize", subset=run.batch_size
        )
        epochs = 1 + run.schedule.warm_start_epochs  # of one step each
        small = dataclasses.replace(run, data=data, epochs=epochs, runs_dir=str(tmp_path))
        probes = dataclasses.replace(small.probes, measure=())
        record = execute(dataclasses.replace(small, probes=probes, keep_weights=False))
        assert record["status"] == "finished", run_id(run)
        assert record["steps_done"] == epochs


def test_a_counted_step_is_the_papers_network():
    """0.2535 billion multiplications forward an image, and twice as many backward."""
    step = count_step(compose(["scale=paper"]))
    per_image = step.flops / 128 / 2 / 3
    assert per_image == pytest.approx(0.2535e9, rel=0.01)


def test_norms_cost_kernels_and_depth_costs_operations():
    bn, none, deeper = (
        count_step(compose(["scale=paper", *more]))
        for more in (["model.depth=8"], ["model.depth=8", "norm=none"], ["model.depth=14"])
    )
    assert none.kernels < bn.kernels < deeper.kernels
    assert none.flops == bn.flops < deeper.flops
    alternating = count_step(compose(["scale=paper", "model.depth=8", "norm=bn_alternating"]))
    assert alternating.kernels == bn.kernels


def test_an_estimate_is_the_sum_of_what_each_operation_takes():
    run = compose(["scale=paper", "epochs=2", "model.depth=8"])
    step = count_step(run)
    for gpu in GPUS.values():
        least = step.flops / gpu.flops
        assert step.seconds(gpu) > max(least, 6e-6 * step.kernels)
        assert seconds(run, step, gpu) > 2 * 390 * step.seconds(gpu)
    assert step.seconds(GPUS["h100"]) < step.seconds(GPUS["a100"])
    text = table([run, dataclasses.replace(run, seed=1)], each=3)
    assert re.search(r"\s6  resnet8 bn, batch 128, 2 epochs", text)


def test_the_scripts_that_would_be_sent(tmp_path):
    runs = compose_all(expand(["experiment=fig01", "scale=paper", f"runs_dir={tmp_path / 'runs'}"]))
    given = ["hydra.launcher.gpus=1", "hydra.launcher.time=240", "hydra.launcher.partition=gpu"]
    text = scripts(runs, given)
    assert text.count("#!/bin/bash") == 1
    assert "array of 42 tasks, 42 trials: --array=0-41" in text
    for flag in ("--gpus-per-node=1", "--time=240", "--partition=gpu", "--requeue", "--signal=USR2@90"):
        assert f"#SBATCH {flag}" in text
    assert len(scripts(runs, given, limit=10).split("#!/bin/bash")) == 6
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("settings", "given", "said"),
    [
        (["scale=paper"], [], True),
        (["scale=laptop", "device=cuda"], [], True),
        (["scale=laptop"], [], False),
        (["scale=paper", "device=cpu"], [], False),
        (["scale=paper"], ["hydra.launcher.gpus=1"], False),
        (["scale=paper"], ["hydra.launcher.gres=shard:2"], False),
        (["scale=paper"], ["hydra.launcher.extra=['--gpus=1']"], False),
    ],
)
def test_scripts_that_ask_for_no_gpu_say_so(tmp_path, settings, given, said):
    run = compose(["experiment=fig01", *settings, f"runs_dir={tmp_path / 'runs'}"])
    first = scripts([run], given).splitlines()[0]
    assert first.startswith("# no GPU is asked for" if said else "# array of 1 task")
    assert ("add hydra.launcher.gpus=1" in first) is said


def test_the_estimate_of_a_search_counts_its_runs(capsys):
    words = ["scale=smoke", "seed=0", "model.depth=8"]
    for options, n in (([], parts.RUNS_A_SEARCH), (["--each", "3"], 3)):
        assert estimate.main(["max_lr", *words, *options]) == 0
        printed = capsys.readouterr().out
        assert re.search(rf"\s{n}  resnet8 none", printed)
        assert ("max_lr is a search: 8 runs, the most it makes," in printed) is (not options)
    assert estimate.main(["fig01", *words, "norm=none", "lr=0.1"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"\s1  resnet8 none", printed)
    assert "search" not in printed


def test_an_estimate_says_small_times_in_small_units(capsys):
    assert estimate.main(["fig01", "scale=smoke", "seed=0", "norm=none", "lr=0.1"]) == 0
    printed = capsys.readouterr().out
    times = re.findall(r"([\d.]+) (s|min|h)\b", printed.partition("estimated")[0].replace("ms/step", ""))
    assert len(times) == 4  # a run and all of them, on two GPUs
    assert all(float(number) > 0 for number, _ in times)


def test_an_estimate_of_nothing_is_a_mistake(capsys):
    assert estimate.main(["fig01", "scale=paper", "seed=range(0,0)"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "study.estimate: fig01 with these settings has no runs: a list of values is empty"
    ]


def test_a_scale_changes_the_numbers_and_only_them():
    fields = {s: scientific(compose([f"scale={s}"])) for s in SCALES}
    assert fields["workstation"]["data.name"] == "fashion_mnist"
    assert compose(["scale=workstation"]).model.depth == 110
    assert len({str(f) for f in fields.values()}) == len(SCALES)
    assert RunConfig().scale == ""

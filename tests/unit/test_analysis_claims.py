"""analysis.claims: verdicts follow their rules; true effects are found, null effects are not."""

import math
import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.stats import mannwhitneyu

from analysis import claims, undecided
from analysis.claims import base, rules
from analysis.claims.base import Case, Result, Verdict, judged
from analysis.claims.bjorck import max_rates, rates, step_sizes
from analysis.load import load
from analysis.undecided import Addition
from study import parts, sweep
from study.compose import compose_all, expand
from study.config import to_mapping
from study.identity import scientific
from study.paths import RunPaths
from tests import factory


class Simulated:
    """A Case whose outcomes are drawn directly: no files, thousands of studies in seconds."""

    cell = Case.cell

    def __init__(self, rng, seeds, cells):
        rows = []
        for (norm, lr), (diverged, stuck, accuracy, gap) in cells.items():
            for seed in range(seeds):
                fate = rng.choice(
                    ["diverged", "stuck at chance", "trained"], p=[diverged, stuck, 1 - diverged - stuck]
                )
                test = 0.1 if fate == "stuck at chance" else accuracy + rng.normal(0, 0.01)
                train = test + (gap + rng.normal(0, 0.01) if fate == "trained" else 0)
                lost = math.nan if fate == "diverged" else 1.0
                rows.append(
                    (f"{norm}-{lr}-{seed}", norm, lr, seed, fate, 0.1, "test", test * lost, train * lost)
                )
        names = ["run_id", "norm", "lr", "seed", "fate", "chance", "scale", "last_test", "last_train"]
        self.outcomes = pd.DataFrame(rows, columns=names).assign(
            last_train_eval=math.nan, status="finished", scientific="{}"
        )
        self.frames = SimpleNamespace(runs=self.outcomes)


# Per cell: chance of diverging, of staying at guessing, mean accuracy and train–test gap of trained runs.
TRUE = {
    ("bn", 0.1): (0.0, 0.0, 0.93, 0.05),
    ("bn", 0.0001): (0.0, 0.0, 0.81, 0.10),
    ("none", 0.1): (1.0, 0.0, 0.1, 0.0),
    ("none", 0.0001): (0.0, 0.0, 0.81, 0.04),
}
OPPOSITE = {
    ("bn", 0.1): (1.0, 0.0, 0.1, 0.0),
    ("bn", 0.0001): (0.0, 0.0, 0.93, 0.02),
    ("none", 0.1): (0.0, 0.0, 0.9, 0.05),
    ("none", 0.0001): (0.0, 0.0, 0.80, 0.10),
}
OPPOSITE_NOT_TESTED = {"larger_rates_make_none_diverge"}  # nothing diverges at the low rate here


def judge(case):
    """The claims of the grid of rates."""
    return [judged(claim, case) for claim in rates.CLAIMS]


def verdicts(case):
    return {r.claim.id: r.verdict for r in judge(case)}


def null_cells(rng):
    """No cell differs from another."""
    diverged, stuck = rng.uniform(0, 0.4, 2)
    return dict.fromkeys(TRUE, (diverged, stuck, 0.8, 0.05))


def test_the_registry_holds_claims_with_all_that_decides_them():
    found = claims.registered()
    assert {c.id for c in found} >= {"bn_permits_larger_rates", "equal_at_matched_low_rate"}
    for claim in found:
        for text in (claim.sentence, claim.source, claim.estimator, claim.rule):
            assert text
        assert claim.cells


def test_what_is_judged_at_init_or_at_the_first_mini_batch_names_the_figures_of_both():
    found = {c.id: c.figures for c in step_sizes.CLAIMS}
    for name in ("first_step_may_be_larger_with_bn", "loss_grows_more_steeply_without_bn"):
        assert found[name] == ("bjorck_fig03", "bjorck_fig25")


@pytest.mark.parametrize("n_claims", [1, 5, 30])
def test_the_least_seeds_are_those_from_which_the_test_can_decide(n_claims):
    level = base.ALPHA / n_claims
    n = rules.seeds_for_exact(level)
    all_, none = pd.Series([True] * n), pd.Series([False] * n)
    assert rules.significant(rules.more_often(all_, none).p_for, level)
    assert rules.significant(rules.larger(np.arange(n) + 100.0, np.arange(n)).p_for, level)
    assert not rules.significant(rules.more_often(all_[:-1], none[:-1]).p_for, level)
    assert not rules.significant(rules.larger(np.arange(n - 1) + 100.0, np.arange(n - 1)).p_for, level)


def test_seven_seeds_suffice_for_the_claims_of_the_grid():
    assert {c.least_seeds(base.LEVEL) for c in rates.CLAIMS} == {7}


def test_true_effects_are_found():
    rng = np.random.default_rng(1)
    found = [verdicts(Simulated(rng, 14, TRUE)) for _ in range(12)]  # two looks
    for claim in rates.CLAIMS:
        share = np.mean([f[claim.id] == Verdict.SUPPORTED for f in found])
        assert share >= 0.9, claim.id


def test_opposite_effects_are_contradicted():
    rng = np.random.default_rng(2)
    found = [verdicts(Simulated(rng, 8, OPPOSITE)) for _ in range(12)]
    for claim in rates.CLAIMS:
        if claim.id not in OPPOSITE_NOT_TESTED:
            share = np.mean([f[claim.id] == Verdict.CONTRADICTED for f in found])
            assert share >= 0.9, claim.id


@pytest.mark.slow
def test_a_difference_of_exactly_the_margin_is_not_called_equal():
    rng = np.random.default_rng(3)
    cells = TRUE | {("none", 0.0001): (0.0, 0.0, 0.81 - 0.03, 0.04)}
    found = [verdicts(Simulated(rng, 14, cells))["equal_at_matched_low_rate"] for _ in range(200)]
    assert np.mean([v == Verdict.SUPPORTED for v in found]) <= 0.05


@pytest.mark.parametrize("seeds", [1, 2, 6])
def test_too_few_seeds_are_undetermined_whatever_they_show(seeds):
    rng = np.random.default_rng(4)
    for cells in (TRUE, OPPOSITE):
        results = judge(Simulated(rng, seeds, cells))
        assert {r.verdict for r in results} == {Verdict.UNDETERMINED}
        assert all(f"has {seeds}" in r.reason for r in results)


def test_a_claim_is_judged_twice_at_most_and_its_first_decision_stands():
    """Seeds 0-6 at the first look, 0-13 at the second; between and beyond none counts."""
    rng = np.random.default_rng(10)
    claim = next(c for c in rates.CLAIMS if c.id == "larger_rates_improve_bn")

    def found(high_from_seed, seeds):
        cells = dict.fromkeys(TRUE, (0.0, 0.0, 0.5, 0.01))
        case = Simulated(rng, seeds, cells)
        low = (case.outcomes["norm"] == "bn") & (case.outcomes["lr"] == 0.0001)
        moved = low & (case.outcomes["seed"] >= high_from_seed)
        case.outcomes.loc[low, "last_test"] = 0.9
        case.outcomes.loc[moved, "last_test"] = 0.1
        return judged(claim, case)

    decided = found(7, 14)  # the later half says the opposite, and comes too late
    assert (decided.verdict, decided.n) == (Verdict.CONTRADICTED, (7, 7))
    open_ = found(3, 13)
    assert (open_.verdict, open_.n) == (Verdict.UNDETERMINED, (7, 7))
    assert "judged once more with 14 seeds per cell" in open_.reason
    second = found(1, 14)
    assert (second.verdict, second.n) == (Verdict.SUPPORTED, (14, 14))
    closed = found(5, 40)  # 26 seeds more change nothing
    assert closed.n == (14, 14)


def test_a_missing_cell_is_not_run_and_named():
    rng = np.random.default_rng(5)
    cells = {cell: value for cell, value in TRUE.items() if cell != ("none", 0.1)}
    results = {r.claim.id: r for r in judge(Simulated(rng, 7, cells))}
    assert results["bn_permits_larger_rates"].verdict == Verdict.NOT_RUN
    assert "none at 0.1" in results["bn_permits_larger_rates"].reason
    assert results["larger_rates_improve_bn"].verdict == Verdict.SUPPORTED


def test_networks_that_learnt_nothing_do_not_count_as_equal():
    rng = np.random.default_rng(6)
    cells = TRUE | {("bn", 0.0001): (0.0, 1.0, 0.1, 0.0), ("none", 0.0001): (0.0, 1.0, 0.1, 0.0)}
    results = {r.claim.id: r for r in judge(Simulated(rng, 7, cells))}
    for name in ("equal_at_matched_low_rate", "larger_gap_with_bn_at_low_rate"):
        assert results[name].verdict == Verdict.UNDETERMINED
        assert "untrained" in results[name].reason


def test_the_rank_test_is_scipys_where_there_are_no_ties_and_exact_where_there_are():
    rng = np.random.default_rng(7)
    for n, m in ((2, 5), (5, 5), (8, 6)):
        x, y = rng.normal(0.5, 1, n), rng.normal(0, 1, m)
        expected = mannwhitneyu(x, y, alternative="greater", method="exact").pvalue
        assert rules.larger(x, y).p_for == pytest.approx(expected)
    assert rules.larger([1, 1, 0], [1, 0, 0]).p_for == pytest.approx(0.5)  # 10 of the 20 splits
    assert rules.larger([0.1] * 5, [0.1] * 5).p_for == 1.0


@pytest.mark.parametrize(("k", "m"), list(product([0, 3, 5], repeat=2)))
def test_the_interval_of_a_difference_of_shares_holds_it_and_stays_in_range(k, m):
    a, b = pd.Series([True] * k + [False] * (5 - k)), pd.Series([True] * m + [False] * (5 - m))
    found = rules.more_often(a, b)
    assert -1 <= found.low <= found.estimate <= found.high <= 1
    other = rules.more_often(b, a)
    assert (found.low, found.high) == pytest.approx((-other.high, -other.low))


def test_newcombes_published_example():
    """Newcombe 1998, table II (a): 56/70 − 48/80, method 10: 0.0524 to 0.3339."""
    a, b = pd.Series([True] * 56 + [False] * 14), pd.Series([True] * 48 + [False] * 32)
    found = rules.more_often(a, b)
    assert (found.estimate, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


def test_verdicts_from_run_directories(tmp_path):
    fates = {("bn", 0.1): ["trained"] * 7, ("none", 0.1): ["diverged"] * 7, ("none", 0.0001): ["trained"] * 7}
    ids = factory.grid_runs(tmp_path, fates, epochs=2)
    factory.write_run(tmp_path, norm="none", lr=0.1, seed=9, status="running")
    results = {r.claim.id: r for r in claims.judge(Case(load([tmp_path])))}
    first = results["bn_permits_larger_rates"]
    assert first.verdict == Verdict.SUPPORTED
    assert first.n == (7, 7)
    assert set(first.run_ids) == set(ids[:14])
    assert first.scale == "laptop"
    assert first.evidence.estimate == 1.0
    assert results["larger_rates_make_none_diverge"].verdict == Verdict.SUPPORTED
    assert results["larger_rates_improve_bn"].verdict == Verdict.NOT_RUN


LAPTOP = {"data.channels": 3, "model.width_multiplier": 0.5, "batch_size": 64}
"""What scale=laptop sets besides what the factory's runs have."""


def test_what_is_undecided_is_told_as_the_commands_that_add_seeds(tmp_path, capsys):
    """Bare networks diverge at 0.1 half the time: seven seeds leave that open, so fourteen are asked for."""
    half = ["trained", "diverged"] * 4
    fates = {("bn", 0.1): ["trained"] * 7, ("none", 0.1): half[:7], ("none", 0.0001): ["trained"] * 7}
    factory.grid_runs(tmp_path, fates, epochs=12, sweeps=("fig01",), extra=LAPTOP)
    assert undecided.main(["--runs", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    words = shlex.split(line)
    assert words[:4] == ["python", "-m", "study.parts", "run"]
    assert words[-2:] == ["seed=range(0,14)", f"runs_dir={tmp_path}"]
    assert "fig01" in words[4:-2]
    assert set(words[4:-2]) <= {part.name for part in parts.PARTS}
    seeds = {
        Addition("a", "laptop"): 14,
        Addition("b", "laptop"): 22,
        Addition("c", "laptop"): 14,
        Addition("a", "smoke"): 14,
        Addition("c", "laptop", ("epochs=3",)): 14,
    }
    assert undecided.commands(seeds, Path("r")) == [
        "python -m study.parts run a c 'seed=range(0,14)' runs_dir=r",
        "python -m study.parts run c 'seed=range(0,14)' runs_dir=r epochs=3",
        "python -m study.parts run a 'seed=range(0,14)' runs_dir=r scale=smoke",
        "python -m study.parts run b 'seed=range(0,22)' runs_dir=r",
    ]


def made_by(folder, name, settings):
    """Write the runs that a sweep makes with settings on top, all of them trained; returns their configs."""
    file = sweep.SWEEPS / f"{name}.yaml"
    configs = compose_all(expand(sweep.read_sweep(file).settings(settings)))
    for config in configs:
        fields = scientific(config)
        run = factory.write_run(
            folder, norm=config.norm.name, lr=config.lr, seed=config.seed, epochs=config.epochs, extra=fields,
            scientific=fields, sweeps=(name,), scale=config.scale, depth=config.model.depth,
        )  # fmt: skip
        RunPaths(folder / run).config.write_text(yaml.safe_dump(to_mapping(config)))
    return configs


def fields_but_seed(configs):
    return {repr({**scientific(config), "seed": 0}) for config in configs}


@pytest.mark.parametrize(
    "settings",
    [
        ["scale=smoke", "epochs=3"],
        ["scale=smoke", "data.subset=128"],
        ["data=cifar10", "data.root=elsewhere"],
        ["lr=0.3,0.01", "norm=bn_linf,gn"],
        ["batch_size=16", "init=orthogonal", "probes=first"],
        ["schedule.factor=0.5", "norm.momentum=0.2"],
    ],
)
def test_seeds_are_added_with_the_settings_of_the_runs_that_were_judged(tmp_path, settings):
    """The commands make the same runs of other seeds; those they are added to are among them."""
    first = made_by(tmp_path, "fig01", [*settings, "seed=0"])
    frames = load([tmp_path])
    claim = replace(rates.CLAIMS[0], sweep=("fig01",))
    runs = tuple(frames.runs["run_id"].astype("str"))
    result = Result(
        claim, Verdict.UNDETERMINED, None, (1, 1), 7, 0.1, first[0].scale, runs, "", seeds_to_add_up_to=7
    )
    found, left_out = undecided.wanted([result], frames)
    if "norm.momentum=0.2" in settings:  # without normalisation there is none
        assert not found
        assert "cannot be asked for again: norm.momentum has no effect" in left_out[0]
        return
    (line,) = undecided.commands(found, tmp_path)
    words = shlex.split(line)[5:]
    again = compose_all(expand(sweep.read_sweep(sweep.SWEEPS / "fig01.yaml").settings(words)))
    assert len({config.seed for config in again}) == 7
    assert fields_but_seed(first) <= fields_but_seed(again)
    assert {(c.data.root, c.probes) for c in again} == {(c.data.root, c.probes) for c in first}


def test_runs_of_another_setting_get_the_seeds_they_lack(tmp_path, capsys):
    """Once the printed command was followed nothing more is asked for at that number of seeds."""
    made_by(tmp_path, "fig01", ["scale=smoke", "epochs=3", "seed=0"])
    undecided.main(["--runs", str(tmp_path)])
    (line,) = capsys.readouterr().out.splitlines()
    made_by(tmp_path, "fig01", shlex.split(line)[5:])
    undecided.main(["--runs", str(tmp_path)])
    assert "seed=range(0,7)" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["sp ace,x", "a=b", "it's", "[1]", "null"])
def test_a_printed_command_means_the_folder_that_was_named(tmp_path, name):
    """Whatever its name holds that a shell or the settings' syntax would read otherwise."""
    folder = tmp_path / name
    for runs in (folder, Path(name)):
        (line,) = undecided.commands({Addition("fig01", "smoke"): 7}, runs)
        words = shlex.split(line)[5:]
        made = compose_all(expand(sweep.read_sweep(sweep.SWEEPS / "fig01.yaml").settings(words)))
        assert {config.runs_dir for config in made} == {str(runs)}


def test_probes_of_another_sweeps_runs_are_not_asked_for(tmp_path):
    """A sweep that found runs made for another one still measures what its own file says."""
    made_by(tmp_path, "fig01", ["scale=smoke", "norm=bn", "lr=0.1", "seed=0"])
    frames = load([tmp_path])
    frames.runs["sweeps"] = '["fig01", "schemes"]'
    claim = replace(rates.CLAIMS[0], sweep=("schemes",))
    runs = tuple(frames.runs["run_id"].astype("str"))
    result = Result(
        claim, Verdict.UNDETERMINED, None, (1, 1), 7, 0.1, "smoke", runs, "", seeds_to_add_up_to=7
    )
    for run in frames.runs["path"]:
        file = RunPaths(Path(run)).config
        file.write_text(file.read_text().replace("noise_subset: 128", "noise_subset: 256"))
    assert undecided.wanted([result], frames) == ({Addition("schemes", "smoke"): 7}, [])


def test_a_claim_on_runs_whose_settings_are_not_recorded_is_left_out(tmp_path, capsys):
    half = ["trained", "diverged"] * 4
    fates = {("bn", 0.1): ["trained"] * 7, ("none", 0.1): half[:7], ("none", 0.0001): ["trained"] * 7}
    factory.grid_runs(tmp_path, fates, epochs=12, sweeps=("fig01",), extra=LAPTOP, scientific={})
    assert undecided.main(["--runs", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "no seeds are added to fig01: run.json does not say" in err


def test_seeds_are_added_to_the_sweep_whose_runs_they_join(tmp_path):
    """The claim's runs may be made by two sweeps, each at a setting and scale of its own."""
    made_by(tmp_path, "schemes", ["scale=smoke", "norm=bn,ln", "seed=0"])
    frames = load([tmp_path])
    claim = replace(rates.CLAIMS[0], sweep=("fig01", "schemes"))
    runs = tuple(frames.runs["run_id"].astype("str"))
    result = Result(
        claim, Verdict.UNDETERMINED, None, (3, 3), 7, 0.1, "smoke", runs, "", seeds_to_add_up_to=7
    )
    assert undecided.wanted([result], frames) == ({Addition("schemes", "smoke"): 7}, [])
    assert undecided.wanted([replace(result, run_ids=())], frames) == ({}, []), "no part is begun"
    assert undecided.wanted([replace(result, seeds_to_add_up_to=0)], frames) == ({}, [])


def test_runs_of_one_epoch_say_nothing_of_what_becomes_of_a_network(tmp_path):
    fates = {("bn", 0.1): ["trained"] * 7, ("none", 0.1): ["diverged"] * 7, ("none", 0.0001): ["trained"] * 7}
    found = {}
    for epochs in (1, 2):
        factory.grid_runs(tmp_path / str(epochs), fates, epochs=epochs)
        results = claims.judge_all(load([tmp_path / str(epochs)]))
        found[epochs] = {r.claim.id: r.verdict for r in results}
    assert found[2]["larger_rates_make_none_diverge"] == Verdict.SUPPORTED
    assert set(found[1].values()) == {Verdict.NOT_RUN}


def test_seeds_are_added_to_a_search_too(tmp_path):
    factory.grid_runs(
        tmp_path, {("none", 0.3): ["trained"] * 3}, epochs=12, sweeps=("max_lr-max_lr",), extra=LAPTOP
    )
    frames = load([tmp_path])
    runs = tuple(frames.runs["run_id"].astype("str"))
    (claim,) = (c for c in max_rates.CLAIMS if c.sweep == ("max_lr",))
    result = Result(
        claim, Verdict.UNDETERMINED, None, (3, 3), 7, 0.1, "laptop", runs, "", seeds_to_add_up_to=7
    )
    assert undecided.wanted([result], frames) == ({Addition("max_lr", "laptop"): 7}, [])


def test_where_all_is_decided_no_seeds_are_asked_for(tmp_path, capsys):
    fates = {("bn", 0.1): ["trained"] * 7, ("none", 0.1): ["diverged"] * 7, ("none", 0.0001): ["trained"] * 7}
    factory.grid_runs(tmp_path, fates, epochs=2)
    assert undecided.main(["--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""

"""The search for the highest trainable rate, against a launcher that knows the answer."""

import csv
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from study import max_lr, sweep
from study.compose import compose_all, expand
from study.errors import ConfigError
from study.identity import scientific
from study.launch import local, slurm
from study.launch.plan import make_plan
from study.paths import run_dirs
from study.records import METRICS, read_record, write_json, write_table


class Oracle:
    """Writes at once what a run would: up to one rate (by seed) it leaves chance, up to another it trains.

    Below `slow` it does not diverge, and stays at chance.
    """

    def __init__(self, limits, whole=None, slow=0.0):
        self.limits, self.whole, self.slow = limits, whole or limits, slow
        self.rounds, self.runs, self.epochs = 0, 0, 0

    def __call__(self, plan):
        self.rounds += 1
        for trial in plan.todo:
            self.runs += 1
            self.write(trial.config, trial.paths)
        return 0

    def write(self, config, paths):
        stops = config.stop_when_decided and self.slow <= config.lr <= self.limits[config.seed]
        trained = stops or config.lr <= self.whole[config.seed]
        self.epochs += 1 if stops else config.epochs
        record = {
            "status": "stopped" if stops else "finished", "outcome": "trained" if trained else "diverged",
            "lr": config.lr, "scientific": scientific(config), "seconds": 1.0, "chance": 0.1,
            "steps_done": 1, "steps_total": 1, "sweeps": [],
        }  # fmt: skip
        paths.root.mkdir(parents=True, exist_ok=True)
        row = {
            "step": 1,
            "epoch": 1,
            "split": "test",
            "lr": config.lr,
            "loss": 1.0,
            "accuracy": 0.9 if config.lr >= self.slow else 0.1,
            "n": 100,
        }
        write_table(paths.metrics, pa.Table.from_pylist([row], METRICS))
        write_json(paths.record, record)


def configs(tmp_path, *settings):
    return compose_all(expand(["scale=smoke", f"runs_dir={tmp_path}", *settings]))


def search(tmp_path, oracle, ratio=1.2):
    return max_lr.find(configs(tmp_path, "seed=0,1,2,3"), oracle, ratio=ratio, low=1e-5, high=10)


def test_brackets_hold_the_limit_and_are_as_narrow_as_asked(tmp_path):
    oracle = Oracle({0: 0.3, 1: 0.0042, 2: 1e-9, 3: 1e9})
    found = {s.config.seed: s for s in search(tmp_path, oracle)}
    for seed in (0, 1):
        assert found[seed].works <= oracle.limits[seed] < found[seed].fails
        assert found[seed].fails / found[seed].works <= 1.2 * 1.001
    assert found[2].works is None
    assert "below" in found[2].bracket()
    assert found[3].fails is None
    assert "at least" in found[3].bracket()
    assert oracle.rounds <= 10
    assert not any(s.early & {s.works} for s in found.values())


def test_what_ran_before_is_not_run_again(tmp_path):
    limits = {0: 0.3, 1: 0.0042, 2: 0.1, 3: 2.0}
    search(tmp_path, Oracle(limits))
    again = Oracle(limits)
    search(tmp_path, again)
    assert again.runs == 0
    finer = Oracle(limits)
    assert all(s.fails / s.works <= 1.05 * 1.001 for s in search(tmp_path, finer, ratio=1.05))
    assert finer.runs <= 4 * 6


def test_what_the_search_takes_from_others_belongs_to_its_sweep_too(tmp_path):
    """So that a report of the search alone shows the brackets of the search."""
    limits = {0: 0.3}
    max_lr.find(configs(tmp_path, "sweep=first"), Oracle(limits), ratio=2, low=1e-3, high=10)
    (found,) = max_lr.find(configs(tmp_path, "sweep=second"), Oracle(limits), ratio=2, low=1e-2, high=10)
    used = {r["lr"] for p in run_dirs(tmp_path) if "second" in (r := read_record(p))["sweeps"]}
    assert used == set(found.known)
    assert min(used) > 0.01 / 2


def test_a_rate_whose_run_fails_after_it_has_left_chance_is_not_reported(tmp_path):
    """Early stops steer the search; its answer is that of complete runs."""
    oracle = Oracle({0: 0.5}, whole={0: 0.2})
    (found,) = max_lr.find(configs(tmp_path), oracle, ratio=1.2, low=1e-3, high=10)
    assert found.works <= 0.2 < found.fails
    assert found.works not in found.early
    assert found.remarks() == ""
    trusting = Oracle({0: 0.5}, whole={0: 0.2})
    (found,) = max_lr.find(configs(tmp_path / "b"), trusting, ratio=1.2, low=1e-3, high=10, confirm=False)
    assert found.works <= 0.5 < found.fails
    assert "not trained to its end" in max_lr.table([found])


def test_early_stops_save_most_of_the_training(tmp_path):
    stopping = Oracle({0: 9.0})
    max_lr.find(configs(tmp_path, "epochs=100"), stopping, ratio=1.1, low=1e-6, high=10)
    assert stopping.epochs < 0.5 * 100 * stopping.runs


def test_an_interrupt_ends_the_search(tmp_path):
    oracle = Oracle({0: 0.1, 1: 0.2})

    def interrupted(plan):
        oracle(plan)
        return max_lr.INTERRUPTED

    found = max_lr.find(configs(tmp_path, "seed=0,1"), interrupted, ratio=1.1, low=1e-3, high=1)
    assert oracle.rounds == 1
    assert "runs are missing" in max_lr.table(found)


def test_the_table_is_written_as_csv_too(tmp_path):
    found = max_lr.find(configs(tmp_path, "norm=bn,none"), Oracle({0: 0.3}), ratio=2, low=1e-3, high=1)
    max_lr.write_csv(found, tmp_path / "rates.csv")
    rows = list(csv.DictReader((tmp_path / "rates.csv").read_text().splitlines()))
    assert [r["norm"] for r in rows] == ["bn", "none"]
    assert [float(r["works"]) for r in rows] == [s.works for s in found]
    assert {r["works_whole"] for r in rows} == {"True"}
    assert {r["fails_by"] for r in rows} == {"diverged"}


def test_the_command_takes_names_and_settings(tmp_path, capsys, monkeypatch):
    oracle, seen = Oracle({0: 0.3}), []
    file = tmp_path / "mine.yaml"
    file.write_text(
        "method: grid\nparameters: {scale: {value: smoke}, lr: {values: [1, 2]}, norm: {values: [bn, ln]}}"
    )
    monkeypatch.setattr(
        sweep, "_launcher", lambda words: lambda plan: seen.extend(plan.trials) or oracle(plan)
    )
    words = [str(file), f"runs_dir={tmp_path}", "--ratio", "2", "--low", "0.01", "--high", "1"]
    assert sweep.main(["max_lr", *words]) == 0
    assert "norm=bn" in capsys.readouterr().out
    assert {t.config.sweep for t in seen} == {"mine-max_lr"}
    assert sweep.main(["max_lr", "scale=smoke"]) == 2
    assert "name of a sweep" in capsys.readouterr().err
    trials = len(seen)
    assert sweep.main(["max_lr", "lr=1", *words]) == 2
    assert "chooses the rates itself" in capsys.readouterr().err
    assert sweep.main(["max_lr", "norm=gn", *words, "--csv", str(tmp_path / "none" / "x.csv")]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert len(seen) == trials  # before any training


def test_a_search_that_is_interrupted_or_not_confirmed_does_not_end_well(tmp_path, monkeypatch, capsys):
    """Its table is printed all the same."""
    file = tmp_path / "mine.yaml"
    file.write_text("method: grid\nparameters: {scale: {value: smoke}}")
    oracle, broken = Oracle({0: 10.0}), []

    def launcher(code):
        def launch(plan):
            if plan.todo and not plan.todo[0].config.stop_when_decided:  # the one that confirms the lower end
                broken.append(code)
                return code
            return oracle(plan)

        return lambda words: launch

    words = [str(file), f"runs_dir={tmp_path}", "--ratio", "2", "--low", "0.01", "--high", "1"]
    for code in (130, 1):
        monkeypatch.setattr(sweep, "_launcher", launcher(code))
        assert sweep.main(["max_lr", *words]) == code
        assert "not trained to its end" in capsys.readouterr().out
    assert broken == [130, 1]


def test_every_runs_folder_has_its_own_search(tmp_path):
    both = [c for d in "ab" for c in configs(tmp_path / d, "seed=0")]
    assert len(max_lr.recall(both, 2.0, 0.01, 1.0)) == 2


def test_the_search_waits_for_whichever_launcher_is_set(monkeypatch):
    seen = []
    for launcher in (local, slurm):
        monkeypatch.setattr(launcher, "launch", lambda plan, options: seen.append(options) or 0)
    assert sweep._launcher([])(None) == sweep._launcher(["hydra.launcher.workers=3"])(None) == 0
    assert sweep._launcher(["hydra/launcher=slurm", "hydra.launcher.time=5"])(None) == 0
    assert seen == [local.Options(), local.Options(workers=3), slurm.Options(time=5, wait=True)]


def test_runs_that_do_not_finish_end_the_search(tmp_path):
    rounds = []
    found = max_lr.find(configs(tmp_path), lambda plan: rounds.append(1) or 1, ratio=2, low=1e-3, high=1)
    assert len(rounds) == 1
    assert "runs are missing" in max_lr.table(found)


def test_contradictions_are_shown(tmp_path):
    (config,) = configs(tmp_path)
    made = max_lr.Search(config, 2, 1e-3, 1, {0.1: "trained", 0.2: "stuck at chance", 0.4: "trained"})
    assert (made.works, made.fails) == (0.1, 0.2)
    assert "0.4 trains" in max_lr.table([made])


def test_a_rate_too_low_to_leave_chance_is_no_limit(tmp_path):
    oracle = Oracle({0: 0.3, 1: 0.12}, slow=0.02)
    found = max_lr.find(configs(tmp_path, "seed=0,1"), oracle, ratio=2, low=5e-4, high=1)
    for search in found:
        assert search.works <= oracle.limits[search.config.seed] < search.fails <= 2.001 * search.works
        assert search.remarks() == ""
    assert max_lr.find(configs(tmp_path, "seed=0,1"), oracle, ratio=2, low=5e-4, high=1) == found


def test_where_nothing_trains_all_rates_are_tried_to_the_square_of_the_ratio(tmp_path):
    (found,) = max_lr.find(configs(tmp_path), Oracle({0: 0.3}, slow=9), ratio=2, low=5e-4, high=1)
    assert (found.works, found.fails) == (None, min(found.known))
    stuck = sorted(lr for lr, fate in found.known.items() if fate != "diverged")
    assert all(b / a <= 4.001 for a, b in pairwise([*stuck, min(set(found.known) - set(stuck))]))
    assert len(found.known) <= 9
    assert f"none of {len(found.known)} rates trains" in max_lr.table([found])
    assert "below 0.00048828" in max_lr.table([found])


def test_rates_that_others_tried_do_not_hide_those_that_were_asked_for(tmp_path):
    """What fig01 leaves of a bare network that trains nowhere but at the lowest rate of the range."""
    (config,) = configs(tmp_path)
    oracle = Oracle({0: 0.0006})
    for lr, slow in ((0.1, 0.0), (0.003, 0.0), (0.0001, 0.0002)):
        oracle.slow = slow
        oracle(make_plan([replace(config, lr=lr)]))
    oracle.slow = 0.0003
    (found,) = max_lr.find([config], oracle, ratio=2, low=5e-4, high=1)
    assert found.works == 0.00048828
    assert 0.0001 not in found.known
    assert found.fails == 0.00097656


@pytest.mark.parametrize("bad", [{"ratio": 1.0}, {"low": 0.0}, {"low": 2.0}, {"ratio": 100, "low": 0.11}])
def test_bad_ranges_are_refused(tmp_path, bad):
    with pytest.raises(ConfigError):
        max_lr.find(configs(tmp_path), Oracle({0: 1}), **{"ratio": 2, "low": 1e-3, "high": 1} | bad)
    assert list(Path(tmp_path).iterdir()) == []

"""The search for the highest trainable rate, against a launcher that knows the answer."""

from pathlib import Path

import pytest

from study import max_lr
from study.compose import compose_all, expand
from study.errors import ConfigError
from study.identity import scientific
from study.records import write_json


class Oracle:
    """Writes the record of a run at once: it trains up to a limit that depends on the seed."""

    def __init__(self, limits):
        self.limits, self.rounds, self.runs = limits, 0, 0

    def __call__(self, plan):
        self.rounds += 1
        for trial in plan.todo:
            self.runs += 1
            config = trial.config
            trained = config.lr <= self.limits[config.seed]
            record = {
                "status": "finished", "outcome": "trained" if trained else "diverged", "lr": config.lr,
                "scientific": scientific(config), "seconds": 1.0, "chance": 0.1, "steps_done": 1,
                "steps_total": 1, "sweeps": [],
            }  # fmt: skip
            trial.paths.root.mkdir(parents=True)
            write_json(trial.paths.record, record)
        return 0


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
    assert oracle.rounds <= 9


def test_what_ran_before_is_not_run_again(tmp_path):
    limits = {0: 0.3, 1: 0.0042, 2: 0.1, 3: 2.0}
    search(tmp_path, Oracle(limits))
    again = Oracle(limits)
    search(tmp_path, again)
    assert again.runs == 0
    finer = Oracle(limits)
    assert all(s.fails / s.works <= 1.05 * 1.001 for s in search(tmp_path, finer, ratio=1.05))
    assert finer.runs <= 4 * 5


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


@pytest.mark.parametrize("bad", [{"ratio": 1.0}, {"low": 0.0}, {"low": 2.0}])
def test_bad_ranges_are_refused(tmp_path, bad):
    with pytest.raises(ConfigError):
        max_lr.find(configs(tmp_path), Oracle({0: 1}), **{"ratio": 2, "low": 1e-3, "high": 1} | bad)
    assert list(Path(tmp_path).iterdir()) == []

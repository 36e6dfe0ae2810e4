"""The study in parts: what is left, at what cost, in which order, and what earlier parts left unmeasured."""

import re

import pytest

from study import max_lr, parts, randmat, sweep
from study.compose import compose, quoted
from study.execute import execute
from study.identity import run_id
from study.paths import RANDOM_MATRICES, RunPaths

SMALL = parts.Part("fig01", "learning curves", 10.0, 100.0)


def test_every_part_has_its_sweep():
    names = [part.name for part in parts.PARTS]
    assert len(set(names)) == len(names)
    assert {*names, "quickstart"} == {p.stem for p in parts.SWEEPS.glob("*.yaml")}
    assert all(part.search == part.name.startswith("max_lr") for part in parts.PARTS)


def test_a_run_that_two_parts_need_is_counted_once(tmp_path):
    schemes = parts.Part("schemes", "schemes", 1.0, 20.0)
    first, second = parts.lines_of([SMALL, schemes], [f"runs_dir={tmp_path}"], set())
    assert (first.total, first.left, first.seconds) == (42, 42, 420)
    assert (second.total, second.left) == (112, 112 - 21)
    assert second.seconds == 91
    assert list(tmp_path.iterdir()) == []


def test_the_plan_says_what_an_earlier_part_makes(tmp_path):
    again = parts.Part("fig01", "the same runs", 1.0, 20.0)
    first, second = parts.lines_of([SMALL, again], [f"runs_dir={tmp_path}"], set())
    assert (first.shared, second.left, second.shared) == (0, 0, first.total)
    told = parts.table([first, second], 1).splitlines()
    assert told[1].endswith("learning curves")
    assert told[2].endswith(f"the same runs ({first.total} more stand with a part above)")


def test_what_is_done_is_not_left(tmp_path):
    settings = ["scale=smoke", "epochs=1", "data.subset=64", f"runs_dir={tmp_path}"]
    run = compose(["experiment=fig01", "norm=bn", "lr=0.1", "seed=0", *settings])
    execute(run)
    (line,) = parts.lines_of([SMALL], settings, set())
    assert (line.total, line.left) == (42, 41)


def test_a_search_costs_as_many_runs_as_it_may_take_until_it_is_done(tmp_path, monkeypatch):
    only = [f"runs_dir={tmp_path}", "scale=smoke", "seed=0", "model.depth=8"]
    searches = [parts.Part(name, "rates", 2.0, 20.0, search=True) for name in ("max_lr", "max_lr_table")]
    first, second = parts.lines_of(searches, only, set())
    assert (first.total, first.left, first.seconds, first.shared) == (8, 8, 16, 0)
    assert (second.total, second.left, second.shared) == (16, 8, 8)
    known = {0.00048828: "trained", 1.0: "diverged"}

    def recall(configs, **options):
        return [max_lr.Search(c, **options, known=dict(known)) for c in configs]

    monkeypatch.setattr(max_lr, "recall", recall)
    (line,) = parts.lines_of(searches[:1], only, set())
    assert line.left == 6
    known[0.0009765625] = "diverged"
    (line,) = parts.lines_of(searches[:1], only, set())
    assert (line.total, line.left) == (8, 0)


def test_the_plan_shows_every_part_and_the_rest_apart(tmp_path, capsys):
    assert parts.main(["plan", "fig01", "schemes", f"runs_dir={tmp_path}", "--workers", "2"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^fig01 +42 +42 +18 min", printed, re.MULTILINE)
    assert re.search(r"^together +133 ", printed, re.MULTILINE)
    assert "not decided" not in printed
    assert list(tmp_path.iterdir()) == []


def test_costs_are_those_of_the_scale_that_is_asked_for(tmp_path, capsys):
    def cost(scale, part="fig01"):
        assert parts.main(["plan", part, f"scale={scale}", f"runs_dir={tmp_path}", "--workers", "2"]) == 0
        printed = capsys.readouterr().out
        return re.search(rf"^{part} +\d+ +\d+ +(.+?)  ", printed, re.MULTILINE)[1], printed

    assert cost("smoke")[0] == "42 s"
    assert cost("workstation")[0] == "44.3 h"  # 42 × 7600 s ÷ 2
    unknown, printed = cost("paper")
    assert unknown == "?"
    assert "python -m study.estimate PART scale=paper" in printed
    assert cost("workstation", "max_lr")[0] == "2.4 days"  # 14 searches × 8 × 3700 s ÷ 2
    assert cost("smoke", "bjorck_init")[0] == cost("paper", "bjorck_init")[0] == "18 min"


def test_an_interrupt_stops_all_parts(tmp_path, monkeypatch, capsys):
    called = []
    monkeypatch.setattr(sweep, "main", lambda words: called.append(words) or 130)
    assert parts.main(["run", "fig01", "max_lr", "lsuv", f"runs_dir={tmp_path}"]) == 130
    assert len(called) == 1
    assert "stopped in fig01, before max_lr, lsuv" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["with space,x", "a=1"])
def test_folders_with_odd_names_are_quoted_as_in_every_setting(name, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(randmat, "main", lambda words: called.append(words) or 0)
    assert parts.main(["run", "randmat", f"runs_dir={quoted(str(tmp_path / name))}"]) == 0
    assert called[0][called[0].index("--out") + 1] == str(tmp_path / name / RANDOM_MATRICES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "fig1"], "Did you mean 'fig01'?"),
        (["plan", "fig01", "norm=bnn"], "Did you mean 'bn'?"),
        (["go"], "invalid choice"),
        (["plan", "fig01", "--workers", "0"], "not a whole number ≥ 1"),
        (["plan", "max_lr", "lr=0.1"], "chooses the rates itself"),
        (["plan", "fig01", "runs_dir=a,b"], "give one runs_dir"),
    ],
)
def test_bad_input_is_one_plain_sentence(words, said, capsys):
    try:
        code = parts.main(words)
    except SystemExit as end:
        code = end.code
    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert error.count("\n") == 1


def test_parts_run_in_order_and_a_failure_does_not_stop_the_others(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(sweep, "main", lambda words: called.append(words[:2]) or int("fig01" in words[1]))
    monkeypatch.setattr(randmat, "main", lambda words: called.append(words[:4]) or 0)
    monkeypatch.setattr(parts.Part, "measure", lambda self, settings: 0)
    folder = tmp_path / RANDOM_MATRICES
    assert parts.main(["run", "randmat", "fig01", "max_lr", f"runs_dir={tmp_path}"]) == 1
    assert [words[0] for words in called] == ["--draws", "launch", "max_lr"]
    assert called[0][:4] == ["--draws", str(parts.DRAWS), "--out", str(folder)]
    assert called[2][1] == str(parts.SWEEPS / "max_lr.yaml")


def test_runs_that_an_earlier_part_made_are_measured_for_a_later_one(tmp_path, monkeypatch):
    small = ["scale=smoke", "epochs=1", "data.subset=64", f"runs_dir={tmp_path}", "probes.sharpness_images=8"]
    run = compose(["experiment=fig01", "norm=bn", "lr=0.1", "seed=0", *small])
    execute(run)
    table = RunPaths(tmp_path / run_id(run)).probe("sharpness")
    assert not table.exists()
    part = parts.Part("batch_rate", "sharpness", 1.0, 20.0)
    only = ["lr=0.1", "batch_size=32", "seed=0,1"]
    assert part.measure([*small, *only]) == 0
    assert table.exists()
    assert len(list(tmp_path.glob("*/probes/sharpness.parquet"))) == 1


@pytest.mark.slow
def test_two_parts_run_one_after_the_other_and_again_nothing_is_left(tmp_path, capsys):
    small = ["scale=smoke", "epochs=1", "data.subset=64", "seed=0", "lr=0.1", f"runs_dir={tmp_path}"]
    assert parts.main(["run", "fig01", "bn_on_top", *small]) == 0
    runs = sorted(p.parent.name for p in tmp_path.glob("*/run.json"))
    assert len(runs) == 3  # the bare network is in both
    capsys.readouterr()
    assert parts.main(["run", "fig01", "bn_on_top", *small]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^together +0 +0 s", printed, re.MULTILINE)
    assert sorted(p.parent.name for p in tmp_path.glob("*/run.json")) == runs


def test_draws_with_fewer_factors_than_the_study_wants_are_left(tmp_path):
    args = [
        "--n",
        "8",
        "--most",
        "3",
        "--draws",
        "2",
        "--matrices",
        "0",
        "--workers",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert randmat.main(args) == 0
    assert all(draw.done for draw in randmat.draws_of(args))
    for path in tmp_path.glob("*-n8-*"):
        path.rename(tmp_path / path.name.replace("-n8-", "-n1000-"))
    assert parts.randmat_line(tmp_path).left == parts.DRAWS

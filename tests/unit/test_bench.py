"""`python -m study.bench` prints a line and a verdict for every part; how long things take is not tested."""

import pytest
import torch

from study import bench, bench_norms, bench_planning, bench_probes, bench_scale, ratios


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_planning_prints_its_lines(capsys):
    bench_planning.main(["--trials", "500", "--finished", "3"])
    plan, status, equal = capsys.readouterr().out.splitlines()
    assert plan.startswith("planning 500 trials, s:")
    assert "status of 3 finished trials" in status
    assert equal.endswith("20 of 20")


def test_a_ratio_is_ours_over_theirs_whoever_goes_first():
    times = {"ours": iter([9.0, 3.0, 3.0, 3.0]), "theirs": iter([9.0, 2.0, 1.0, 4.0])}
    ratio = ratios.paired(lambda: "ours", lambda: "theirs", 3, lambda action: next(times[action()]))
    assert ratio == (1.5, 0.75, 3.0)


def test_step_and_input_print_their_lines(capsys):
    bench.bench_step(1, 2, ["scale=smoke", "device=cpu"])
    bench.bench_input(1, 256, workers=(0,))
    step, images = capsys.readouterr().out.splitlines()
    assert step.startswith("training step, harness ÷ bare PyTorch loop:")
    assert "at most 1.03: " in step
    assert "torchvision (0 workers) ÷ ours" in images
    assert "at least 20: " in images


@pytest.mark.slow
def test_launcher_and_startup_print_their_lines(capsys):
    bench.bench_launcher(1, ["scale=smoke", "epochs=1"])
    bench.bench_startup(2, scales=("smoke",))
    launcher, ideal, startup = capsys.readouterr().out.splitlines()
    assert "at most 0.9: " in launcher
    assert "perfect overlap" in ideal
    assert "at most 0.5: " in startup


@pytest.mark.parametrize(("value", "verdict"), [(0.9, "met"), (1.1, "MISSED"), (float("nan"), "MISSED")])
def test_a_limit_is_met_or_missed(capsys, value, verdict):
    assert bench._told("line", value, value, most=1) is (verdict == "met")
    assert capsys.readouterr().out.split()[-1] == verdict


@pytest.fixture
def called(monkeypatch):
    calls = []
    for name in bench.PARTS:
        monkeypatch.setitem(bench.PARTS, name, lambda name=name: calls.append((name,)) or name != "input")
    for name, module in (("norms", bench_norms), ("probes", bench_probes), ("scale", bench_scale)):
        monkeypatch.setattr(module, "main", lambda options, name=name: calls.append((name, *options)))
    return calls


def test_parts_mix_and_the_last_ledger_takes_the_options(called):
    assert bench.main(["step", "norms", "startup", "probes", "--depth", "8"]) == 0
    assert called == [("step",), ("norms",), ("startup",), ("probes", "--depth", "8")]


def test_no_part_is_all_that_have_a_limit_and_names_the_rest(called, capsys):
    assert bench.main([]) == 1
    assert called == [(name,) for name in ("step", "input", "launcher", "startup")]
    assert "norms|probes|scale" in capsys.readouterr().out


def test_help_lists_all_parts_and_a_mistake_is_one_sentence(called, capsys):
    with pytest.raises(SystemExit):
        bench.main(["--help"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*bench.PARTS, *bench.LONGER))
    for wrong in (["stepp"], ["step", "--steps"], ["norms", "step", "nope"]):
        with pytest.raises(SystemExit) as end:
            bench.main(wrong)
        assert end.value.code == 2
        text = capsys.readouterr().err
        assert text.startswith("study.bench: ")
        assert len(text.splitlines()) == 1
    assert called == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("norms bn --shape 0 8 4", "'0' is not a whole number ≥ 1"),
        ("norms bn --repetitions 0", "--repetitions"),
        ("norms bn --steps -1", "--steps"),
        ("norms bn --device gpu", "device='gpu' is not one of"),
        ("norms gn --shape 4 6 4 --repetitions 1", "does not divide the 6 channels"),
        ("norms bn --shape 1 8 1 --repetitions 1", "one value per channel"),
        ("probes --repeats 0", "--repeats"),
        ("probes --threads 0", "--threads"),
        ("probes --norms ln", "--norms"),
        ("probes --depth 9 --quick", "model.depth=9 is not possible"),
        ("probes --only nothing", "no line's label contains it"),
        ("scale --rounds 1", "--rounds"),
        ("planning --finished 0", "--finished"),
    ],
)
def test_a_wrong_option_is_one_sentence(words, says, capsys):
    try:
        code = bench.main(words.split())
    except SystemExit as end:
        code = end.code
    assert code == 2
    text = capsys.readouterr().err
    assert says in text
    assert text.startswith("study.bench: ")
    assert len(text.splitlines()) == 1

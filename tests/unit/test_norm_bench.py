"""The cost table of the norms: complete, with the right counts; how long things take is not tested."""

import math

import pytest

from study import bench, bench_norms, naming, ratios


def test_every_norm_has_a_line(capsys):
    bench_norms.main(["--shape", "4", "8", "4", "--repetitions", "1", "--steps", "0"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(naming.norms())
    column = lines[1].index("what costs more")
    for line in lines[2:]:
        config = naming.norms()[line.split()[0]]
        fused = config.name == "none" or (bench_norms.limit(config) == 1.3 and config.source != "ghost")
        assert bool(line[column:]) != fused, line


@pytest.mark.parametrize(("median", "verdict"), [(1.3, "met"), (1.31, "MISSED"), (math.nan, "MISSED")])
def test_a_limit_is_met_or_missed(monkeypatch, capsys, median, verdict):
    costs = {"bn": ratios.Ratio(median, 0.9, 1.4), "none": None}

    def measured(names, *sizes):
        return [
            bench_norms.Row(n, "", 0, costs[n], bench_norms.limit(naming.norms()[n]), None) for n in names
        ]

    monkeypatch.setattr(bench_norms, "measure", measured)
    missed = verdict == "MISSED"
    assert bench_norms.main(["bn", "none"]) == int(missed)
    assert bench_norms.main(["none"]) == 0
    assert bench.main(["norms", "bn"]) == int(missed)
    lines = capsys.readouterr().out.splitlines()
    assert f"1.3 {verdict}" in lines[2]
    assert not {"met", "MISSED"} & set(lines[3].split())


def test_an_unknown_norm_is_named(capsys):
    with pytest.raises(SystemExit):
        bench_norms.main(["bnn"])
    assert "unknown norm 'bnn'. Did you mean 'bn'?" in capsys.readouterr().err


def test_parameters_ratios_and_limits():
    names = ["bn", "bn_top", "bn_no_affine", "bn_no_gamma", "none", "none_noisy", "rms", "wn", "ws", "gn"]
    rows = {
        r.name: r for r in bench_norms.measure(names, (4, 8, 4), bench_norms.torch.channels_last, 1, 0, "cpu")
    }
    counted = {name: row.parameters for name, row in rows.items()}
    assert counted == {
        "bn": 16, "bn_top": 16, "bn_no_affine": 0, "bn_no_gamma": 8, "none": 0, "none_noisy": 0,
        "rms": 8, "wn": 8, "ws": 8, "gn": 16,
    }  # fmt: skip
    assert rows["none"].layer is None
    assert all(math.isfinite(r.layer.median) for r in rows.values() if r.layer)
    assert [
        bench_norms.limit(naming.norms()[n]) for n in ("ghost", "bn_running", "bn_frozen", "bn_alternating")
    ] == [1.3] * 4
    assert bench_norms.limit(naming.norms()["bn_detached"]) == 3
    assert bench_norms.limit(naming.norms()["bn_l1"]) == 5


def test_a_network_step_runs():
    bench_norms.step_action("bn_frozen", "cpu")()

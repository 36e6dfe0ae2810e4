"""What every figure of the registry must keep to: walked, so that a new one cannot slip by."""

import contextlib
import functools
import json
import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import expectations, figures, style
from analysis.figures import UndrawableError
from analysis.load import load
from study.paths import RunPaths
from tests import factory, probe_tables

ALL = figures.modules()
RATES = (0.1, 0.003, 0.0001)
MANY = ("bn", "none", *(f"variant{i}" for i in range(figures.MOST_NORMS)))


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def drawings(folder, spoil=None):
    """Draw any figure, once, of two norms (of ten, for variants) × three rates × three seeds.

    With every table; one seed of none diverged at the highest rate.
    """
    for norm in ("bn", "none"):
        for lr in RATES:
            for seed in range(3):
                fate = "diverged" if (norm, lr, seed) == ("none", 0.1, 2) else "trained"
                tables = probe_tables.tables(norm, seed, first=True)
                run = factory.write_run(
                    folder / "runs", norm=norm, lr=lr, seed=seed, fate=fate, probes=tables, epochs=4
                )
                if spoil and seed == 0 and norm == "none":
                    spoil(RunPaths(folder / "runs" / run))
    for i, norm in enumerate(MANY):
        fates = ["trained", "trained", "diverged"] if i == 1 else ["stuck"]
        factory.grid_runs(folder / "many", {(norm, lr): fates for lr in RATES}, epochs=2)
    few, many = load([folder / "runs"]), load([folder / "many"])
    return functools.cache(lambda name: figures.draw(ALL[name], many if name == "variants" else few))


def spoilt(paths):
    """Every other measured number of the run becomes not a number or zero."""
    for path in (paths.metrics, *paths.probes.glob("*.parquet")):
        table = pq.read_table(path)
        for i, field in enumerate(table.schema):
            if field.name in {"lr", "share", "alpha", "accuracy"}:
                continue
            if pa.types.is_floating(field.type):
                values = [np.nan if k % 2 else 0.0 for k in range(len(table))]
            elif pa.types.is_list(field.type) and pa.types.is_floating(field.type.value_type):
                lists = table.column(i).to_pylist()
                values = [v and [np.nan if k % 2 else 0.0 for k in range(len(v))] for v in lists]
            else:
                continue
            table = table.set_column(i, field, pa.array(values, field.type))
        pq.write_table(table, path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return drawings(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return drawings(tmp_path_factory.mktemp("damaged"), spoilt)


def texts(figure):
    return " ".join(t.get_text().replace("\n", " ") for t in figure.findobj(plt.Text))


def legend_entries(figure):
    legends = [*figure.legends, *(a.get_legend() for a in figure.axes if a.get_legend())]
    return {legend.get_title().get_text(): [t.get_text() for t in legend.get_texts()] for legend in legends}


@pytest.mark.parametrize("name", ALL)
def test_it_says_what_how_the_paper_and_what_is_seen_and_saves_three_files(sound, tmp_path, name):
    module = ALL[name]
    drawing = sound(name)
    assert len(module.MEASURED) > 60
    assert module.HOW.endswith(".")
    assert expectations.EXPECTED[module.EXPECTED]
    assert drawing.caption.endswith(".")
    assert drawing.seen
    assert not [s for s in drawing.seen if "nan" in s or not s.endswith(".")]
    svg = style.save(drawing, tmp_path, name)
    assert svg == (tmp_path / f"{name}.svg").read_text()
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(tmp_path / f"{name}.csv")) == len(drawing.data) > 0


@pytest.mark.parametrize("name", ALL)
def test_three_rates_are_three_entries_or_the_figure_has_no_rates(sound, name):
    entries = legend_entries(sound(name).figure)
    assert "norm" not in entries or entries["norm"]
    if "learning rate" in entries:
        assert entries["learning rate"] == ["0.0001", "0.003", "0.1"]
    else:
        rates = {"0.1", "0.003", "0.0001"}
        assert not [text for listed in entries.values() for text in listed if rates & set(text.split())]


BY_RATE = [n for n, m in ALL.items() if m.NEEDS == ("metrics",)]


@pytest.mark.parametrize("name", BY_RATE)
def test_a_diverged_run_is_counted_on_the_figure_itself(sound, name):
    said = texts(sound(name).figure)
    if name == "fates":
        assert "trained 2 of 3" in said
    elif name == "highest_rates":
        assert re.search(r"none: \d of 9 runs diverged", said)
    elif name == "variants":
        assert "n = 6 of 9, 3 diverged" in said
    else:
        assert "n = 2 of 3, 1 diverged" in said


@pytest.mark.parametrize("name", [n for n in ALL if n not in BY_RATE])
def test_seeds_that_were_not_measured_are_counted_on_the_figure_itself(sound, tmp_path, name):
    for seed in range(3):
        tables = {k: probe_tables.tables(k, seed, first=True) for k in ("bn", "none")}
        factory.write_run(tmp_path, norm="bn", seed=seed, probes=tables["bn"])
        factory.write_run(tmp_path, norm="none", seed=seed, probes=tables["none"] if seed else {})
    said = texts(figures.draw(ALL[name], load([tmp_path])).figure)
    assert "none: n = 2 of 3 seeds, the others were not measured" in said
    assert "bn: n = " not in said
    assert "were not measured" not in texts(sound(name).figure)


@pytest.mark.parametrize("name", ALL)
def test_a_log_axis_says_how_many_values_it_cannot_show(damaged, sound, name):
    for drawn, expected in ((damaged, True), (sound, False)):
        figure = drawn(name).figure
        logarithmic = [a for a in figure.axes if "log" in (a.get_xscale(), a.get_yscale())]
        if not logarithmic or name in {"variants", "fates", "highest_rates"}:
            return
        if name == "loss_curves" and not expected:
            continue  # the diverged run's last loss is not finite, which it says
        assert ("not shown" in texts(figure)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_bins_are_bounded_whatever_the_values(sound, damaged, name):
    usual = len(sound(name).data)
    assert len(damaged(name).data) <= 2 * usual


def test_a_record_without_a_rate_or_seed_gives_no_stack_trace(tmp_path):
    run = RunPaths(tmp_path / factory.write_run(tmp_path, probes=probe_tables.tables("bn", 0)))
    record = json.loads(run.record.read_text())
    run.record.write_text(json.dumps(record | {"depth": None, "chance": None}))
    frames = load([tmp_path])
    for module in ALL.values():
        if not figures.lacking(module, frames):
            with contextlib.suppress(figures.UndrawableError):
                figures.draw(module, frames)


def test_figures_by_rate_leave_a_searchs_runs_and_many_norms_to_others(tmp_path):
    fates = {(norm, lr): ["trained"] * 2 for norm in ("bn", "none") for lr in (0.1, 0.003)}
    factory.grid_runs(tmp_path, fates, sweeps=("fig01",))
    for lr in (0.25, 0.5):
        factory.write_run(tmp_path, norm="bn", lr=lr, sweeps=("max_lr-max_lr",))
    factory.write_run(tmp_path, norm="bn", lr=0.2, sweeps=("mine", "max_lr-max_lr"))
    frames = load([tmp_path])
    for name in ("learning_curves", "final_accuracy", "fates"):
        drawing = ALL[name].draw(frames)
        assert set(drawing.data["lr"]) == {0.1, 0.2, 0.003}
        assert "2 runs of a search for the highest rate: see “Table 3”" in texts(drawing.figure)
    searched = frames.subset(frames.runs.loc[frames.runs["lr"].isin([0.25, 0.5]), "run_id"])
    with pytest.raises(UndrawableError, match=r"^$"):
        ALL["fates"].draw(searched)
    drawing = ALL["highest_rates"].draw(searched)
    assert drawing.data[["works", "seed"]].to_numpy().tolist() == [[0.5, 0]]
    assert drawing.seen == ("bn: 1 of 1 seeds train, at up to 0.5.",)
    for norm in ("ln", "in", "gn", "rms", "ws", "wn", "ghost", "bn_l1"):
        factory.write_run(tmp_path, norm=norm, lr=0.1, sweeps=("schemes",))
    many = load([tmp_path])
    drawing = ALL["learning_curves"].draw(many)
    assert set(drawing.data["norm"]) == {"bn", "none"}
    assert "8 other norms: see “Every variant”" in texts(drawing.figure)
    with pytest.raises(UndrawableError, match="too many for one panel"):
        ALL["fates"].draw(many.subset(many.runs.loc[many.runs["norm"] != "bn", "run_id"]))


def test_searches_that_are_not_done_and_norms_at_one_rate_are_no_highest_rate(tmp_path):
    search = {"sweeps": ("max_lr-max_lr",)}
    for lr, fate in ((0.1, "trained"), (0.2, "diverged")):
        factory.write_run(tmp_path, norm="bn", lr=lr, fate=fate, **search)
    for lr, fate in ((0.0005, "trained"), (1.0, "diverged")):
        factory.write_run(tmp_path, norm="bn", seed=1, lr=lr, fate=fate, **search)
    factory.write_run(tmp_path, norm="bn_top", lr=0.03)
    drawing = ALL["highest_rates"].draw(load([tmp_path]))
    assert drawing.data[["norm", "seed", "works", "fails"]].to_numpy().tolist() == [["bn", 0, 0.1, 0.2]]
    alone = load([tmp_path])
    alone = alone.subset(alone.runs.loc[alone.runs["norm"] == "bn_top", "run_id"])
    with pytest.raises(UndrawableError):
        ALL["highest_rates"].draw(alone)


def test_the_parts_of_bn_are_shown_one_by_one_even_where_they_are_few(tmp_path):
    for norm in ("bn", "none", "bn_no_mean"):
        factory.write_run(tmp_path, norm=norm)
    assert set(ALL["variants"].draw(load([tmp_path])).data["norm"]) == {"bn", "none", "bn_no_mean"}


def test_of_a_norm_that_never_trains_the_fates_say_where_it_ended(tmp_path):
    fates = {("bn", 0.1): ["stuck"] * 3, ("none", 0.1): ["diverged", "stuck"], ("none", 0.003): "stuck"}
    factory.grid_runs(tmp_path, fates)
    factory.grid_runs(tmp_path, {("bn_top", 0.1): "trained"}, status="failed")
    assert ALL["fates"].draw(load([tmp_path])).seen == (
        "bn: trains at no rate tried: 3 of 3 at 0.1 stuck at chance.",
        "bn_top: no complete run.",
        "none: trains at no rate tried: 1 of 1 at 0.003 stuck at chance, 1 of 2 at 0.1 diverged, 1 of 2 at "
        "0.1 stuck at chance.",
    )

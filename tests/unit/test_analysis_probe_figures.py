"""Figures drawn from probe tables: right numbers, safe with what probes can record, and silent without."""

import itertools
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from analysis import expectations, figures, style
from analysis.figures import (
    _bins,
    _probes,
    bjorck_fig02,
    bjorck_fig05,
    bjorck_fig14,
    bjorck_fig22,
    bjorck_fig24,
    bjorck_fig25,
)
from analysis.load import load
from analysis.page.pictures import draw_all
from study.probes import _histogram, base
from tests import factory
from tests.probe_tables import COMMON, NUMBERS, frames, tables, tensor

PROBE_FIGURES = {n: m for n, m in figures.modules().items() if n.startswith("bjorck_")}
FIRST_STEPS = {"bjorck_fig24", "bjorck_fig25"}  # they need rows measured while training


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return frames(tmp_path_factory.mktemp("runs"))


def test_the_bins_are_the_probes():
    assert _bins.edges()[1:-1].tolist() == _histogram.edges()


def test_regrouping_keeps_every_count_and_its_sign():
    values = np.array([-3e9, -2.0, -0.01, 0.0, 1e-9, 5.0, 6.0, 7e9])
    counts = np.asarray(_histogram.histogram(tensor(values)).counts)
    scale = _bins.SignedLog(-3, 3)
    edges, shares = scale.regroup(counts)
    centres = (edges[1:] + edges[:-1]) / 2
    assert shares.sum() == pytest.approx(1)
    assert shares[centres < 0].sum() == pytest.approx(3 / 8)
    assert shares[np.abs(centres) < 1e-9].sum() == pytest.approx(2 / 8)
    low, high = scale.place([5.0])[0] - 0.31, scale.place([6.0])[0] + 0.31
    assert shares[(edges[:-1] >= low) & (edges[1:] <= high)].sum() == pytest.approx(2 / 8)
    assert list(scale.place([1e9, -1e9, 0, 1e-9])) == [6, -6, 0, 0]


def test_shares_exceeding_and_root_mean_square_are_the_samples():
    values = np.random.default_rng(0).normal(0, 3, 20000)
    counts = np.asarray(_histogram.histogram(tensor(values)).counts)
    sizes, beyond = _bins.exceeding(counts)
    at = int(np.searchsorted(sizes, 4.0))
    assert beyond[at] == pytest.approx((np.abs(values) >= sizes[at]).mean(), abs=1e-9)
    assert _bins.root_mean_square(counts) == pytest.approx(np.sqrt((values**2).mean()), rel=0.05)
    limits = np.array([-2.0, 0.0, 4.0])
    expected = [((values > a) & (values < b)).mean() for a, b in itertools.pairwise(limits)]
    assert _bins.shares_between(counts, limits) == pytest.approx(expected, abs=2e-3)


def test_no_statement_is_without_a_known_mark():
    registered = [*figures.modules().values(), *figures.modules(apart=True).values()]
    assert {m.EXPECTED for m in registered} == set(expectations.EXPECTED)
    assert all(set(e.marks) <= {"P", "R", "O", "M"} for es in expectations.EXPECTED.values() for e in es)
    with pytest.raises(ValueError, match="marks"):
        expectations.Expectation(("?",), "93.3")
    with pytest.raises(ValueError, match="marks"):
        expectations.Expectation((), "93.3")


def test_what_our_own_trial_found_is_not_the_papers():
    """Of random matrices it stands with the condition number, which alone it is about."""
    ours = {key for key, known in expectations.EXPECTED.items() if any(e.ours for e in known)}
    assert ours == {"loss", "fig02", "fig06", "table1", "condition_number"}
    assert expectations.Expectation(("O",), "3.7").ours
    assert not expectations.Expectation(("R", "O"), "read off the paper's figure as well").ours
    alone = figures.modules(apart=True)
    assert [name for name, m in alone.items() if m.EXPECTED == "condition_number"] == ["bjorck_fig09"]
    assert all(any(not e.ours for e in known) for known in expectations.EXPECTED.values())


@pytest.mark.parametrize("name", PROBE_FIGURES)
def test_every_figure_says_what_it_shows_and_saves_its_numbers(usual, tmp_path, name):
    module = PROBE_FIGURES[name]
    if name in FIRST_STEPS:
        with pytest.raises(figures.UndrawableError, match="first"):
            module.draw(usual)
        return
    drawing = module.draw(usual)
    assert len(module.MEASURED) > 60
    assert module.HOW
    assert drawing.seen
    assert not any("nan" in line for line in drawing.seen)
    text = style.save(drawing, tmp_path, name)
    assert text.startswith("<?xml")
    assert len(pd.read_csv(tmp_path / f"{name}.csv")) == len(drawing.data) > 0
    plt.close(drawing.figure)


def test_numbers_come_from_the_frames(usual):
    seen = bjorck_fig02.draw(usual).seen
    assert "bn 1, none 100." in seen[0]
    assert "100 times" in seen[0]
    drawn = bjorck_fig05.draw(usual)
    assert "ln(standard deviation) a layer, training images: bn" in drawn.seen[0]
    assert "none 0.045" in drawn.seen[0]
    plt.close("all")


def test_brackets_hold_the_range_over_seeds():
    """As the introduction to the figures says."""
    assert _probes.over_seeds([9.0, 1.0, 2.0]) == "2 (1 to 9)"


def test_dead_channels_are_counted(usual):
    seen = bjorck_fig14.draw(usual).seen
    n = 2 * len(NUMBERS)
    assert any(f"Dead channels, bn: {n} of {4 * n}" in line for line in seen)
    plt.close("all")


@pytest.mark.parametrize("name", PROBE_FIGURES)
def test_one_norm_gives_a_sentence(tmp_path_factory, usual, name):
    alone = usual.subset(usual.runs.loc[usual.runs["norm"] == "none", "run_id"])
    with pytest.raises(figures.UndrawableError, match=r"only 'none'|first"):
        PROBE_FIGURES[name].draw(alone)


def test_a_missing_table_is_named(tmp_path):
    factory.grid_runs(tmp_path, {("bn", 0.1): "trained"})
    found = load([tmp_path])
    assert figures.lacking(bjorck_fig02, found) == ["probe table 'gradient_tails'"]


def _broken(value):
    """A change that puts `value` in place of every measured float."""

    def change(name, row):
        schema = base.schema(name)
        for field in schema:
            if field.name in COMMON or field.name not in row:
                continue
            if pa.types.is_floating(field.type) and field.name != "share":
                row[field.name] = value
            elif pa.types.is_list(field.type) and pa.types.is_floating(field.type.value_type):
                row[field.name] = [value] * len(row[field.name])
        return row

    return change


@pytest.mark.slow
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 1e30])
@pytest.mark.parametrize("name", PROBE_FIGURES)
@pytest.mark.filterwarnings("error::UserWarning")
def test_whatever_a_probe_can_record_is_drawn(tmp_path_factory, broken, tmp_path, name, value):
    try:
        drawing = PROBE_FIGURES[name].draw(broken[str(value)])
    except figures.UndrawableError:
        return
    style.save(drawing, tmp_path, name)
    plt.close(drawing.figure)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    values = [float("nan"), float("inf"), 0.0, 1e30]
    return {str(v): frames(tmp_path_factory.mktemp("broken"), seeds=1, change=_broken(v)) for v in values}


def test_rates_that_differ_do_not_double_what_is_measured_before_training(tmp_path):
    for lr in (0.1, 0.001):
        factory.write_run(tmp_path, norm="bn", lr=lr, probes=tables("bn", 0))
        factory.write_run(tmp_path, norm="none", lr=lr, probes=tables("none", 0))
    rows = _probes.rows(load([tmp_path]), "logit_gradients")
    assert len(rows) == 2
    assert set(rows["lr"]) == {0.001}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00712, "0.00712"), (123456.0, "1.2×10⁵"), (-0.5, "−0.5"), (float("nan"), "not finite"), (0, "0")],
)
def test_numbers_are_said_to_three_digits(value, text):
    assert _probes.say(value) == text


def test_over_seeds_gives_median_and_range():
    assert _probes.over_seeds([1.0, 2.0, 9.0]) == "2 (1 to 9)"
    assert _probes.over_seeds([2.0, float("nan")]) == "2, undefined for 1 of 2 seeds"
    assert _probes.over_seeds([float("nan")]) == "undefined"


def test_layers_of_a_shallower_network_are_those_in_the_same_place():
    table = pd.DataFrame({"number": range(1, 57)})
    assert _probes.at_layer(table, 55)["number"].tolist() == [29]
    assert _probes.at_layer(table, 54)["number"].tolist() == [28]
    assert _probes.at_layer(table, 110)["number"].tolist() == [56]


def test_modes_are_of_what_leaves_the_site():
    rows = [("output", 1), ("site", 1), ("output", 2)]
    table = pd.DataFrame([{"run_id": "r", "number": n, "call": 0, "side": s} for s, n in rows])
    kept = bjorck_fig22.after_norm(table)
    assert sorted(zip(kept["number"], kept["side"], strict=True)) == [(1, "site"), (2, "output")]


def test_the_first_steps_are_shown_at_the_rates_of_the_paper(tmp_path):
    for norm, seed, lr in itertools.product(("bn", "none"), (0, 1), (0.1, 0.0001)):
        probes = {"loss_along_gradient": tables(norm, seed, first=True)["loss_along_gradient"]}
        factory.write_run(tmp_path, norm=norm, seed=seed, lr=lr, probes=probes)
    drawing = bjorck_fig25.draw(load([tmp_path]))
    plt.close(drawing.figure)
    assert drawing.caption.startswith("Trained with bn at 0.1, none at 0.0001.")
    table = _probes.rows(load([tmp_path]), "loss_along_gradient", when=("first",))
    kept = bjorck_fig25.at_their_rates(table)
    assert set(zip(kept["norm"], kept["lr"], strict=True)) == {("bn", 0.1), ("none", 0.0001)}
    assert kept.groupby("norm")["seed"].nunique().tolist() == [2, 2]


def test_tables_of_another_version_keep_no_other_figure_from_the_page(usual, tmp_path, monkeypatch):
    def broken(frames):
        raise KeyError("counts")

    monkeypatch.setattr(bjorck_fig02, "draw", broken)
    drawn = draw_all(usual, tmp_path)
    assert drawn.why_not["bjorck_fig02"] == "its tables are not as expected (KeyError: 'counts')"
    assert any("Fig 2" in sentence and "not as expected" in sentence for sentence in drawn.not_drawn)
    names = [picture.name for section in drawn.sections for picture in section.pictures]
    assert "bjorck_fig05" in names


def test_what_a_panel_cannot_show_is_told_below_it_and_all_else_is_inside(tmp_path):
    """Bare networks fall to a hundredth of their loss at one mini-batch alone; panels share their axis."""
    for norm, seed in itertools.product(("bn", "none"), (0, 1)):
        probe = tables(norm, seed, first=True)["loss_along_gradient"]
        ratios = probe.column("ratio").to_pylist()
        first = [i for i, s in enumerate(probe.column("step").to_pylist()) if s == 0]
        for i in first if norm == "none" else ():
            ratios[i] = [0.01, float("inf"), 1e6, *ratios[i][3:]]
        field = probe.schema.field("ratio")
        at = probe.schema.get_field_index("ratio")
        probe = probe.set_column(at, field, pa.array(ratios, field.type))
        factory.write_run(tmp_path, norm=norm, seed=seed, lr=0.1, probes={"loss_along_gradient": probe})
    drawing = bjorck_fig25.draw(load([tmp_path]))
    low, high = drawing.figure.axes[-1].get_ylim()
    assert low < 0.01
    assert high <= 1e4
    told = " ".join(t.get_text() for t in drawing.figure.texts)
    assert "mini-batch 1: of" in told
    assert "2 not finite or not positive, 2 above 10⁴" in told
    assert not any(t.get_text() for a in drawing.figure.axes for t in a.texts)
    plt.close(drawing.figure)


def test_images_that_were_not_measured_are_not_in_the_legend(usual):
    def labels(drawing):
        plt.close(drawing.figure)
        return [t.get_text() for t in drawing.figure.legends[0].get_texts()]

    assert "noise images" in labels(bjorck_fig05.draw(usual))
    table = usual.probes["activation_moments"]
    alone = replace(usual, probes={**usual.probes, "activation_moments": table[table["source"] == "data"]})
    drawing = bjorck_fig05.draw(alone)
    assert not any("images" in text for text in labels(drawing))
    assert "Noise images were not measured" in drawing.caption


def test_the_first_steps_have_a_column_for_each_layer_with_the_median_of_its_seeds(tmp_path):
    figure = bjorck_fig24.draw(shown := frames(tmp_path, seeds=3, first=True)).figure
    data = bjorck_fig24.first_moments(shown)
    layers = _probes.layers(data)
    assert [a.get_title(loc="left") for a in figure.axes[: len(layers)]] == [f"layer {n}" for n in layers]
    for axes, number in zip(figure.axes, layers, strict=False):
        mine = data[data["number"] == number]
        *seeds, middle = axes.get_lines()
        assert len(seeds) == 3
        assert middle.get_ydata() == pytest.approx(mine.groupby("step")["mean"].median().to_numpy())
    plt.close(figure)


def test_lines_of_many_seeds_are_paler():
    few, many = style.seed_line(style.MANY), style.seed_line(style.MANY + 1)
    assert many["alpha"] < few["alpha"]
    assert many["linewidth"] < few["linewidth"]

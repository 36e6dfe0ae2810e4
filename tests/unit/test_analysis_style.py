"""analysis.style and the figures: legends, log axes, files, and what each figure says of left-out runs."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from analysis import figures, style
from analysis.load import load
from tests import factory


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def texts(figure):
    return " ".join(t.get_text() for t in figure.findobj(plt.Text))


def test_one_colour_per_rate_in_ascending_order():
    colours = style.rate_colours([0.1, 0.0001, 0.003, 0.1])
    assert list(colours) == [0.0001, 0.003, 0.1]
    assert len(set(colours.values())) == 3
    light = [np.dot(plt.matplotlib.colors.to_rgb(c), (0.2126, 0.7152, 0.0722)) for c in colours.values()]
    assert light == sorted(light)


def test_bn_is_solid_and_none_dashed_whatever_else_is_shown():
    alone, many = style.norm_styles(["bn", "none"]), style.norm_styles(["none", "layer", "group8", "bn"])
    assert alone["bn"] == many["bn"]
    assert alone["none"] == many["none"]
    assert many["bn"][0] == "-"
    assert len({str(s) for s in many.values()}) == 4


@pytest.mark.parametrize("name", ["learning_curves", "final_accuracy", "loss_curves"])
def test_three_rates_are_exactly_three_legend_entries(tmp_path, name):
    factory.grid_runs(tmp_path, factory.FIVE_SEEDS)
    figure = figures.modules()[name].draw(load([tmp_path])).figure
    entries = {
        legend.get_title().get_text(): [t.get_text() for t in legend.get_texts()] for legend in figure.legends
    }
    assert entries == {"learning rate": ["0.0001", "0.003", "0.1"], "norm": ["bn", "none"]}


@pytest.mark.parametrize(
    ("values", "hidden"), [([1.0, 2.0], 0), ([1.0, 0.0, -1.0, np.inf, np.nan], 4), ([0.0], 1)]
)
def test_a_log_axis_says_how_many_values_it_cannot_show(values, hidden):
    figure, axes = plt.subplots()
    assert style.log_axis(axes, "y", values) == hidden
    said = f"{hidden} of {len(values)} values not finite or not positive: not shown"
    assert (said in texts(figure)) == bool(hidden)
    figure.savefig("/dev/null", format="png")


def test_counts_of_diverged_runs_stand_on_the_figure(tmp_path):
    factory.grid_runs(tmp_path, {("none", 0.003): ["trained", "diverged", "trained"]})
    frames = load([tmp_path])
    for name in ("learning_curves", "final_accuracy"):
        assert "n = 2 of 3, 1 diverged" in texts(figures.modules()[name].draw(frames).figure)
    assert "trained 2 of 3 (9–99%)" in texts(figures.modules()["fates"].draw(frames).figure)


def test_every_figure_saves_svg_png_and_the_numbers_it_shows(tmp_path):
    factory.grid_runs(tmp_path / "runs", factory.QUICKSTART)
    frames = load([tmp_path / "runs"])
    found = figures.modules()
    assert {"learning_curves", "loss_curves", "fates", "final_accuracy"} <= set(found)
    for name, module in found.items():
        if figures.lacking(module, frames):
            continue
        if name in {"variants", "highest_rates"}:
            with pytest.raises(figures.UndrawableError):  # two norms, one seed: the figures by rate show them
                module.draw(frames)
            continue
        svg = style.save(module.draw(frames), tmp_path, name)
        assert svg == (tmp_path / f"{name}.svg").read_text()
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert len(pd.read_csv(tmp_path / f"{name}.csv"))
        assert module.TITLE
        assert module.SECTION


def test_a_figure_is_the_same_bytes_twice(tmp_path):
    factory.grid_runs(tmp_path, {("bn", 0.1): "trained"})
    frames = load([tmp_path])
    module = figures.modules()["learning_curves"]
    assert style.svg(module.draw(frames).figure) == style.svg(module.draw(frames).figure)


def test_the_median_curve_is_not_drawn_where_most_seeds_diverged(tmp_path):
    factory.grid_runs(tmp_path, {("none", 0.1): ["diverged", "diverged", "trained"]})
    figure = figures.modules()["learning_curves"].draw(load([tmp_path])).figure
    thick = [
        line
        for axes in figure.axes
        for line in axes.lines
        if line.get_linewidth() > 1.5 and len(line.get_xdata())
    ]
    assert thick == []


def test_a_stretch_with_one_non_finite_loss_is_not_averaged_away(tmp_path):
    from analysis.figures import loss_curves

    run = factory.write_run(tmp_path, epochs=80)
    frames = load([tmp_path])
    batch = frames.metrics["split"] == "batch"
    frames.metrics.loc[batch & (frames.metrics["step"] == 101), "loss"] = np.nan
    data = loss_curves.draw(frames).data
    assert (~np.isfinite(data["loss"])).sum() == 1
    assert len(data) <= loss_curves.BINS
    assert set(data["run_id"]) == {run}


@pytest.mark.parametrize(
    ("rate", "label"), [(0.1, "0.1"), (0.003, "0.003"), (0.0001, "0.0001"), (3e-5, "0.00003"), (2.0, "2")]
)
def test_rates_are_written_as_in_papers(rate, label):
    assert style.rate_label(rate) == label


@pytest.mark.parametrize(
    ("rates", "norms"),
    [((0.1, 0.003), ("bn", "none")), ((0.1, 0.03, 0.003, 1e-4), ("bn", "ln", "gn", "none"))],
)
def test_legends_never_lie_on_each_other(rates, norms):
    figure, _ = plt.subplots(figsize=(7, 3.4))
    style.legends(figure, rates, norms)
    figure.draw_without_rendering()
    first, second = (legend.get_window_extent() for legend in figure.legends)
    assert not first.overlaps(second)
    plt.close(figure)

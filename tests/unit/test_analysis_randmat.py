"""Figures of random matrices: drawn from study.randmat's tables, silent without them."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from analysis import expectations, figures, style
from analysis.claims import Case, Verdict, judge
from analysis.figures import _randmat, bjorck_fig09, bjorck_fig10, bjorck_fig20, bjorck_fig21
from analysis.load import load
from study import randmat, randmat_density
from study.paths import RANDOM_MATRICES
from tests import claim_studies as studies
from tests import factory

FIGURES = {n: m for n, m in figures.modules(apart=True).items() if m.SECTION == _randmat.SECTION}


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    factory.write_run(runs)
    folder = runs / RANDOM_MATRICES
    folder.mkdir()
    for draw in (0, 1):
        randmat.Draw(30, 5, 1.0, 0, draw, folder).run()
    randmat.Draw(30, 2, 2.0, 0, 0, folder).run()  # another gain
    randmat.Draw(20, 2, 1.0, 0, 0, folder).run()  # a smaller size
    randmat.Fit(10, 1, 20, 0, folder).run()
    randmat.write_density(folder)
    return load([runs])


def test_they_stand_apart_from_what_runs_show():
    assert set(FIGURES) == {f"bjorck_fig{n}" for n in ("08", "09", "10", "20", "21")}
    assert not set(FIGURES) & set(figures.modules())
    assert {m.EXPECTED for m in FIGURES.values()} <= set(expectations.EXPECTED)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_says_what_it_shows_and_saves_its_numbers(frames, tmp_path, name):
    module = FIGURES[name]
    drawing = module.draw(frames)
    assert len(module.MEASURED) > 60
    assert module.HOW
    assert drawing.seen
    assert not any("nan" in line for line in drawing.seen)
    style.save(drawing, tmp_path, name)
    assert len(pd.read_csv(tmp_path / f"{name}.csv")) == len(drawing.data) > 0
    plt.close(drawing.figure)


@pytest.mark.parametrize("name", FIGURES)
def test_without_tables_they_are_not_mentioned(tmp_path, name):
    factory.write_run(tmp_path)
    with pytest.raises(figures.UndrawableError, match=r"^$"):
        FIGURES[name].draw(load([tmp_path]))


def test_a_damaged_table_is_named(tmp_path):
    factory.write_run(tmp_path)
    (tmp_path / RANDOM_MATRICES).mkdir()
    (tmp_path / RANDOM_MATRICES / "density.parquet").write_bytes(b"half")
    with pytest.raises(figures.UndrawableError, match="cannot be read"):
        _randmat.table(load([tmp_path]), "density")


def test_only_the_size_with_most_draws_at_gain_one_is_shown(frames):
    rows = _randmat.table(frames, "products")
    assert set(rows["n"]) == {30}
    assert set(rows["gain"]) == {1.0}
    assert len(rows) == 10
    assert set(_randmat.table(frames, "products", 20)["n"]) == {20}
    drawn = pd.DataFrame({"n": [30, 30, 20, 40], "seed": 0, "draw": [0, 1, 0, 0]})
    assert _randmat.size(drawn) == 30  # one try at a larger N hides no others
    assert _randmat.size(drawn[drawn["draw"] == 0]) == 40


def growth(case):
    return {r.claim.id: r for r in judge(case)}["condition_number_grows_with_factors"]


def test_claims_are_judged_on_the_papers_size_and_on_twenty_factors():
    rows = studies.products(np.random.default_rng(0), studies.TRUE, draws=11)
    none = studies.frames([])

    def judged(products):
        return growth(Case(none, {RANDOM_MATRICES: products}))

    assert judged(rows).verdict == Verdict.SUPPORTED
    assert judged(rows[rows["m"] <= 3]).reason == "not measured: draws go to 3 factors, not to 20"
    some = judged(rows[(rows["draw"] > 0) | (rows["m"] <= 3)])
    assert (some.verdict, some.n) == (Verdict.UNDETERMINED, (10,))


def test_small_matrices_decide_nothing(frames):
    found = growth(Case(frames))
    assert found.verdict == Verdict.NOT_RUN
    assert "no products of random matrices of N = 1000" in found.reason


def test_numbers_come_from_the_tables(frames):
    rows = _randmat.table(frames, "products")
    mean = rows.groupby("m")["log10_condition"].mean()
    assert f"M = 3 {mean[3]:.1f}" in bjorck_fig09.draw(frames).seen[0]
    largest = (10 ** rows[rows["m"] == 2]["log10_largest"]).mean()
    assert f"M = 2 {largest:.3g} (2.6 in the limit)" in bjorck_fig10.draw(frames).seen[0]
    assert any("to the power 2.0" in s or "to the power 1.9" in s for s in bjorck_fig21.draw(frames).seen)
    plt.close("all")


def test_bins_hold_shares_and_the_limits_probabilities(frames):
    spectra, curves = _randmat.table(frames, "spectra"), _randmat.table(frames, "density")
    bins = bjorck_fig20.binned(2, spectra, curves)
    assert bins["share"].sum() == pytest.approx(1, abs=0.02)
    expected = np.diff(randmat_density.cdf(10 ** np.array([bins["low"][20], bins["high"][20]]), 2))[0]
    assert bins["expected"][20] == pytest.approx(float(expected), abs=2e-4)
    assert (bins["share"] - bins["expected"]).abs().max() < 0.1

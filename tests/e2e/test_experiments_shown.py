"""Experiments in little, from the command's words to the page: real runs, and what is drawn of them."""

import re

import pandas as pd
import pytest

from analysis import figures, report
from study import naming
from study.compose import compose_all, expand
from study.execute import execute

DRAWN = (
    *(f"fig{n:02}" for n in (2, 3, 4, 5, 6, 7, 14, 15, 16, 18, 19, 22)),
    "table1",
)
"""Figures of the paper that are drawn from `bjorck_init`; fig16 shows 17 as well, fig22 also 23."""


def run_all(folder, *words):
    runs = compose_all(expand([*words, f"runs_dir={folder}"]))
    for run in runs:
        record = execute(run)
        assert record["status"] == "finished"
        assert record["probe_failures"] == []
    return runs


def article(page, name):
    """Return what the page says about one figure."""
    return page.split(f'id="figure-{name}"')[1].split("</article>")[0]


@pytest.mark.slow
def test_everything_before_training_is_drawn(tmp_path):
    """Figs 2-7, 14-19, 22, 23 and Table 1, each beside what the paper reports, with its mark."""
    small = ["data=synthetic", "data.subset=80", "data.size=16", "data.fit=resize", "model.depth=20"]
    small += ["model.width_multiplier=0.25", "batch_size=16", "seed=0", "probes.noise_subset=20"]
    runs = run_all(tmp_path / "runs", "experiment=bjorck_init", *small, "probes.alpha_points=4")
    assert [r.norm.name for r in runs] == ["bn", "none"]
    assert report.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    for name in (f"bjorck_{x}" for x in DRAWN):
        told = article(page, name)
        beside = told.split("<h5>The paper</h5>")[1].split("</ul>")[0]
        assert re.search(r'class="mark">\[[PRMO?]\]<', beside), name
        assert "<h5>Here (synthetic)</h5>" in told, name
        assert 'src="data:image/svg+xml;base64,' in told, name
        drawn = pd.read_csv(tmp_path / f"out/figures/{name}.csv")
        assert set(drawn["norm"]) == {"bn", "none"}, name
    for name, numbers in (("bjorck_fig16", "Figs 16 and 17"), ("bjorck_fig22", "Figs 22 and 23")):
        assert numbers in article(page, name)


@pytest.mark.slow
def test_every_variant_is_drawn_and_tabulated(tmp_path, monkeypatch):
    chosen = {"variants": figures.modules()["variants"]}
    monkeypatch.setattr(figures, "modules", lambda *, apart=False: {} if apart else chosen)
    small = ["data.subset=64", "epochs=1", "model.width_multiplier=1"]
    runs = run_all(tmp_path / "runs", "experiment=norm_parade", *small)
    norms = {r.norm.name for r in runs}
    assert norms == set(naming.norms())
    assert report.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    drawn = pd.read_csv(tmp_path / "out/figures/variants.csv")
    curves = drawn.groupby("norm")["split"].agg(set)
    assert set(curves.index) == norms
    assert all(splits == {"train", "test"} for splits in curves)
    told = article((tmp_path / "out/index.html").read_text(encoding="utf-8"), "variants")
    rows = re.findall(r"<tr><t[hd][^>]*>([a-z0-9_]+)</t[hd]>", told)
    assert set(rows) >= norms
    assert "source=ghost" in told

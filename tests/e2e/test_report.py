"""`python -m analysis.report`: one page for any state of a runs folder, never a stack trace."""

import html.parser
import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import matplotlib
import numpy
import pandas as pd
import pyarrow as pa
import pytest
import scipy
import seaborn

from analysis import page, report, select, stats
from analysis.load import load
from analysis.page import words
from study import naming, randmat
from study.paths import RANDOM_MATRICES
from study.records import RANDOM_MATRICES as RANDOM_TABLES
from study.records import write_table
from tests import claim_studies as studies
from tests import factory

ROOT = Path(__file__).parents[2]


class Page(html.parser.HTMLParser):
    """Tags, links and text of a page; complains about tags that are not closed."""

    VOID = frozenset({"meta", "img", "link", "input", "br"})

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.source = path.read_text(encoding="utf-8")
        self.tags, self.open, self.words = [], [], []
        self.feed(self.source)
        assert self.open == []
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in {"style", "script"}:
            self.words.append(data)


@pytest.fixture
def one_figure(monkeypatch):
    """Draw only the cheapest figure, where the test is about the page's text."""
    from analysis import figures

    chosen = {"fates": figures.modules()["fates"]}
    monkeypatch.setattr(figures, "modules", lambda *, apart=False: {} if apart else chosen)


def make(runs, out, *more):
    code = report.main(["--runs", str(runs), "--out", str(out), *more])
    assert code == 0
    return Page(out / "index.html")


def check_markup(page):
    """Self-contained, every image with a text, every link with a target, tables and regions labelled."""
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 4
    for image in images:
        assert image["src"].startswith("data:image/svg+xml;base64,")
        assert len(image["alt"]) > 40
    links = [v for _, attrs in page.tags for k, v in attrs.items() if k in {"href", "src"}]
    assert all(v.startswith(("#", "data:", "figures/", "tables/")) for v in links)
    assert all((page.path.parent / v).is_file() for v in links if v.startswith(("figures/", "tables/")))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {v[1:] for v in links if v.startswith("#")} <= set(ids)
    assert ("html", {"lang": "en"}) in page.tags
    for tag, attrs in page.tags:
        if tag == "th":
            assert attrs.get("scope") in {"col", "row"}
        if attrs.get("class") == "scroll":
            assert attrs["tabindex"] == "0"
            assert attrs["aria-label"]


def test_one_seed_says_what_one_seed_shows_and_the_page_is_self_contained(tmp_path, capsys):
    ids = factory.grid_runs(tmp_path / "runs", factory.QUICKSTART)
    page = make(tmp_path / "runs", tmp_path / "out")
    printed = capsys.readouterr().out
    assert all(run in printed for run in ids)
    assert f"Report: {(tmp_path / 'out' / 'index.html').resolve()}" in printed
    assert "one seed cannot say" in page.text
    assert "2.5% to 100%" in page.text
    assert "1 diverged, 2 stuck at chance, 3 trained" in page.text
    assert all(run in page.text for run in ids)
    assert "0123456789ab" in page.text
    assert "laptop" in page.text
    check_markup(page)


def test_the_page_opens_with_the_question_and_its_words(tmp_path, one_figure):
    """Before the notices; norms as their yaml says, those of these runs alone."""
    factory.grid_runs(tmp_path / "runs", {("bn", 0.1): "trained", ("none", 0.1): "diverged"})
    factory.grid_runs(tmp_path / "runs", {("bn[order=3]", 0.1): "trained", ("../bn", 0.1): "trained"})
    page = make(tmp_path / "runs", tmp_path / "out")
    opening = page.source.partition('<main id="main">')[2].partition('<p class="notice"')[0]
    assert all(name in opening for name in ("Ioffe", "internal covariate shift", "Bjorck", "A verdict says"))
    told = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", opening))
    assert [*told] == ["setting", "rate", "seed", "chance", "norm", "bn", "bn[order=3]", "none"]
    assert told["bn"] == "Batch normalisation (Ioffe &amp; Szegedy 2015)."
    assert told["bn[order=3]"].startswith("bn with order=3. ")
    assert told["none"] == "No normalisation."


def test_every_norm_has_a_meaning_in_its_yaml():
    table = pd.DataFrame({"norm": sorted(naming.norms())})
    told = dict(words(table))
    assert set(naming.norms()) < set(told)
    assert all(told[norm].endswith(".") and told[norm].count(" ") > 0 for norm in naming.norms())


def test_several_seeds_give_shares_with_intervals(tmp_path, one_figure):
    factory.grid_runs(tmp_path / "runs", factory.FIVE_SEEDS)
    page = make(tmp_path / "runs", tmp_path / "out")
    assert "one seed cannot say" not in page.text
    assert "trained 4 of 5 (28–99%)" in page.text
    assert "diverged 5 of 5 (48–100%)" in page.text


def test_no_best_rate_is_shown_where_runs_were_stopped_early(tmp_path, one_figure):
    factory.grid_runs(tmp_path / "runs", {("bn", 0.1): "trained"}, status="stopped", outcome="trained")
    factory.grid_runs(tmp_path / "runs", {("bn", 0.5): "stuck"})
    page = make(tmp_path / "runs", tmp_path / "out")
    row = re.search(r'<th scope="row">bn</th><td>.*not known.*</tr>', page.source)[0]
    cells = re.findall(r"<td>(.*?)</td>", row)
    assert cells[:3] == ["– (not known: runs were stopped early)", "–", "0.1 (median of 1)"]


def test_text_from_records_is_escaped(tmp_path, one_figure):
    nasty = "<script>alert('x')</script>&\"q"
    factory.write_run(
        tmp_path / "runs", experiment=nasty, host=nasty, extra={"model.<b>": nasty}, norm="<i>n</i>"
    )
    factory.write_run(tmp_path / "runs", seed=1, status="failed", error=nasty)
    page = make(tmp_path / "runs", tmp_path / "out")
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert "alert('x')" in page.text
    assert not any(tag in {"b", "i"} and "alert" in str(attrs) for tag, attrs in page.tags)
    assert nasty not in page.source


def test_the_tables_lie_beside_the_page_and_are_escaped(tmp_path, one_figure):
    factory.write_run(tmp_path / "runs", norm="a_b&c%d#e", extra={"model.x": "$y^z~{|}\\\nend"})
    page = make(tmp_path / "runs", tmp_path / "out")
    check_links = [a["href"] for tag, a in page.tags if tag == "a" and a["href"].startswith("tables/")]
    assert {"tables/verdicts.tex", "tables/outcomes.md", "tables/table4.tex"} <= set(check_links)
    assert {f"tables/{p.name}" for p in (tmp_path / "out/tables").iterdir()} == set(check_links)
    text = (tmp_path / "out/tables/outcomes.tex").read_text()
    assert r"a\_b\&c\%d\#e & 0.1 & 1 & 0 & 0 & 0 &" in text
    assert r"\$y\textasciicircum{}z\textasciitilde{}\{$|$\}" in text


def test_the_terminal_says_where_runs_without_an_outcome_stand(tmp_path, one_figure, capsys):
    runs = tmp_path / "runs"
    ids = {s: factory.write_run(runs, seed=i, status=s) for i, s in enumerate(("failed", "preempted"))}
    ids["lost"] = factory.write_run(runs, seed=2, status="running")  # by nobody
    ids["trained"] = factory.write_run(runs, seed=3)
    ids["not trained"] = factory.write_run(runs, seed=4, steps_total=0)
    page = make(runs, tmp_path / "out")
    lines = capsys.readouterr().out.splitlines()
    for standing, run in ids.items():
        assert any(line.endswith(run) and f" {standing} " in line for line in lines), standing
    assert "undecided" not in "\n".join(lines)
    assert "lost" in page.text


def test_the_terminal_names_what_is_left_out_and_why(tmp_path, one_figure, capsys):
    runs = tmp_path / "runs"
    sound = factory.write_run(runs, seed=0)
    cut, gone = (factory.write_run(runs, seed=s) for s in (1, 2))
    data = (runs / cut / "metrics.parquet").read_bytes()
    (runs / cut / "metrics.parquet").write_bytes(data[:100])
    (runs / gone / "metrics.parquet").unlink()
    make(runs, tmp_path / "out")
    table, _, left = capsys.readouterr().out.partition("2 runs left out, whole or in part:\n")
    assert f"  {cut}: metrics.parquet " in left
    assert f"  {gone}: metrics.parquet is missing" in left
    assert sound not in left
    assert all(" no accuracy " in line for line in table.splitlines() if line.endswith((cut, gone)))
    assert "left out" not in report.left_out_lines(load([runs]).subset([sound]))


def test_of_many_runs_left_out_the_terminal_names_ten(tmp_path):
    for seed in range(13):
        factory.write_run(tmp_path, seed=seed, status="failed")
    lines = report.left_out_lines(load([tmp_path])).splitlines()
    assert len(lines) == 12
    assert lines[-1] == "  and 3 more, listed on the page"


def test_every_figure_says_what_how_the_paper_and_what_is_seen(tmp_path):
    factory.grid_runs(tmp_path / "runs", factory.QUICKSTART)
    page = make(tmp_path / "runs", tmp_path / "out")
    assert page.source.count('<article class="told"') == page.source.count("<img") == 4
    assert page.source.count("<b>What is measured.</b>") == page.source.count("<b>How.</b>") == 4
    assert page.source.count("<h5>The paper</h5>") == page.source.count("<h5>Here") == 4
    assert page.source.count("<ul></ul>") == 0
    assert page.text.count("as 2 (1 to 9); it is no confidence interval.") == 1
    parts = re.findall(r"<h5>(The paper|An earlier trial of ours)</h5>\s*<ul>(.*?)</ul>", page.source, re.S)
    assert [head for head, text in parts if "[O]" in text] == ["An earlier trial of ours"]
    assert sum(head == "An earlier trial of ours" for head, _ in parts) == 1


def test_a_verdict_leads_to_its_figures_and_runs_and_back(tmp_path):
    ids = factory.grid_runs(tmp_path / "runs", factory.QUICKSTART)
    page = make(tmp_path / "runs", tmp_path / "out")
    check_markup(page)
    rows = re.findall(r'<tr id="verdict-\d+".*?</dl>', page.source, re.S)
    row = next(r for r in rows if "bn_permits_larger_rates" in r)
    anchor = re.match(r'<tr id="([^"]+)"', row)[1]
    targets = re.findall(r'href="#([^"]+)"', row)
    assert "figure-fates" in targets
    rows = {a["id"] for tag, a in page.tags if tag == "tr" and a.get("id", "").startswith("run-")}
    assert len(rows) == len(ids)
    judged = [t for t in targets if t.startswith("run-")]
    assert len(judged) == 2
    assert set(judged) <= rows
    figure = re.search(r'id="figure-fates".*?</article>', page.source, re.S)[0]
    assert f'href="#{anchor}"' in figure


@pytest.mark.parametrize("seeds", [1, 3])
def test_all_diverged(tmp_path, seeds):
    factory.grid_runs(tmp_path / "runs", {("none", 0.1): ["diverged"] * seeds})
    assert "Every complete run diverged" in make(tmp_path / "runs", tmp_path / "out").text


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_runs_at_the_smoke_scale_are_said_to_decide_nothing(tmp_path, one_figure, scale):
    factory.grid_runs(tmp_path / "runs", {("bn", 0.1): "trained"}, scale=scale)
    notices = re.findall(
        r'<p class="notice" role="note">(.*?)</p>', make(tmp_path / "runs", tmp_path / "out").source
    )
    said = [
        text for text in notices if text.startswith("Runs at scale=smoke are synthetic images on ResNet-8:")
    ]
    assert len(said) == (scale == "smoke")


def test_one_run(tmp_path, one_figure):
    run = factory.write_run(tmp_path / "runs")
    page = make(tmp_path / "runs" / run, tmp_path / "out")
    assert "1 run: 1 trained." in page.text


def test_an_empty_folder(tmp_path):
    (tmp_path / "runs").mkdir()
    page = make(tmp_path / "runs", tmp_path / "out")
    assert "There is nothing to show: the folders given hold no run directory." in page.text
    assert "Nothing: there is no run directory in the folders given." in page.text
    assert "There are no trials" in page.text
    assert "see Left out" not in page.text


def test_a_folder_of_random_matrices_alone_shows_their_figures_and_verdicts(tmp_path):
    folder = tmp_path / "runs" / RANDOM_MATRICES
    folder.mkdir(parents=True)
    randmat.Draw(10, 3, 1.0, 0, 0, folder).run()
    rows = studies.products(numpy.random.default_rng(0), studies.TRUE, draws=11)
    rows = rows.assign(log10_smallest=0.0)
    products = pa.Table.from_pandas(rows, schema=RANDOM_TABLES["products"], preserve_index=False)
    write_table(folder / "products-n1000.parquet", products)
    randmat.write_density(folder)
    shown = make(tmp_path / "runs", tmp_path / "out")
    figures = ["bjorck_fig08", "bjorck_fig09", "bjorck_fig10", "bjorck_fig20", "bjorck_fig21"]
    assert re.findall(r'id="figure-(bjorck\w+)"', shown.source) == figures
    assert "No runs." in shown.text
    assert "Only what belongs to no run is shown: the folders given hold no run directory." in shown.text
    verdicts = page.build(load(tmp_path / "runs"), tmp_path / "again", command="", sweep=None).verdicts
    assert {v.verdict for v in verdicts} == {"supported", "not run"}
    assert [v.claim for v in verdicts if v.verdict == "supported"] == [
        "condition_number_grows_with_factors",
        "largest_singular_value_grows_with_factors",
    ]


@pytest.mark.parametrize("status", ["running", "failed", "preempted"])
def test_only_unfinished_runs(tmp_path, status):
    run = factory.write_run(tmp_path / "runs", status=status)
    page = make(tmp_path / "runs", tmp_path / "out")
    assert "No run is complete yet" in page.text
    assert page.text.count(run) >= 2
    assert "Not drawn" in page.text


def test_the_page_says_on_what_and_with_what_runs_were_made_and_analysed(tmp_path, one_figure):
    for seed, device in enumerate(("cpu (AMD EPYC)", "cpu (AMD EPYC)", "cuda (NVIDIA H200)")):
        factory.write_run(tmp_path / "runs", seed=seed, device=device)
    page = make(tmp_path / "runs", tmp_path / "out")
    said = dict(
        re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page.source[page.source.index('id="provenance"') :])
    )
    assert said["device and its model"] == "cpu (AMD EPYC) (2 runs); cuda (NVIDIA H200) (1 runs)"
    for library in (numpy, scipy, pd, pa, duckdb, matplotlib, seaborn):
        name = library.__name__
        assert f"{name} {library.__version__}" in said["analysed with"]
    assert said["torch"] == "2.14.1"
    assert said["code (git commit)"] == "0123456789ab"


def test_a_verdict_shows_the_values_it_rests_on_and_the_size_of_the_effect(tmp_path, one_figure):
    """Each run's value as the test was given it; a run that diverged is there, as what it counts as."""
    fates = {("bn", 0.1): ["trained"] * 2 + ["diverged"], ("bn", 0.0001): ["trained"] * 3}
    factory.grid_runs(tmp_path / "runs", fates)
    table = select.outcomes(load([tmp_path / "runs"])).set_index(["lr", "seed"])["last_test"]
    page = make(tmp_path / "runs", tmp_path / "out")
    rows = re.findall(r'<tr id="verdict-\d+".*?</details>', page.source, re.S)
    row = next(r for r in rows if "larger_rates_improve_bn" in r)
    values = re.search(r'class="evidence measured".*?</table>', row, re.S)[0]
    cells = [re.findall(r">([^<>]+)</t[hd]>", r)[:3] for r in re.findall(r"<tr>.*?</tr>", values, re.S)]
    assert cells[0] == ["cell", "seed", "percent"]
    expected = [
        [f"bn at {lr:g}", str(seed), f"{100 * table[(lr, seed)]:.1f}%"]
        for lr in (0.1, 0.0001)
        for seed in range(3)
    ]
    expected[2][2] = "10.2% (diverged)"
    assert cells[1:] == expected
    assert "Cliff" in row
    scores = [[*table[0.1][:2], 0.102], list(table[0.0001])]
    assert f"δ = {stats.cliffs_delta(*scores):.3g}".replace("-", "−") in row
    fates = next(r for r in rows if "bn_permits_larger_rates" in r)
    assert re.findall(r"<td>\d</td><td>([a-z]+)</td>", fates) == ["trained", "trained", "diverged"]


def test_a_claim_that_was_not_run_says_how_to_run_it(tmp_path, one_figure):
    factory.grid_runs(tmp_path / "runs", {("bn", 0.1): "trained"})
    page = make(tmp_path / "runs", tmp_path / "out")
    told = {}
    for row in re.findall(r'<tr id="verdict-\d+".*?</dl>', page.source, re.S):
        claim, verdict = (
            re.search(p, row)[1] for p in (r"<dt>claim</dt><dd>(.*?)</dd>", r'data-kind="(.*?)"')
        )
        command = re.search("<dt>to run it</dt><dd>(.*?)</dd>", row)
        told[claim] = command and command[1]
        assert verdict == "not run" or command is None
    assert told["warm_start_raises_the_highest_rate"] == "python -m study.parts run max_lr max_lr_warm_start"
    assert told["bn_permits_larger_rates"] == "python -m study.parts run fig01"


def test_only_damaged_runs(tmp_path):
    run = factory.write_run(tmp_path / "runs")
    (tmp_path / "runs" / run / "run.json").write_text("{")
    page = make(tmp_path / "runs", tmp_path / "out")
    assert "There is nothing to show" in page.text
    assert run in page.text


def test_mixed_settings_are_shown_apart(tmp_path, one_figure):
    factory.grid_runs(tmp_path / "runs", factory.QUICKSTART)
    factory.grid_runs(tmp_path / "runs", factory.QUICKSTART, epochs=3, scale="smoke")
    page = make(tmp_path / "runs", tmp_path / "out")
    assert "2 settings (scales: laptop, smoke)" in page.text
    assert "Setting 2: outcomes" in page.text
    assert sum(tag == "img" for tag, _ in page.tags) == 2
    assert (tmp_path / "out/figures/setting2-fates.csv").exists()


def test_verdicts_number_settings_as_the_page_does(tmp_path, one_figure):
    """A claim on several depths rests on two of them; one on rates is judged on the deepest alone."""
    fates = {("bn", 0.1): "trained", ("none", 0.05): "trained", ("none", 0.1): "diverged"}
    factory.grid_runs(tmp_path / "runs", fates)
    shallow = {"depth": 32, "extra": {"model.depth": 32}}
    factory.grid_runs(tmp_path / "runs", {("none", 0.05): "trained", ("none", 0.1): "stuck"}, **shallow)
    factory.grid_runs(tmp_path / "runs", {("bn", 0.1): "trained"}, epochs=1)
    page = make(tmp_path / "runs", tmp_path / "out")
    heads = re.findall(r"<h2[^>]*>Setting (\d): [^<]*</h2>\s*<p class=\"setting\">(.*?) \(scale", page.source)
    number = {("resnet32" in name, "epochs=15" in name): n for n, name in heads}
    deep, both = number[False, True], sorted((number[False, True], number[True, True]))
    found = {}
    for row in re.findall(r'<tr id="verdict-\d+".*?</details></td>', page.source, re.S):
        claim = re.search(r"<dt>claim</dt><dd>(.*?)</dd>", row)[1]
        found[claim] = re.findall(r'href="#setting-(\d)">Setting (\d)</a>', row)
        for column in re.findall(r'class="evidence outcomes".*?</table>', row, re.S):
            assert {n for n, _ in found[claim]} == set(re.findall(r'<tr><th scope="row">(\d)', column))
    assert found["bn_permits_larger_rates"] == [(deep, deep)]
    assert found["shallower_networks_train_at_higher_rates"] == [(n, n) for n in both]
    links = re.findall(r'<a href="#figure-(setting(\d)-[^"]*)">([^<]*)</a>', page.source)
    assert {text for _, n, text in links} == {f"Fate by rate and norm (setting {n})" for n in both}
    assert all(text.endswith(f" (setting {n})") for _, n, text in links)
    lines = (tmp_path / "out/tables/verdicts.md").read_text().splitlines()
    assert any(line.startswith(f"| {both[0]}, {both[1]} | undetermined ") for line in lines)
    assert {f"Setting {n}: " for n in both} <= set(re.findall(r"Setting \d: ", "".join(lines)))


def test_a_probe_table_missing_in_some_runs_is_named(tmp_path, one_figure):
    table = pa.table({"step": [0], "value": [1.0]})
    factory.write_run(tmp_path / "runs", seed=0, probes={"moments": table})
    without = factory.write_run(tmp_path / "runs", seed=1)
    page = make(tmp_path / "runs", tmp_path / "out")
    assert "has no table of probe 'moments'" in page.text
    assert page.text.count(without) >= 2


def test_runs_measured_before_training_only_have_no_outcomes(tmp_path, one_figure):
    run = factory.write_run(tmp_path / "runs", steps_total=0, steps_done=0)
    page = make(tmp_path / "runs", tmp_path / "out")
    assert "1 run: 1 measured before training only." in page.text
    assert "they have no outcomes" in page.text
    assert "not trained" in page.text
    assert run in page.text


def test_runs_of_one_epoch_are_first_steps_without_outcomes(tmp_path):
    """Beside a grid's: no curves or accuracies of theirs, which would stand beside the paper's 93.3%."""
    factory.grid_runs(tmp_path / "runs", {("bn", 0.1): ["stuck"] * 2, ("none", 0.1): "diverged"}, epochs=1)
    factory.grid_runs(tmp_path / "runs", {("bn", 0.1): "trained", ("none", 0.1): "stuck"})
    page = make(tmp_path / "runs", tmp_path / "out")
    assert (
        "5 runs: 1 stuck at chance, 1 trained, 3 trained for one epoch to measure first steps." in page.text
    )
    first = re.search(r"Setting (\d): first steps", page.text)[1]
    section = page.source.partition(f'<section id="setting-{first}"')[2].partition("</section>")[0]
    assert "they have no outcomes" in section
    assert not re.search("<img|<table|93.3", section)
    assert "more than one epoch of training.</p>" in section
    assert sum(tag == "img" for tag, _ in page.tags) == 4
    rows = re.findall(r"^\| \d .*", (tmp_path / "out/tables/outcomes.md").read_text(), re.M)
    assert [row.split("|")[1].strip() for row in rows] == [str(3 - int(first))] * 2


def test_a_sweep_limits_the_page(tmp_path, one_figure):
    factory.write_run(tmp_path / "runs", seed=0, sweeps=("a",))
    other = factory.write_run(tmp_path / "runs", seed=1, sweeps=("b",))
    page = make(tmp_path / "runs", tmp_path / "out", "--sweep", "a")
    assert "Sweep a." in page.text
    assert other not in page.text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--runs", "nowhere"], "there is no folder 'nowhere'"),
        (
            ["--runs", "runs", "--sweep", "quick"],
            "no run belongs to sweep 'quick'. Did you mean 'quickstart'?",
        ),
        (["--runs", "runs", "--out", "file/report"], "the report could not be written"),
    ],
)
def test_what_a_person_can_mend_is_one_sentence(
    tmp_path, one_figure, monkeypatch, capsys, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    factory.grid_runs(tmp_path / "runs", {("bn", 0.1): "trained"})
    (tmp_path / "file").write_text("")
    assert report.main(arguments) != 0
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1


def test_from_the_command_line(tmp_path):
    factory.grid_runs(tmp_path / "runs", {("bn", 0.1): "trained"})
    command = [
        sys.executable,
        "-m",
        "analysis.report",
        "--runs",
        tmp_path / "runs",
        "--out",
        tmp_path / "out",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "trained" in done.stdout
    assert "python -m analysis.report --runs" in Page(tmp_path / "out" / "index.html").text


def test_two_reports_at_once_into_one_folder_both_succeed(tmp_path, monkeypatch, one_figure):
    """Each page is written under a name of its own and renamed: the last one stands, whole."""
    factory.grid_runs(tmp_path / "runs", {("bn", 0.1): "trained"})
    frames = load([tmp_path / "runs"])
    inner, replace = [], os.replace

    def interrupted(source, target):
        if str(target).endswith("index.html") and not inner:
            inner.append(1)
            report.write(frames, tmp_path / "out", "the other")
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    text = report.write(frames, tmp_path / "out", "the one").read_text()
    assert inner
    assert "<dd>the one</dd>" in text
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "figures",
        "index.html",
        "outcomes.csv",
        "tables",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_is_full_is_one_sentence(tmp_path, one_figure, capsys):
    factory.grid_runs(tmp_path / "runs", {("bn", 0.1): "trained"})
    out = tmp_path / "out"
    out.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", out], check=False).returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        assert report.main(["--runs", str(tmp_path / "runs"), "--out", str(out)]) == 1
        error = capsys.readouterr().err
        assert "could not be written" in error
        assert "No space left" in error
        assert len(error.strip().splitlines()) == 1
        assert not (out / "index.html").exists()
    finally:
        subprocess.run(["umount", "--lazy", out], check=True)


def test_many_runs_print_one_line_per_cell(tmp_path, one_figure, capsys):
    fates = {("bn", 0.1): ["trained"] * 41, ("none", 0.1): ["diverged"] * 3}
    factory.grid_runs(tmp_path / "runs", fates, epochs=2)
    make(tmp_path / "runs", tmp_path / "out")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 8
    assert "n = 0 of 3, 3 diverged" in "\n".join(lines)


def test_spoilt_running_statistics_are_marked(tmp_path):
    spoilt = [{"layer": "block2.conv1", "step": 17}, {"layer": "stem", "step": 16}]
    factory.grid_runs(tmp_path / "runs", {("bn", 0.1): "trained"}, poisoned=spoilt)
    frames = load([tmp_path / "runs"])
    assert frames.runs["poisoned"].tolist() == [True]
    text = report.write(frames, tmp_path / "out", "command").read_text()
    assert "running statistics met a batch with non-finite values (stem at step 16)" in text
    factory.grid_runs(tmp_path / "sound", {("bn", 0.1): "trained"})
    assert load([tmp_path / "sound"]).runs["poisoned"].tolist() == [False]


def test_a_probe_that_many_runs_lack_is_one_line():
    rows = [(run, "probe", "it has no table of probe gradient_tails", "") for run in ("a", "b")]
    rows += [("a", "probe", "it has no table of probe channel_pairs", ""), ("b", "damaged", "run.json", "x")]
    table = pd.DataFrame(rows, columns=["run_id", "kind", "problem", "path"])
    assert sorted(page._problems(table)) == [
        ("2 runs", "probe", "it has no table of probe gradient_tails", ""),
        ("a", "probe", "it has no table of probe channel_pairs", ""),
        ("b", "damaged", "run.json", "x"),
    ]
    assert page._problems(table.iloc[:0]) == []

"""Tables of the paper from runs, and their LaTeX and Markdown files: right values, safe texts."""

import re
import shutil
import subprocess

import pytest

from analysis import export, tables
from analysis.load import load
from analysis.tables import Table
from tests import factory
from tests.probe_tables import frames as probe_frames

HOSTILE = (
    'a_b & 50% #1 $x$ {y} \\end{document} ~^|<b>"q"`c`\n| new | row |\n\n*bold* [l](u) β≥0 ρ 𝛼 中 é\x00\u202e'
)


def made(folder):
    return {t.name: t for t in tables.tables(load([folder]))}


def row(table, *start):
    return next(r for r in table.rows if r[: len(start)] == start)


def test_the_outcome_table_counts_and_averages(tmp_path):
    factory.grid_runs(tmp_path, factory.FIVE_SEEDS)
    found = made(tmp_path)
    assert found["outcomes"].columns[:6] == (
        "norm",
        "rate",
        "trained",
        "stuck at chance",
        "diverged",
        "undecided",
    )
    assert row(found["outcomes"], "none", "0.003")[2:6] == ("1", "2", "2", "0")
    assert row(found["outcomes"], "none", "0.1")[2:] == ("0", "0", "5", "0", "–", "–")
    assert row(found["outcomes"], "bn", "0.003")[2:6] == ("5", "0", "0", "0")
    accuracy = float(row(found["outcomes"], "bn", "0.003")[6].rstrip("%"))
    last = load([tmp_path]).metrics.query("split == 'test' and epoch == 15 and norm == 'bn'")
    lr = last["run_id"].astype(str).str.contains("lr0.003")
    assert accuracy == pytest.approx(100 * last.loc[lr, "accuracy"].mean(), abs=0.051)


def test_table_3_says_where_no_higher_rate_was_tried(tmp_path):
    factory.grid_runs(tmp_path, factory.FIVE_SEEDS)
    table = made(tmp_path)["table3"]
    assert row(table, "resnet110", "bn")[2:4] == ("≥ 0.1", "5 of 5")
    assert row(table, "resnet110", "bn")[4].split("; ").count("≥ 0.1") == 4
    assert row(table, "resnet110", "none")[2:4] == ("–", "2 of 5")
    assert sorted(row(table, "resnet110", "none")[4].split("; ")) == [
        "0.0001–0.003",
        "0.003–0.1",
        *["< 0.0001"] * 3,
    ]


def test_table_4_counts_what_diverged(tmp_path):
    factory.grid_runs(tmp_path, {("none", 0.003): ["trained", "diverged", "trained"]})
    assert row(made(tmp_path)["table4"], "none", "0.003")[3] == "n = 2 of 3, 1 diverged"


def test_table_2_is_of_the_parts_of_bn(tmp_path):
    factory.grid_runs(tmp_path, {("bn", 0.1): "trained", ("none", 0.1): "diverged"})
    assert "table2" not in made(tmp_path)
    factory.grid_runs(tmp_path, {("bn_no_mean", 0.1): "diverged", ("bn_no_mean", 0.01): "trained"})
    table = made(tmp_path)["table2"]
    assert [r[0] for r in table.rows] == ["bn", "bn_no_mean", "none"]
    assert row(table, "bn_no_mean")[1] == "the mean"
    assert re.fullmatch(r"9\d\.\d% at 0.01 \(n = 1\)", row(table, "bn_no_mean")[2])
    assert re.fullmatch(r"– at 0.1; 9\d\.\d% at 0.01", row(table, "bn_no_mean")[3])


def test_the_best_rate_is_not_known_where_a_search_stopped_runs_early(tmp_path):
    """Beside a grid's runs those of a search do not count."""
    search = ("max_lr-max_lr",)
    factory.grid_runs(tmp_path, {("bn", 0.1): "trained"}, status="stopped", outcome="trained", sweeps=search)
    factory.grid_runs(tmp_path, {("bn", 0.5): "stuck", ("bn_top", 0.5): "stuck"}, sweeps=search)
    factory.grid_runs(tmp_path, {("bn_top", 0.03): ["trained", "diverged"]}, final=0.8)
    factory.grid_runs(tmp_path, {("none", 0.003): "trained"}, status="failed")
    texts = tables.best_rates(load([tmp_path]), ["bn", "bn_top", "none"])
    assert texts["bn"] == "– (not known: runs were stopped early)"
    assert re.fullmatch(r"4\d\.\d% at 0.03 \(n = 2, 1 diverged\)", texts["bn_top"])
    assert texts["none"] == "–"


def test_table_1_is_that_of_the_figure(tmp_path):
    probe_frames(tmp_path)
    table = made(tmp_path)["table1"]
    assert row(table, "layer 18", "bn")[2:5] == ("100", "0.5", "200")
    assert row(table, "layer 18", "none")[2:5] == ("100", "50", "2")


def test_settings_stand_apart_by_number(tmp_path):
    factory.grid_runs(tmp_path, {("bn", 0.1): "trained"})
    factory.grid_runs(tmp_path, {("bn", 0.1): "diverged"}, epochs=3)
    table = made(tmp_path)["outcomes"]
    assert table.columns[0] == "setting"
    assert sorted(r[:6] for r in table.rows) in (
        [("1", "bn", "0.1", "1", "0", "0"), ("2", "bn", "0.1", "0", "0", "1")],
        [("1", "bn", "0.1", "0", "0", "1"), ("2", "bn", "0.1", "1", "0", "0")],
    )
    assert "Setting 1: digits" in table.note
    assert "Setting 2: digits" in table.note


def test_no_runs_no_tables(tmp_path):
    assert tables.tables(load([tmp_path])) == []
    factory.write_run(tmp_path, steps_total=0)
    assert tables.tables(load([tmp_path])) == []


def hostile(name="t"):
    return Table(name, HOSTILE, HOSTILE, (HOSTILE, "b"), ((HOSTILE, "[1]"), ("[x]", "*y"), ("", "–")))


def test_latex_of_a_hostile_text_has_no_command_of_its_own():
    text = export.latex(hostile())
    body = text[text.index(r"\caption") :]
    assert body.isascii()
    commands = set(re.findall(r"\\[a-zA-Z]+", body))
    assert commands <= {
        *(f"\\{c}" for c in ("caption", "label", "begin", "end", "toprule", "midrule", "bottomrule")),
        *(f"\\{c}" for c in ("linewidth", "textbackslash", "textasciicircum", "textasciitilde")),
        *(f"\\{c}" for c in ("beta", "geq", "rho")),
    }
    assert re.findall(r"\\(?:begin|end)\{\w+\}", body) == [
        r"\begin{tabular}",
        r"\end{tabular}",
        r"\end{table}",
    ]
    rows = re.search(r"\\toprule\n(.*)\\bottomrule", body, re.S)[1].replace("\\midrule\n", "").splitlines()
    assert len(rows) == 4
    assert all(len(re.findall(r"(?<!\\)&", line)) == 1 for line in rows)
    assert not any(line.startswith("[") for line in rows)
    assert not re.search(r"(?<!\\)[%#]", body)
    assert "U+4E2D" in body


def test_markdown_of_a_hostile_text_has_no_markup_and_no_row_of_its_own():
    lines = export.markdown(hostile()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 5
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in table)
    assert not re.search(r"(?<!\\)[<>`_\[\]]", "\n".join(lines))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
def test_latex_compiles(tmp_path):
    factory.grid_runs(tmp_path / "runs", factory.FIVE_SEEDS)
    export.write([*tables.tables(load([tmp_path / "runs"])), hostile("hostile")], tmp_path)
    inputs = "\n".join(rf"\input{{{p.stem}}}" for p in sorted(tmp_path.glob("*.tex")))
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    (tmp_path / "paper.tex").write_text(head + inputs + "\n\\end{document}\n")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_files_of_tables_that_are_gone_are_removed(tmp_path):
    export.write([hostile("a"), hostile("b")], tmp_path)
    export.write([hostile("b")], tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.md", "b.tex"]

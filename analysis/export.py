"""Tables of texts as LaTeX (booktabs) and Markdown files, safe whatever the texts hold."""

import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from analysis.tables import Table

LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    '"': "''",
    "–": "--",
    "—": "---",
    "−": r"$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "÷": r"$\div$",
    "Σ": r"$\Sigma$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "η": r"$\eta$",
    "κ": r"$\kappa$",
    "∂": r"$\partial$",
    "∇": r"$\nabla$",
    "§": r"\S{}",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    "’": "'",
    "∞": r"$\infty$",
    "→": r"$\rightarrow$",
    "√": r"$\surd$",
} | {c: rf"$^{{{d}}}$" for c, d in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True)}
"""Character → what pdflatex sets it with; anything else beyond ASCII is spelt out (see `latex_text`)."""

WIDE = 26
"""A column with a longer text than this (characters) is broken into lines."""

LINE = 105
"""Characters that a line holds, roughly; what the narrow columns leave is shared among the wide ones."""


def write(tables: Iterable[Table], folder: Path) -> None:
    """Write NAME.tex and NAME.md of every table; those of tables that are gone are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    written = set()
    for table in tables:
        for suffix, text in ((".tex", latex(table)), (".md", markdown(table))):
            path = folder / (table.name + suffix)
            path.write_text(text, encoding="utf-8")
            written.add(path)
    for path in (*folder.glob("*.tex"), *folder.glob("*.md")):
        if path not in written:
            path.unlink()


def latex(table: Table) -> str:
    r"""A `table` environment to \input; its document needs \usepackage{booktabs} and nothing else."""
    lines = [
        "% needs \\usepackage{booktabs}; made by python -m analysis.report",
        r"\begin{table}",
        r"\centering\footnotesize",
        rf"\caption{{{latex_text(table.title)}. {latex_text(table.note)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{_columns(table)}}}",
        r"\toprule",
        _row(table.columns),
        r"\midrule",
        *(_row(row) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def markdown(table: Table) -> str:
    """A heading, a pipe table and its note."""
    rows = [table.columns, *table.rows]
    texts = [[markdown_text(cell) for cell in row] for row in rows]
    rule = ["---"] * len(table.columns)
    lines = ["| " + " | ".join(row) + " |" for row in (texts[0], rule, *texts[1:])]
    return "\n".join([f"**{markdown_text(table.title)}**", "", *lines, "", markdown_text(table.note), ""])


def latex_text(text: str) -> str:
    """Escape a text: on one line, without commands; a character that pdflatex lacks as U+4E2D.

    Accented letters keep their base letter only: names of settings are ASCII but for mischief.
    """
    return "".join(map(_latex_character, _one_line(text)))


def _latex_character(character: str) -> str:
    if character in LATEX:
        return LATEX[character]
    if character.isascii():
        return character
    base = unicodedata.normalize("NFKD", character)[0]
    return base if base.isascii() and base.isalnum() else f"U+{ord(character):04X}"


def markdown_text(text: str) -> str:
    """Escape a text for a cell of a pipe table: no markup, no HTML, no cell of its own."""
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>#|~$&!" else c for c in _one_line(text))


def _one_line(text: str) -> str:
    """All white space, and characters that print nothing, as single blanks."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _row(cells: Sequence[str]) -> str:
    # A row that begins with [ would be read as an argument of the \\ before it.
    texts = [latex_text(cell) for cell in cells]
    texts[0] = "{}" + texts[0] if texts[0].startswith(("[", "*")) else texts[0]
    return " & ".join(texts) + r" \\"


def _columns(table: Table) -> str:
    """`l` for narrow columns, `p` for wide ones, which share what the narrow ones leave of the line."""
    rows = [table.columns, *table.rows]
    longest = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    wide = [length for length in longest if length > WIDE]
    left = max(0.35, 1 - sum(length + 2 for length in longest if length <= WIDE) / LINE)
    shares = [f"p{{{left * min(n, 90) / sum(min(w, 90) for w in wide):.2f}\\linewidth}}" for n in wide]
    return "".join(shares.pop(0) if length > WIDE else "l" for length in longest)

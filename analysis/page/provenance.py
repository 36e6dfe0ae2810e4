"""Where the numbers of the page come from."""

import datetime
import importlib.metadata
import platform
from collections.abc import Iterator

import pandas as pd

from analysis.page.values import MISSING

LIBRARIES = ("numpy", "scipy", "pandas", "pyarrow", "duckdb", "matplotlib", "seaborn")
"""What the numbers and figures of the page are computed and drawn with."""

RECORDED = (
    ("scale", "scale"),
    ("experiment", "experiment"),
    ("host", "host"),
    ("device and its model", "device"),
    ("CPU threads per run", "threads"),
    ("Python", "python"),
    ("torch", "torch"),
    ("torchvision", "torchvision"),
    ("numpy", "numpy"),
    ("study", "study"),
)


def provenance(table: pd.DataFrame, command: str) -> Iterator[tuple[str, str]]:
    """Yield (what, value), with how many runs share each value where they differ."""
    yield "report made by", command
    yield "report made at", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    yield "analysed with", f"Python {platform.python_version()}, {versions}"
    if table.empty:
        return
    commits = table["commit"].fillna("unknown").str.slice(0, 12)
    dirty = table["dirty"].map({True: " with uncommitted changes", False: ""}).fillna("")
    yield "code (git commit)", _values(commits + dirty.astype("str"))
    for label, column in RECORDED:
        texts = table[column].astype("str").replace({"": MISSING, "<NA>": MISSING, "nan": MISSING})
        yield label, _values(texts)
    dates = sorted(table["updated"].dropna())
    yield "runs ended", f"{dates[0]} to {dates[-1]}" if dates else MISSING
    seconds = table["seconds"].sum()
    spent = f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.1f} seconds"
    yield "training time, all runs", spent


def _values(column: "pd.Series[str]") -> str:
    counts = column.fillna(MISSING).value_counts()
    if len(counts) == 1:
        return str(counts.index[0])
    return "; ".join(f"{value} ({n} runs)" for value, n in counts.items())

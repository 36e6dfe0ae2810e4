"""`python -m analysis.report --runs DIR --out DIR [--sweep NAME] [--brief]`: one self-contained HTML page.

Writes OUT/index.html, OUT/figures (SVG, PNG and CSV of each figure), OUT/tables (LaTeX and Markdown) and
OUT/outcomes.csv, and prints the table of outcomes, what is left out and why, and the path of the page.

The exit code says whether the report was made. Runs that are damaged, failed or unfinished are named, on
the terminal and on the page, and do not change it: a sweep that is still going on has such runs, and its
report is no failure.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.load import Frames, LoadError, load
from study import pipes
from study.records import write_bytes

if TYPE_CHECKING:
    import pandas as pd


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the report; returns the exit code: 0, or 1 after one plain sentence on stderr."""
    options = _parser().parse_args(arguments)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        frames = load(options.runs)
        if options.sweep:
            frames = frames.sweep(options.sweep)
        page = write(
            frames, options.out, f"python -m analysis.report {shlex.join(given)}".strip(), options.sweep
        )
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: the report could not be written: {error}", file=sys.stderr)
        return 1
    said = [] if options.brief else [outcome_lines(frames)]
    said += [left_out_lines(frames), f"Report: {page.resolve()}"]
    print("\n\n".join(filter(None, said)))
    return 0


def write(frames: Frames, out: Path, command: str, sweep: str | None = None) -> Path:
    """Write the report into `out` and return the path of its page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from analysis import page, select

    out.mkdir(parents=True, exist_ok=True)
    content = page.build(frames, out, command=command, sweep=sweep)
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = templates.get_template("report.html.j2").render(page=content)
    target = out / "index.html"
    write_bytes(target, html.encode())
    select.outcomes(frames).to_csv(out / "outcomes.csv", index=False)
    return target


def outcome_lines(frames: Frames) -> str:
    """The table of outcomes as text: one line per run, or per cell when there are more than 40 runs."""
    from analysis import select, stats, style

    table = select.outcomes(frames)
    if table.empty:
        return "No runs."
    if len(table) > 40:
        return _cells(stats.fate_table(table), stats.accuracy_table(table))
    shown = table.assign(
        fate=select.standing(table),
        rate=table["lr"].map(style.rate_label),
        best=table["best_test"].map(_percent),
        last=table["last_test"].map(_percent),
        seconds=table["seconds"].map(lambda s: f"{s:.0f}" if s == s else "–"),
        run=table["run_id"].astype("str"),
    )
    return shown[["norm", "rate", "seed", "fate", "best", "last", "seconds", "run"]].to_string(index=False)


def left_out_lines(frames: Frames, most: int = 10) -> str:
    """ "2 runs left out:", each with why; empty if none is. At most `most` are named, the page names all.

    A run that lacks only a probe's table is not left out, nor is one whose directory is there twice.
    """
    problems = frames.problems[~frames.problems["kind"].isin(["probe", "duplicate"])]
    if problems.empty:
        return ""
    why = problems.groupby("run_id", sort=False)["problem"].agg("; ".join)
    runs = "1 run" if len(why) == 1 else f"{len(why)} runs"
    lines = [f"{runs} left out, whole or in part:"]
    lines += [f"  {run or 'all runs'}: {' '.join(text.split())}" for run, text in list(why.items())[:most]]
    if len(why) > most:
        lines.append(f"  and {len(why) - most} more, listed on the page")
    return "\n".join(lines)


def _cells(fates: "pd.DataFrame", accuracy: "pd.DataFrame") -> str:
    from analysis import stats, style
    from analysis.tidy import each

    wide = fates.pivot_table(
        index=["setting", "norm", "lr"], columns="fate", values="k", observed=True, aggfunc="sum"
    ).reset_index()
    wide = wide.merge(accuracy, on=["setting", "norm", "lr"])
    wide["rate"] = wide["lr"].map(style.rate_label)
    wide["last test"] = wide["mean"].map(_percent)
    wide["n"] = [stats.of_n(c.n_observed, c.n, c.n_diverged, c.n_undecided) for c in each(wide)]
    return wide[
        ["setting", "norm", "rate", "trained", "stuck at chance", "diverged", "last test", "n"]
    ].to_string(index=False)


def _percent(share: float) -> str:
    return "–" if share != share else f"{100 * share:.1f}%"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.report", description="Draw a set of runs into one self-contained HTML page."
    )
    parser.add_argument(
        "--runs",
        type=Path,
        nargs="+",
        default=[Path("runs")],
        metavar="DIR",
        help="folders of runs, or run directories (default: runs)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report"), metavar="DIR", help="where to write (default: report)"
    )
    parser.add_argument("--sweep", metavar="NAME", help="only the runs that this sweep asked for")
    parser.add_argument(
        "--brief",
        action="store_true",
        help="do not print the table of outcomes, which a launch has just shown",
    )
    return parser


if __name__ == "__main__":
    pipes.run(main)

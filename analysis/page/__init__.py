"""What the report's page shows, collected from the frames: no HTML is made here."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis import claims, export, select
from analysis.load import Frames
from analysis.page import trials
from analysis.page.notices import notices, summary
from analysis.page.pictures import draw_all
from analysis.page.provenance import provenance
from analysis.page.settings import group
from analysis.page.values import Page
from analysis.page.verdicts import linked, verdict_table, verdicts
from analysis.page.words import words
from analysis.tables import tables

__all__ = ["Page", "build"]


def build(frames: Frames, out: Path, *, command: str, sweep: str | None) -> Page:
    """Draw all figures into out/figures, write the tables into out/tables, collect what the page says."""
    table = select.outcomes(frames)
    names = list(dict.fromkeys(table["setting"]))
    apart = {n: frames.subset(frames.runs.loc[frames.runs["setting"] == n, "run_id"]) for n in names}
    prefixes = {n: f"setting{i}-" if len(names) > 1 else "" for i, n in enumerate(names, start=1)}
    drawn = {n: draw_all(apart[n], out / "figures", prefixes[n]) for n in names}
    alone = draw_all(frames, out / "figures", apart=True)
    found = verdicts(frames, drawn, alone, trials.anchors(table), prefixes)
    counts = Counter(v.verdict for v in found)
    drawn = {n: replace(d, sections=linked(d.sections, found)) for n, d in drawn.items()}
    exported = [*([verdict_table(found)] if found else []), *tables(frames)]
    export.write(exported, out / "tables")
    return Page(
        title="Why does batch normalisation work?",
        summary=summary(table, sweep),
        notices=list(notices(table, left_out=not frames.problems.empty, apart=bool(alone.sections))),
        words=words(table) if len(table) else [],
        verdicts=found,
        verdict_counts=[(str(v), counts[v]) for v in claims.Verdict if counts[v]],
        groups=[group(apart[n], n, f"setting-{i}", drawn[n]) for i, n in enumerate(names, start=1)],
        apart=linked(alone.sections, found),
        apart_not_drawn=alone.not_drawn,
        tables=exported,
        trial_columns=trials.COLUMNS,
        trials=trials.trials(table),
        problems=_problems(frames.problems),
        provenance=list(provenance(table, command)),
    )


def _problems(problems: pd.DataFrame) -> list[tuple[str, ...]]:
    """What was left out, run by run; a probe's table that many runs lack is one row."""
    lacks = problems["kind"] == "probe"
    common = problems[lacks & problems.duplicated(["kind", "problem"], keep=False)]
    rows = [tuple(map(str, row)) for row in problems.drop(common.index).itertuples(index=False)]
    counts = common.groupby("problem", sort=False).size()
    return rows + [(f"{n} runs", "probe", str(text), "") for text, n in counts.items()]

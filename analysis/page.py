"""What the report's page shows, as plain values for the template: no HTML is made here."""

import base64
import datetime
import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from analysis import claims, figures, select, stats, style
from analysis.expectations import EXPECTED, MARKS, Expectation
from analysis.load import Frames
from analysis.tidy import each

MISSING = "–"
UNTRAINED = "measured before training only"


@dataclass(frozen=True)
class Picture:
    """A figure on the page."""

    name: str
    title: str
    section: str
    caption: str
    source: str
    """data: URI of the SVG."""
    alt: str
    measured: str = ""
    how: str = ""
    expected: tuple[Expectation, ...] = ()
    """What the paper reports of this figure."""
    seen: tuple[str, ...] = ()
    """What these runs show."""
    table: tuple[list[str], list[list[str]]] | None = None
    """Headings and rows of texts."""


@dataclass(frozen=True)
class Section:
    """The figures of one section of the paper."""

    title: str
    pictures: list[Picture]


@dataclass(frozen=True)
class Cell:
    """A table cell: what is shown and what it sorts by."""

    text: str
    value: float | str = ""
    kind: str = ""


@dataclass(frozen=True)
class Verdict:
    """One claim, judged on the runs of one setting."""

    verdict: str
    sentence: str
    estimate: str
    n: str
    setting: str
    details: list[tuple[str, str]]


@dataclass(frozen=True)
class Group:
    """Everything about the runs of one setting, the only ones that may be compared by norm and rate."""

    name: str
    rates: list[str]
    grid: list[tuple[str, list[list[str]]]]
    """Per norm: per rate, the lines of its cell."""
    rules: list[tuple[str, ...]]
    """Per norm: norm, best over rates (test), chosen on validation, highest trainable rate, plateaus."""
    sections: list[Section]
    not_drawn: list[str]
    scales: str
    trained: bool
    """Whether any of its runs was to be trained at all: some are measured at the start only."""
    data: str


@dataclass(frozen=True)
class Page:
    """All of the page."""

    title: str
    summary: list[str]
    notices: list[str]
    verdicts: list[Verdict] = field(default_factory=list)
    verdict_counts: str = ""
    groups: list[Group] = field(default_factory=list)
    trial_columns: list[tuple[str, str]] = field(default_factory=list)
    trials: list[list[Cell]] = field(default_factory=list)
    problems: list[tuple[str, ...]] = field(default_factory=list)
    provenance: list[tuple[str, str]] = field(default_factory=list)
    marks: dict[str, str] = field(default_factory=lambda: dict(MARKS))


def build(frames: Frames, out: Path, *, command: str, sweep: str | None) -> Page:
    """Draw all figures into out/figures and collect what the page says."""
    table = select.outcomes(frames)
    verdicts = _verdicts(frames)
    counts = Counter(v.verdict for v in verdicts)
    return Page(
        title="Why does batch normalisation work?",
        summary=_summary(table, sweep),
        notices=list(_notices(table)),
        verdicts=verdicts,
        verdict_counts=", ".join(f"{counts[v]} {v}" for v in claims.Verdict if counts[v]),
        groups=[_group(frames, name, out, i) for i, name in enumerate(dict.fromkeys(table["setting"]))],
        trial_columns=TRIAL_COLUMNS,
        trials=[_trial(run) for run in each(table)],
        problems=[tuple(map(str, row)) for row in frames.problems.itertuples(index=False)],
        provenance=list(_provenance(table, command)),
    )


def _summary(table: pd.DataFrame, sweep: str | None) -> list[str]:
    untrained = int(select.untrained(table).sum())
    counts = table["fate"].value_counts()
    if untrained:
        counts = pd.Series({**counts, select.UNDECIDED: counts[select.UNDECIDED] - untrained})
        counts[UNTRAINED] = untrained
    order = (*select.FATES, select.UNDECIDED, UNTRAINED)
    fates = ", ".join(f"{int(counts[f])} {f}" for f in order if counts.get(f))
    named = f"Sweep {sweep}. " if sweep else ""
    runs = "1 run" if len(table) == 1 else f"{len(table)} runs"
    return [f"{named}{runs}: {fates}." if len(table) else f"{named}No runs."]


def _notices(table: pd.DataFrame) -> Iterator[str]:
    """What a reader must know before reading on."""
    if table.empty:
        yield "There is nothing to show: no run directory with a readable record was found (see Left out)."
        return
    complete = table[table["fate"] != select.UNDECIDED]
    untrained = select.untrained(table)
    if complete.empty and untrained.all():
        n = int(table.groupby(select.CELL, observed=True)["seed"].nunique().min())
        if n == 1:
            yield "Some norms were measured with one seed: what differs from seed to seed, one cannot say."
        return
    if complete.empty:
        yield "No run is complete yet, so there are no outcomes to show (see Left out)."
        return
    seeds = stats.seeds_per_cell(complete)
    if seeds == [1]:
        low, high = stats.proportion(1, 1)[1:3]
        yield (
            "Each combination of norm and rate was trained once, with one seed. The page shows what happened "
            "in these runs and no more: how often it would happen, and whether a difference between two "
            "cells exceeds that between two seeds, one seed cannot say (1 of 1 leaves a 95% interval of "
            f"{100 * low:.1f}% to {100 * high:.0f}%)."
        )
    elif seeds[0] == 1:
        yield "Some combinations of norm and rate have one seed: they show what happened once, and no more."
    if (complete["fate"] == select.DIVERGED).all():
        yield "Every complete run diverged: there are no accuracies to compare."
    settings = table["setting"].nunique()
    scales = sorted(set(table["scale"].dropna()) - {""})
    if settings > 1:
        named = f" (scales: {', '.join(scales)})" if len(scales) > 1 else ""
        yield (
            f"These runs come from {settings} settings{named} that differ in more than norm, rate and seed. "
            "They are shown one after another and never averaged together."
        )
    spoilt = table[table["poisoned"].fillna(False) & (table["outcome"] != "diverged")]
    for _, run in spoilt.iterrows():
        yield (
            f"{run['run_id']}: running statistics met a batch with non-finite values ({run['poisoned_at']}); "
            "its evaluation results from then on say nothing about the network."
        )
    if table["dirty"].fillna(False).any():
        n = int(table["dirty"].fillna(False).sum())
        yield f"{n} of {len(table)} runs were made from code with uncommitted changes."


def _verdicts(frames: Frames) -> list[Verdict]:
    """Every claim on every setting; on several settings, those that were not run are left out."""
    settings = list(dict.fromkeys(frames.runs["setting"]))
    found = []
    for name in settings:
        mine = frames.subset(frames.runs.loc[frames.runs["setting"] == name, "run_id"])
        results = claims.judge(claims.Case(mine))
        if len(settings) > 1:
            results = [r for r in results if r.verdict != claims.Verdict.NOT_RUN]
        found += [_verdict(result, name) for result in results]
    return found


def _verdict(result: claims.Result, setting: str) -> Verdict:
    claim, found = result.claim, result.evidence
    estimate = MISSING
    if found is not None and pd.notna(found.estimate):
        estimate = f"{_points(found.estimate)} points"
        if pd.notna(found.low):
            estimate += f" ({_points(found.low)} to {_points(found.high)})"
    cells = [
        f"{norm} at {style.rate_label(lr)}: {n}" for (norm, lr), n in zip(claim.cells, result.n, strict=True)
    ]
    details = [
        ("why", result.reason),
        ("source", claim.source),
        ("estimator", claim.estimator),
        ("rule", f"{claim.rule}, level {result.level:.2g}; at least {result.least_seeds} seeds per cell"),
        ("scale", result.scale or MISSING),
        ("runs", ", ".join(result.run_ids) or MISSING),
        ("claim", claim.id),
    ]
    return Verdict(str(result.verdict), claim.sentence, estimate, ", ".join(cells), setting, details)


def _group(frames: Frames, name: str, out: Path, index: int) -> Group:
    mine = frames.subset(frames.runs.loc[frames.runs["setting"] == name, "run_id"])
    table = select.outcomes(mine)
    shares = stats.fate_table(table)
    rates, norms = sorted(table["lr"].dropna().unique()), select.norm_order(table["norm"])
    grid = [
        (norm, [_cell(shares[(shares["norm"] == norm) & (shares["lr"] == lr)]) for lr in rates])
        for norm in norms
    ]
    prefix = f"setting{index + 1}-" if frames.runs["setting"].nunique() > 1 else ""
    sections, not_drawn = _draw_all(mine, out / "figures", prefix)
    scales = ", ".join(sorted(set(table["scale"].dropna()) - {""})) or MISSING
    rates_shown = [style.rate_label(r) for r in rates]
    return Group(
        name=name,
        rates=rates_shown,
        grid=grid,
        rules=_rules(mine, norms),
        sections=sections,
        not_drawn=not_drawn,
        scales=scales,
        trained=not select.untrained(mine.runs).all(),
        data=", ".join(sorted(set(table["data"].dropna()))),
    )


def _draw_all(frames: Frames, folder: Path, prefix: str) -> tuple[list[Section], list[str]]:
    """Draw every figure whose tables are there; the others are named with what they lack."""
    import matplotlib.pyplot as plt

    found: dict[str, list[Picture]] = {}
    lacking: dict[str, list[str]] = {}
    reasons: dict[str, list[str]] = {}
    for name, module in figures.modules().items():
        missing = figures.lacking(module, frames)
        if missing:
            lacking[module.TITLE] = missing
            continue
        try:
            drawing = module.draw(frames)
        except figures.UndrawableError as error:
            reasons.setdefault(str(error), []).append(module.TITLE)
            continue
        svg = style.save(drawing, folder, prefix + name)
        plt.close(drawing.figure)
        found.setdefault(module.SECTION, []).append(_picture(module, prefix + name, drawing, svg))
    not_drawn = [f"{'; '.join(titles)}. Why: {why}." for why, titles in reasons.items() if why]
    if lacking:
        tables = ", ".join(dict.fromkeys(what for missing in lacking.values() for what in missing))
        not_drawn.append(f"{'; '.join(lacking)}. Why: no complete run here has what they need: {tables}.")
    return [Section(title, pictures) for title, pictures in found.items()], not_drawn


def _picture(module: ModuleType, name: str, drawing: style.Drawing, svg: str) -> Picture:
    table = drawing.table
    return Picture(
        name=name,
        title=module.TITLE,
        section=module.SECTION,
        caption=drawing.caption,
        source="data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode(),
        alt=" ".join([f"{module.TITLE}. {drawing.caption}", *drawing.seen]),
        measured=getattr(module, "MEASURED", ""),
        how=getattr(module, "HOW", ""),
        expected=EXPECTED[module.EXPECTED] if hasattr(module, "EXPECTED") else (),
        seen=drawing.seen,
        table=None if table is None else (list(table.columns), table.astype("str").to_numpy().tolist()),
    )


def _cell(shares: pd.DataFrame) -> list[str]:
    """Say what became of one cell's runs; with one seed just its fate."""
    if shares.empty:
        return ["not run"]
    n, undecided = int(shares["n"].iloc[0]), int(shares["n_undecided"].iloc[0])
    lines = [f"{undecided} undecided"] if undecided else []
    if n == 1:
        return [str(shares.loc[shares["k"] == 1, "fate"].iloc[0]), *lines]
    if n > 1:
        lines = [f"{r.fate} {r.k} of {n} ({100 * r.low:.0f}–{100 * r.high:.0f}%)" for r in each(shares)][
            ::-1
        ] + lines
    return lines


def _rules(frames: Frames, norms: list[str]) -> list[tuple[str, ...]]:
    best = select.best_over_rates(frames).set_index("norm")
    held_out = select.best_over_rates(frames, "validation").set_index("norm")
    highest = select.highest_trainable_rate(frames).set_index("norm")
    plateaus = select.plateau(frames).groupby("norm", observed=True)[["n", "n_plateau"]].sum()
    return [
        (norm, _best(best, norm), _best(held_out, norm), _highest(highest, norm), _plateau(plateaus, norm))
        for norm in norms
    ]


def _best(best: pd.DataFrame, norm: str) -> str:
    if norm not in best.index:
        return MISSING
    row: Any = best.loc[norm]
    diverged = f", {int(row['n_diverged'])} diverged" if row["n_diverged"] else ""
    return f"{100 * row['accuracy']:.1f}% at {style.rate_label(row['lr'])} (n = {int(row['n'])}{diverged})"


def _highest(highest: pd.DataFrame, norm: str) -> str:
    if norm not in highest.index:
        return MISSING
    row: Any = highest.loc[norm]
    if pd.isna(row["lr"]):
        return f"none of those tried (up to {style.rate_label(row['highest_tried'])})"
    sign = "at least " if row["censored"] else ""
    return f"{sign}{style.rate_label(row['lr'])} ({int(row['trained'])} of {int(row['n'])} trained)"


def _plateau(plateaus: pd.DataFrame, norm: str) -> str:
    row: Any = plateaus.loc[norm]
    return f"{int(row['n_plateau'])} of {int(row['n'])}"


TRIAL_COLUMNS = [
    ("norm", "text"),
    ("rate", "number"),
    ("seed", "number"),
    ("fate", "text"),
    ("last test", "number"),
    ("best test", "number"),
    ("last train", "number"),
    ("diverged at step", "number"),
    ("steps", "number"),
    ("seconds", "number"),
    ("run", "text"),
]


def _trial(run: Any) -> list[Cell]:
    steps = f"{run.steps_done} of {run.steps_total}" if pd.notna(run.steps_done) else MISSING
    return [
        Cell(str(run.norm), str(run.norm)),
        _number(run.lr, style.rate_label),
        _number(run.seed, lambda v: f"{int(v)}"),
        Cell(_fate(run), _fate(run), _fate(run).split()[0]),
        _number(run.last_test, _share),
        _number(run.best_test, _share),
        _number(run.last_train, _share),
        _number(run.diverged_step, lambda v: f"{int(v)}"),
        Cell(steps, float(run.steps_done) if pd.notna(run.steps_done) else -1.0),
        _number(run.seconds, lambda v: f"{v:.1f}"),
        Cell(str(run.run_id), str(run.run_id), "id"),
    ]


def _fate(run: Any) -> str:
    untrained = run.fate == select.UNDECIDED and pd.notna(run.steps_total) and run.steps_total == 0
    return "not trained" if untrained else str(run.fate)


def _number(value: Any, show: Any) -> Cell:
    return Cell(MISSING, "") if pd.isna(value) else Cell(show(float(value)), float(value))


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def _share(value: float) -> str:
    return f"{100 * value:.1f}%"


def _provenance(table: pd.DataFrame, command: str) -> Iterator[tuple[str, str]]:
    """Where the numbers come from: each value with how many runs share it, when they differ."""
    yield "report made by", command
    yield "report made at", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield "analysed with", f"Python {platform.python_version()}, pandas {pd.__version__}"
    if table.empty:
        return
    commits = table["commit"].fillna("unknown").str.slice(0, 12)
    dirty = table["dirty"].map({True: " with uncommitted changes", False: ""}).fillna("")
    yield "code (git commit)", _values(commits + dirty.astype("str"))
    for label, column in (
        ("scale", "scale"),
        ("experiment", "experiment"),
        ("host", "host"),
        ("device", "device"),
        ("CPU threads per run", "threads"),
        ("Python", "python"),
        ("torch", "torch"),
        ("torchvision", "torchvision"),
        ("numpy", "numpy"),
        ("study", "study"),
    ):
        yield (
            label,
            _values(table[column].astype("str").replace({"": MISSING, "<NA>": MISSING, "nan": MISSING})),
        )
    dates = sorted(table["updated"].dropna())
    yield "runs ended", f"{dates[0]} to {dates[-1]}" if dates else MISSING
    seconds = table["seconds"].sum()
    yield (
        "training time, all runs",
        f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.1f} seconds",
    )


def _values(column: "pd.Series[str]") -> str:
    counts = column.fillna(MISSING).value_counts()
    if len(counts) == 1:
        return str(counts.index[0])
    return "; ".join(f"{value} ({n} runs)" for value, n in counts.items())

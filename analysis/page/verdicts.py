"""The claims, judged on every setting, each with the figures, the table and the runs it rests on."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pandas as pd

from analysis import claims, select, style
from analysis import figures as registered
from analysis.load import Frames
from analysis.page import evidence
from analysis.page.pictures import Drawn
from analysis.page.values import MISSING, Link, Section, Sheet, Verdict
from analysis.tables import Table
from analysis.tidy import groups


def verdicts(
    frames: Frames,
    drawn: Mapping[str, Drawn],
    alone: Drawn,
    anchors: Mapping[str, str],
    prefixes: Mapping[str, str],
) -> list[Verdict]:
    """Every claim on every setting that has its runs, decided ones first, those without runs last.

    `drawn` and `prefixes` are the figures and the prefix of their names by setting, `alone` the figures that
    show no run, `anchors` the runs' rows.
    """
    if frames.runs.empty and not alone.sections:
        return []
    outcomes, settings = select.outcomes(frames), list(drawn)
    found: list[Verdict] = []
    order = list(claims.Verdict)
    for result in sorted(claims.judge_all(frames), key=lambda r: order.index(r.verdict)):
        table = outcomes[outcomes["run_id"].isin(result.run_ids)]
        judged = [s for s in settings if s in set(table["setting"])]
        where = judged or settings
        links = [
            replace(link, text=f"{link.text} (setting {settings.index(s) + 1})")
            if link.target and len(settings) > 1
            else link
            for s in where
            for link in _figures(result.claim, drawn[s], prefixes[s])
        ]
        links += _figures(result.claim, alone, "", apart=True)
        found.append(
            _verdict(
                result,
                anchor=f"verdict-{len(found) + 1}",
                sections=[_section(s, settings) for s in judged] if len(settings) > 1 else [],
                figures=[link for link in links if link.target] or _once(links),
                runs=[Link(r, anchors.get(r, "")) for r in result.run_ids],
                outcomes=_outcomes(table, settings),
            )
        )
    return found


def verdict_table(found: list[Verdict]) -> Table:
    """The verdicts as a table of texts, for papers."""
    named = {int(link.text): link.note for v in found for link in v.sections}
    note = (
        "Rules, margins and seeds do not depend on these runs, and the tests are corrected for the number of "
        "claims; the interval is 95%, uncorrected; n counts complete runs."
    )
    note += "".join(f" Setting {i}: {name}." for i, name in sorted(named.items()))
    rows = tuple(
        (
            *([", ".join(link.text for link in v.sections) or MISSING] if named else []),
            v.verdict,
            v.sentence,
            v.source,
            v.estimate,
            v.interval,
            v.n,
            v.scale,
        )
        for v in found
    )
    columns = ("verdict", "claim", "source", "estimate", "95% interval", "n", "scale")
    return Table("verdicts", "Verdicts", note, ("setting", *columns) if named else columns, rows)


def linked(sections: list[Section], found: Iterable[Verdict]) -> list[Section]:
    """The same figures, each with links to the verdicts that rest on it."""
    resting: dict[str, list[Link]] = {}
    for verdict in found:
        if verdict.verdict == claims.Verdict.NOT_RUN:
            continue
        for link in verdict.figures:
            resting.setdefault(link.target, []).append(
                Link(verdict.sentence, verdict.anchor, verdict.verdict)
            )
    return [
        Section(s.title, [replace(p, verdicts=resting.get(f"figure-{p.name}", [])) for p in s.pictures])
        for s in sections
    ]


def _section(name: str, settings: list[str]) -> Link:
    """The part of the page on the runs of one setting, by the number that it has there."""
    number = settings.index(name) + 1
    return Link(str(number), f"setting-{number}", name)


def _verdict(
    result: claims.Result,
    anchor: str,
    sections: list[Link],
    figures: list[Link],
    runs: list[Link],
    outcomes: Sheet | None,
) -> Verdict:
    claim = result.claim
    estimate, interval = _estimate(result)
    details = [
        ("why", result.reason),
        ("to run it", _command(result)),
        ("source", claim.source),
        ("estimator", claim.estimator),
        ("effect size", evidence.effect(result) or MISSING),
        ("by cell", evidence.averages(result) or MISSING),
        ("rule", f"{claim.rule}, level {result.level:.2g}; at least {result.least_seeds} seeds per cell"),
        ("scale", result.scale or MISSING),
        ("runs made by", ", ".join(f"sweeps/{name}.yaml" for name in claim.sweep) or MISSING),
        ("claim", claim.id),
    ]
    cells = "; ".join(f"{cell}: {n}" for cell, n in zip(claim.cells, result.n, strict=True))
    return Verdict(
        anchor=anchor,
        verdict=str(result.verdict),
        claim=claim.id,
        sentence=claim.sentence,
        source=claim.source,
        estimate=estimate,
        interval=interval,
        n=cells if any(result.n) else "none",
        scale=result.scale or MISSING,
        setting=result.setting,
        reason=result.reason,
        sections=sections,
        details=[(name, text) for name, text in details if text != MISSING],
        figures=figures,
        runs=runs,
        outcomes=outcomes,
        measured=evidence.measured(result),
    )


def _command(result: claims.Result) -> str:
    """What makes the runs of a claim that was not run; the parts of the study are named as their sweeps."""
    if result.verdict != claims.Verdict.NOT_RUN or not result.claim.sweep:
        return MISSING
    return f"python -m study.parts run {' '.join(result.claim.sweep)}"


def _estimate(result: claims.Result) -> tuple[str, str]:
    """Estimate and 95% interval as texts, in percentage points where the unit is a share."""
    found = result.evidence
    if found is None or math.isnan(found.estimate):
        return MISSING, MISSING
    percent = result.claim.unit in evidence.PERCENT
    show = _points if percent else evidence.plain
    unit = "points" if percent else "times" if result.claim.unit == "times" else ""
    estimate = f"{show(found.estimate)} {unit}"
    if math.isnan(found.low) and math.isnan(found.high):
        return estimate.strip(), MISSING
    return estimate.strip(), f"{show(found.low)} to {show(found.high)}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def _figures(claim: claims.Claim, drawn: Drawn, prefix: str, *, apart: bool = False) -> list[Link]:
    """Where each of a claim's figures stands, or why it does not; of those that show runs, or do not."""
    registry = registered.modules(apart=apart)
    there = {p.name for section in drawn.sections for p in section.pictures}
    links = []
    for name in claim.figures:
        if name not in registry:
            continue
        title = registry[name].TITLE
        if prefix + name in there:
            links.append(Link(title, f"figure-{prefix}{name}"))
        else:
            links.append(Link(title, note=f"not drawn: {drawn.why_not[name]}"))
    return links


def _outcomes(table: pd.DataFrame, settings: list[str]) -> Sheet | None:
    """Per norm and rate of the runs that were judged: how many, what became of them, their accuracy."""
    if table.empty:
        return None
    many, trained = len(settings) > 1, bool(select.beyond_first_steps(table).any())
    rows = []
    for (name, norm, lr), runs in groups(table, select.CELL):
        row = [str(settings.index(name) + 1)] if many else []
        row += [str(norm), style.rate_label(lr), str(len(runs))]
        if trained:
            counts = runs["fate"].value_counts()
            row += [str(int(counts.get(f, 0))) for f in select.FATES[::-1]]
            known = runs["last_test"].dropna()
            row.append(f"{100 * known.mean():.1f}% (of {len(known)})" if len(known) else MISSING)
        rows.append(row)
    columns = [*(["setting"] if many else []), "norm", "rate", "runs"]
    return Sheet([*columns, *select.FATES[::-1], "mean last test accuracy"] if trained else columns, rows)


def _once(links: list[Link]) -> list[Link]:
    return list({link.text: link for link in links}.values())

"""What a reader must know before reading on: how many runs there are, and what they cannot say."""

from collections.abc import Iterator

import pandas as pd

from analysis import select, stats

UNTRAINED = "measured before training only"
SMOKE = (
    "Runs at scale=smoke are synthetic images on ResNet-8: they show that everything works, and say nothing "
    "about any claim."
)
FIRST_STEPS = "trained for one epoch to measure first steps"


def summary(table: pd.DataFrame, sweep: str | None) -> list[str]:
    """Count the runs by fate; `table` is analysis.select.outcomes."""
    untrained = select.untrained(table)
    short = select.first_steps(table) & (table["fate"] != select.UNDECIDED)
    counts = table["fate"].mask(short, FIRST_STEPS).mask(untrained, UNTRAINED).value_counts()
    order = (*select.FATES, select.UNDECIDED, FIRST_STEPS, UNTRAINED)
    fates = ", ".join(f"{int(counts[f])} {f}" for f in order if counts.get(f))
    named = f"Sweep {sweep}. " if sweep else ""
    runs = "1 run" if len(table) == 1 else f"{len(table)} runs"
    return [f"{named}{runs}: {fates}." if len(table) else f"{named}No runs."]


def notices(table: pd.DataFrame, left_out: bool, apart: bool = False) -> Iterator[str]:
    """Yield one sentence or two for each thing that limits what the page can say.

    `left_out`: whether run directories were found that are not in the table; `apart`: whether there is
    something that belongs to no run.
    """
    if table.empty:
        shown = "Only what belongs to no run is shown" if apart else "There is nothing to show"
        why = "no run directory with a readable record was found (see Left out)"
        yield f"{shown}: {why if left_out else 'the folders given hold no run directory'}."
        return
    if (table["scale"] == "smoke").any():
        yield SMOKE
    complete = table[table["fate"] != select.UNDECIDED]
    if complete.empty and select.untrained(table).all():
        n = int(table.groupby(select.CELL, observed=True)["seed"].nunique().min())
        if n == 1:
            yield "Some norms were measured with one seed: what differs from seed to seed, one cannot say."
        return
    if complete.empty:
        yield "No run is complete yet, so there are no outcomes to show (see Left out)."
        return
    yield from _seeds(complete)
    if (complete["fate"] == select.DIVERGED).all():
        yield "Every complete run diverged: there are no accuracies to compare."
    stopped = int((table["status"] == "stopped").sum())
    if stopped:
        yield (
            f"{stopped} of {len(table)} runs were stopped once they had left chance: they count as trained, "
            "and have no accuracy."
        )
    yield from _settings(table)
    yield from _spoilt(table)


def _seeds(complete: pd.DataFrame) -> Iterator[str]:
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


def _settings(table: pd.DataFrame) -> Iterator[str]:
    settings = table["setting"].nunique()
    scales = sorted(set(table["scale"].dropna()) - {""})
    if settings > 1:
        named = f" (scales: {', '.join(scales)})" if len(scales) > 1 else ""
        yield (
            f"These runs come from {settings} settings{named} that differ in more than norm, rate and seed. "
            "They are shown one after another and never averaged together."
        )


def _spoilt(table: pd.DataFrame) -> Iterator[str]:
    spoilt = table[table["poisoned"].fillna(False) & (table["outcome"] != "diverged")]
    for _, run in spoilt.iterrows():
        yield (
            f"{run['run_id']}: running statistics met a batch with non-finite values ({run['poisoned_at']}); "
            "its evaluation results from then on say nothing about the network."
        )
    if table["dirty"].fillna(False).any():
        n = int(table["dirty"].fillna(False).sum())
        yield f"{n} of {len(table)} runs were made from code with uncommitted changes."

"""Which number of a run or of a cell is reported: every selection rule is a named function here.

A cell is one (setting, norm, lr): all its runs differ by seed only. A diverged run has no accuracy worth the
name; it stays in every n, and where a rule must average, it counts as guessing (accuracy = chance).
"""

import json
from collections.abc import Collection, Iterable

import numpy as np
import pandas as pd

from analysis.load import Frames
from analysis.runs import setting
from analysis.tidy import at, each, groups
from study import brackets, criteria, describe

DIVERGED, STUCK, TRAINED, UNDECIDED = "diverged", criteria.STUCK, "trained", "undecided"
FATES = (DIVERGED, STUCK, TRAINED)
"""What a complete run comes to. Any other run is UNDECIDED: unfinished, its tables missing, or not to be
trained at all (see `untrained`)."""

CELL = ["setting", "norm", "lr"]
ARCHITECTURE = ["setting", "norm"]


def fates(frames: Frames) -> "pd.Series[str]":
    """Fate by run id: diverged as recorded, stuck at chance by the exact test on the last test accuracy.

    The test (study.criteria.fate, as in the tables of a launch) asks whether the correct answers of the last
    epoch's test set could be the share of its most frequent class; "trained": they are significantly more.
    """
    last = last_rows(frames, "test").set_index("run_id")
    found: dict[str, str] = {}
    for run in each(frames.runs.assign(untrained=untrained(frames.runs))):
        run_id = str(run.run_id)
        if run.untrained:
            found[run_id] = UNDECIDED
            continue
        accuracy, n = None, None
        if run_id in last.index:
            n, accuracy = int(at(last, run_id, "n")), float(at(last, run_id, "accuracy"))
        found[run_id] = criteria.fate(str(run.outcome), accuracy, n, float(run.chance)) or UNDECIDED
    return pd.Series(found, name="fate", dtype="str")


def untrained(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Which runs had no step to make: they were measured before training, and have no outcome."""
    return runs["steps_total"].eq(0).fillna(False).astype(bool)


FIRST_STEPS = 1
"""Epochs up to which a run shows the first steps of training only, not what becomes of a network."""


def first_steps(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Which runs trained for no more than FIRST_STEPS epochs."""
    return runs["scientific"].map(_is_short).astype(bool)


def beyond_first_steps(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Which runs were trained for longer than their first steps: only these have an outcome to speak of."""
    return ~(untrained(runs) | first_steps(runs))


def _is_short(scientific: str) -> bool:
    epochs: int = json.loads(scientific or "{}").get("epochs", describe.settings()["epochs"].default)
    return epochs <= FIRST_STEPS


def standing(table: pd.DataFrame) -> "list[str]":
    """What each run of `outcomes` came to or, where that is not known, where it stands.

    That is its status (failed, preempted, lost, running), "not trained" where there was no step to make, or
    "no accuracy" where it is complete but no test accuracy of it can be read.
    """
    found = []
    for run, nothing in zip(each(table), untrained(table), strict=True):
        complete = run.status in {"finished", "stopped"}
        if run.fate != UNDECIDED:
            found.append(str(run.fate))
        elif not complete:
            found.append(str(run.status))
        else:
            found.append("not trained" if nothing else "no accuracy")
    return found


def last_rows(frames: Frames, split: str) -> pd.DataFrame:
    """The last row of a split of every run that has one (for accuracy after the last completed epoch)."""
    rows = frames.metrics[frames.metrics["split"] == split]
    return (
        rows.sort_values("step", kind="stable").drop_duplicates("run_id", keep="last").reset_index(drop=True)
    )


def last_epoch_accuracy(frames: Frames, split: str = "test") -> "pd.Series[float]":
    """Accuracy of a split after the last completed epoch, by run id; selects nothing."""
    rows = last_rows(frames, split)
    return pd.Series(rows["accuracy"].to_numpy(), index=rows["run_id"].astype("str"), name=f"last_{split}")


def best_epoch_accuracy(frames: Frames, split: str = "test") -> "pd.Series[float]":
    """Highest accuracy of a split over epochs, by run id; on "test" this selects on the test set."""
    rows = frames.metrics[frames.metrics["split"] == split]
    best = rows.groupby("run_id", observed=True)["accuracy"].max()
    return pd.Series(best.to_numpy(), index=best.index.astype("str"), name=f"best_{split}")


def outcomes(frames: Frames) -> pd.DataFrame:
    """One row per run: the columns of `runs`, its fate, and last and best accuracies.

    Those of diverged runs are missing, and those of runs that were stopped once they had left chance: what
    they reached there is no accuracy of a trained network.
    """
    table = frames.runs.copy()
    ids = table["run_id"].astype("str")
    table["fate"] = ids.map(fates(frames))
    for split in ("train", "train_eval", "validation", "test"):
        table[f"last_{split}"] = ids.map(last_epoch_accuracy(frames, split)).astype("float64")
    table["best_test"] = ids.map(best_epoch_accuracy(frames)).astype("float64")
    accuracies = [name for name in table.columns if name.startswith(("last_", "best_"))]
    table.loc[(table["fate"] == DIVERGED) | (table["status"] == "stopped"), accuracies] = np.nan
    return table


def stopped_early(table: pd.DataFrame) -> "pd.Series[bool]":
    """Which runs of `outcomes` ended once they had left chance, and so have no final accuracy."""
    return (table["status"] == "stopped") & (table["fate"] != DIVERGED)


def score(table: pd.DataFrame, column: str) -> "pd.Series[float]":
    """Accuracies in which a diverged run counts as guessing, so that none is dropped from an average."""
    return table[column].where(table["fate"] != DIVERGED, table["chance"])


def best_over_rates(frames: Frames, select_on: str = "test") -> pd.DataFrame:
    """Per architecture, the rate with the best mean accuracy on `select_on`, and the test accuracy there.

    With select_on="test" this is the rule of Bjorck et al. 2018 (§2): the best test accuracy over rates. It
    selects on the test set, so the number it reports is optimistic. With "validation" the rate is chosen on
    held-out training images, and the reported number is not. Last-epoch accuracies; means over seeds, where
    a diverged run counts as guessing. An architecture of which runs were stopped early is left out: they have
    no accuracy, and its best rate may be theirs. Columns: setting, norm, lr, accuracy, n, n_diverged,
    selected_on.
    """
    table = outcomes(frames)
    keys = [table[name] for name in ARCHITECTURE]
    table = table[~stopped_early(table).groupby(keys, observed=True).transform("any").astype(bool)]
    # Without this, a split that nobody recorded would be decided by the diverged runs' chance accuracy alone.
    recorded = table.groupby("setting")[f"last_{select_on}"].transform("count") > 0
    table = table[(table["fate"] != UNDECIDED) & recorded]
    scored = table.assign(
        chosen_by=score(table, f"last_{select_on}"),
        accuracy=score(table, "last_test"),
        n_diverged=table["fate"] == DIVERGED,
    )
    cells = scored.groupby(CELL, observed=True, as_index=False).agg(
        chosen_by=("chosen_by", lambda v: v.mean(skipna=False)),
        accuracy=("accuracy", lambda v: v.mean(skipna=False)),
        n=("run_id", "size"),
        n_diverged=("n_diverged", "sum"),
    )
    cells = cells[cells["chosen_by"].notna()].sort_values([*ARCHITECTURE, "lr"])
    # The smaller of two equally good rates: idxmax takes the first.
    best = cells.loc[cells.groupby(ARCHITECTURE, observed=True)["chosen_by"].idxmax()]
    best = best.drop(columns="chosen_by").reset_index(drop=True)
    return best.assign(selected_on=pd.Series(select_on, index=best.index, dtype="str"))


def highest_trainable_rate(frames: Frames) -> pd.DataFrame:
    """Per architecture, the median over seeds of the highest rate that trained (cf. Table 3; rate_brackets).

    "Trained" is the paper's achievable: neither diverged nor left at guessing accuracy. A search tries other
    rates for each seed, so that seeds are ordered by their own limits, not counted rate by rate. Columns:
    setting, norm, lr (of the seed in the middle, the lower one of two; missing if it trained at none),
    trained (seeds that did at some rate), n, highest_tried, censored (whether that seed failed at no higher
    rate, so that lr is only a lower bound), brackets (a list with each seed's works and fails).
    """
    table = outcomes(frames)
    table = table[(table["fate"] != UNDECIDED) & ~first_steps(table)]
    rows = []
    for (where, norm), runs in groups(done_brackets(table), ARCHITECTURE):
        ordered = runs.sort_values("works", na_position="first", kind="stable")
        middle = ordered.iloc[(len(ordered) - 1) // 2]
        mine = table[(table["setting"] == where) & (table["norm"] == norm)]
        pairs = list(zip(runs["works"], runs["fails"], strict=True))
        counts = (int(runs["works"].notna().sum()), len(runs), float(mine["lr"].max()))
        censored = bool(pd.notna(middle["works"]) and pd.isna(middle["fails"]))
        rows.append((where, norm, middle["works"], *counts, censored, pairs))
    columns = ["setting", "norm", "lr", "trained", "n", "highest_tried", "censored", "brackets"]
    return pd.DataFrame(rows, columns=columns)


def plateau(frames: Frames) -> pd.DataFrame:
    """Per cell, how many runs had stopped improving when they ended: n, n_plateau, n_unknown."""
    reached = frames.runs["plateau_reached"]
    flags = frames.runs.assign(
        n_plateau=reached.fillna(False).astype(int), n_unknown=reached.isna().astype(int)
    )
    return flags.groupby(CELL, observed=True, as_index=False).agg(
        n=("run_id", "size"), n_plateau=("n_plateau", "sum"), n_unknown=("n_unknown", "sum")
    )


def norm_order(norms: Iterable[str]) -> list[str]:
    """Norms in the order in which figures and tables show them: bn, other norms by name, none last."""
    return sorted({str(n) for n in norms}, key=lambda n: (n == "none", n != "bn", n))


RATES = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003)
"""Initial rates of Bjorck et al. 2018: accuracies are compared at these, not at those that a search tried."""


MANY_SEEDS = 7
"""As many as the smallest first look of a claim has (claims.base.LEVEL)."""


def rated(table: pd.DataFrame) -> pd.DataFrame:
    """Runs of `outcomes` whose accuracies may be compared over rates, with their `score` on the test set.

    Those at RATES that were trained to their end or diverged (a run that was stopped once its fate was
    decided has no final accuracy), of seeds that have every rate that counts: one that half of the seeds of
    their architecture have, or as many as MANY_SEEDS. So seeds that are added at some rates alone, to look at
    these again, change nothing for the others.
    """
    usual = table["lr"].map(lambda lr: bool(np.isclose(lr, RATES, rtol=1e-6).any())).astype(bool)
    table = table[~stopped_early(table) & usual].assign(score=lambda t: score(t, "last_test"))
    table = table[table["score"].notna()].drop_duplicates([*CELL, "seed"])
    if table.empty:
        return table
    by = table.groupby(ARCHITECTURE, observed=True)["seed"]
    enough = (by.transform("nunique") / 2).clip(upper=MANY_SEEDS)
    table = table[table.groupby(CELL, observed=True)["seed"].transform("size") >= enough]
    has = table.groupby([*ARCHITECTURE, "seed"], observed=True)["lr"].transform("size")
    return table[has == table.groupby(ARCHITECTURE, observed=True)["lr"].transform("nunique")]


def at_common_rates(table: pd.DataFrame) -> pd.DataFrame:
    """As `rated`, at those rates only that all architectures of the table have: none gets more tries."""
    found = rated(table)
    having = found.drop_duplicates(CELL).groupby("lr")["lr"].transform("size")
    common = set(found.loc[having.index[having == len(found.drop_duplicates(ARCHITECTURE))], "lr"])
    return found[found["lr"].isin(common)]


def best_by_seed(table: pd.DataFrame) -> pd.DataFrame:
    """Per architecture and seed of `outcomes`, the run with the best score over rates; `value` is that score.

    As in Bjorck et al. 2018 the test set selects the rate, the smaller of two equally good ones; but seed by
    seed, so that seeds stay independent of each other, and among the rates that all architectures have.
    """
    found = at_common_rates(table).sort_values("lr", kind="stable")
    found = found.sort_values("score", ascending=False, kind="stable")
    return found.drop_duplicates([*ARCHITECTURE, "seed"]).assign(value=lambda t: t["score"])


def rate_brackets(table: pd.DataFrame) -> pd.DataFrame:
    """Per architecture and seed of `outcomes`, between which rates training ceases to work (cf. Table 3).

    Columns: setting, scientific, norm, seed, works (the highest rate that trained below `fails`; missing if
    none did), fails (the lowest that was too high, as study.brackets.bracket says; missing if none was),
    tried, narrow (whether a search would try no further rate: study.brackets.narrowed), run_id (of the run at
    `works`, or of the lowest rate).
    """
    rows = []
    for (where, norm, seed), runs in groups(table, [*ARCHITECTURE, "seed"]):
        fates = dict(zip(runs["lr"], runs["fate"], strict=True))
        works, fails = brackets.bracket(fates)
        narrow = brackets.narrowed(fates, set(runs.loc[runs["status"] == "stopped", "lr"]))
        end = runs[runs["lr"] == (works or runs["lr"].min())].iloc[0]
        found = (works, fails, len(runs), narrow, str(end["run_id"]))
        rows.append((where, end["scientific"], norm, seed, *found))
    columns = ["setting", "scientific", "norm", "seed", "works", "fails", "tried", "narrow", "run_id"]
    return pd.DataFrame(rows, columns=columns).astype(
        {"works": "float64", "fails": "float64", "narrow": "bool"}
    )


def done_brackets(table: pd.DataFrame) -> pd.DataFrame:
    """As `rate_brackets`; where a search of an architecture is done, without seeds whose search is not."""
    found = rate_brackets(table)
    searched = found.groupby(ARCHITECTURE, observed=True)["narrow"].transform("any").astype(bool)
    return found[found["narrow"] | ~searched]


def apart_from(runs: pd.DataFrame, fields: Collection[str]) -> "pd.Series[str]":
    """The runs' settings without some scientific fields (see analysis.runs.setting)."""
    if not fields:
        return runs["setting"].astype("str")
    names = [
        setting({**row._asdict(), "scientific": json.loads(row.scientific)}, fields) for row in each(runs)
    ]
    return pd.Series(names, index=runs.index, dtype="str")


def deepest(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Which runs are of the deepest network among those that are otherwise alike.

    A shallow network shows no advantage of normalisation, and is no test of what is said of a deep one.
    """
    depth = runs["depth"].astype("float64").fillna(0.0)
    return depth == depth.groupby(apart_from(runs, ("model.depth",))).transform("max")

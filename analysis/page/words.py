"""The words of the page, for whoever knows the paper's abstract alone."""

from functools import cache
from pathlib import Path

import pandas as pd

from analysis import select

NORMS = Path(__file__).parents[2] / "conf" / "norm"

WORDS = (
    (
        "setting",
        "all that runs have in common but norm, rate and seed: images, network, batch size, epochs and so "
        "on; only runs of one setting are compared",
    ),
    ("rate", "the learning rate with which training begins"),
    ("seed", "the number that fixes a run's random choices, as its initial weights and batches"),
    (
        "chance",
        "the accuracy of guessing the most frequent class; a run is stuck at chance if its test accuracy "
        "after the last epoch cannot be told from that",
    ),
    ("norm", "what normalises the layers of the network, if anything; in these runs:"),
)


def words(table: pd.DataFrame) -> list[tuple[str, str]]:
    """(Word, meaning): WORDS, and the norms of analysis.select.outcomes that conf/norm describes."""
    found = [(norm, _meaning(norm)) for norm in select.norm_order(table["norm"])]
    return [*WORDS, *((norm, text) for norm, text in found if text)]


def _meaning(norm: str) -> str:
    """As its yaml says; of a norm with switches of its own, as bn[order=1], what it varies (study.naming)."""
    base, _, switches = norm.removesuffix("]").partition("[")
    text = _described().get(base, "")
    return f"{base} with {switches}. {base}: {text}" if text and switches else text


@cache
def _described() -> dict[str, str]:
    """Norm → the first line of its yaml, a comment that says what it is."""
    return {
        path.stem: path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        for path in NORMS.glob("*.yaml")
    }

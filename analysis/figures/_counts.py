"""What a figure of accuracies or losses leaves out, in words that stand on the figure itself."""

import pandas as pd

from analysis import select, stats, style
from analysis.tidy import groups


def lines(table: pd.DataFrame) -> list[str]:
    """One line per norm and rate with runs that diverged or are undecided: "× none at 0.1: n = 2 of 3, …".

    `table` is analysis.select.outcomes; × is the mark of a diverged run.
    """
    found = []
    for (norm, lr), runs in groups(table, ["norm", "lr"]):
        diverged = runs[runs["fate"] == select.DIVERGED]
        undecided = int((runs["fate"] == select.UNDECIDED).sum())
        if not len(diverged) and not undecided:
            continue
        n = len(runs) - undecided
        text = stats.of_n(n - len(diverged), n, len(diverged), undecided)
        steps = diverged["diverged_step"].dropna()
        when = f" (first at step {int(steps.min())})" if len(steps) else ""
        mark = "× " if len(diverged) else ""
        found.append(f"{mark}{norm} at {style.rate_label(lr)}: {text}{when}")
    return found

"""What the figures of random matrices share: the tables of study.randmat, which belong to no run."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.figures import UndrawableError
from analysis.load import Frames
from study.paths import RANDOM_MATRICES as FOLDER
from study.records import RANDOM_MATRICES

SECTION = "Products of random matrices (Bjorck et al. 2018, §5, App. C and K)"


def table(frames: Frames, name: str, n: int | None = None) -> pd.DataFrame:
    """Rows of one table, from the folder beside the runs; of one N (`size`) and gain 1 where those differ.

    Raises UndrawableError, with nothing to say, where `python -m study.randmat` has not been run.
    """
    files = [f for folder in frames.folders for f in sorted((folder / FOLDER).glob(f"{name}*.parquet"))]
    found = [_read(file, name) for file in files]
    rows = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    if "gain" in rows:
        rows = rows[rows["gain"] == 1]
    if "n" in rows and name != "fit":
        rows = rows[rows["n"] == (size(rows) if n is None else n)]
    if rows.empty:
        raise UndrawableError("")
    keys = [k for k in ("seed", "n", "m", "draw", "matrices") if k in rows]
    return pd.DataFrame(rows.drop_duplicates(keys).sort_values(keys, ignore_index=True))


def size(rows: pd.DataFrame) -> int:
    """The N of which there are most draws, the larger of two; 0 without rows."""
    draws = rows.drop_duplicates(["n", "seed", "draw"]).groupby("n").size()
    return int(max(draws.index, key=lambda n: (draws[n], n), default=0))


def _read(path: Path, name: str) -> pd.DataFrame:
    try:
        found = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise UndrawableError(f"{path} cannot be read: {error}") from error
    if not found.schema.equals(RANDOM_MATRICES[name]):
        raise UndrawableError(f"{path} is not a table of study.randmat")
    frame: pd.DataFrame = found.to_pandas()
    return frame


def colours(factors: Sequence[int]) -> dict[int, str]:
    """One colour per number of factors, darker for fewer."""
    palette = plt.get_cmap("viridis")
    last = max(1, len(factors) - 1)
    return {m: mpl.colors.to_hex(palette(0.08 + 0.72 * i / last)) for i, m in enumerate(factors)}


def repetitions(rows: pd.DataFrame) -> str:
    """ "5 draws, N = 1000"."""
    n = len(rows.drop_duplicates(["seed", "draw"]))
    return f"{n} draw{'s' if n != 1 else ''}, N = {int(rows['n'].iloc[0])}"

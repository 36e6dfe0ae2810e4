"""Typed ways to walk a frame: pandas' own iterators give values of unknown type."""

from collections.abc import Iterator
from typing import Any

import pandas as pd


def each(frame: pd.DataFrame) -> Iterator[Any]:
    """Rows as named tuples."""
    return iter(frame.itertuples())


def groups(frame: pd.DataFrame, by: list[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """((value, …), rows) for every combination of values that occurs, in sorted order."""
    for key, group in frame.groupby(by, observed=True):
        yield (key if isinstance(key, tuple) else (key,)), group


def at(frame: pd.DataFrame, row: Any, column: str) -> Any:
    """One value."""
    return frame.at[row, column]

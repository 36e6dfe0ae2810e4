"""Where metrics are mirrored while a run trains. The Parquet records stay the truth."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from study.config import RunConfig
from study.paths import RunPaths


class Tracker(Protocol):
    """A mirror of one run. Its failures must never reach the training loop."""

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Mirror rows of the metrics table."""

    def finish(self, record: Mapping[str, Any]) -> None:
        """Close the mirror; `record` is the run's final run.json."""


class NoTracker:
    """Mirrors nothing."""

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Do nothing."""

    def finish(self, record: Mapping[str, Any]) -> None:
        """Do nothing."""


def build(config: RunConfig, paths: RunPaths, record: dict[str, Any]) -> Tracker:
    """Return the tracker that the config names; it may store its own id in `record` (wandb_id)."""
    return NoTracker()

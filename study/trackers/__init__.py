"""Where metrics are mirrored while a run trains. The Parquet records stay the truth.

A tracker reads what the run has written durably (the parts that a checkpoint names, at the end the tables),
so it shows every row once, however often the run is killed. Importing this imports no tracker's library.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from study.config import RunConfig
from study.paths import RunPaths

WARNING = "W&B: "
"""What a tracker's warning on stderr begins with."""


class Tracker(Protocol):
    """A mirror of one run. Its failures must never reach the training loop, nor make it wait."""

    def publish(self, parts: Sequence[str]) -> None:
        """Hear that these parts (names within paths.parts, all so far) are on disk."""

    def finish(self, record: Mapping[str, Any]) -> None:
        """Mirror what is left and close; `record` is the run's run.json. Waits for a bounded time."""


class NoTracker:
    """Mirrors nothing."""

    def publish(self, parts: Sequence[str]) -> None:
        """Do nothing."""

    def finish(self, record: Mapping[str, Any]) -> None:
        """Do nothing."""


def wanted(config: RunConfig) -> bool:
    """Whether the run is mirrored in W&B: it says so, or W&B's agent started it."""
    named = config.tracker.name == "wandb" or agent_run() is not None
    return named and os.environ.get("WANDB_MODE") != "disabled"


def agent_run() -> str | None:
    """Return the id of the W&B run that `wandb agent` made for this process; None without an agent."""
    return os.environ.get("WANDB_RUN_ID") if os.environ.get("WANDB_SWEEP_ID") else None


def identity(config: RunConfig, run_id: str, stored: str | None) -> str | None:
    """Return the W&B id of a run, to be stored before it trains; None without a mirror.

    The hash of the run's id and a random part: a resume finds the stored id again, while two people (or a
    rerun) with the same config in one project have two W&B runs. An agent's own run goes before either.
    """
    if not wanted(config):
        return stored
    return agent_run() or stored or identity_of(run_id)


def identity_of(run_id: str) -> str:
    """Return a new W&B id for a run."""
    return f"{run_id.rpartition('-')[2]}-{secrets.token_hex(4)}"


def build(config: RunConfig, paths: RunPaths, record: Mapping[str, Any]) -> Tracker:
    """Return the run's tracker; `record` is its run.json, whose wandb_id comes from `identity`."""
    if not wanted(config):
        return NoTracker()
    from study.trackers.mirror import Mirror

    return Mirror(config, paths, record)

"""Fixtures of the W&B tests: a server, an environment that reaches nothing else, and a tracked tiny run."""

import dataclasses
import functools

import pytest

from study.config import ProbesConfig, TrackerConfig
from study.execute import execute, run_paths
from study.trackers import mirror
from tests.runs import tiny
from tests.wandb_server import WandbServer

PROBES = ("activation_moments", "gradient_tails", "activation_histogram@every:3")


@functools.cache
def _one_server():
    """The server of this process: W&B's client keeps to the address it first saw."""
    return WandbServer().__enter__()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """An empty server, online."""
    one = _one_server()
    for name in ("WANDB_SWEEP_ID", "WANDB_RUN_ID", "WANDB_DIR", "WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in one.environment(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(mirror, "PREEMPTED_SECONDS", 120.0)  # a busy machine must not fail the tests
    one.clear()
    yield one
    one.fault = None


def tracked(runs_dir, *, patience=120.0, probes=(), sweep="", **changes):
    """Return the config of a tiny run that W&B mirrors at every step."""
    config = tiny(runs_dir, **changes)
    return dataclasses.replace(
        config,
        checkpoint_seconds=0.0,
        sweep=sweep,
        probes=ProbesConfig(measure=tuple(probes)),
        tracker=TrackerConfig(name="wandb", project="p", patience=patience),
    )


def warnings_of(config):
    """Lines about W&B in the run's log."""
    return [line for line in run_paths(config).log.read_text().splitlines() if "W&B:" in line]


def stopped_after(config, steps):
    """Execute until so many updates are done; the run is then preempted."""
    asked = iter(range(10**6))
    return execute(config, stop=lambda: next(asked) >= steps)

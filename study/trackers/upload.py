"""A finished run sent to W&B from its records: late, again, or into a run that W&B's agent made."""

import json
import sys
from typing import Any

from study.config import RunConfig
from study.paths import RunPaths
from study.records import read_record, write_json
from study.trackers import agent_run, identity_of
from study.trackers.mirror import Mirror, uploaded_as


def replay(config: RunConfig, paths: RunPaths, record: dict[str, Any]) -> str:
    """Send a finished run to its W&B run, which may have none, some or all of it; return what failed, or "".

    Blocks for a bounded time. Rows that the W&B run has are not sent again.
    """
    mirror = Mirror(config, paths, record, live=True)
    mirror.finish(record)
    return mirror.failed


def sync(config: RunConfig, paths: RunPaths) -> tuple[bool, str]:
    """Upload a finished run unless W&B has it as it is; return (whether it was uploaded, what failed).

    A run without a W&B id gets one, stored in run.json before anything is sent.
    """
    record = read_record(paths)
    assert record is not None
    if not record.get("wandb_id"):
        record["wandb_id"] = identity_of(paths.run_id)
        write_json(paths.record, record)
    if _uploaded(paths) == uploaded_as(paths, record):
        return False, ""
    failed = replay(config, paths, record)
    return not failed, failed


def show_agent(config: RunConfig, paths: RunPaths) -> None:
    """Replay a finished run into the agent's W&B run, if an agent started us and the run is not there."""
    agent = agent_run()
    record = read_record(paths)
    if agent is None or record is None or record.get("wandb_id") == agent:
        return
    if failed := replay(config, paths, {**record, "wandb_id": agent}):
        print(f"W&B: {failed}", file=sys.stderr)


def _uploaded(paths: RunPaths) -> Any:
    try:
        return json.loads(paths.uploaded.read_text())
    except (OSError, ValueError):
        return None

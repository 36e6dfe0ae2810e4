"""What a run says of itself before there is a network: description, log, and why it could not be built."""

import logging
import socket
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from study import provenance, records
from study.config import RunConfig, to_mapping
from study.identity import depth_of, scientific
from study.ownership import Claim
from study.paths import RunPaths
from study.records import read_record, write_json
from study.status import Status


def described(run: RunConfig, paths: RunPaths, old: Mapping[str, Any]) -> dict[str, Any]:
    """Return what run.json says of a run before there is a network; `old` is what it said before."""
    sweeps = list(old.get("sweeps", []))
    if run.sweep and run.sweep not in sweeps:
        sweeps.append(run.sweep)
    return {
        "schema": records.SCHEMA_VERSION,
        "run_id": paths.run_id,
        "norm": run.norm.name,
        "lr": run.lr,
        "seed": run.seed,
        "model": run.model.name,
        "depth": depth_of(run),
        "data": run.data.name,
        "experiment": run.experiment,
        "scale": run.scale,
        "sweeps": sweeps,
        "scientific": scientific(run),
        "versions": provenance.versions(),
        "threads": run.threads,
        "git": provenance.git(),
        "host": socket.gethostname(),
    }


def record_failure(run: RunConfig, paths: RunPaths, held: Claim, error: Exception) -> None:
    """Record that a run raised before it could train; what an earlier attempt has recorded stays."""
    old = read_record(paths) or {"created": now()}
    if not paths.config.exists():
        write_config(run, paths)
    log = open_log(paths.log)
    log.error("failed before training: %s", error, exc_info=error)
    close_log(log)
    held.check()
    text = "".join(traceback.format_exception_only(error)).strip()
    changes = {"status": Status.FAILED, "error": text, "updated": now()}
    write_json(paths.record, {**old, **described(run, paths, old), **changes})


def write_config(run: RunConfig, paths: RunPaths) -> None:
    """Write config.yaml."""
    records.write_bytes(paths.config, yaml.safe_dump(to_mapping(run), sort_keys=False).encode())


def open_log(path: Path) -> logging.Logger:
    """Return the logger of a run that writes into its log.txt."""
    logger = logging.getLogger(f"study.run.{path.parent.name}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger


def close_log(logger: logging.Logger) -> None:
    """Close the file."""
    for handler in list(logger.handlers):
        handler.close()
        logger.removeHandler(handler)


def now() -> str:
    """Return the time as the records write it: ISO, UTC, seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")

"""Synthetic runs folders, written in the study's own formats: what the analysis is tested on."""

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from study.paths import RunPaths
from study.records import METRICS, strict

N_TEST, N_TRAIN, CLASSES = 450, 1344, 10
STEPS_PER_EPOCH = 6


def grid_runs(
    folder: Path,
    fates: dict[tuple[str, float], str | Iterable[str]],
    *,
    epochs: int = 15,
    sweeps: tuple[str, ...] = ("quickstart",),
    **record: Any,
) -> list[str]:
    """Write one run per (norm, lr) and fate listed; the k-th fate of a cell is seed k. Returns run ids."""
    ids = []
    for (norm, lr), outcomes in fates.items():
        listed = [outcomes] if isinstance(outcomes, str) else list(outcomes)
        for seed, fate in enumerate(listed):
            ids.append(
                write_run(
                    folder, norm=norm, lr=lr, seed=seed, fate=fate, epochs=epochs, sweeps=sweeps, **record
                )
            )
    return ids


def write_run(
    folder: Path,
    *,
    norm: str = "bn",
    lr: float = 0.1,
    seed: int = 0,
    fate: str = "trained",
    status: str = "finished",
    epochs: int = 15,
    final: float = 0.93,
    gap: float = 0.04,
    validation: bool = False,
    sweeps: tuple[str, ...] = (),
    probes: dict[str, pa.Table] | None = None,
    extra: dict[str, Any] | None = None,
    **overrides: Any,
) -> str:
    """Write one run directory; `fate` is trained, stuck or diverged. Returns its id.

    `final` is the last test accuracy, `gap` the train accuracy above it; `extra` are further scientific
    fields; `overrides` replace keys of run.json.
    """
    scientific: dict[str, Any] = {"data.size": 16, "epochs": epochs, "lr": lr, "seed": seed, **(extra or {})}
    if norm != "bn":
        scientific["norm.family"] = norm
    digest = hashlib.sha256(json.dumps(scientific, sort_keys=True).encode()).hexdigest()[:12]
    run_id = f"digits-resnet110-{norm}-lr{lr:g}-s{seed}-{digest}"
    paths = RunPaths(folder / run_id)
    paths.root.mkdir(parents=True, exist_ok=True)
    diverged = fate == "diverged"
    rows = curves(fate, lr=lr, seed=seed, epochs=epochs, final=final, gap=gap, validation=validation)
    total = epochs * STEPS_PER_EPOCH
    done = max(r["step"] for r in rows)
    record: dict[str, Any] = {
        "schema": 1,
        "run_id": run_id,
        "status": status,
        "outcome": "diverged" if diverged else "trained" if status == "finished" else None,
        "divergence": {"step": done, "layer": "block9.conv1", "loss": math.inf, "initial_loss": 88.0}
        if diverged
        else None,
        "crossings": {"absolute_step": done if diverged else None, "relative_step": None},
        "initial_loss": 2.5 if norm == "bn" else 88.0,
        "plateau_reached": None if diverged else False,
        "poisoned": [],
        "n_classes": CLASSES,
        "chance": 0.102,
        "n_train": N_TRAIN,
        "n_test": N_TEST,
        "conv_biases": {"stem": norm == "none"},
        "scientific": scientific,
        "norm": norm,
        "lr": lr,
        "seed": seed,
        "model": "resnet",
        "depth": 110,
        "data": "digits",
        "experiment": "",
        "scale": "laptop",
        "sweeps": list(sweeps),
        "seconds": 61.5 if not diverged else 1.2,
        "steps_done": done if status == "finished" else 3,
        "steps_total": total,
        "versions": {
            "python": "3.11.2",
            "torch": "2.14.1",
            "torchvision": "0.29",
            "numpy": "2.4",
            "study": "0.1.0",
        },
        "threads": 1,
        "device": "cpu",
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
        "host": "node1",
        "wandb_id": None,
        "created": "2026-01-02T03:04:05Z",
        "updated": "2026-01-02T03:05:05Z",
        "restarts": 0,
        "error": "Traceback …\nRuntimeError: out of memory" if status == "failed" else None,
    } | overrides
    paths.config.write_text(f"lr: {lr}\nseed: {seed}\n")
    paths.record.write_text(json.dumps(strict(record)))
    if status in {"finished", "stopped"}:
        pq.write_table(pa.Table.from_pylist(rows, schema=METRICS), paths.metrics)
        for name, table in (probes or {}).items():
            paths.probes.mkdir(exist_ok=True)
            pq.write_table(table, paths.probe(name))
    return run_id


def curves(
    fate: str, *, lr: float, seed: int, epochs: int, final: float, gap: float, validation: bool
) -> list[dict[str, Any]]:
    """Rows of metrics.parquet: saturating accuracy with a jump at the rate drops, or a loss that explodes."""
    rng = np.random.default_rng([seed, int(lr * 1e7)])
    rows: list[dict[str, Any]] = []
    for epoch in range(1 if fate == "diverged" else epochs):
        rate = lr * (0.1 if epoch + 1 > epochs / 2 else 1) * (0.1 if epoch + 1 > 0.75 * epochs else 1)
        reached = final * (1 - math.exp(-4 * (epoch + 1) / epochs)) / (1 - math.exp(-4))
        test = 0.1 if fate == "stuck" else 0.1 + max(0.0, reached - 0.1)
        for i in range(STEPS_PER_EPOCH):
            step = epoch * STEPS_PER_EPOCH + i
            loss = (
                88.0 * 40.0**step if fate == "diverged" else -math.log(max(0.12, test)) + rng.normal(0, 0.05)
            )
            ended = fate == "diverged" and step == 2
            value = math.inf if ended else abs(loss)
            rows.append(_row(step, epoch, "batch", rate, value, 0.1, 64, None))
            if ended:
                return rows
        done = (epoch + 1) * STEPS_PER_EPOCH
        noise = rng.normal(0, 0.004)
        splits = {"train": (min(0.999, test + gap), N_TRAIN), "test": (test + noise, N_TEST)}
        if validation:
            splits["validation"] = (test + rng.normal(0, 0.004), 200)
        for split, (accuracy, n) in splits.items():
            correct = round(min(1.0, accuracy) * n)
            counts = [n - 9 * (n // 10)] + [n // 10] * 9
            rows.append(
                _row(done, epoch + 1, split, rate, -math.log(max(0.11, test)), correct / n, n, counts)
            )
    return rows


def _row(
    step: int, epoch: int, split: str, lr: float, loss: float, accuracy: float, n: int, predicted: Any
) -> dict[str, Any]:
    return {
        "step": step,
        "epoch": epoch,
        "split": split,
        "lr": lr,
        "loss": loss,
        "accuracy": accuracy,
        "n": n,
        "predicted": predicted,
        "poisoned": False,
    }


QUICKSTART = {
    ("bn", 0.1): "trained",
    ("bn", 0.003): "trained",
    ("bn", 0.0001): "stuck",
    ("none", 0.1): "diverged",
    ("none", 0.003): "stuck",
    ("none", 0.0001): "trained",
}
"""One seed of the basic grid."""

FIVE_SEEDS = {
    ("bn", 0.1): ["trained"] * 4 + ["stuck"],
    ("bn", 0.003): ["trained"] * 5,
    ("bn", 0.0001): ["trained", "stuck", "stuck", "stuck", "stuck"],
    ("none", 0.1): ["diverged"] * 5,
    ("none", 0.003): ["diverged", "stuck", "diverged", "stuck", "trained"],
    ("none", 0.0001): ["stuck"] * 3 + ["trained"] * 2,
}

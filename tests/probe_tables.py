"""Runs with a table of every probe that a figure reads, by the probes' schemas, without a network."""

import numpy as np
import pyarrow as pa

from analysis.load import load
from study.probes import _histogram, base
from tests import factory

NUMBERS = (8, 18, 44, 52, 54, 55, 80, 90, 109, 110)
COMMON = {"step": 0, "epoch": 0, "when": "init"}


def layers():
    return [{**COMMON, "layer": f"layer{n}", "number": n} for n in NUMBERS]


def probe_rows(norm, seed):
    """Rows of every probe that a figure reads, by the probes' schemas; none is 100 times as wide as bn."""
    rng = np.random.default_rng(seed)
    wide = 100.0 if norm == "none" else 1.0
    counts = np.asarray(_histogram.histogram(tensor(rng.normal(0, wide, 4000))).counts).tolist()
    channels = rng.uniform(0.5, 2, 4)
    return {
        "gradient_tails": [
            row
            | {
                "n": 4000,
                "zeros": 1,
                "nonfinite": 0,
                "deviation": wide,
                "kurtosis": 3.0 + wide,
                "counts": counts,
            }
            | {"channel_abs": (channels * wide).tolist()}
            for row in layers()
        ],
        "activation_moments": [
            row
            | {"source": source, "side": "output", "call": 0, "n": 100, "nonfinite": [0, 0]}
            | {"mean": [wide, -wide], "variance": [_growth(norm, row["number"]) ** 2] * 2}
            for row in layers()
            for source in ("data", "noise")
        ],
        "activation_histogram": [
            row
            | {"side": "output", "call": 0, "counts": counts, "zeros": 0, "nonfinite": 0}
            | {"dip": 0.01, "unimodal_p": 0.5}
            for row in layers()
        ],
        "gradient_agreement": [
            row
            | {"a": 100.0, "b": 100.0 / (200 / wide), "ratio": 200 / wide, "image_ratio": 1.5}
            | {"sum_abs": rng.uniform(1, 2, 90).tolist(), "gradient": rng.normal(size=90).tolist()}
            | {"nonfinite": 0}
            for row in layers()
        ],
        "channel_pairs": [
            row
            | {"outputs": 3, "inputs": 4, "mean_abs": np.tile(channels, 3).tolist(), "top_share": 0.9}
            | {"input_mean": channels.tolist(), "input_zeros": [0.0, 0.0, 0.2, 1.0], "nonfinite": 0}
            for row in layers()
        ],
        "logit_gradients": [
            {**COMMON, "images": 6, "classes": 3, "labels": [2, 1, 0, 2, 1, 0], "top_mass": 0.5}
            | {"gradient": rng.normal(size=18).tolist(), "positive_share": [0.2, 0.7, 0.1]}
            | {"mass": [0.3, 0.5, 0.2], "mean_row_cosine": 0.1, "nonfinite": 0}
        ],
        "class_gradients": [
            {**COMMON, "layer": "layer52", "number": 52, "by": "logit", "class": c, "count": 2}
            | {"mean_abs": 10.0 if c == 1 and wide > 1 else 1.0, "max_abs": 1.0, "kernel_norm": 1.0}
            | {"nonfinite": 0}
            for c in range(3)
        ],
        "example_gradients": [
            {**COMMON, "layer": "layer90", "number": 90, "estimand": "image_terms", "weight": [0, 5]}
            | {"images": 8, "gradient": rng.normal(size=16).tolist(), "majority_share": 0.6}
            | {"mean_to_deviation": 0.2, "skewness": 0.3, "nonfinite": 0}
        ],
        "loss_along_gradient": [
            {**COMMON, "alpha": [1e-3, 1e-2, 1e-1], "ratio": [0.9, 1.1, 2000.0], "loss": [2.0, 2.4, 4000.0]}
            | {"initial_loss": 2.2, "past_1_05": 5e-3, "past_1000": 0.09, "best_alpha": 1e-3}
            | {"best_ratio": 0.9, "nonfinite": 0}
        ],
        "gradient_noise": [
            {**COMMON, "estimand": "image" if norm == "none" else "batch_statistics", "law": law}
            | {"batch_size": b, "subset": 64, "draws": 16, "measured": wide * (64 - b) / (b * 63)}
            | {"bound": wide / b, "c": wide, "predicted": wide * (64 - b) / (b * 63)}
            for law in ("without_replacement", "independent")
            for b in (2, 4, 16)
        ],
        "update_path": [
            {**COMMON, "layer": f"layer{n}", "number": n, "rate": 0.1, "share": share, "loss": 2.0}
            | {"mean": [wide * (1 + share), 0.1], "variance": [wide, 1.0], "nonfinite": [0, 0]}
            | {"call": 0, "n": 10}
            for n in (8, 44, 80)
            for share in (0.0, 0.5, 1.0)
        ],
    }


def _growth(norm, number):
    return float(np.exp(0.045 * number)) if norm == "none" else 1.0


def tensor(values):
    import torch

    return torch.tensor(values, dtype=torch.float32)


def first_steps(name, rows, steps=7):
    """The same rows at the first mini-batches, with a loss and moments that fall from step to step."""
    moving = {"activation_moments": ("variance",), "loss_along_gradient": ("ratio",)}
    found = []
    for step in range(steps if name in moving else 0):
        for row in rows:
            if row.get("source") == "noise":
                continue
            fallen = {k: [v * 0.9**step for v in row[k]] for k in moving[name]}
            found.append({**row, **fallen, "when": "first", "step": step})
    return found


def tables(norm, seed, change=None, first=False):
    found = {}
    for name, rows in probe_rows(norm, seed).items():
        rows = [*rows, *(first_steps(name, rows) if first else [])]
        rows = [change(name, dict(row)) if change else row for row in rows]
        found[name] = pa.Table.from_pylist(rows, schema=base.schema(name))
    return found


def frames(folder, norms=("bn", "none"), seeds=2, change=None, first=False):
    for norm in norms:
        for seed in range(seeds):
            factory.write_run(folder, norm=norm, seed=seed, probes=tables(norm, seed, change, first))
    return load([folder])

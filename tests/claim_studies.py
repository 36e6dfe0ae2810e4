"""Synthetic studies in memory, in the loader's own frames: what the claims are calibrated on.

A study is drawn as the claims' TRUE, their NULL (on the very edge of what a claim says: medians equal, or at
the threshold of its rule) or their OPPOSITE; between seeds there is noise.
"""

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.figures._bins import SIDE
from analysis.load import PROBLEMS, Frames
from analysis.parquet import CATEGORIES

LAYERS = (8, 18, 44, 52, 54, 55, 80, 90, 109, 110)
NOISE = 0.12
"""Deviation between seeds of everything that has no unit or is a decimal logarithm."""


@dataclass(frozen=True)
class Truth:
    """Medians of what the claims measure, without norm and with BN; lg: decimal logarithms."""

    deviation_lg: tuple[float, float]
    kurtosis_lg: tuple[float, float]
    early_over_late_lg: tuple[float, float]
    class_share: tuple[float, float]
    agreement_lg: tuple[float, float]
    pair_spread: tuple[float, float]
    mean_drives: tuple[float, float]
    zeros_drive: float
    class_lead_lg: float
    majority: tuple[float, float]
    line: tuple[float, float]
    update_lg: float
    slope: tuple[float, float]
    scale_lg: float
    relative_mean: tuple[float, float]
    modes: tuple[float, float]
    improves_lg: tuple[float, float]
    steepness_lg: tuple[float, float]
    early_change_lg: float
    exponent: float
    factors: tuple[float, float]


LG3 = float(np.log10(3))
EDGE = 0.2  # the margin of the exponent's equivalence
TRUE = Truth(
    deviation_lg=(2.5, 0), kurtosis_lg=(1.5, 0.5), early_over_late_lg=(0.9, 0.1),
    class_share=(0.9, 0.3), agreement_lg=(0, 2), pair_spread=(3, 1), mean_drives=(0.9, 0),
    zeros_drive=-0.9, class_lead_lg=1.8, majority=(0.9, 0.55), line=(0.95, 0), update_lg=5,
    slope=(0.05, 0), scale_lg=2.5, relative_mean=(0.7, 0.1), modes=(0.9, 0.1), improves_lg=(-4, -2),
    steepness_lg=(1.2, 0.2), early_change_lg=-1, exponent=-1, factors=(2, 0.1),
)  # fmt: skip
NULL = Truth(
    deviation_lg=(1, 0), kurtosis_lg=(1, 1), early_over_late_lg=(0.9, 0.9), class_share=(0.5, 0.5),
    agreement_lg=(LG3, 1 + LG3), pair_spread=(2, 2), mean_drives=(0.6, 0.6), zeros_drive=0,
    class_lead_lg=1, majority=(0.7, 0.7), line=(0.6, 0.6), update_lg=2, slope=(0.02, 0.02),
    scale_lg=1.5, relative_mean=(0.5, 0.5), modes=(0.5, 0.5), improves_lg=(-3, -3),
    steepness_lg=(0.8, 0.8), early_change_lg=0, exponent=-1 + EDGE, factors=(0, 0),
)  # fmt: skip
OPPOSITE = Truth(
    deviation_lg=(0, 0), kurtosis_lg=(0.5, 1.5), early_over_late_lg=(-0.9, 0.9), class_share=(0.3, 0.9),
    agreement_lg=(1.2, 1.2), pair_spread=(1, 3), mean_drives=(0, 0.9), zeros_drive=0.9,
    class_lead_lg=0.3, majority=(0.55, 0.9), line=(0, 0.95), update_lg=0.5, slope=(0, 0.05),
    scale_lg=0.5, relative_mean=(0.1, 0.7), modes=(0.1, 0.9), improves_lg=(-2, -4),
    steepness_lg=(0.2, 1.2), early_change_lg=1, exponent=-0.3, factors=(-2, -0.1),
)  # fmt: skip


def untrained(rng, truth, seeds=11, norms=("none", "bn"), scale="laptop"):
    """Frames of networks measured before training and over their first seven steps."""
    runs, tables = [], {}
    for norm in norms:
        for seed in range(seeds):
            run = _run(norm, {"none": 0.0001, "bn": 0.1}[norm], seed, scale=scale)
            runs.append(run)
            for probe, rows in _rows(rng, truth, 0 if norm == "none" else 1).items():
                tables.setdefault(probe, []).extend(
                    {"run_id": run["run_id"], "norm": norm, **r} for r in rows
                )
    return frames(runs, {name: pd.DataFrame(rows) for name, rows in tables.items()})


def frames(runs, probes=None, metrics=None):
    """Frames of these rows of runs, with what else a record holds filled in."""
    table = pd.DataFrame(runs, columns=list(_run("bn", 0.1, 0)))
    empty = {"run_id": "str", "step": "int64", "split": "str", "accuracy": "float64", "n": "int64"}
    found = pd.DataFrame(columns=list(empty)).astype(empty) if metrics is None else pd.DataFrame(metrics)
    return Frames(
        runs=_categorised(table.astype({"depth": "Int64", "steps_total": "Int64", "seed": "Int64"})),
        metrics=_categorised(found),
        probes={name: _categorised(rows) for name, rows in (probes or {}).items()},
        problems=pd.DataFrame(columns=list(PROBLEMS)).astype("str"),
    )


def joined(a, b):
    """The runs of both, which have different ids."""
    probes = {k: pd.concat([_text(a.probes[k]), _text(b.probes[k])], ignore_index=True) for k in a.probes}
    runs, metrics = (pd.concat([_text(x), _text(y)]) for x, y in ((a.runs, b.runs), (a.metrics, b.metrics)))
    return frames(runs.reset_index(drop=True), probes, metrics.reset_index(drop=True))


def _text(table):
    return table.astype(dict.fromkeys(table.columns.intersection(list(CATEGORIES)), "str"))


def _categorised(table):
    return table.astype(dict.fromkeys(table.columns.intersection(list(CATEGORIES)), "category"))


def _run(norm, lr, seed, outcome="trained", scale="laptop", **scientific):
    depth = scientific.get("model.depth", 110)
    rest = ", ".join(f"{k}={v}" for k, v in scientific.items() if k != "model.depth")
    return {
        "run_id": f"{norm}-{lr:g}-s{seed}-{scale}-{depth}-{rest}",
        "norm": norm,
        "lr": lr,
        "seed": seed,
        "status": "finished",
        "outcome": outcome,
        "model": "resnet",
        "depth": depth,
        "data": "digits",
        "scale": scale,
        "chance": 0.1,
        "steps_total": 100,
        "setting": f"digits · resnet{depth}" + (f" · {rest}" if rest else ""),
        "scientific": json.dumps({**scientific, "epochs": 12}, sort_keys=True),
        "path": f"nowhere/{norm}",
    }


def _rows(rng, truth, k):
    """Rows of every probe of one run; k is 0 without norm, 1 with BN."""
    noise = lambda size=None: rng.normal(0, NOISE, size)  # noqa: E731
    share = lambda middle: float(np.clip(middle + noise() / 2, 0.01, 0.99))  # noqa: E731
    at = [{"step": 0, "when": "init", "number": n, "layer": f"layer{n}"} for n in LAYERS]
    spread = truth.early_over_late_lg[k] + noise()
    deviation, kurtosis = 10 ** (truth.deviation_lg[k] + noise()), 10 ** (truth.kurtosis_lg[k] + noise())
    agreement, lead = 10 ** (truth.agreement_lg[k] + noise()), 10 ** (truth.class_lead_lg + noise())
    line, majority, top = share(truth.line[k]), share(truth.majority[k]), share(truth.class_share[k])
    slopes = {s: truth.slope[k] + 0.01 * noise() for s in ("data", "noise")}
    scale, update = 10 ** (truth.scale_lg + noise()), 10 ** (truth.update_lg + noise())
    mean, modes = share(truth.relative_mean[k]), share(truth.modes[k])
    a = np.exp(rng.normal(0, 1, 300))
    b = np.exp(line * np.log(a) + np.sqrt(1 - line**2) * rng.normal(0, 1, 300))
    counts = np.zeros(2 * SIDE + 1, int)
    counts[SIDE + 80], counts[SIDE - 80] = int(5000 * (1 + mean)), int(5000 * (1 - mean))
    moments = [
        {**r, "source": s, "side": "output", "nonfinite": [0], "mean": [0.0]}
        | {"variance": [scale**2 if r["number"] == 110 else (1e-4 * np.exp(slopes[s] * r["number"])) ** 2]}
        for r in at
        for s in slopes
    ]
    change = 10 ** (truth.early_change_lg + noise())
    moments += [
        {"step": s, "when": "first", "number": n, "layer": f"layer{n}", "source": "data", "side": "output"}
        | {"nonfinite": [0], "mean": [change ** (s / 6)], "variance": [change ** (s / 6)]}
        for n in (8, 44, 80)
        for s in range(7)
    ]
    return {
        "gradient_tails": [
            {
                **r,
                "nonfinite": 0,
                "deviation": deviation,
                "kurtosis": kurtosis,
                "channel_abs": _channels(r, spread),
            }
            for r in at
        ],
        "logit_gradients": [{**at[0], "positive_share": [top, *[(1 - top) / 9] * 9]}],
        "gradient_agreement": [
            {**r, "ratio": agreement, "sum_abs": a.tolist(), "gradient": b.tolist()} for r in at[1::3]
        ],
        "channel_pairs": [_pairs(rng, truth, k, noise(), r) for r in at if r["number"] in (18, 54, 90)],
        "class_gradients": [
            {**at[3], "by": "logit", "class": c, "mean_abs": lead if c == 2 else 1.0 - 0.1 * c}
            for c in range(4)
        ],
        "example_gradients": [{**at[7], "majority_share": majority}],
        "update_path": [
            {
                **at[i],
                "rate": 0.1,
                "share": s,
                "loss": 1.0,
                "mean": [update if s and i == 6 else 1.0],
                "variance": [1.0],
            }
            for i in (0, 2, 6)
            for s in (0.0, 1.0)
        ],
        "activation_moments": moments,
        "activation_histogram": [
            {**r, "side": "output", "call": 0, "counts": counts.tolist(), "nonfinite": 0, "dip": 0.01}
            | {"unimodal_p": 0.0 if i / 20 < modes else 1.0, "number": 80 + i, "layer": f"layer{80 + i}"}
            for i, r in enumerate(at[:1] * 21)
        ],
        "loss_along_gradient": [
            _along(truth, k, noise(), noise(), step, when)
            for step, when in ((0, "init"), (0, "first"), (3, "first"), (6, "first"))
        ],
        "gradient_noise": [
            _noise(truth, batch, noise(), k, law)
            for batch in (1, 4, 16)
            for law in ("without_replacement", "independent")
        ],
    }


def _channels(row, spread):
    """Four channels whose deviation over mean is ten to the spread in the first third, 1 in the last."""
    relative = 0.1 * 10 ** (spread if row["number"] <= 110 / 3 else 0.0)
    return np.clip([1 + relative, 1 - relative] * 2, 0, None).tolist()


def _pairs(rng, truth, k, shift, row, outputs=3, inputs=40):
    g = rng.normal(0, 1, inputs)
    follow = lambda w: w * g + np.sqrt(1 - w**2) * rng.normal(0, 1, inputs)  # noqa: E731
    gradient = np.exp(g * (truth.pair_spread[k] + shift))
    return {
        **row,
        "outputs": outputs,
        "inputs": inputs,
        "mean_abs": np.tile(gradient, outputs).tolist(),
        "input_mean": np.exp(follow(truth.mean_drives[k])).tolist(),
        "input_zeros": (1 / (1 + np.exp(-follow(truth.zeros_drive)))).tolist(),
    }


def _along(truth, k, shift, other, step, when):
    alpha = np.geomspace(1e-6, 10, 200)
    limit = 10 ** (truth.improves_lg[k] + shift)
    steepness = 10 ** (truth.steepness_lg[k] + other)
    return {
        "step": step,
        "when": when,
        "number": pd.NA,
        "alpha": alpha.tolist(),
        "ratio": np.where(alpha <= limit, 0.9, 1.0 + alpha / limit).tolist(),
        "past_1_05": limit,
        "past_10": limit * np.exp(np.log(9 / 0.05) / steepness),
    }


def _noise(truth, batch, shift, k, law):
    subset = 64
    return {
        "step": 0,
        "when": "init",
        "number": pd.NA,
        "law": law,
        "estimand": "image" if k == 0 else "batch_statistics",
        "batch_size": batch,
        "subset": subset,
        "measured": batch**truth.exponent
        * (subset - batch)
        / (subset - (law == "without_replacement"))
        * np.exp(shift),
        "draws": 64 // batch if law == "without_replacement" else 16,
        "bound": 1 / batch,
    }


def products(rng, truth, draws=10, most=20):
    """The table of products of random matrices; a draw's lengths share its deviation from the rule."""
    rows = []
    for draw in range(draws):
        up, large = (slope + rng.normal(0, NOISE / 6) for slope in truth.factors)
        for m in range(1, most + 1):
            row = {"n": 1000, "seed": 0, "draw": draw, "m": m, "gain": 1.0}
            rows.append({**row, "log10_condition": up * m, "log10_largest": large * m})
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Training:
    """Accuracies (at the rates 0.1, 0.01 and 0.0001) and decimal logarithms of highest rates, by cell."""

    accuracy: dict[str, tuple[float, float, float]]
    """By norm; "lsuv" is no norm with that initialisation."""
    top: tuple[float, float]
    """Chance of diverging at 0.03: bn_top, none."""
    highest_lg: dict[str, float]
    """"none32", "none", "warm", "bn", "bn_alternating"."""


RATES = (0.1, 0.01, 0.0001)
GOOD, BAD = (0.9, 0.8, 0.5), (0.5, 0.4, 0.2)
TRAINED = Training(
    accuracy={
        "bn": GOOD, "bn_no_affine": (0.9, 0.79, 0.5), "bn_affine_only": BAD, "bn_no_mean": BAD,
        "bn_no_var": BAD, "ln": (0.8, 0.9, 0.5), "in": GOOD, "gn": GOOD, "none": (0.1, 0.3, 0.5),
        "bn_top": (0.85, 0.85, 0.5), "lsuv": (0.6, 0.89, 0.5),
    },
    top=(0.0, 1.0),
    highest_lg={"none32": -1, "none": -3, "warm": -2, "bn": 0, "bn_alternating": -2},
)  # fmt: skip
FLAT = (0.6, 0.6, 0.6)
LEVELLED = Training(
    accuracy={
        **dict.fromkeys(TRAINED.accuracy, FLAT),
        **dict.fromkeys(("bn_no_affine", "bn_affine_only"), (0.63,) * 3),
        "lsuv": (0.55,) * 3,
    },
    top=(0.5, 0.5),
    highest_lg=dict.fromkeys(TRAINED.highest_lg, -2.0),
)  # fmt: skip
REVERSED = Training(
    accuracy={
        "bn": (0.5, 0.6, 0.85), "bn_no_affine": (0.4, 0.5, 0.6), "bn_affine_only": GOOD, "bn_no_mean": GOOD,
        "bn_no_var": GOOD[::-1], "ln": (0.9, 0.5, 0.8), "in": GOOD[::-1], "gn": GOOD[::-1],
        "none": (0.1, 0.3, 0.3), "bn_top": (0.35, 0.35, 0.35), "lsuv": (0.3, 0.4, 0.5),
    },
    top=(1.0, 0.0),
    highest_lg={"none32": -3, "none": -1, "warm": -2, "bn": -2, "bn_alternating": 0},
)  # fmt: skip


def trained(rng, truth, seeds=7, scale="laptop"):
    """Frames of trained networks: a grid of norms and rates, and searches for the highest rate."""
    runs, rows = [], []

    def add(norm, lr, seed, fate, accuracy=0.1, **scientific):
        run = _run(norm, lr, seed, "diverged" if fate == "diverged" else "trained", scale, **scientific)
        runs.append(run)
        test = 0.1 if fate == "stuck" else float(np.clip(accuracy, 0.2, 1))
        common = {"run_id": run["run_id"], "step": 100, "n": 1000}
        rows.extend({**common, "split": s, "accuracy": v} for s, v in (("test", test), ("train", test)))

    for norm, accuracies in truth.accuracy.items():
        more = {"init.name": "lsuv"} if norm == "lsuv" else {}
        for lr, accuracy in zip(RATES, accuracies, strict=True):
            for seed in range(seeds):
                fate = "diverged" if accuracy <= 0.1 else "trained"
                add("none" if more else norm, lr, seed, fate, accuracy + rng.normal(0, 0.008), **more)
    for norm, chance in zip(("bn_top", "none"), truth.top, strict=True):
        for seed in range(seeds):
            accuracy = truth.accuracy[norm][0] + rng.normal(0, 0.01)
            add(norm, 0.03, seed, "diverged" if rng.random() < chance else "trained", accuracy)
    for name, middle in truth.highest_lg.items():
        more = {"schedule.warm_start_epochs": 1} if name == "warm" else {}
        more |= {"model.depth": 32} if name == "none32" else {}
        for seed in range(seeds):
            limit = middle + rng.normal(0, 0.15)
            for lg in np.arange(-4.375, 2.2, 0.25):  # not at the rates of the grid
                fate = "trained" if lg <= limit else "diverged"
                add(name if name.startswith("bn") else "none", float(10**lg), seed, fate, 0.6, **more)
    return frames(runs, metrics=rows)

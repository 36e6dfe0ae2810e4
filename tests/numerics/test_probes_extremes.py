"""Probes on values that no formula likes and in half precision; tail statistics on known samples."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from study.config import ProbesConfig
from study.models.base import build_network
from study.probes._capture import _unscaled
from study.probes._histogram import SIDE, edges, histogram
from study.probes._moments import first_two, moments
from study.probes._tails import compare, hill
from tests import probing

DRAWS, N = 200, 10_000


def samples(kind: str, random: np.random.Generator) -> np.ndarray[Any, Any]:
    return {
        "gaussian": lambda: random.normal(size=N),
        "laplace": lambda: random.laplace(size=N),
        "student3": lambda: random.standard_t(3, size=N),
        "pareto1.5": lambda: 1 + random.pareto(1.5, size=N),
        "lognormal": lambda: random.lognormal(size=N),
    }[kind]()


KINDS = ("gaussian", "laplace", "student3", "pareto1.5", "lognormal")
INDEX = {"pareto1.5": (1.5, 0.90), "student3": (3.0, 0.85)}
"""The true index of the power laws, and how often at least the 95% interval holds it."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1, 100])
def test_tail_index_is_calibrated(kind: str, scale: int) -> None:
    """A lognormal is heavy as far as √n values show, though it has all its moments (see _tails.py)."""
    random = np.random.default_rng(7)
    found = [f for seed in range(DRAWS) if (f := hill(scale * samples(kind, random), seed)) is not None]
    assert len(found) == DRAWS
    heavy = sum(f.heavy for f in found) / DRAWS
    if kind in ("gaussian", "laplace"):
        assert heavy <= 0.05
    else:
        assert heavy >= (0.8 if kind == "student3" else 0.95)
    if kind in INDEX:
        index, often = INDEX[kind]
        assert sum(f.low <= index <= f.high for f in found) / DRAWS >= often
    drifts = [f.curve_index[7] / f.curve_index[-1] for f in found]  # the index at k = 85 and at 1000
    if kind in INDEX:
        assert np.median(drifts) < 1.3
    else:
        assert np.median(drifts) > 1.5


@pytest.mark.parametrize("kind", KINDS)
def test_tail_index_does_not_depend_on_place_or_scale(kind: str) -> None:
    """Hill's formula itself does depend on the place: that is what the centring is for."""
    x = samples(kind, np.random.default_rng(1))
    a, b = hill(x), hill(100 * (x + 10))
    assert a is not None
    assert b is not None
    assert b.tail_index == pytest.approx(a.tail_index, rel=1e-6)
    assert b.heavy == a.heavy
    assert (b.low, b.high) == pytest.approx((a.low, a.high), rel=1e-6)

    def plain(values: np.ndarray[Any, Any]) -> float:
        ordered = np.sort(np.abs(values))[::-1]
        return float(1 / np.log(ordered[: a.k] / ordered[a.k]).mean())

    assert plain(100 * x) == pytest.approx(plain(x))
    assert plain(x + 10) > 1.2 * plain(x)


def test_tail_comparison_tells_a_power_law_from_others() -> None:
    random = np.random.default_rng(2)
    power = compare(100 * samples("pareto1.5", random))
    light = compare(100 * samples("laplace", random))
    logs = [compare(samples("lognormal", random)) for _ in range(5)]
    assert power is not None
    assert light is not None
    assert power.against_exponential > 2
    assert power.exponential_p < 0.05
    assert light.against_exponential < -2
    assert abs(power.against_lognormal) < 2
    assert sum(x is not None and x.against_lognormal < -1 and x.lognormal_p < 0.3 for x in logs) >= 4


def test_no_tail_to_speak_of() -> None:
    assert hill(np.zeros(1000)) is None
    assert hill(np.arange(50.0)) is None
    assert hill(np.full(1000, math.inf)) is None


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(("size", "shift"), [(1.0, 0.0), (1e30, 0.0), (1e-30, 0.0), (1.0, 1e4), (1e38, 0.0)])
def test_moments_at_any_scale(layout: str, size: float, shift: float) -> None:
    x = torch.randn(6, 5, 4, 4, generator=torch.Generator().manual_seed(0)).clamp(-3, 3) * size + shift
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    found, exact = moments(x), x.double().transpose(0, 1).flatten(1)
    mean = exact.mean(1)
    d = exact - mean[:, None]
    variance = d.square().mean(1)
    torch.testing.assert_close(found.mean, mean, rtol=1e-6, atol=1e-6 * size)
    torch.testing.assert_close(found.variance, variance, rtol=1e-4, atol=0)
    torch.testing.assert_close(found.kurtosis, d.pow(4).mean(1) / variance**2, rtol=1e-4, atol=0)
    torch.testing.assert_close(first_two(x).variance, variance, rtol=1e-4, atol=0)


def test_pieces_add_up() -> None:
    x = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    whole, a, b = moments(x), moments(x[:3]), moments(x[3:])
    share = a.n / whole.n
    mean = share * a.mean + (1 - share) * b.mean
    second = share * (a.variance + a.mean**2) + (1 - share) * (b.variance + b.mean**2)
    torch.testing.assert_close(whole.mean, mean)
    torch.testing.assert_close(whole.variance, second - mean**2)
    both = histogram(x[:3]).counts + histogram(x[3:]).counts
    assert torch.equal(histogram(x).counts, both)


def test_non_finite_values_are_counted() -> None:
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0, 0], x[1, 0, 0, 0], x[2, 1, 0, 0] = math.nan, math.inf, -math.inf
    x[:, 2] = 0
    for found in (moments(x), first_two(x)):
        assert found.nonfinite.tolist() == [2, 1, 0]
        assert found.mean.isfinite().tolist() == [False, False, True]
    assert moments(x).zeros.tolist() == [0, 0, 1]
    counted = histogram(x)
    assert counted.nonfinite == 3
    assert counted.zeros == 100
    assert int(counted.counts.sum()) == x.numel() - 3


def test_histogram_bins() -> None:
    inner = torch.tensor(edges())
    assert len(inner) == 2 * SIDE
    counts = histogram(torch.cat([inner, torch.tensor([0.0, 3e38, -3e38, 1e-38])])).counts
    assert int(counts[SIDE]) == 2  # zero and what is too small
    assert int(counts[0]) == 2
    assert int(counts[-1]) == 2
    assert counts[1:SIDE].eq(1).all()
    assert counts[SIDE + 1 : -1].eq(1).all()


@pytest.mark.parametrize("weight", [1e30, 0.0, math.nan])
def test_probes_survive_extreme_networks(weight: float) -> None:
    sets = probing.image_set()
    run = probing.config(norm="none", probes=probing.everywhere())
    network = probing.network_of(run, sets)
    stem = network.layers[0].module.weight
    assert isinstance(stem, torch.Tensor)
    with torch.no_grad():
        for p in network.parameters():
            p.zero_() if weight == 0 else None
        stem.mul_(0).add_(weight)
    trace = probing.train(run, sets, steps=1, network=network)
    assert trace.failures == []
    rows = [r for r in trace.rows("activation_moments") if (r["layer"], r["side"]) == ("stem", "output")]
    row = next(r for r in rows if r["when"] == "init" and r["source"] == "data")
    if math.isnan(weight):
        assert row["nonfinite"] == [row["n"]] * 8
        assert all(math.isnan(m) for m in row["mean"])
        tails = [r for r in trace.rows("gradient_tails") if r["when"] == "init"]
        assert all(r["nonfinite"] > 0 for r in tails)
    elif weight:
        assert max(abs(m) for m in row["mean"]) > 1e27
        assert all(math.isfinite(v) and v > 0 for v in row["variance"])
        assert all(math.isfinite(k) for k in row["kurtosis"])
    else:
        assert row["zeros"] == [1.0] * 8
        assert row["variance"] == [0.0] * 8


def total(value: Any) -> int:
    return sum(value) if isinstance(value, list) else value


@pytest.mark.parametrize("weight", [1e30, 0.0, math.nan])
def test_every_probe_counts_what_is_not_finite(weight: float) -> None:
    """With a stem of NaN each does; with one of 10³⁰, or nothing but zeros, there is nothing to count.

    But for steps along a gradient of 10³⁰, which do leave fp32's range.
    """
    sets = probing.image_set()
    sets.train.labels[sets.train.labels == 4] = 3  # the batch lacks a class
    run = probing.config(norm="none", probes=probing.everywhere())
    network, trace = probing.network_of(run, sets), probing.Trace()
    with torch.no_grad():
        for p in network.parameters() if weight == 0 else [network.layers[0].module.weight]:
            p.fill_(weight)  # type: ignore[operator]
    engine = probing.engine_of(run, network, sets, trace)
    engine.moment("init", 0, 0)
    assert trace.failures == []
    assert set(trace.tables) == set(probing.PROBES)
    for name in probing.PROBES:
        rows = trace.rows(name)
        if name == "class_gradients":
            lacking = [r for r in rows if (r["by"], r["count"]) == ("label", 0)]
            assert 4 in {r["class"] for r in lacking}
            assert {(r["mean_abs"], r["nonfinite"]) for r in lacking} == {(0.0, 0)}
            rows = [r for r in rows if (r["by"], r["count"]) != ("label", 0)]
        elif name == "activation_moments":  # what enters the stem is sound
            rows = [r for r in rows if (r["layer"], r["side"]) != ("stem", "input")]
        elif name == "activation_histogram" and math.isnan(weight):
            assert all(r["dip"] is None for r in rows)
        if name in ("loss_along_gradient", "update_path") and weight == 1e30:
            continue
        for row in rows:
            assert (total(row["nonfinite"]) > 0) == math.isnan(weight), (name, row["layer"])


@pytest.mark.parametrize("norm", ["bn", "ln", "ghost", "ws"])
@pytest.mark.parametrize("weight", [1e30, 0.0, math.nan])
def test_no_probe_fails_on_extreme_values(norm: str, weight: float) -> None:
    probes = dataclasses.replace(probing.everywhere(), measure=tuple(f"{n}@init" for n in probing.PROBES))
    sets, trace = probing.image_set(), probing.Trace()
    run = probing.config(norm=norm, probes=probes)
    network = probing.network_of(run, sets)
    with torch.no_grad():
        for p in network.parameters() if weight == 0 else list(network.parameters())[:1]:
            p.fill_(weight)
    probing.engine_of(run, network, sets, trace).moment("init", 0, 0)
    assert trace.failures == []
    assert set(trace.tables) == set(probing.PROBES)


def test_a_loss_scale_that_overflows_is_lowered() -> None:
    """As the scaler does in training, where it finds out by skipping steps."""
    names = ("gradient_tails", "gradient_agreement", "class_gradients", "loss_along_gradient")
    probes = ProbesConfig(measure=tuple(f"{n}@init" for n in names), alpha_points=2)
    sets, found = probing.image_set(), {}
    for precision, scale in (("fp32", 1.0), ("fp16", 2.0**34)):
        run, trace = probing.config(norm="ln", probes=probes, precision=precision), probing.Trace()
        scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16", init_scale=scale)
        network = probing.network_of(run, sets)
        probing.engine_of(run, network, sets, trace, scaler=scaler).moment("init", 0, 0)
        assert trace.failures == []
        found[precision] = trace
    for probe, column in zip(names, ("deviation", "a", "kernel_norm", "gradient_norm"), strict=True):
        for a, b in zip(*(found[p].rows(probe) for p in ("fp32", "fp16")), strict=True):
            assert b[column] == pytest.approx(a[column], rel=0.1), probe
            assert probe == "loss_along_gradient" or b["nonfinite"] == 0


def test_a_loss_scale_is_divided_out_in_single_precision() -> None:
    """In half precision 10⁻³ would come to one of the few numbers below 10⁻⁷."""
    grad = torch.tensor([1e-3, 3e-4], dtype=torch.float16)
    torch.testing.assert_close(_unscaled(grad, 2.0**16), grad.float() / 2**16, rtol=1e-6, atol=0)


def test_one_class_has_the_whole_gradient() -> None:
    """Of a network with a single logit, whose loss and gradients are 0."""
    names = ("class_gradients", "logit_gradients", "gradient_noise", "sharpness")
    probes = dataclasses.replace(probing.everywhere(), measure=tuple(f"{n}@init" for n in names))
    sets, trace = probing.image_set(), probing.Trace()
    sets = dataclasses.replace(
        sets, n_classes=1, train=dataclasses.replace(sets.train, labels=sets.train.labels * 0)
    )
    run = probing.config(probes=probes)
    network = build_network(run, (3, 8, 8), 1).to(memory_format=torch.channels_last).train()
    probing.engine_of(run, network, sets, trace).moment("init", 0, 0)
    assert trace.failures == []
    rows = trace.rows("class_gradients")
    assert [(r["by"], r["class"], r["count"]) for r in rows] == [
        (by, 0, probing.BATCH) for by in ("logit", "label")
    ]
    assert {(r["kernel_norm"], r["nonfinite"]) for r in rows} == {(0.0, 0)}
    assert [r["eigenvalue"] for r in trace.rows("sharpness")] == [0.0]


def test_a_subset_of_one_smallest_batch_tells_nothing_of_noise() -> None:
    """With batch normalisation the smallest batch has two images; with as many in all, C would be 0/0."""
    small = {"measure": ("gradient_noise@init",), "noise_subset": 2, "noise_batches": (1,)}
    failures = {}
    for norm in ("bn", "ln"):
        run, trace = probing.config(norm=norm, probes=ProbesConfig(**small)), probing.Trace()
        sets = probing.image_set()
        probing.engine_of(run, probing.network_of(run, sets), sets, trace).moment("init", 0, 0)
        failures[norm] = [text.strip().splitlines()[-1] for _, _, text in trace.failures]
    assert failures["ln"] == []
    (text,) = failures["bn"]
    assert text.endswith("none is below the 2 images there are, where batches of two are the smallest")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_reductions_of_half_precision_values_are_not_in_half_precision(
    dtype: torch.dtype, layout: torch.memory_format
) -> None:
    draw = torch.Generator().manual_seed(0)
    x = (torch.randn(64, 3, 16, 16, generator=draw) + 3).to(dtype).contiguous(memory_format=layout)
    for reduce in (moments, first_two):
        found, exact = reduce(x), reduce(x.double())
        for name, value in exact._asdict().items():  # type: ignore[attr-defined]
            torch.testing.assert_close(getattr(found, name), value, rtol=1e-5, atol=1e-6)
    assert torch.equal(histogram(x).counts, histogram(x.float()).counts)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_measures_nearly_the_same(precision: str) -> None:
    """Under loss scaling too: a factor of 1024 left in would show."""
    names = ["gradient_tails", "gradient_agreement", "activation_moments", "channel_pairs", "class_gradients"]
    probes = probing.everywhere([*names, "loss_along_gradient", "gradient_noise"])
    sets = probing.image_set()
    full = probing.train(probing.config(norm="ln", probes=probes), sets, steps=1)
    half = probing.train(probing.config(norm="ln", probes=probes, precision=precision), sets, steps=1)
    assert half.failures == []
    for probe, column in (
        ("gradient_tails", "deviation"),
        ("gradient_agreement", "a"),
        ("gradient_agreement", "b"),
        ("class_gradients", "kernel_norm"),
        ("loss_along_gradient", "gradient_norm"),
        ("gradient_noise", "gradient_norm2"),
    ):
        for a, b in zip(full.rows(probe), half.rows(probe), strict=True):
            assert b[column] == pytest.approx(a[column], rel=0.1), (probe, a["layer"], a["when"])
    for a, b in zip(full.rows("activation_moments"), half.rows("activation_moments"), strict=True):
        assert sum(b["variance"]) == pytest.approx(sum(a["variance"]), rel=0.05)

"""Probes on values that no formula likes and in half precision; tail statistics on known samples."""

import math
from typing import Any

import numpy as np
import pytest
import torch

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


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "student3", "pareto1.5", "lognormal"])
def test_tail_index_is_calibrated(kind: str) -> None:
    random = np.random.default_rng(7)
    found = [hill(100 * samples(kind, random), seed) for seed in range(DRAWS)]
    heavy = sum(f is not None and f.heavy for f in found) / DRAWS
    if kind == "gaussian":
        assert heavy <= 0.05
    if kind == "pareto1.5":
        inside = sum(f is not None and f.low <= 1.5 <= f.high for f in found) / DRAWS
        assert inside >= 0.90
        assert heavy >= 0.95
    if kind == "student3":
        inside = sum(f is not None and f.low <= 3 <= f.high for f in found) / DRAWS
        assert inside >= 0.85


def test_tail_index_does_not_depend_on_place_or_scale() -> None:
    x = samples("student3", np.random.default_rng(1))
    a, b = hill(x), hill(100 * x + 1e4)
    assert a is not None
    assert b is not None
    assert b.tail_index == pytest.approx(a.tail_index, rel=1e-6)


def test_tail_comparison_tells_a_power_law_from_an_exponential() -> None:
    random = np.random.default_rng(2)
    power = compare(100 * samples("pareto1.5", random))
    light = compare(100 * samples("laplace", random))
    assert power is not None
    assert light is not None
    assert power.against_exponential > 2
    assert power.exponential_p < 0.05
    assert light.against_exponential < power.against_exponential


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


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_measures_nearly_the_same(precision: str) -> None:
    """Under loss scaling too: a factor of 1024 left in would show."""
    probes = probing.everywhere(
        ["gradient_tails", "gradient_agreement", "activation_moments", "channel_pairs", "class_gradients"]
    )
    sets = probing.image_set()
    full = probing.train(probing.config(norm="ln", probes=probes), sets, steps=1)
    half = probing.train(probing.config(norm="ln", probes=probes, precision=precision), sets, steps=1)
    assert half.failures == []
    for probe, column in (
        ("gradient_tails", "deviation"),
        ("gradient_agreement", "a"),
        ("gradient_agreement", "b"),
        ("class_gradients", "kernel_norm"),
    ):
        for a, b in zip(full.rows(probe), half.rows(probe), strict=True):
            assert b[column] == pytest.approx(a[column], rel=0.1), (probe, a["layer"], a["when"])
    for a, b in zip(full.rows("activation_moments"), half.rows("activation_moments"), strict=True):
        assert sum(b["variance"]) == pytest.approx(sum(a["variance"]), rel=0.05)

"""Moments and bounds of every initialisation, and what `gain` multiplies."""

import math
from dataclasses import replace

import pytest
import torch

from study import naming, registry
from study.config import InitConfig, ModelConfig, NormConfig, RunConfig
from study.errors import StudyError
from study.inits import zero_or_large
from study.models.base import build_network
from study.seeding import generator

NONE = NormConfig(name="none", family="none")
SHAPES = [(48, 32, 3, 3), (24, 200, 1, 1), (300, 100), (40, 3, 7, 5)]


def fans(shape) -> tuple[int, int]:
    area = math.prod(shape[2:])
    return shape[1] * area, shape[0] * area


def xavier(shape) -> float:
    return 2 / sum(fans(shape))


def kaiming(shape) -> float:
    return 2 / fans(shape)[0]


def orthonormal(shape) -> float:
    return 1 / max(shape[0], math.prod(shape[1:]))


# variance, kurtosis (E x⁴ / variance²), largest |weight| over the deviation (None: unbounded)
MOMENTS = {
    "xavier_normal": (xavier, 3.0, None),
    "xavier_uniform": (xavier, 1.8, math.sqrt(3)),
    "kaiming_normal": (kaiming, 3.0, None),
    "kaiming_uniform": (kaiming, 1.8, math.sqrt(3)),
    "orthogonal": (orthonormal, 3.0, None),
    "lsuv": (orthonormal, 3.0, None),
    "zero_or_large": (xavier, 1 / zero_or_large.NONZERO, zero_or_large.NONZERO**-0.5),
}


def draw(name: str, shape, seed: int = 0) -> torch.Tensor:
    weight = torch.full(shape, torch.nan)
    registry.load("study.inits", name).fill(weight, generator(seed, "test"))
    return weight


def test_every_initialisation_is_tested():
    assert MOMENTS.keys() == set(registry.names("study.inits"))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name, shape):
    variance, kurtosis, bound = MOMENTS[name]
    w = draw(name, shape).double() / math.sqrt(variance(shape))
    n = w.numel()
    assert abs(w.mean().item()) < 5 / math.sqrt(n)
    second, fourth = (w**2).mean().item(), (w**4).mean().item()
    assert second == pytest.approx(1, abs=5 * math.sqrt((kurtosis - 1) / n))
    assert fourth / second**2 == pytest.approx(kurtosis, rel=0.15)
    if bound:
        assert w.abs().max().item() == pytest.approx(bound, rel=0.01)
    else:
        assert w.abs().max().item() > 3


@pytest.mark.parametrize("name", ["orthogonal", "lsuv"])
@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonal_rows_or_columns(name, shape):
    w = draw(name, shape).flatten(1).double()
    gram = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    torch.testing.assert_close(gram, torch.eye(len(gram), dtype=torch.double), atol=1e-5, rtol=0)


def test_zero_or_large_takes_three_values():
    w = draw("zero_or_large", (64, 64, 3, 3))
    large = math.sqrt(xavier(w.shape) / zero_or_large.NONZERO)
    values, counts = w.unique(return_counts=True)
    torch.testing.assert_close(values, torch.tensor([-large, 0.0, large]))
    p = zero_or_large.NONZERO
    for share, expected in zip(counts / w.numel(), (p / 2, 1 - p, p / 2), strict=True):
        assert share.item() == pytest.approx(expected, abs=5 * math.sqrt(p / w.numel()))


@pytest.mark.parametrize("name", MOMENTS)
def test_generator_decides_everything(name):
    assert torch.equal(draw(name, SHAPES[0]), draw(name, SHAPES[0]))
    assert not torch.equal(draw(name, SHAPES[0]), draw(name, SHAPES[0], seed=1))


def test_weights_without_direction_are_refused_where_a_norm_needs_one():
    """Of nine weights, each 0 with probability 0.9, all are in 39 of 100 outputs: w/‖w‖ is 0/0 there."""
    init, model = InitConfig("zero_or_large"), ModelConfig(depth=8)
    for norm in ("ws", "bn", "none"):
        network = build_network(RunConfig(model=model, norm=naming.norms()[norm], init=init), (1, 8, 8), 10)
        assert network(torch.ones(4, 1, 8, 8)).isfinite().all()
    run = RunConfig(model=model, norm=naming.norms()["wn"], init=init)
    with pytest.raises(
        StudyError, match="init=zero_or_large leaves an output of layer 'stem' no weight but 0"
    ):
        build_network(run, (1, 8, 8), 10)


@pytest.mark.parametrize("model", [ModelConfig(depth=8), ModelConfig(name="mlp", depth=3, widths=(9,))])
@pytest.mark.parametrize("name", sorted(MOMENTS.keys() - {"lsuv"}))
def test_gain_multiplies_all_weights_but_the_classifiers(name, model):
    run = RunConfig(model=model, norm=NONE, init=InitConfig(name))
    plain = build_network(run, (1, 8, 8), 10)
    scaled = build_network(replace(run, init=InitConfig(name, gain=3.0)), (1, 8, 8), 10)
    for a, b in zip(plain.layers, scaled.layers, strict=True):
        factor = 1 if a.name == "classifier" else 3
        assert torch.equal(a.module.weight * factor, b.module.weight)
        assert torch.equal(a.module.bias, b.module.bias)

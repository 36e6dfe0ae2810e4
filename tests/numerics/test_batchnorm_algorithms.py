"""Algorithms 1 and 2 of Ioffe & Szegedy 2015, and what §2 and §3.3 say follows from them."""

import dataclasses
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from study import batchnorm_reference as reference
from study.config import NormConfig
from study.norms._calibration import recalibrate
from study.norms.base import Site, build_norm

EPS = 1e-5


def normed(layer, channels, **switches):
    norm = build_norm(dataclasses.replace(NormConfig(), **switches))
    return norm.build(layer, Site("site", channels, "inner", 0), 4)


@pytest.fixture
def case():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, 4, 5, generator=g, dtype=torch.float64) * 3 + 2
    gamma = torch.rand(3, generator=g, dtype=torch.float64) + 0.5
    beta = torch.randn(3, generator=g, dtype=torch.float64)
    dy = torch.randn(6, 3, 4, 5, generator=g, dtype=torch.float64)
    return x, gamma, beta, dy


@pytest.mark.parametrize("flat", [False, True])
def test_derived_gradients_are_autograds(case, flat):
    x, gamma, beta, dy = case
    x, dy = (x[:, :, 0, 0], dy[:, :, 0, 0]) if flat else (x, dy)
    leaves = [t.clone().requires_grad_() for t in (x, gamma, beta)]
    expected = torch.autograd.grad(reference.forward(*leaves, EPS).y, leaves, dy)
    for ours, autograds in zip(reference.backward(dy, x, gamma, EPS), expected, strict=True):
        torch.testing.assert_close(ours, autograds, rtol=1e-11, atol=1e-12)


def test_the_reference_passes_a_numerical_gradient_check(case):
    x, gamma, beta, _ = case
    inputs = [t.clone().requires_grad_() for t in (x[:3, :, :2, :2], gamma, beta)]
    assert torch.autograd.gradcheck(lambda *t: reference.forward(*t, EPS).y, inputs)


def test_ours_is_algorithm_1(case):
    x, gamma, beta, dy = case
    module = normed(None, 3).double()
    with torch.no_grad():
        module.norm.weight.copy_(gamma)
        module.norm.bias.copy_(beta)
    leaf = x.clone().requires_grad_()
    y = module(leaf)
    y.backward(dy)
    torch.testing.assert_close(y, reference.forward(x, gamma, beta, EPS).y, rtol=1e-11, atol=1e-11)
    expected = reference.backward(dy, x, gamma, EPS)
    got = (leaf.grad, module.norm.weight.grad, module.norm.bias.grad)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


def test_inference_by_running_averages(case):
    x, gamma, beta, _ = case
    module = normed(None, 3, momentum=0.3).double()
    stats = reference.Population(torch.zeros(3), torch.ones(3))
    for batch in (x, 2 * x + 1, x - 5):
        module(batch)
        stats = reference.running_average(stats, batch, 0.3)
    one, zero = torch.ones_like(gamma), torch.zeros_like(beta)
    torch.testing.assert_close(module.eval()(x), reference.inference(x, stats, one, zero, EPS))


def test_recalibration_is_algorithm_2(case):
    """Two normalised layers: the second one's statistics are those under the normalised first."""
    x, *_ = case
    torch.manual_seed(0)
    conv, linear = nn.Conv2d(3, 4, 3).double(), nn.Conv2d(4, 2, 1).double()
    network = nn.Sequential(normed(conv, 4), nn.ReLU(), normed(linear, 2)).double()
    batches = [x, 2 * x + 1, x - 5]
    raw = [conv(b) for b in batches]
    one, zero = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    hidden = [linear(F.relu(reference.forward(r, one, zero, EPS).y)) for r in raw]
    network.train()
    recalibrate(network, batches)
    assert network.training
    for module, outputs in ((network[0], raw), (network[2], hidden)):
        expected = reference.population(outputs)
        torch.testing.assert_close(module.norm.running_mean, expected.mean)
        torch.testing.assert_close(module.norm.running_var, expected.var)
        assert module.norm.num_batches_tracked == 0  # no training batches


@pytest.mark.parametrize("size", [4, 8, 16])
def test_every_image_counts_once(size):
    """17 images: a last batch of one, of a linear network at that, joins the one before it."""
    x = torch.randn(17, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 1
    norm = build_norm(dataclasses.replace(NormConfig(), source="frozen"))
    network = norm.build(nn.Identity(), Site("site", 3, "inner", 0), 2).double()
    norm.calibrate(network, list(x.split(size)))
    torch.testing.assert_close(network.norm.running_mean, x.mean(0), rtol=1e-14, atol=1e-14)
    parts = [*x.split(size)[:-2], x[-size - 1 :]]
    variance = sum(len(p) * p.var(0) for p in parts) / 17
    torch.testing.assert_close(network.norm.running_var, variance, rtol=1e-14, atol=1e-14)
    assert reference.population(parts).mean.allclose(x.mean(0))
    assert reference.population(parts).var.allclose(variance)
    assert network.norm.num_batches_tracked == len(parts)


def test_one_batch_of_all_images_is_exactly_the_population():
    x = torch.randn(33, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 1
    network = normed(None, 3).double()
    recalibrate(network, [x])
    torch.testing.assert_close(network.norm.running_mean, x.mean((0, 2, 3)), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(network.norm.running_var, x.var((0, 2, 3)), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("trained", [0, 1, 2, 3])
def test_recalibration_leaves_an_alternating_norm_in_step(case, trained):
    x, *_ = case
    one, twin = (normed(None, 3, source="periodic").double().train() for _ in range(2))
    for step in range(trained):
        one(x + step), twin(x + step)
    recalibrate(one, [x, 2 * x, 3 * x])
    for step in range(3):
        assert torch.equal(one(x * step + step), twin(x * step + step))


def test_population_statistics_are_unbiased():
    """Many small batches of one population: the factor m/(m−1) is what makes the variance come out."""
    g = torch.Generator().manual_seed(0)
    batches = [torch.randn(4, 1, generator=g, dtype=torch.float64) * 3 + 7 for _ in range(2000)]
    stats = reference.population(batches)
    # Standard errors: 3/√8000 = 0.034 of the mean, 9·√(2/3)/√2000 = 0.16 of the variance; without m/(m−1)
    # it would be 6.75.
    assert abs(stats.mean - 7) < 0.15
    assert abs(stats.var - 9) < 0.7


@pytest.mark.parametrize("bias", [False, True])
def test_folding_equals_inference_to_rounding(case, bias):
    x, gamma, beta, _ = case
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 3, 3, stride=2, padding=1, bias=bias).double()
    stats = reference.Population(torch.randn(3).double(), torch.rand(3).double() + 0.1)
    expected = F.batch_norm(conv(x), stats.mean, stats.var, gamma, beta, False, 0.0, EPS)
    torch.testing.assert_close(reference.inference(conv(x), stats, gamma, beta, EPS), expected)
    folded = reference.fold_into_conv(conv, stats, gamma, beta, EPS)
    torch.testing.assert_close(folded(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("a", [0.1, 7.0])
def test_scale_invariance_and_the_gradient_law(case, a):
    """§3.3: BN(Wu) = BN((aW)u), ∂/∂u the same and ∂/∂(aW) = 1/a of ∂/∂W; exact as ε → 0."""
    u, _, _, dy = case
    torch.manual_seed(0)
    errors = []
    for eps in (1e-3, 1e-6, 1e-9):
        conv = nn.Conv2d(3, 3, 1, bias=False).double()
        results = []
        weight = torch.randn(3, 3, 1, 1, generator=torch.Generator().manual_seed(2)).double()
        for factor in (1.0, a):
            with torch.no_grad():
                conv.weight.copy_(factor * weight)
            leaf = u.clone().requires_grad_()
            y = normed(conv, 3, eps=eps).double()(leaf)
            results.append((y, *torch.autograd.grad(y, [leaf, conv.weight], dy)))
        plain, scaled = results
        pairs = zip(plain, (scaled[0], scaled[1], scaled[2] * a), strict=True)
        errors.append(max(float(((p - s).abs().max() / p.abs().max()).detach()) for p, s in pairs))
    assert errors[0] > 100 * errors[1] > 1e4 * errors[2]
    assert errors[2] < 1e-6


def test_gradient_sums(case):
    """Σ∂L/∂x = 0 exactly; Σx̂·∂L/∂x = 0 as ε → 0: it is proportional to ε."""
    x, gamma, beta, dy = case
    weighted = []
    for eps in (1e-2, 1e-4, 1e-6):
        dx = reference.backward(dy, x, gamma, eps).x
        assert dx.sum((0, 2, 3)).abs().max() < 1e-12
        weighted.append((dx * reference.forward(x, gamma, beta, eps).x_hat).sum((0, 2, 3)).abs().max())
    assert weighted[0] / weighted[1] == pytest.approx(100, rel=0.02)
    assert weighted[1] / weighted[2] == pytest.approx(100, rel=0.02)


def bias_after(steps, *, blind, lr=0.1):
    """Train b alone of tanh(x − E[x]), x = w·u + b with w fixed; return b and the loss by step.

    `blind`: the optimiser takes E[x] for a constant, so ∂L/∂b = Σ∂L/∂x̂, as in §2.
    """
    g = torch.Generator().manual_seed(0)
    u = torch.randn(64, 5, generator=g, dtype=torch.float64)
    first = torch.randn(5, generator=g, dtype=torch.float64)
    target = (u @ first).tanh() + 1
    b = torch.zeros((), dtype=torch.float64, requires_grad=True)
    biases, losses = [], []
    for _ in range(steps):
        x = u @ first + b
        mean = x.mean().detach() if blind else x.mean()
        loss = (((x - mean).tanh() - target) ** 2).mean()
        (grad,) = torch.autograd.grad(loss, b)
        with torch.no_grad():
            b -= lr * grad
        biases.append(b.item())
        losses.append(float(loss.detach()))
    return biases, losses


def test_runaway_bias_when_the_optimiser_does_not_see_the_normalisation():
    """§2: b grows without bound while the loss stays where it is; seen through, the gradient is 0."""
    biases, losses = bias_after(500, blind=True)
    # The output does not depend on b, so every step is the same: growth is linear, for ever.
    steps = [later - earlier for earlier, later in pairwise(biases)]
    assert abs(steps[0]) > 0.01
    assert steps[-1] == pytest.approx(steps[0], rel=1e-6)
    assert abs(biases[-1]) > 400 * abs(steps[0])
    assert losses[-1] == pytest.approx(losses[0], rel=1e-9)
    biases, losses = bias_after(500, blind=False)
    assert abs(biases[-1]) < 1e-9
    assert losses[-1] == pytest.approx(losses[0], rel=1e-9)


def test_detached_variant_lets_the_bias_run_away():
    """The same on our own modules: norm.detach is the blindness of §2, in a two-layer network."""
    drift = {}
    for detach in (True, False):
        torch.manual_seed(0)
        layer = nn.Linear(5, 4)
        network = nn.Sequential(
            normed(layer, 4, beta=False, gamma=False, detach=detach), nn.Tanh(), nn.Linear(4, 1)
        )
        optimiser = torch.optim.SGD([layer.bias], lr=0.1)
        u = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
        losses = []
        start = layer.bias.detach().clone()
        for _ in range(200):
            loss = ((network(u) - 1) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        drift[detach] = float((layer.bias.detach() - start).abs().max())
        assert losses[-1] == pytest.approx(losses[0], rel=1e-3)
    assert drift[True] > 1
    assert drift[False] < 1e-3

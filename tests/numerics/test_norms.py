"""Every norm against plain formulas in float64, gradients by autograd, in both memory formats."""

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from study import naming
from study.config import NormConfig
from study.errors import ConfigError
from study.norms._noise import Noise, uniform
from study.norms._statistics import channel_affine, expected_max, moments
from study.norms.base import Site, build_norm

C = 6
INF = float("inf")


def build(ndim=4, **switches):
    norm = build_norm(dataclasses.replace(NormConfig(), **switches), 1)
    module = norm.build(None, Site("site", C, "inner", 0), ndim).double().train()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(10 + i)))
    return module


def data(ndim=4, n=5, channels_last=False, seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = (n, C, 3, 4) if ndim == 4 else (n, C)
    x, dy = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2))
    x = x * 2 + 0.7
    if channels_last:
        x, dy = (t.to(memory_format=torch.channels_last) for t in (x, dy))
    return x.requires_grad_(), dy


def wide(v, x):
    return v.view(-1, *[1] * (x.dim() - 2))


def plain(x, module, center, scale, order, detach, eps=1e-5):
    """The formulas, one after the other."""
    over = [d for d in range(x.dim()) if d != 1]
    n = x.numel() // C
    mean = x.mean(over) if center else torch.zeros(C, dtype=x.dtype)
    d = x - wide(mean, x)
    if order == 2:
        square = d.square().mean(over)
    elif order == 1:
        square = (math.sqrt(math.pi / 2) * d.abs().mean(over)).square()
    else:
        square = (d.abs().amax(over) / expected_max(n)).square()
    if detach:
        mean, square = mean.detach(), square.detach()
    y = x - wide(mean, x)
    if scale:
        y = y / wide((square + eps).sqrt(), x)
    if module.weight is not None:
        y = y * wide(module.weight, x)
    if module.bias is not None:
        y = y + wide(module.bias, x)
    unbiased = square * (n / (n - 1) if center else 1)
    return y, mean.detach(), unbiased.detach() if scale else torch.ones(C, dtype=x.dtype)


def agree(ours, expected, x, module, dy):
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)
    leaves = [x, *module.parameters()]
    got = torch.autograd.grad(ours, leaves, dy)
    for a, b in zip(got, torch.autograd.grad(expected, leaves, dy), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


SWITCHES = list(itertools.product((True, False), (True, False), (1.0, 2.0, INF), (True, False)))


@pytest.mark.parametrize(("center", "scale", "order", "detach"), SWITCHES)
@pytest.mark.parametrize("form", ["contiguous", "channels_last", "flat"])
def test_statistics_switches(center, scale, order, detach, form):
    ndim = 2 if form == "flat" else 4
    for gamma, beta in itertools.product((True, False), repeat=2):
        switches = {"center": center, "scale": scale, "order": order, "detach": detach}
        try:
            module = build(ndim, gamma=gamma, beta=beta, momentum=0.25, **switches)
        except ConfigError:
            assert not scale  # order without scale, or nothing at all
            continue
        x, dy = data(ndim, channels_last=form == "channels_last")
        expected, mean, var = plain(x, module.norm, **switches)
        y = module(x)
        if form == "channels_last":
            assert y.is_contiguous(memory_format=torch.channels_last)
        agree(y, expected, x, module, dy)
        torch.testing.assert_close(module.norm.running_mean, 0.25 * mean)
        torch.testing.assert_close(module.norm.running_var, 0.75 + 0.25 * var)
        evaluated = F.batch_norm(
            x,
            module.norm.running_mean,
            module.norm.running_var if scale else torch.ones(C).double(),
            module.norm.weight,
            module.norm.bias,
            eps=1e-5 if scale else 1e-300,
        )
        torch.testing.assert_close(module.eval()(x), evaluated)


@pytest.mark.parametrize("order", [1.0, 2.0, INF])
@pytest.mark.parametrize(("center", "detach"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("n", [2, 4, 5, 6])
def test_virtual_batches(order, center, detach, channels_last, n):
    """Consecutive images, two by two; an odd one out stands alone."""
    switches = {"center": center, "scale": True, "order": order, "detach": detach}
    module = build(source="ghost", ghost_size=2, **switches)
    x, dy = data(n=n, channels_last=channels_last)
    parts = [plain(p, module.norm, **switches) for p in x.split(2)]
    y = module(x)
    assert y.is_contiguous(memory_format=torch.channels_last) == channels_last
    agree(y, torch.cat([p[0] for p in parts]), x, module, dy)
    torch.testing.assert_close(module.norm.running_var, 0.9 + 0.1 * sum(p[2] for p in parts) / len(parts))


@pytest.mark.parametrize("affine", list(itertools.product((True, False), repeat=2)))
@pytest.mark.parametrize("form", ["contiguous", "channels_last", "flat"])
@pytest.mark.parametrize("n", [5, 6])
def test_virtual_batches_in_place_are_the_concatenated_ones(affine, form, n):
    """The CPU's fused path against torch.cat of F.batch_norm, second derivatives included."""
    ndim, size = (2, 3) if form == "flat" else (4, 2)
    module = build(ndim, source="ghost", ghost_size=size, gamma=affine[0], beta=affine[1])
    for double in (True, False):
        x, dy = data(ndim, n, form == "channels_last")
        norm, zero, one = module.norm, torch.zeros(C).double(), torch.ones(C).double()
        results = []
        for y in (
            module(x),
            torch.cat(
                [F.batch_norm(p, zero, one, norm.weight, norm.bias, True, 0.0, 1e-5) for p in x.split(size)]
            ),
        ):
            first = torch.autograd.grad(y, [x, *module.parameters()], dy, create_graph=double)
            second = torch.autograd.grad(first[0].square().sum(), x) if double else []
            results.append([y, *first, *second])
        assert torch.equal(results[0][0], results[1][0])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", sorted(naming.norms()))
@pytest.mark.parametrize("form", ["slice", "transposed", "expanded"])
def test_a_view_is_normalised_like_its_copy(name, form):
    """Whatever lies between its values in memory."""
    config = dataclasses.replace(naming.norms()[name], **({"ghost_size": 2} if name == "ghost" else {}))
    if config.family.startswith("weight"):
        return
    draw = torch.Generator().manual_seed(0)
    x = {
        "slice": torch.randn(4, 8, 6, 6, generator=draw)[:, :, 1:4, ::2],
        "transposed": torch.randn(4, 8, 6, 4, generator=draw).transpose(2, 3),
        "expanded": torch.randn(4, 8, 3, 1, generator=draw).expand(4, 8, 3, 5),
    }[form]
    dy = torch.randn(x.shape, generator=draw)
    found = []
    for given in (x, x.clone(memory_format=torch.contiguous_format)):
        given = given.detach().requires_grad_()
        module = build_norm(config).build(None, Site("top", 8, config.sites[0], 0), 4).train()
        y = module(given)
        found.append((y, *torch.autograd.grad(y, given, dy), *module.buffers()))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, C, 1, 1), (4, C, 3, 5), (3, C)])
@pytest.mark.parametrize("affine", [True, False])
def test_defaults_are_the_frameworks(shape, affine):
    """Outputs, gradients, buffers, over steps and in evaluation, to the bit."""
    ours = build(len(shape), gamma=affine, beta=affine).float()
    cls = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    theirs = cls(C, affine=affine)
    theirs.load_state_dict(ours.norm.state_dict())
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        x = (torch.randn(shape, generator=g) * 3 + 1).requires_grad_()
        dy = torch.randn(shape, generator=g)
        ya, yb = ours(x), theirs(x)
        assert torch.equal(ya, yb)
        pairs = (torch.autograd.grad(y, [x, *m.parameters()], dy) for y, m in ((ya, ours), (yb, theirs)))
        assert all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), theirs.buffers(), strict=True))
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


class Kernels(TorchDispatchMode):
    """Names of the operations that read a whole activation; views do not."""

    VIEWS = frozenset({"select", "detach"})

    def __init__(self, size):
        super().__init__()
        self.size, self.called = size, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(isinstance(x, torch.Tensor) and x.numel() == self.size for x in args):
            self.called.append(func.__name__.partition(".")[0])
        self.called = [x for x in self.called if x not in self.VIEWS]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["bn", "bn_top", "bn_no_gamma", "bn_no_beta", "bn_no_affine", "bn_frozen"])
def test_a_batch_norm_is_one_fused_kernel_each_way(name):
    config = naming.norms()[name]
    module = build_norm(config).build(None, Site("top", C, config.sites[0], 0), 4).train()
    x = torch.randn(4, C, 5, 7, requires_grad=True)
    dy = torch.randn_like(x)
    with Kernels(x.numel()) as forward:
        y = module(x)
    with Kernels(x.numel()) as backward:
        torch.autograd.grad(y, x, dy)
    assert forward.called == ["native_batch_norm"]
    assert backward.called == ["native_batch_norm_backward"]


@pytest.mark.parametrize("shape", [(2, C, 1, 1), (4, C, 3, 5), (3, C)])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_studys_own_kernel_at_the_defaults_is_the_frameworks(shape, affine, dtype):
    """What every other switch goes through, where nn.BatchNorm says what must come out: to rounding."""
    ours = build(len(shape), gamma=affine, beta=affine).to(dtype)
    ours.norm.fused = False
    theirs = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(C, affine=affine, dtype=dtype)
    theirs.load_state_dict(ours.norm.state_dict())
    exact = {"rtol": 1e-9, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        x = (torch.randn(shape, generator=g, dtype=dtype) * 3 + 1).requires_grad_()
        dy = torch.randn(shape, generator=g, dtype=dtype)
        ya, yb = ours(x), theirs(x)
        pairs = [(ya, yb)]
        pairs += zip(
            *(torch.autograd.grad(y, [x, *m.parameters()], dy) for y, m in ((ya, ours), (yb, theirs))),
            strict=True,
        )
        pairs += zip(ours.buffers(), theirs.buffers(), strict=True)
        for a, b in pairs:
            torch.testing.assert_close(a, b, **exact)
    assert ours.norm.num_batches_tracked == 3
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), **exact)


@pytest.mark.parametrize("form", ["contiguous", "channels_last", "flat"])
@pytest.mark.parametrize("affine", list(itertools.product((True, False), repeat=2)))
@pytest.mark.parametrize("norm", ["layer", "rms", "group", "instance"])
def test_norms_of_single_images(norm, affine, form):
    ndim = 2 if form == "flat" else 4
    if norm == "instance" and ndim == 2:
        pytest.skip("no statistics: see test_instance_norm_of_a_linear_layer_is_gamma_and_beta")
    family = {"rms": "layer"}.get(norm, norm)
    extra = {"rms": {"center": False}, "group": {"groups": 3}}.get(norm, {})
    module = build(ndim, family=family, gamma=affine[0], beta=affine[1], **extra)
    x, dy = data(ndim, channels_last=form == "channels_last")
    groups = {"layer": 1, "rms": 1, "group": 3, "instance": C}[norm]
    rows = x.contiguous().view(len(x), groups, -1)
    mean = 0 if norm == "rms" else rows.mean(2, keepdim=True)
    rows = (rows - mean) / ((rows - mean).square().mean(2, keepdim=True) + 1e-5).sqrt()
    y = rows.view(x.shape)
    y = y * wide(module.norm.weight, x) if affine[0] else y
    y = y + wide(module.norm.bias, x) if affine[1] else y
    ours = module(x)
    if form == "channels_last":
        assert ours.is_contiguous(memory_format=torch.channels_last)
    agree(ours, y, x, module, dy)
    assert torch.equal(module.eval()(x), ours)


@pytest.mark.parametrize("family", ["weight_normalisation", "weight_standardisation"])
def test_norms_of_weights(family):
    torch.manual_seed(0)
    layer = nn.Conv2d(3, C, 3).double()
    weight = layer.weight.detach().clone()
    build_norm(dataclasses.replace(NormConfig(), family=family)).build(layer, Site("s", C, "inner", 0), 4)
    layer.double()
    if family == "weight_normalisation":
        torch.testing.assert_close(layer.weight, weight)
        g, v = (p for n, p in sorted(layer.named_parameters()) if "original" in n)
        with torch.no_grad():
            g.mul_(2)
            v.mul_(5)
        torch.testing.assert_close(layer.weight, 2 * weight)
    else:
        rows = weight.view(C, -1)
        rows = (rows - rows.mean(1, keepdim=True)) / (rows.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        torch.testing.assert_close(layer.weight, (rows / math.sqrt(27)).view_as(weight))
    assert layer.bias is not None


@pytest.mark.parametrize("affine", list(itertools.product((True, False), repeat=2)))
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("source", ["batch", "running", "frozen", "ghost"])
def test_second_derivatives_by_all_parameters(source, channels_last, affine):
    """What Hessian-vector products take: the framework's own fails for β without γ."""
    more = {"ghost_size": 2} if source == "ghost" else {}
    module = build(source=source, gamma=affine[0], beta=affine[1], **more)
    state = copy.deepcopy(module.state_dict())
    memory = torch.channels_last if channels_last else torch.contiguous_format
    x = data(n=4)[0].detach()[:, :, :2, :2].contiguous(memory_format=memory).requires_grad_()

    def f(x, *parameters):
        buffers = {k: v.clone() for k, v in state.items() if "running" in k or "tracked" in k}
        named = dict(zip((n for n, _ in module.named_parameters()), parameters, strict=True))
        return torch.func.functional_call(module, named | buffers, (x,)).sin()

    assert torch.autograd.gradgradcheck(f, (x, *module.parameters()))


# The pieces.


@pytest.mark.parametrize("order", [1.0, 2.0, INF])
@pytest.mark.parametrize("center", [True, False])
def test_moments_have_first_and_second_derivatives(order, center):
    x = data(n=2)[0].detach()[:, :2, :2].requires_grad_()

    def f(x):
        return tuple(t for t in moments(x, center, True, order) if t is not None)

    assert torch.autograd.gradcheck(f, (x,))
    assert torch.autograd.gradgradcheck(f, (x,))


def test_channel_affine_has_first_and_second_derivatives():
    x = data(n=2)[0].detach()[:, :2, :2].requires_grad_()
    g = torch.Generator().manual_seed(0)
    vectors = [torch.randn(2, generator=g, dtype=torch.float64).requires_grad_() for _ in range(3)]
    assert torch.autograd.gradcheck(channel_affine, (x, *vectors))
    assert torch.autograd.gradgradcheck(channel_affine, (x, *vectors))


def test_channel_affine_takes_an_expanded_factor():
    """F.batch_norm's backward pass on the CPU returns wrong gradients for one (torch 2.14)."""
    x, dy = data(channels_last=True)
    factor = torch.full((1,), 2.0, dtype=torch.float64).expand(C)
    (dx,) = torch.autograd.grad(channel_affine(x, None, factor, None), x, dy)
    torch.testing.assert_close(dx, 2 * dy)


def test_the_gradient_of_a_shared_maximum_is_shared():
    x = torch.tensor([[3.0], [-3.0], [3.0], [1.0]], dtype=torch.float64, requires_grad=True)
    _, square = moments(x, False, True, INF)
    (dx,) = torch.autograd.grad(square.sqrt().sum() * expected_max(4), x)
    torch.testing.assert_close(dx, torch.tensor([[1.0], [-1.0], [1.0], [0.0]]).double() / 3)


@pytest.mark.parametrize("order", [1.0, INF])
def test_a_constant_channel_is_zero_and_has_no_gradient(order):
    module = build(order=order, gamma=False, beta=False)
    x = torch.full((4, C, 3, 4), 2.5, dtype=torch.float64, requires_grad=True)
    y = module(x)
    y.square().sum().backward()
    assert bool((y == 0).all())
    assert bool((x.grad == 0).all())


@pytest.mark.parametrize(
    ("order", "n", "tolerance"), [(1.0, 4000, 0.01), (INF, 4000, 0.02), (INF, 400, 0.04)]
)
def test_a_gaussian_keeps_unit_variance(order, n, tolerance):
    """400 channels: the mean variance of the output is 1 up to what the docstring of `moments` says."""
    x = torch.randn(n, 400, generator=torch.Generator().manual_seed(0)) * 3 + 1
    mean, square = moments(x, True, True, order)
    y = (x - mean) / square.sqrt()
    assert abs(float(y.var(0).mean()) - 1) < tolerance


def test_expected_max():
    assert expected_max(1) == pytest.approx(math.sqrt(2 / math.pi), rel=1e-6)
    assert expected_max(2) == pytest.approx(2 / math.sqrt(math.pi), rel=1e-6)  # E max(|a|, |b|)
    g = torch.Generator().manual_seed(0)
    largest = torch.randn(4000, 500, generator=g).abs().amax(1)
    assert abs(float(largest.mean()) - expected_max(500)) < 4 * float(largest.std()) / math.sqrt(4000)


def test_half_precision_statistics_are_summed_in_single():
    x = (torch.randn(64, C, 8, 8, generator=torch.Generator().manual_seed(0)) + 20).bfloat16()
    for switches in ({"center": False}, {"scale": False}, {"order": 1.0}, {"order": INF}, {"detach": True}):
        module = build_norm(dataclasses.replace(NormConfig(), **switches)).build(
            None, Site("site", C, "inner", 0), 4
        )
        expected = module(x.float())
        y = module(x)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.float(), expected, rtol=0.02, atol=0.02)


# Noise.


def test_uniform_draws_are_uniform_and_independent():
    u = torch.stack([uniform(5, torch.tensor(step), 2000) for step in range(50)])
    assert 0 < float(u.min()) < 1e-4
    assert 1 - 1e-4 < float(u.max()) < 1
    counts = torch.histc(u, 20, 0, 1)
    chi2 = float(((counts - 5000).square() / 5000).sum())
    assert 5 < chi2 < 45  # 19 degrees of freedom: both tails below 0.1%
    z = (u - 0.5) * math.sqrt(12)
    for a, b in ((z[:, 1:], z[:, :-1]), (z[1:], z[:-1])):
        assert abs(float((a * b).mean())) < 4 / math.sqrt(a.numel())


def test_noise_has_the_papers_moments():
    """μ~U(−.5,.5), σ~U(1,1.25) per step and channel; m~U(μ−.1,μ+.1), s~N(σ,.1) per example."""
    noise = Noise(0, "site", 200).double().train()
    x = torch.tensor([0.0, 1.0], dtype=torch.float64).view(1, 1, 1, 2).expand(300, 200, 1, 2)
    m, s = [], []
    for _ in range(20):
        y = noise(x)[:, :, 0]
        m.append(y[:, :, 0])
        s.append(y[:, :, 1] - y[:, :, 0])
    m, s = torch.stack(m), torch.stack(s)  # steps × examples × channels
    assert int(noise.step) == 20
    mu, sigma = m.mean(1), s.mean(1)
    assert float(mu.abs().max()) < 0.52
    assert mu.std() == pytest.approx(math.sqrt(1 / 12), rel=0.05)
    assert sigma.mean() == pytest.approx(1.125, rel=0.01)
    assert sigma.std() == pytest.approx(0.25 / math.sqrt(12), rel=0.06)
    within_m, within_s = m - mu[:, None], s - sigma[:, None]
    assert float(within_m.abs().max()) < 0.12
    assert within_m.std() == pytest.approx(0.2 / math.sqrt(12), rel=0.02)
    assert within_s.std() == pytest.approx(0.1, rel=0.02)
    assert within_s.pow(4).mean() / within_s.var() ** 2 == pytest.approx(3, rel=0.03)  # Gaussian
    assert abs(float((within_m * within_s).mean())) < 1e-4
    torch.testing.assert_close(noise.eval()(x), 1.125 * x)


def test_noise_follows_the_affine_part_and_scales_the_gradient():
    module = build(noise=True)
    x, dy = data()
    draws = module.noise._draw(len(x))
    y = module(x)
    before, _, _ = plain(x, module.norm, True, True, 2.0, False)
    factor, shift = (t.view(len(x), C, 1, 1) for t in draws)
    agree(y, factor * before + shift, x, module.norm, dy)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", sorted(naming.norms()))
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_a_gpu_computes_the_same_and_is_never_waited_for(name, memory):
    """Outputs, gradients, state over four training steps; from the second on any synchronisation raises."""
    config = dataclasses.replace(naming.norms()[name], **({"groups": 3} if name == "gn" else {}))
    norm = build_norm(config, 5)
    site = Site("site", C, "top" if name == "bn_top" else "inner", 0)
    torch.manual_seed(0)
    host = norm.build(None if name == "bn_top" else nn.Conv2d(C, C, 1), site, 4).double().train()
    device = copy.deepcopy(host).cuda()
    try:
        for step in range(4):
            x, dy = (t.detach().to(memory_format=memory) for t in data(n=32, seed=step))
            there = x.cuda(), dy.cuda()
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if step else "default")
            y = device(there[0])
            got = torch.autograd.grad(y, list(device.parameters()), there[1], allow_unused=True)
            torch.cuda.set_sync_debug_mode("default")
            expected = host(x)
            torch.testing.assert_close(y.cpu(), expected)
            for a, b in zip(got, torch.autograd.grad(expected, list(host.parameters()), dy), strict=True):
                torch.testing.assert_close(a.cpu(), b)
        for a, b in zip(device.state_dict().values(), host.state_dict().values(), strict=True):
            torch.testing.assert_close(a.cpu(), b)
    finally:
        torch.cuda.set_sync_debug_mode("default")

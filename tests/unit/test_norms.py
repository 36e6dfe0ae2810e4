"""State, switches, seeds and errors of the norms."""

import copy
import dataclasses
import itertools

import pytest
import torch
from torch import nn

from study import naming
from study.config import ModelConfig, NormConfig, RunConfig, from_mapping
from study.errors import ConfigError, StudyError
from study.launch import validate
from study.models._dropout import Dropout
from study.models.base import build_network
from study.norms._noise import Noise, uniform
from study.norms.base import Site, build_norm, poisoned, set_weight, watch

SITE = Site("block1.conv1", 6, "inner", 1)
NAMED = naming.norms() | {"gn": dataclasses.replace(naming.norms()["gn"], groups=3)}
"""The named norms, at SITE's 6 channels."""
BATCH = [n for n, c in naming.norms().items() if c.family == "batch"]


def config(**switches):
    return dataclasses.replace(NormConfig(), **switches)


def module(seed=0, layer=None, ndim=4, site=SITE, **switches):
    return build_norm(config(**switches), seed).build(layer, site, ndim)


def batch(seed, n=4, side=3):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, side, side, generator=g) * (2 + seed) + seed


# What each source does to the state, written out: (mean, unbiased variance) that the averages take at steps
# 0, 1, 2, as a batch index or None, and num_batches_tracked after them.
TAKEN = {
    "batch": ([0, 1, 2], 3),
    "running": ([0, 1, 2], 3),
    "ghost": ([0, 1, 2], 3),
    "periodic": ([0, None, 2], 3),
    "frozen": ([None, None, None], 0),
}


@pytest.mark.parametrize("source", TAKEN)
def test_what_a_source_does_to_the_state(source):
    taken, counted = TAKEN[source]
    others = {"ghost": {"ghost_size": 2, "momentum": 0.3}, "frozen": {}}.get(source, {"momentum": 0.3})
    norm = module(source=source, **others)
    mean, var = torch.zeros(6), torch.ones(6)
    for step, index in enumerate(taken):
        x = batch(step)
        norm.train()(x)
        if index is not None:
            parts = x.split(2) if source == "ghost" else [x]
            mean = 0.7 * mean + 0.3 * torch.stack([p.mean((0, 2, 3)) for p in parts]).mean(0)
            var = 0.7 * var + 0.3 * torch.stack([p.var((0, 2, 3)) for p in parts]).mean(0)
        norm.eval()(batch(9))  # evaluation in between changes nothing
        torch.testing.assert_close(norm.norm.running_mean, mean)
        torch.testing.assert_close(norm.norm.running_var, var)
    assert norm.norm.num_batches_tracked == counted
    expected = (batch(9) - mean.view(1, -1, 1, 1)) / (var + 1e-5).sqrt().view(1, -1, 1, 1)
    torch.testing.assert_close(norm.eval()(batch(9)), expected)


def test_alternating_uses_the_latest_statistics_in_between():
    norm = module(source="periodic", period=3).train()
    first = batch(0)
    norm(first)
    torch.testing.assert_close(norm.norm.latest_mean, first.mean((0, 2, 3)))
    torch.testing.assert_close(norm.norm.latest_var, first.var((0, 2, 3), correction=0))
    latest = [first.mean((0, 2, 3), keepdim=True), first.var((0, 2, 3), correction=0, keepdim=True)]
    for step in (1, 2):
        x = batch(step).requires_grad_()
        y = norm(x)
        torch.testing.assert_close(y, (x - latest[0]) / (latest[1] + 1e-5).sqrt())
        (dx,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(dx, torch.ones_like(x) / (latest[1] + 1e-5).sqrt())
    y = norm(batch(3))
    torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(6), atol=1e-5, rtol=0)


def test_running_uses_the_averages_of_the_batches_before():
    norm = module(source="running").train()
    torch.testing.assert_close(norm(batch(0)), batch(0) / (1 + 1e-5) ** 0.5)
    mean, var = norm.norm.running_mean.clone(), norm.norm.running_var.clone()
    x = batch(1).requires_grad_()
    y = norm(x)
    torch.testing.assert_close(y, (x - mean.view(1, -1, 1, 1)) / (var + 1e-5).sqrt().view(1, -1, 1, 1))
    y.sum().backward()  # the averages have moved on since; the backward pass must not see that
    torch.testing.assert_close(x.grad, torch.ones_like(x) / (var + 1e-5).sqrt().view(1, -1, 1, 1))


@pytest.mark.parametrize("name", sorted(naming.norms()))
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_norm_goes_on_as_if_nothing_had_happened(name, stop):
    """State through state_dict, into a module built anew, train and evaluation outputs equal to the bit."""

    def build():
        torch.manual_seed(0)
        norm = build_norm(NAMED[name], 5)
        kind = "top" if not norm.at(SITE) else "inner"
        site = Site("site", 6, kind, 0)
        net = norm.build(None if kind == "top" else nn.Conv2d(6, 6, 1), site, 4)
        if norm.needs_calibration:
            norm.calibrate(net, [batch(7)])
        return net.train()

    whole, part = build(), build()
    for step in range(stop):
        whole(batch(step))
        part(batch(step))
    state = {k: v.clone() for k, v in part.state_dict().items()}
    resumed = build()
    resumed.load_state_dict(state)
    for step in range(stop, stop + 3):
        assert torch.equal(resumed(batch(step)), whole(batch(step)))
    assert torch.equal(resumed.eval()(batch(8)), whole.eval()(batch(8)))


@pytest.mark.parametrize("restore", ["load_state_dict", "copy_", "deepcopy"])
def test_extra_passes_leave_no_trace_once_the_buffers_are_back(restore):
    """Also for alternating, whose counter has a copy on the host: any way of writing the buffer counts."""
    for extra in (1, 2):
        norm, twin = module(source="periodic").train(), module(source="periodic").train()
        norm(batch(0)), twin(batch(0))
        saved = {k: v.clone() for k, v in norm.state_dict().items()}
        spare = copy.deepcopy(norm)
        for i in range(extra):
            norm(batch(5 + i))
        if restore == "load_state_dict":
            norm.load_state_dict(saved)
        elif restore == "copy_":
            for k, v in norm.named_buffers():
                v.copy_(saved[k])
        else:
            norm = spare
        for step in (1, 2, 3):
            assert torch.equal(norm(batch(step)), twin(batch(step)))


# One value per channel.


@pytest.mark.parametrize("name", [n for n in BATCH if n not in ("bn_affine_only", "bn_frozen")])
@pytest.mark.parametrize("ndim", [2, 4])
def test_one_value_per_channel_is_refused_alike(name, ndim):
    norm = build_norm(NAMED[name])
    net = norm.build(None, Site("top", 6, "top" if name == "bn_top" else "inner", 0), ndim).train()
    one, two = (torch.ones(n, 6) if ndim == 2 else torch.ones(n, 6, 1, 1) for n in (1, 2))
    for _ in range(2):  # alternating: neither a fresh nor a reused batch
        state = copy.deepcopy(net.state_dict())
        with pytest.raises(StudyError, match="one value per channel"):
            net(one)
        assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
        net(two)
    net.eval()(one)
    assert net[-1].training is False


@pytest.mark.parametrize("name", ["bn_affine_only", "bn_frozen", "none", "ln", "rms", "ws", "wn"])
def test_one_value_per_channel_is_fine_where_no_statistics_are_taken_over_the_batch(name):
    norm = build_norm(NAMED[name])
    net = norm.build(nn.Conv2d(6, 6, 1), SITE, 4).train()
    assert net(torch.ones(1, 6, 1, 1)).isfinite().all()


def test_a_virtual_batch_of_one_value_is_refused():
    net = module(source="ghost", ghost_size=2).train()
    with pytest.raises(StudyError, match="one value per channel"):
        net(torch.ones(3, 6, 1, 1))
    assert net.norm.num_batches_tracked == 0
    assert not net.norm.running_mean.any()
    net(torch.ones(4, 6, 1, 1))


def test_instance_and_group_norm_refuse_a_single_value():
    with pytest.raises(StudyError, match=r"one value per channel.*larger images.*the batch does not matter"):
        module(family="instance")(torch.ones(4, 6, 1, 1))


@pytest.mark.parametrize("name", ["ln", "rms", "ws"])
def test_a_layer_of_one_unit_and_a_single_weight_are_refused_alike(name):
    """Layer and weight norms take no statistics over the batch, but over a layer, and over a fan-in."""
    run = RunConfig(model=ModelConfig(name="mlp", depth=3, widths=(1,)), norm=NAMED[name])
    per = "output's weights.*use more inputs" if name == "ws" else "image.*use a wider layer"
    with pytest.raises(StudyError, match=rf"the norm at 'linear\d' gets one value per {per}"):
        build_network(run, (1, 4, 4), 3)(torch.ones(5, 1, 4, 4))


def test_instance_norm_of_a_linear_layer_is_gamma_and_beta():
    """Output and gradients of γ·x + β, in training and evaluation, for single images too; and no bias."""
    site = dataclasses.replace(SITE, locations=False)
    x = batch(1)[:, :, 0, 0].requires_grad_()
    for gamma, beta in ((True, True), (True, False), (False, True)):
        norm = build_norm(config(family="instance", gamma=gamma, beta=beta))
        assert norm.at(site)
        assert not norm.normalises(site)
        assert norm.shifts(site) == beta
        net = norm.build(None, site, 2)
        for i, p in enumerate(net.parameters()):
            p.data = torch.linspace(0.5 + i, 2, 6)
        expected = x * (net.norm.weight if gamma else 1) + (net.norm.bias if beta else 0)
        torch.testing.assert_close(net.train()(x), expected)
        torch.testing.assert_close(net.eval()(x[:1]), expected[:1])
        for a, b in zip(
            *(torch.autograd.grad(y.square().sum(), [x, *net.parameters()]) for y in (net(x), expected)),
            strict=True,
        ):
            torch.testing.assert_close(a, b)
    assert not build_norm(config(family="instance", gamma=False, beta=False)).at(site)


# Switches.


@pytest.mark.parametrize(
    ("groups", "named"), [(6, "which is norm=in"), (4, "does not divide the 6 channels")]
)
def test_groups_must_be_groups(groups, named):
    with pytest.raises(ConfigError, match=named):
        module(family="group", groups=groups)
    with pytest.raises(ConfigError, match=r"norm.groups=1 is out of range"):
        from_mapping({"norm": {"family": "group", "groups": 1}})
    module(family="group", groups=3)


def test_gn_is_a_group_norm_at_laptop_widths():
    for channels in (8, 16, 32, 64):
        gn = build_norm(naming.norms()["gn"]).build(None, Site("s", channels, "inner", 0), 4).norm
        assert 1 < gn.groups < channels


TOGETHER = [
    ({"schedule": {"name": "plateau", "milestones": [0.3]}}, "schedule.milestones has no effect"),
    ({"schedule": {"max_drops": 3}}, "schedule.max_drops has no effect"),
    ({"schedule": {"warm_start_lr": 0.01}}, "schedule.warm_start_lr has no effect"),
    ({"schedule": {"warm_start_epochs": 3}, "epochs": 3}, "below epochs=3"),
    ({"data": {"fit": "pad"}}, "data.fit=pad has no effect"),
    ({"norm": {"source": "ghost"}, "batch_size": 16}, "norm.ghost_size=16 has no effect with batch_size=16"),
]
ALLOWED = [
    {"schedule": {"name": "plateau", "max_drops": 3}},
    {"schedule": {"milestones": [0.3], "warm_start_epochs": 2, "warm_start_lr": 0.01}, "epochs": 3},
    {"schedule": {"warm_start_epochs": 3}, "epochs": 0},
    {"data": {"fit": "pad", "size": 8}},
    {"norm": {"source": "ghost"}, "batch_size": 17},
]


@pytest.mark.parametrize(("settings", "named"), TOGETHER)
def test_settings_without_effect_are_refused_before_a_network_is_built(settings, named):
    run = from_mapping({"model": {"depth": 8, "widths": [4, 4, 4]}} | settings)
    for build in (lambda: build_network(run, (3, 8, 8), 5), lambda: validate.buildable([RunConfig(), run])):
        with pytest.raises(ConfigError) as error:
            build()
        assert named in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("settings", ALLOWED)
def test_settings_with_an_effect_are_not(settings):
    build_network(from_mapping({"model": {"depth": 8, "widths": [4, 4, 4]}} | settings), (3, 8, 8), 5)


def test_a_period_of_one_is_refused():
    with pytest.raises(ConfigError, match=r"norm.period=1 is out of range"):
        from_mapping({"norm": {"source": "periodic", "period": 1}})


@pytest.mark.parametrize(
    ("switches", "named"),
    [
        ({"order": 3.0}, "norm.order=3"),
        ({"scale": False, "order": 1.0}, "norm.order has no effect"),
        ({"scale": False, "eps": 1e-3}, "norm.eps has no effect"),
        ({"period": 4}, "norm.period has no effect"),
        ({"ghost_size": 4}, "norm.ghost_size has no effect"),
        ({"groups": 3}, "norm.groups has no effect"),
        ({"sites": ()}, "norm.sites=[] normalises nothing"),
        ({"family": "none", "sites": ("top",)}, "norm.sites has no effect"),
        ({"source": "running", "detach": True}, "norm.detach has no effect"),
        ({"source": "frozen", "detach": True}, "norm.detach has no effect"),
        ({"source": "frozen", "momentum": 0.5}, "norm.momentum has no effect"),
        ({"center": False, "scale": False, "source": "ghost"}, "norm.source has no effect"),
        ({"center": False, "scale": False, "detach": True}, "norm.detach has no effect"),
        ({"center": False, "scale": False, "momentum": 0.5}, "norm.momentum has no effect"),
        ({"center": False, "scale": False, "gamma": False, "beta": False}, "norm=none"),
        ({"gamma": False, "gamma_init": (0.5,)}, "norm.gamma_init has no effect"),
        ({"gamma_init": (0.5, 0.1)}, "norm.gamma_init"),
        ({"gamma_init": ()}, "norm.gamma_init"),
        ({"sites": ("stem", "roof")}, "norm.sites"),
        ({"family": "none", "center": False}, "norm.center has no effect"),
        ({"family": "none", "gamma": False}, "norm.gamma has no effect"),
        ({"family": "layer", "order": 1.0}, "norm.order has no effect"),
        ({"family": "group", "center": False}, "norm.center has no effect"),
        ({"family": "weight_normalisation", "gamma": False}, "norm.gamma has no effect"),
        ({"family": "weight_standardisation", "sites": ("top",)}, "norm.sites"),
    ],
)
def test_contradictions_are_refused_in_one_sentence(switches, named):
    with pytest.raises(ConfigError) as error:
        build_norm(config(**switches))
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_every_combination_trains_or_is_refused():
    """All switches of family batch against each other: everything finite, or ConfigError."""
    flags = ("center", "scale", "gamma", "beta", "detach", "noise")
    x, built = batch(0, n=6), 0
    for values in itertools.product((True, False), repeat=len(flags)):
        for order, source in itertools.product((1.0, 2.0, float("inf")), TAKEN):
            switches = dict(zip(flags, values, strict=True)) | {"order": order, "source": source}
            try:
                net = module(**switches).train()
            except ConfigError:
                continue
            built += 1
            leaf = x.clone().requires_grad_()
            for _ in range(2):
                net(leaf).square().mean().backward()
            tensors = [leaf.grad, *(p.grad for p in net.parameters()), *net.state_dict().values()]
            assert all(bool(t.isfinite().all()) for t in tensors), switches
            assert float(leaf.grad.abs().max()) > 0
    assert built > 300


# Seeds.


def test_gammas_initial_values():
    assert bool((module(gamma_init=(0.5,)).norm.weight == 0.5).all())
    site = Site("wide", 4000, "inner", 0)
    drawn = [module(seed, site=site, gamma_init=(0.2, 0.6)).norm.weight.detach() for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert drawn[0].min() >= 0.2
    assert drawn[0].max() <= 0.6
    assert abs(drawn[0].mean() - 0.4) < 4 * 0.4 / 12**0.5 / 4000**0.5
    other = module(0, site=Site("other", 4000, "inner", 0), gamma_init=(0.2, 0.6)).norm.weight
    assert not torch.equal(drawn[0], other.detach())


@pytest.mark.parametrize("name", sorted(naming.norms()))
def test_building_and_training_draw_nothing_from_the_global_generator(name):
    layer, site = nn.Conv2d(6, 6, 1), dataclasses.replace(SITE, kind="top") if name == "bn_top" else SITE
    state = torch.get_rng_state()
    build_norm(NAMED[name]).build(layer, site, 4).train()(batch(0))
    assert torch.equal(state, torch.get_rng_state())


def test_noise_is_a_function_of_seed_site_and_step():
    x = torch.ones(3, 6, 2, 2)
    first = [Noise(0, "a", 6).train()(x) for _ in range(2)]
    assert torch.equal(*first)
    one = Noise(0, "a", 6).train()
    outputs = [first[0], Noise(1, "a", 6).train()(x), Noise(0, "b", 6).train()(x), (one(x), one(x))[1]]
    assert all(not torch.allclose(a, b) for a, b in itertools.combinations(outputs, 2))
    late = Noise(0, "a", 6).train()
    late.load_state_dict({"step": torch.tensor(1)})
    assert torch.equal(late(x), outputs[3])


def test_the_uniform_generator_is_pinned():
    """SplitMix64 itself, in Python's integers: the numbers may never change."""
    mask = 2**64 - 1

    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    golden, key, step = 0x9E3779B97F4A7C15, 2**63 - 12345, 17
    stream = mix(key + step * golden & mask)
    expected = [((mix(stream + i * golden & mask) >> 12) + 0.5) * 2.0**-52 for i in range(1, 6)]
    assert uniform(key, torch.tensor(step), 5).tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(naming.norms()))
def test_compiled_norms_are_the_same(name):
    """Outputs, gradients and state over steps; a compiler that redraws noise going backward is caught."""
    norm = build_norm(NAMED[name], 5)
    site = Site("site", 6, "top" if name == "bn_top" else "inner", 0)
    torch.manual_seed(0)
    plain = norm.build(None if name == "bn_top" else nn.Conv2d(6, 6, 1), site, 4).train()
    twin = copy.deepcopy(plain)
    compiled = torch.compile(twin, backend="aot_eager")
    for step in range(4):
        a, b = (batch(step).requires_grad_() for _ in range(2))
        ya, yb = plain(a), compiled(b)
        torch.testing.assert_close(ya, yb)
        ya.square().sum().backward()
        yb.square().sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
    for x, y in zip(plain.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("draws", ["dropout", "noise"])
def test_the_real_compiler_takes_what_draws(draws):
    """Inductor: its arithmetic cannot wrap 64-bit integers, so the draws must stay out of its sight."""
    torch.manual_seed(0)
    random = Noise(2, "site", 6) if draws == "noise" else Dropout(0.3, 2**62 + 12345)
    plain = nn.Sequential(nn.Conv2d(6, 6, 1), random, nn.Conv2d(6, 6, 1)).train()
    twin = copy.deepcopy(plain)
    compiled = torch.compile(twin)
    for step in range(3):
        x = batch(step)
        a, b = plain(x), compiled(x)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        a.square().sum().backward(), b.square().sum().backward()
        for p, q in zip(plain.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-3)
    assert twin[1].step == 3


# Weights behind a parametrisation.


@pytest.mark.parametrize("family", ["none", "batch", "weight_normalisation", "weight_standardisation"])
@pytest.mark.parametrize("linear", [False, True])
def test_set_weight(family, linear):
    layer = nn.Linear(3, 6) if linear else nn.Conv2d(3, 6, 3)
    build_norm(config(family=family)).build(layer, SITE, 2 if linear else 4)
    weight = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(0)) * 3
    set_weight(layer, weight)
    if family == "weight_standardisation":
        rows = layer.weight.detach().flatten(1)
        expected = weight.flatten(1) - weight.flatten(1).mean(1, keepdim=True)
        torch.testing.assert_close(rows, expected / expected.norm(dim=1, keepdim=True), rtol=1e-4, atol=1e-5)
    else:
        torch.testing.assert_close(layer.weight.detach(), weight)


def test_bias_rule():
    shifting = {n for n, c in naming.norms().items() if build_norm(c).shifts(SITE)}
    keep = {"none", "none_noisy", "rms", "ws", "wn"}
    assert shifting == set(naming.norms()) - keep
    assert not build_norm(config(center=False, beta=False)).shifts(SITE)


@pytest.mark.parametrize("source", TAKEN)
@pytest.mark.parametrize(("center", "beta"), list(itertools.product((True, False), repeat=2)))
def test_a_bias_is_left_out_exactly_where_it_would_do_nothing_new(source, center, beta):
    """Measured: does a bias that changes between two training steps change the second's output?"""
    norm = build_norm(
        config(source=source, center=center, beta=beta, ghost_size=2 if source == "ghost" else 16)
    )
    outputs = []
    for shift in (0.0, 3.0):
        net = norm.build(None, SITE, 4).double().train()
        net(batch(0).double())
        x = batch(1).double()
        outputs.append(net(x + shift))
    nothing = torch.allclose(*outputs)
    assert norm.shifts(SITE) == (nothing or beta)
    assert nothing == (center and source in ("batch", "ghost"))


# Non-finite statistics.


def watched(*kinds):
    norms = [module(site=Site(f"conv{i}", 6, "inner", i), **k) for i, k in enumerate(kinds)]
    network = nn.Sequential(*norms).train()
    watch(network)
    return network


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30])
@pytest.mark.parametrize(
    "switches", [{}, {"source": "running"}, {"source": "ghost", "ghost_size": 2}, {"detach": True}]
)
def test_a_bad_batch_is_flagged_with_step_and_layer(value, switches):
    """1e30 squares to infinity: the loss stays finite, and only the running variance tells."""
    network = watched({}, switches)
    clean = watched({}, switches)
    for step in range(5):
        x = batch(step)
        clean(x)
        if step == 3:
            network[1](
                torch.full_like(x, value) * torch.eye(4, 6)[:, :, None, None]
            )  # not a pass of the network
            network[1].load_state_dict(clean[1].state_dict())
        if step == 2:
            assert poisoned(network) == []
            x[1, 2, 0, 0] = value
        network(x)
    assert poisoned(clean) == []
    found = poisoned(network)
    assert found[0] == ("conv0", 2)
    assert all(step >= 2 for _, step in found)


def test_the_watch_is_saved_and_put_back_like_any_buffer():
    network = watched({})
    for step in range(3):
        network(batch(step))
    state = copy.deepcopy(network.state_dict())
    network(torch.full_like(batch(0), float("inf")))
    assert poisoned(network) == [("conv0", 3)]
    resumed = watched({})
    resumed.load_state_dict(state)
    assert poisoned(resumed) == []
    resumed(batch(3))
    resumed.eval()(batch(3))
    resumed.train()(torch.full_like(batch(0), float("nan")))
    resumed(batch(5))
    assert poisoned(resumed) == [("conv0", 4)]
    assert poisoned(copy.deepcopy(resumed)) == [("conv0", 4)]


def test_a_network_without_averages_needs_no_watch():
    network = nn.Sequential(module(family="layer"), nn.Conv2d(6, 6, 1))
    before = set(network.state_dict())
    watch(network)
    assert set(network.state_dict()) == before
    assert poisoned(network) == []

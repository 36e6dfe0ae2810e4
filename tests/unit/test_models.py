"""What networks promise: layers, sites, shapes, parameter counts, options, and refusals in plain words."""

import ctypes.util
import dataclasses
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from study import registry
from study.config import ModelConfig, NormConfig, RunConfig
from study.errors import ConfigError
from study.models import _vgg, resnet
from study.models.base import ACTIVATIONS, COMMON, Network, build_network

NONE = NormConfig(name="none", family="none")
TINY = {
    "resnet": ModelConfig(depth=8, widths=(3, 4, 5)),
    "preact_resnet": ModelConfig(name="preact_resnet", depth=8, widths=(3, 4, 5)),
    "plain": ModelConfig(name="plain", depth=7, widths=(3, 4)),
    "mlp": ModelConfig(name="mlp", depth=4, widths=(7, 6, 5)),
    "vgg_a": ModelConfig(name="vgg_a", width_multiplier=1 / 64),
    "vgg11": ModelConfig(name="vgg11", width_multiplier=1 / 64),
    "vgg16": ModelConfig(name="vgg16", width_multiplier=1 / 64),
}
SHAPE = (2, 32, 32)


def build(
    model: ModelConfig, norm: NormConfig = NONE, seed: int = 0, shape=SHAPE, classes: int = 4
) -> Network:
    return build_network(RunConfig(model=model, norm=norm, seed=seed), shape, classes)


def images(n: int = 3, shape=SHAPE) -> torch.Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))


def count(network: Network) -> int:
    return sum(p.numel() for p in network.parameters())


def test_every_network_is_tested():
    assert TINY.keys() == set(registry.names("study.models"))


def test_published_parameter_counts():
    published = {20: 0.27, 32: 0.46, 44: 0.66, 56: 0.85, 110: 1.7}
    rows = re.findall(r"^ +(\d+) +([\d,]+) +([\d,]+) ", resnet.__doc__, re.M)
    table = {int(row[0]): [int(n.replace(",", "")) for n in row[1:]] for row in rows}
    assert table.keys() == published.keys()
    for depth, millions in published.items():
        for shortcut, documented in zip(("padding", "projection"), table[depth], strict=True):
            network = build(ModelConfig(depth=depth, shortcut=shortcut), NormConfig(), 0, (3, 32, 32), 10)
            assert count(network) == documented
        assert round(table[depth][0] / 1e6, 1 if depth == 110 else 2) == millions


@pytest.mark.parametrize(
    ("name", "groups", "published"), [("vgg11", "A", 132863336), ("vgg16", "D", 138357544)]
)
def test_vgg_parameter_counts(name, groups, published):
    """Torchvision's counts for 224×224 images and 1000 classes, on the formula and a narrow build of it."""

    def formula(channels: list[int], units: int, classes: int) -> int:
        total, c_in = 0, 3
        for convs, c_out in zip(getattr(_vgg, f"GROUPS_{groups}"), channels, strict=True):
            for _ in range(convs):
                total, c_in = total + (9 * c_in + 1) * c_out, c_out
        return total + (49 * c_in + 1) * units + (units + 1) * units + (units + 1) * classes

    assert formula(list(_vgg.CHANNELS), 4096, 1000) == published
    narrow = build(TINY[name], shape=(3, 64, 64), classes=5)
    assert count(narrow) == formula([c // 64 for c in _vgg.CHANNELS], 64, 5)


def test_vgg_a_has_the_convolutions_of_vgg_11_and_narrower_hidden_layers():
    """By hand: 9,220,480 in convolutions (torchvision's vgg11.features), two layers of 512, a classifier."""
    convolutions = sum(
        (9 * c_in + 1) * c_out
        for c_in, c_out in ((3, 64), (64, 128), (128, 256), (256, 256), (256, 512), *[(512, 512)] * 3)
    )
    assert convolutions == 9_220_480
    for norm, more in ((NONE, 0), (NormConfig(), 64 + 128 + 2 * 256 + 4 * 512 + 2 * 512)):
        network = build(ModelConfig(name="vgg_a"), norm, shape=(3, 32, 32), classes=10)
        # γ and β for 8 convolutions and 2 hidden layers, in the place of their biases
        assert count(network) == 9_750_922 + more
    assert convolutions + 2 * (512 * 512 + 512) + (512 * 10 + 10) == 9_750_922


@pytest.mark.parametrize("name", TINY)
def test_layers_and_sites(name):
    network = build(TINY[name])
    numbers = [x.number for x in network.layers if x.number is not None]
    assert numbers == list(range(1, len(numbers) + 1))
    if not name.startswith("vgg"):
        assert numbers[-1] == TINY[name].depth
    assert [x.name for x in network.layers if x.site is None] == ["classifier"] == [network.layers[-1].name]
    assert [s.index for s in network.sites] == list(range(len(network.sites)))
    assert len({s.name for s in network.sites}) == len(network.sites)
    assert network.sites[-1].kind == "top"
    assert [x.site for x in network.layers[:-1]] == list(network.sites[:-1])
    assert all(x.site.name == x.name for x in network.layers[:-1])
    assert set(network.conv_biases().values()) == {True}


@pytest.mark.parametrize("name", TINY)
def test_sites_are_those_documented(name):
    """By name and kind, in the table of the docstring; and nothing is documented that is not there."""
    module = _vgg if name.startswith("vgg") else registry.load("study.models", name)
    rows = re.findall(r"^(\S+) +(stem|inner|outer|shortcut|top) ", module.__doc__, re.M)
    patterns = [(re.sub(r"\\{\w\\}", r"\\d+", re.escape(row)), kind) for row, kind in rows]
    found = set()
    for site in build(TINY[name]).sites:
        (match,) = [p for p in patterns if re.fullmatch(p[0], site.name)]
        assert match[1] == site.kind, site
        found.add(match)
    assert found == set(patterns)


def test_resnet_names_and_numbers():
    layers = {x.name: (x.number, x.site.kind if x.site else None) for x in build(TINY["resnet"]).layers}
    assert layers == {
        "stem": (1, "stem"),
        "block1.conv1": (2, "inner"),
        "block1.conv2": (3, "outer"),
        "block2.conv1": (4, "inner"),
        "block2.conv2": (5, "outer"),
        "block2.shortcut": (None, "shortcut"),
        "block3.conv1": (6, "inner"),
        "block3.conv2": (7, "outer"),
        "block3.shortcut": (None, "shortcut"),
        "classifier": (8, None),
    }


@pytest.mark.parametrize("name", TINY)
def test_layers_run_once_in_order_and_outputs_stay_as_captured(name):
    """A probe that keeps a layer's input and output by reference must find them unchanged after the pass."""
    network = build(TINY[name])
    seen, order = [], []

    def hook(module, inputs, output):
        order.append(module)
        seen.extend((x, x.clone()) for x in (inputs[0], output))

    for module in network.modules():
        if not list(module.children()):
            module.register_forward_hook(hook)
    with torch.no_grad():
        network(images())
    layers = [x.module for x in network.layers]
    assert [m for m in order if m in layers] == layers
    for kept, copy in seen:
        assert torch.equal(kept, copy)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_top_is_the_classifiers_input_and_layout_does_not_matter(name, layout):
    network = build(TINY[name]).to(memory_format=layout)
    top = {}
    network.top.register_forward_hook(lambda m, i, o: top.update(top=o))
    with torch.no_grad():
        logits = network(images().to(memory_format=layout))
        pooled = top["top"].flatten(2).mean(2) if top["top"].ndim == 4 else top["top"]
        torch.testing.assert_close(network.classifier(pooled), logits, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(build(TINY[name])(images()), logits, atol=1e-5, rtol=1e-4)
    assert logits.shape == (3, 4)
    assert top["top"].shape[1] == network.sites[-1].channels
    assert (top["top"] >= 0).all()


@pytest.mark.parametrize("shortcut", ["padding", "projection"])
def test_resnet_forward_is_the_papers_formula(shortcut):
    model = ModelConfig(depth=14, widths=(3, 5, 5), shortcut=shortcut)
    network = build(model).double()
    x = images().double()
    f = nn.functional
    h = f.relu(network.stem(x))
    for block, stride in zip(network.blocks, (1, 1, 2, 1, 2, 1), strict=True):
        branch = block.conv2(f.relu(block.conv1(h)))
        if stride == 1:
            skip = h
        elif shortcut == "projection":
            skip = f.conv2d(h, block.shortcut[1].weight, block.shortcut[1].bias, stride=2)
        else:
            skip = torch.zeros_like(branch)
            before = (skip.shape[1] - h.shape[1]) // 2
            skip[:, before : before + h.shape[1]] = h[:, :, ::2, ::2]
        h = f.relu(skip + branch)
    expected = network.classifier(h.mean((2, 3)))
    torch.testing.assert_close(network(x), expected)


def test_preact_resnet_forward_is_the_papers_formula():
    """With norms, which stand after the additions; a projection has none of its own."""
    network = build(ModelConfig(name="preact_resnet", depth=14, widths=(3, 4, 5)), NormConfig()).double()
    x = images().double()
    f, norm = nn.functional, lambda h: nn.functional.batch_norm(h, None, None, training=True)
    by_name = {layer.name: layer.module for layer in network.layers}
    h = f.relu(norm(by_name["stem"](x)))
    stream = h
    for k in range(1, 7):
        branch = by_name[f"block{k}.conv2"](f.relu(norm(by_name[f"block{k}.conv1"](h))))
        stream = (by_name[f"block{k}.shortcut"](h[:, :, ::2, ::2]) if k in (3, 5) else stream) + branch
        h = f.relu(norm(stream))
    torch.testing.assert_close(network(x), by_name["classifier"](h.mean((2, 3))))


def test_plain_is_the_resnet_without_shortcuts():
    plain = build(ModelConfig(name="plain", depth=14, widths=(3, 4, 5)))
    res = build(ModelConfig(depth=14, widths=(3, 4, 5)))
    shapes = [[tuple(x.module.weight.shape) for x in n.layers if x.number] for n in (plain, res)]
    strides = [[getattr(x.module, "stride", 1) for x in n.layers if x.number] for n in (plain, res)]
    assert shapes[0] == shapes[1]
    assert strides[0] == strides[1]


@pytest.mark.parametrize("name", ["resnet", "preact_resnet"])
def test_branch_scales(name):
    plain = build(TINY[name])
    skipinit = build(replace(TINY[name], branch_scale="skipinit"))
    depth = build(replace(TINY[name], branch_scale="depth"))
    scalars = {n for n, p in skipinit.named_parameters() if p.ndim == 0}
    assert len(scalars) == 3
    assert count(skipinit) == count(plain) + 3
    assert count(depth) == count(plain)
    state = plain.state_dict()
    state.update(dict.fromkeys(scalars, torch.tensor(3**-0.5)))
    x = images()
    skipinit(x).sum().backward()
    assert all(skipinit.get_parameter(n).grad.abs() > 0 for n in scalars)
    conv2 = next(x.module for x in skipinit.layers if x.name == "block2.conv2")
    assert torch.equal(conv2.weight.grad, torch.zeros_like(conv2.weight))
    skipinit.load_state_dict(state)
    torch.testing.assert_close(skipinit(x), depth(x))
    assert not torch.allclose(plain(x), depth(x), rtol=0.01)


def test_activations_are_what_they_are_called():
    x = torch.linspace(-3, 3, 61)
    modules = {"relu": nn.ReLU(), "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "gelu": nn.GELU()}
    modules["leaky_relu"] = nn.LeakyReLU()
    assert modules.keys() == ACTIVATIONS.keys()
    for name, module in modules.items():
        assert torch.equal(ACTIVATIONS[name](x), module(x))


@pytest.mark.parametrize("name", TINY)
def test_activation_is_used_everywhere(name):
    """With tanh, no hidden layer but those on a residual stream sees an input outside ±1."""
    outputs = {}
    for activation in ACTIVATIONS:
        network = build(replace(TINY[name], activation=activation))
        outputs[activation] = network(images() * 5)
        if activation == "tanh":
            network.top.register_forward_hook(lambda m, i, o: outputs.update(top=o))
            network(images() * 5)
    assert outputs.pop("top").abs().max() <= 1
    logits = list(outputs.values())
    for i, a in enumerate(logits):
        assert all(not torch.equal(a, b) for b in logits[:i])


def test_width_multiplier_rounds_to_at_least_one():
    network = build(ModelConfig(depth=8, widths=(16, 32, 64), width_multiplier=0.1))
    assert [b.conv1.out_channels for b in network.blocks] == [2, 3, 6]
    assert build(ModelConfig(depth=8, width_multiplier=1e-3)).stem.out_channels == 1


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (ModelConfig(depth=21), SHAPE, "6n + 2"),
        (ModelConfig(depth=2), SHAPE, "6n + 2"),
        (ModelConfig(depth=8, widths=()), SHAPE, "at least one stage"),
        (ModelConfig(depth=8, widths=(8, 4, 2), shortcut="padding"), SHAPE, "must not decrease"),
        (ModelConfig(depth=8), (3, 3, 32), "at least 4×4"),
        (ModelConfig(name="preact_resnet", depth=9), SHAPE, "6n + 2"),
        (ModelConfig(name="preact_resnet", depth=8), (3, 3, 32), "at least 4×4"),
        (ModelConfig(name="plain", depth=4), SHAPE, "≥ 5"),
        (ModelConfig(name="plain", widths=()), SHAPE, "at least one stage"),
        (ModelConfig(name="plain", depth=9, shortcut="padding"), SHAPE, "model.shortcut has no effect"),
        (ModelConfig(name="mlp", depth=1), SHAPE, "depth ≥ 2"),
        (ModelConfig(name="mlp", depth=5, widths=(3, 4)), SHAPE, "4 hidden"),
        (ModelConfig(name="mlp", depth=4, widths=(3,), branch_scale="depth"), SHAPE, "branch_scale has no"),
        (ModelConfig(name="vgg_a"), (3, 31, 64), "at least 32×32"),
        (ModelConfig(name="vgg16", depth=16), SHAPE, "model.depth has no effect"),
        (ModelConfig(name="vgg11", widths=(3,)), SHAPE, "model.widths has no effect"),
    ],
)
def test_refusals(model, shape, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build(model, shape=shape)


def test_a_norm_without_a_site_is_refused():
    with pytest.raises(ConfigError, match="no such site"):
        build(TINY["mlp"], NormConfig(sites=("shortcut",)))


@pytest.mark.parametrize("size", [4, 5, 7])
@pytest.mark.parametrize("shortcut", ["padding", "projection"])
def test_resnet_takes_odd_small_images(size, shortcut):
    for name in ("resnet", "preact_resnet"):
        network = build(ModelConfig(name=name, depth=8, shortcut=shortcut), shape=(5, size, size + 1))
        assert network(torch.randn(2, 5, size, size + 1)).shape == (2, 4)


@pytest.mark.parametrize("name", TINY)
def test_reads_names_fields(name):
    reads = registry.load("study.models", name).READS
    assert reads <= {f.name for f in dataclasses.fields(ModelConfig)} - COMMON


def test_preact_resnet_keeps_what_follows_a_norm():
    network = build(TINY["preact_resnet"], NormConfig(noise=True))
    noisy = [m for m in network.modules() if type(m).__name__ == "Noise"]
    projections = [s for s in network.sites if s.name.endswith("shortcut")]
    assert len(noisy) == len(network.sites) - len(projections) - 1


@pytest.mark.parametrize("name", registry.names("study.models"))
def test_no_strided_pointwise_convolution(name):
    """Its weight gradient writes out of bounds on a CPU (resnet.Subsample)."""
    network = build(TINY[name], NormConfig())
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            assert module.kernel_size != (1, 1) or module.stride == (1, 1)


@pytest.mark.slow
def test_few_channels_do_not_corrupt_memory():
    """Training with two to seven channels in channels_last layout, under glibc's heap checks."""
    checker = ctypes.util.find_library("c_malloc_debug") or "libc_malloc_debug.so.0"
    code = (
        "import torch; from study.config import ModelConfig, NormConfig, RunConfig;"
        "from study.models.base import build_network;"
        "torch.set_num_threads(1);"
        "n = build_network(RunConfig(model=ModelConfig(depth=8, widths=(2, 3, 7))), (3, 16, 16), 10)"
        ".to(memory_format=torch.channels_last);"
        "x = torch.randn(32, 3, 16, 16).to(memory_format=torch.channels_last);"
        "[n(x).square().mean().backward() for _ in range(20)]"
    )
    environment = {**os.environ, "LD_PRELOAD": checker, "MALLOC_CHECK_": "3"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]

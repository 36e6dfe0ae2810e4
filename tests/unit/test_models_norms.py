"""Every network with every norm at tiny size: forward, backward, one step, save, load; and pinned numbers."""

import dataclasses
import io
from pathlib import Path

import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

from study import registry
from study.config import RunConfig, from_mapping
from study.errors import ConfigError
from study.models.base import Network, build_network, prepare

CONF = Path(__file__).parents[2] / "conf"
MODELS = registry.names("study.models")
NORMS = sorted(p.stem for p in (CONF / "norm").glob("*.yaml"))
TINY = {
    "resnet": {"depth": 6, "widths": [8, 16], "dropout": 0.2},
    "preact_resnet": {"depth": 6, "widths": [8, 16], "branch_scale": "skipinit"},
    "plain": {"depth": 5, "widths": [8, 16]},
    "mlp": {"depth": 3, "widths": [16]},
}
N_CLASSES = 5


def config(model: str, norm: str) -> RunConfig:
    chosen = {
        name: yaml.safe_load((CONF / name / f"{x}.yaml").read_text())
        for name, x in (("model", model), ("norm", norm))
    }
    narrow = 1 / 8 if norm == "gn" else 1 / 32  # its groups need 8 channels
    chosen["model"] |= TINY.get(model, {"width_multiplier": narrow, "dropout": 0.2})
    return from_mapping(chosen)


def batch(model: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    size = 32 if model.startswith("vgg") else 8
    labels = torch.randint(N_CLASSES, (8,), generator=random)
    return torch.randn(8, 2, size, size, generator=random), labels


def step(network: Network, model: str, seed: int) -> float:
    images, labels = batch(model, seed)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = cross_entropy(network(images), labels)
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    return loss.item()


def combinations() -> list:
    """All pairs; vgg11 and vgg16 share vgg_a's code, so that most of theirs can wait for the slow tests."""
    quick = {"bn", "none"}
    return [
        pytest.param(m, n, marks=[pytest.mark.slow] if m in {"vgg11", "vgg16"} and n not in quick else [])
        for m in MODELS
        for n in NORMS
    ]


@pytest.mark.parametrize(("model", "norm"), combinations())
def test_trains_saves_and_loads(model, norm):
    run = config(model, norm)
    images, labels = batch(model, 0)
    network = build_network(run, tuple(images.shape[1:]), N_CLASSES)
    prepare(network, run, lambda: [images, batch(model, 1)[0]])
    logits = network(images)
    assert logits.shape == (len(images), N_CLASSES)
    cross_entropy(logits, labels).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    network.zero_grad()
    before = [p.detach().clone() for p in network.parameters()]
    step(network, model, 2)
    assert any(not torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))

    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    file.seek(0)
    loaded = build_network(run, tuple(images.shape[1:]), N_CLASSES)
    loaded.load_state_dict(torch.load(file, weights_only=True), strict=True)
    for mode in (True, False):
        a, b = network.train(mode)(images), loaded.train(mode)(images)
        assert torch.equal(a, b)
        assert a.isfinite().all()
    assert step(network.train(), model, 3) == step(loaded.train(), model, 3)


@pytest.mark.parametrize("model", MODELS)
def test_where_a_norm_cannot_normalise_is_listed(model):
    """Instance norm of single values: γ and β alone, and no network that would be norm=none in secret."""
    images, _ = batch(model, 0)
    shape = tuple(images.shape[1:])
    sites = build_network(config(model, "none"), shape, N_CLASSES).sites
    linear = [s.name for s in sites if not s.locations and s.kind != "top"]
    assert bool(linear) == (model == "mlp" or model.startswith("vgg"))
    for norm in ("bn", "in", "ln", "wn"):
        network = build_network(config(model, norm), shape, N_CLASSES)
        assert list(network.unnormalised) == (linear if norm == "in" else [])
    run = config(model, "in")
    bare = dataclasses.replace(run, norm=dataclasses.replace(run.norm, gamma=False, beta=False))
    if model == "mlp":
        with pytest.raises(ConfigError, match="without γ and β has no effect on network 'mlp'"):
            build_network(bare, shape, N_CLASSES)
    else:
        network = build_network(bare, shape, N_CLASSES)
        assert network.unnormalised == ()
        assert {n for n, has in network.conv_biases().items() if has} == set(linear)

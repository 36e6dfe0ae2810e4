"""Building is a pure function of the config; dropout's mask a pure function of (seed, step)."""

import math
from dataclasses import replace

import pytest
import torch

from study.config import ModelConfig, NormConfig, RunConfig
from study.models._dropout import Dropout
from study.models.base import build_network

NONE = NormConfig(name="none", family="none")
TINY = RunConfig(model=ModelConfig(depth=8, widths=(3, 4, 5)), norm=NONE)
SHAPE = (3, 8, 8)


def test_build_is_a_pure_function_of_the_config():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = build_network(TINY, SHAPE, 10).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    second = build_network(TINY, SHAPE, 10).state_dict()
    other = build_network(replace(TINY, seed=1), SHAPE, 10).state_dict()
    assert first.keys() == second.keys() == other.keys()
    for name, value in first.items():
        assert value.device.type == "cpu"
        assert value.isfinite().all()
        assert torch.equal(value, second[name])
        drawn = name.endswith("weight") or name == "classifier.bias"
        assert torch.equal(value, other[name]) is not drawn


def test_weights_do_not_depend_on_the_norm_or_on_other_layers():
    def weights(run: RunConfig) -> dict[str, torch.Tensor]:
        return {x.name: x.module.weight for x in build_network(run, SHAPE, 10).layers}

    none, bn = weights(TINY), weights(replace(TINY, norm=NormConfig()))
    deeper = weights(replace(TINY, model=replace(TINY.model, depth=14)))
    assert none.keys() == bn.keys()
    assert all(torch.equal(none[name], bn[name]) for name in none)
    assert all(
        torch.equal(none[n], deeper[n]) for n in ("stem", "block1.conv1", "block1.conv2", "classifier")
    )
    first, second = none["block2.conv2"], none["block3.conv2"]
    assert not torch.equal(first.flatten()[:9], second.flatten()[:9])


def test_classifier_gets_the_frameworks_default_and_hidden_biases_are_zero():
    run = replace(TINY, model=replace(TINY.model, widths=(3, 4, 512)), init=replace(TINY.init, gain=7.0))
    network = build_network(run, SHAPE, 200)
    bound = 1 / math.sqrt(512)
    for parameter in (network.classifier.weight, network.classifier.bias):
        assert parameter.abs().max() <= bound
        assert parameter.abs().max() > 0.97 * bound
        assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
        assert abs(parameter.mean().item()) < bound / 5
    assert not any(x.module.bias.any() for x in network.layers[:-1])


def dropout_run(p: float = 0.4, seed: int = 0) -> RunConfig:
    return replace(TINY, model=replace(TINY.model, dropout=p), seed=seed)


def test_dropout_stands_before_the_classifier_and_resumes():
    network = build_network(dropout_run(), SHAPE, 10)
    x = torch.randn(4, *SHAPE)
    state = torch.random.get_rng_state()
    first, second = network(x), network(x)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(first, second)
    resumed = build_network(dropout_run(), SHAPE, 10)
    resumed.load_state_dict(network.state_dict())
    assert torch.equal(resumed(x), network(x))
    again = build_network(dropout_run(), SHAPE, 10)
    assert torch.equal(again(x), first)
    network.eval()
    plain = build_network(TINY, SHAPE, 10)
    assert torch.equal(network(x), plain(x))
    assert torch.equal(network(x), plain(x))


def test_dropout_drops_and_rescales():
    drop = Dropout(0.4, key=3)
    x = torch.ones(300, 400, requires_grad=True)
    y = drop(x)
    y.sum().backward()
    kept = y != 0
    assert kept.float().mean().item() == pytest.approx(0.6, abs=5 * math.sqrt(0.24 / x.numel()))
    torch.testing.assert_close(y[kept].detach(), torch.full_like(y[kept], 1 / 0.6))
    assert torch.equal(x.grad, y.detach())
    assert int(drop.step) == 1


def test_dropout_differs_between_seeds():
    x = torch.ones(4, 1000)
    assert not torch.equal(Dropout(0.5, 1)(x), Dropout(0.5, 2)(x))


def test_dropout_masks_of_neighbouring_units_and_steps_are_unrelated():
    drop, x = Dropout(0.5, 1), torch.ones(200, 200)
    masks = torch.stack([drop(x).flatten() for _ in range(4)] + [drop(x).flatten().roll(1)])
    assert (torch.corrcoef(masks) - torch.eye(5)).abs().max() < 5 / x.numel() ** 0.5

"""Every parameter is in one group of the optimiser, and the right one."""

import pytest
import torch

from study import naming, optim
from study.config import ModelConfig, RunConfig
from study.models.base import build_network

TINY = ModelConfig(depth=8, widths=(8, 16, 16), branch_scale="skipinit")


def names(norm, decay_norm_and_bias):
    """Return the names of decayed and of other parameters, as (set, set), and of all of them."""
    run = RunConfig(
        model=TINY, norm=naming.norms()[norm], decay_norm_and_bias=decay_norm_and_bias, weight_decay=0.01
    )
    network = build_network(run, (3, 8, 8), 5)
    name_of = {id(p): name for name, p in network.named_parameters()}
    groups = optim.build(run, network).param_groups
    held = [id(p) for g in groups for p in g["params"]]
    assert len(held) == len(set(held)) == len(name_of)  # each in exactly one
    by_decay = {True: set(), False: set()}
    for group in groups:
        by_decay[group["weight_decay"] == 0.01] |= {name_of[id(p)] for p in group["params"]}
    return by_decay[True], by_decay[False], network


def is_weight(name, network):
    """Told by shape alone: what has the shape of a layer's weight is a direction of it."""
    parameter = dict(network.named_parameters())[name]
    return any(parameter.shape == layer.module.weight.shape for layer in network.layers)


@pytest.mark.parametrize("norm", sorted(naming.norms()))
def test_only_weights_are_decayed(norm):
    decayed, kept, network = names(norm, decay_norm_and_bias=False)
    assert decayed == {n for n, _ in network.named_parameters() if is_weight(n, network)}
    assert len(decayed) == len(network.layers)
    assert any(n.endswith(".factor") for n in kept)  # SkipInit's
    assert {n for n, p in network.named_parameters() if n.endswith("bias")} <= kept
    own = {"ws": "parametrizations.weight.0.gamma", "wn": "parametrizations.weight.original0"}
    if norm in own:
        assert sum(n.endswith(own[norm]) for n in kept) == len(network.layers) - 1  # all but the classifier


@pytest.mark.parametrize("norm", ["bn", "ws", "wn"])
def test_the_papers_way_decays_everything(norm):
    assert RunConfig().decay_norm_and_bias
    decayed, kept, network = names(norm, decay_norm_and_bias=True)
    assert decayed == {n for n, _ in network.named_parameters()}
    assert not kept


def test_a_first_update_that_loss_scaling_skips_leaves_no_momentum():
    """The framework's fused kernel would otherwise begin with whatever the memory held."""
    run = RunConfig(model=TINY, precision="fp16", lr=0.1, momentum=0.9, weight_decay=0.0)
    network = build_network(run, (3, 8, 8), 5)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    held = [torch.full_like(p, 1e30) for p in network.parameters()]
    del held  # memory that an uninitialised buffer would take over
    optimizer, scaler = optim.build(run, network), torch.amp.GradScaler("cpu")
    for gradient in (float("inf"), 1.0, 1.0):
        scaler.scale(sum((p * gradient).sum() for p in network.parameters())).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    for name, p in network.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] - 0.1 * (1 + 1.9))

"""Population statistics and folding on the layers of trained networks."""

import copy
import dataclasses

import pytest
import torch
from torch.nn import functional as F

from study import naming
from study.config import ModelConfig, RunConfig
from study.errors import StudyError
from study.inference import folded, with_population_statistics
from study.models.base import build_network
from study.norms._batchnorm import BatchNorm
from study.norms._calibration import recalibrate
from study.norms.base import Site, build_norm

TINY = ModelConfig(depth=8, widths=(4, 8, 8))


def images(seed, n=8):
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trained(norm, model=TINY):
    """A few steps at a rate that moves every weight, γ, β and average."""
    network = build_network(RunConfig(model=model, norm=naming.norms()[norm]), (3, 8, 8), 5).double().train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for step in range(5):
        loss = F.cross_entropy(network(images(step)), torch.arange(8) % 5)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


def batchnorms(network):
    return [m for m in network.modules() if isinstance(m, BatchNorm)]


@pytest.mark.parametrize(
    "norm",
    ["bn", "bn_no_affine", "bn_no_beta", "bn_no_mean", "bn_no_var", "bn_affine_only", "bn_l1", "ghost"],
)
def test_a_folded_network_has_the_same_outputs(norm):
    network = trained(norm)
    x = images(9)
    small = folded(network)
    assert not batchnorms(small)
    expected = network.eval()(x)
    torch.testing.assert_close(small(x), expected, rtol=1e-10, atol=1e-10)
    assert batchnorms(network)  # itself unchanged


def test_population_statistics_of_a_trained_network():
    """The first layer's are those of its outputs on all images; deeper ones come from normalised inputs."""
    network = trained("bn").train()
    before = copy.deepcopy(network.state_dict())
    batches = [images(s) for s in range(20, 25)]
    exact = with_population_statistics(network, [*batches, images(25, n=1)])
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert network.training
    assert not exact.training
    raw = network.layers[0].module(torch.cat([*batches, images(25, n=1)]))
    torch.testing.assert_close(batchnorms(exact)[0].running_mean, raw.mean((0, 2, 3)))
    for new, old in zip(batchnorms(exact), batchnorms(network), strict=True):
        assert not torch.allclose(new.running_var, old.running_var)
        assert new.num_batches_tracked == old.num_batches_tracked == 5
    torch.testing.assert_close(folded(exact)(batches[0]), exact(batches[0]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("locations", [4, 1])
def test_population_statistics_by_virtual_batches_count_every_image_once(locations):
    """Batches of 5 and 3 (joined: 8) in virtual ones of 3: 3 and 5 images, never one alone."""
    config = dataclasses.replace(naming.norms()["ghost"], ghost_size=3)
    norm = build_norm(config).build(None, Site("site", 3, "inner", 0), 4).double()
    batches = [images(s, n)[:, :, :locations, :1] * (1 + s) for s, n in ((1, 5), (2, 3))]
    recalibrate(norm, batches)
    parts = torch.cat(batches).split([3, 5])
    for found, expected in (
        (norm.norm.running_mean, [p.mean((0, 2, 3)) for p in parts]),
        (norm.norm.running_var, [p.var((0, 2, 3)) for p in parts]),
    ):
        torch.testing.assert_close(found, (3 * expected[0] + 5 * expected[1]) / 8)


@pytest.mark.parametrize("norm", ["none", "ln", "bn_top"])
def test_nothing_to_fold_is_said(norm):
    with pytest.raises(StudyError, match="to fold"):
        folded(trained(norm))


def test_what_cannot_be_folded_stays():
    model = ModelConfig(name="preact_resnet", depth=8, widths=(4, 8, 8))
    network = trained("bn", model)
    x = images(9)
    small = folded(network)
    assert 0 < len(batchnorms(small)) < len(batchnorms(network))
    torch.testing.assert_close(small(x), network.eval()(x), rtol=1e-10, atol=1e-10)

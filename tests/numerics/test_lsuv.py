"""LSUV against a slow twin that runs the whole network anew for every layer."""

import pytest
import torch

from study.config import InitConfig, ModelConfig, NormConfig, RunConfig
from study.errors import StudyError
from study.models.base import Network, build_network, prepare

NONE = NormConfig(name="none", family="none")
MODELS = [
    ModelConfig(depth=14, widths=(4, 6, 8)),
    ModelConfig(name="preact_resnet", depth=14, widths=(4, 6, 8)),
    ModelConfig(name="plain", depth=12, widths=(4, 6), activation="gelu"),
    ModelConfig(name="mlp", depth=4, widths=(9,), activation="tanh"),
]
IMAGES = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1)) + 0.5


def run_config(model: ModelConfig, **options) -> RunConfig:
    return RunConfig(model=model, norm=options.pop("norm", NONE), init=InitConfig("lsuv", **options))


def raw_output(network: Network, index: int, images: torch.Tensor) -> torch.Tensor:
    kept = []
    hook = network.layers[index].module.register_forward_hook(lambda m, i, o: kept.append(o))
    with torch.no_grad():
        network(images)
    hook.remove()
    return kept[0]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_lsuv_equals_the_layer_by_layer_algorithm(model):
    run = run_config(model)
    fast, slow = (build_network(run, (3, 8, 8), 10) for _ in range(2))
    prepare(fast, run, lambda: [IMAGES])
    with torch.no_grad():
        for i, layer in enumerate(slow.layers):
            for _ in range(10):
                variance = raw_output(slow, i, IMAGES).var(correction=0)
                if abs(variance - 1) < 0.1:
                    break
                layer.module.weight /= variance.sqrt()
    for i, (a, b) in enumerate(zip(fast.layers, slow.layers, strict=True)):
        torch.testing.assert_close(a.module.weight, b.module.weight, rtol=1e-4, atol=1e-6)
        assert raw_output(fast, i, IMAGES).var(correction=0).item() == pytest.approx(1, abs=0.1)


def test_only_the_scale_of_orthogonal_weights_changes_and_nothing_else():
    run = run_config(MODELS[0])
    network, before = (build_network(run, (3, 8, 8), 10) for _ in range(2))
    network.train()
    network.stem.eval()
    modes = [m.training for m in network.modules()]
    prepare(network, run, lambda: [IMAGES])
    assert [m.training for m in network.modules()] == modes
    assert not any(m._forward_hooks for m in network.modules())
    for a, b in zip(network.layers, before.layers, strict=True):
        ratio = a.module.weight / b.module.weight
        torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=1e-4, atol=0)
        assert torch.equal(a.module.bias, b.module.bias)


def test_gain_comes_after_the_calibration():
    plain, scaled = run_config(MODELS[0]), run_config(MODELS[0], gain=2.0)
    networks = [build_network(run, (3, 8, 8), 10) for run in (plain, scaled)]
    for network, run in zip(networks, (plain, scaled), strict=True):
        prepare(network, run, lambda: [IMAGES])
    for a, b in zip(networks[0].layers, networks[1].layers, strict=True):
        factor = 1 if a.name == "classifier" else 2
        torch.testing.assert_close(a.module.weight * factor, b.module.weight)


def test_constant_output_is_refused():
    run = run_config(MODELS[0])
    network = build_network(run, (3, 8, 8), 10)
    with pytest.raises(StudyError, match="layer 'stem' has variance 0"):
        prepare(network, run, lambda: [torch.zeros(4, 3, 8, 8)])
    assert not any(m._forward_hooks for m in network.modules())


def test_weights_with_a_scale_of_their_own_are_refused():
    run = run_config(MODELS[0], norm=NormConfig(name="ws", family="weight_standardisation"))
    with pytest.raises(StudyError, match="norm=none"):
        prepare(build_network(run, (3, 8, 8), 10), run, lambda: [IMAGES])


def test_other_initialisations_need_no_images():
    run = RunConfig(model=MODELS[0], norm=NONE)
    network, before = (build_network(run, (3, 8, 8), 10) for _ in range(2))
    prepare(network, run, lambda: [IMAGES])
    for a, b in zip(network.state_dict().values(), before.state_dict().values(), strict=True):
        assert torch.equal(a, b)

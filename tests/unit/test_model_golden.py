"""Pinned outputs: a change of a network's or of the default initialisation's numerics must be meant.

If it is, bump the version of the component (study/identity.py), so that old runs keep their identity.
"""

import pytest
import torch

from study.config import ModelConfig, NormConfig, RunConfig
from study.models.base import build_network

NORMS = {"bn": NormConfig(), "none": NormConfig(name="none", family="none")}
MODELS = {
    "resnet": ModelConfig(depth=14, widths=(4, 6, 8)),
    "preact_resnet": ModelConfig(name="preact_resnet", depth=14, widths=(4, 6, 8)),
    "plain": ModelConfig(name="plain", depth=8, widths=(4, 6, 8)),
    "mlp": ModelConfig(name="mlp", depth=4, widths=(9,), activation="sigmoid"),
    "vgg_a": ModelConfig(name="vgg_a", width_multiplier=1 / 32),
    "vgg11": ModelConfig(name="vgg11", width_multiplier=1 / 32),
    "vgg16": ModelConfig(name="vgg16", width_multiplier=1 / 32),
}


def logits(name: str, norm: str) -> torch.Tensor:
    """Logits of the first of four images (no random numbers in them), in training mode, seed 0."""
    images = torch.sin(torch.arange(4 * 2 * 32 * 32, dtype=torch.float64) ** 1.1).float().view(4, 2, 32, 32)
    network = build_network(RunConfig(model=MODELS[name], norm=NORMS[norm]), (2, 32, 32), 3)
    with torch.no_grad():
        return network(images)[0]


GOLDEN = {
    ("resnet", "bn"): [-0.59051, -0.2593, -0.16886],
    ("resnet", "none"): [-0.29744, -0.22329, 0.18705],
    ("preact_resnet", "bn"): [-0.38481, -0.18368, 0.08896],
    ("preact_resnet", "none"): [-0.29617, -0.25653, 0.14823],
    ("plain", "bn"): [-0.48268, -0.17857, -0.00537],
    ("plain", "none"): [-0.21987, -0.25114, 0.24515],
    ("mlp", "bn"): [-0.05843, 0.01851, -0.26836],
    ("mlp", "none"): [-0.07102, 0.04879, -0.35476],
    ("vgg_a", "bn"): [-0.50086, 0.10897, -0.2488],
    ("vgg_a", "none"): [-0.11959, 0.24527, -0.00312],
    ("vgg11", "bn"): [-0.37447, -0.06415, 0.29271],
    ("vgg11", "none"): [0.01113, -0.04954, -0.07674],
    ("vgg16", "bn"): [0.08424, -0.21169, 0.07766],
    ("vgg16", "none"): [0.0179, -0.05025, -0.07516],
}


@pytest.mark.parametrize(("name", "norm"), GOLDEN)
def test_outputs_are_those_pinned(name, norm):
    torch.testing.assert_close(logits(name, norm), torch.tensor(GOLDEN[name, norm]), atol=2e-4, rtol=1e-3)

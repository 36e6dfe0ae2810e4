"""VGG-16 (configuration D) for 224×224 images; smaller ones, down to 32×32, are repeated to the 7×7 map.

Layers, sites and shapes: see `_vgg`.
"""

from study.config import ModelConfig
from study.models._vgg import GROUPS_D, VGG
from study.models.base import Builder

READS: frozenset[str] = frozenset()


def build(config: ModelConfig, builder: Builder, input_shape: tuple[int, int, int], n_classes: int) -> VGG:
    """Return the network for C×H×W images; sides of at least 32 pixels."""
    return VGG(config, builder, input_shape, n_classes, groups=GROUPS_D, units=4096, pooled=7)

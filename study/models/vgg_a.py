"""VGG-A for 32×32 images: VGG-11 with two hidden layers of 512 units on the 1×1 feature map.

Layers, sites and shapes: see `_vgg`.
"""

from study.config import ModelConfig
from study.models._vgg import GROUPS_A, VGG
from study.models.base import Builder

READS: frozenset[str] = frozenset()


def build(config: ModelConfig, builder: Builder, input_shape: tuple[int, int, int], n_classes: int) -> VGG:
    """Return the network for C×H×W images; sides of at least 32 pixels."""
    return VGG(config, builder, input_shape, n_classes, groups=GROUPS_A, units=512, pooled=1)

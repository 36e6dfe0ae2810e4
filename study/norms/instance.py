"""Instance normalisation: each channel of each image, over its locations (Ulyanov et al. 2016, 1607.08022).

It is group normalisation with one channel per group. It needs locations: a fully connected layer is refused.
"""

from typing import ClassVar

from torch import nn

from study.config import NormConfig
from study.errors import ConfigError
from study.norms.base import Norm, Normed, Site
from study.norms.group import GroupNorm


class InstanceNorms(Norm):
    """Puts instance normalisation behind each layer."""

    switches: ClassVar[frozenset[str]] = frozenset({"gamma", "beta", "eps", "gamma_init"})

    def shifts(self, site: Site) -> bool:
        """Everywhere: each channel's mean is subtracted."""
        return True

    def build(self, layer: nn.Module | None, site: Site, ndim: int) -> nn.Module:
        """Return the layer and its normalisation; raises ConfigError where there are no locations."""
        if ndim != 4:
            raise ConfigError(
                f"norm.family=instance normalises over locations, and '{site.name}' has none: use it with a "
                "convolutional network"
            )
        norm = GroupNorm(site.name, site.channels, self.config.eps, self.gamma(site), self.beta(site))
        return Normed(layer, norm)


def build(config: NormConfig, seed: int) -> Norm:
    """Return instance normalisation."""
    return InstanceNorms(config, seed)

"""No normalisation: the layer alone, or with the noise of Santurkar et al. 2018 behind it (`none_noisy`)."""

from typing import ClassVar

from torch import nn

from study.config import NormConfig
from study.errors import ConfigError
from study.norms._noise import Noise
from study.norms.base import Norm, Normed, Site


class NoNorm(Norm):
    """Leaves every site as it is, or adds noise."""

    switches: ClassVar[frozenset[str]] = frozenset({"noise"})

    def __init__(self, config: NormConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        if config.sites != NormConfig.sites and not config.noise:
            raise ConfigError("norm.sites has no effect on norm=none; leave it out")

    def shifts(self, site: Site) -> bool:
        """Never: every layer keeps its bias."""
        return False

    def build(self, layer: nn.Module | None, site: Site, ndim: int) -> nn.Module:
        """Return the layer itself, or the layer and noise."""
        if self.config.noise:
            return Normed(layer, Noise(self.seed, site.name, site.channels))
        return layer if layer is not None else nn.Identity()


def build(config: NormConfig, seed: int) -> Norm:
    """Return the absence of a norm."""
    return NoNorm(config, seed)

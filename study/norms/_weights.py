"""What norms of weights have in common: no module behind the layer, but a parametrisation of its weight.

`layer.weight` is then computed from the parameters at each access, and assigning to it (base.set_weight) sets
the parameters; the layer itself stays where it is, with its bias.
"""

from torch import nn

from study.config import NormConfig
from study.errors import ConfigError
from study.norms.base import Norm, Site


class WeightNorms(Norm):
    """Base of the norms of weights."""

    def __init__(self, config: NormConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        if "top" in config.sites:
            raise ConfigError(f"norm.sites: there is no weight at 'top' for family '{config.family}'")

    def shifts(self, site: Site) -> bool:
        """Never: every layer keeps its bias."""
        return False

    def build(self, layer: nn.Module | None, site: Site, ndim: int) -> nn.Module:
        """Return the layer itself, its weight parametrised."""
        assert layer is not None
        self.parametrise(layer, site)
        return layer

    def parametrise(self, layer: nn.Module, site: Site) -> None:
        """Put the parametrisation on `layer.weight`."""
        raise NotImplementedError

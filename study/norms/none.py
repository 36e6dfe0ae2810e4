"""No normalisation: the layer alone."""

from torch import nn

from study.config import NormConfig
from study.norms.base import Norm, Site


class NoNorm(Norm):
    """Leaves every site as it is."""

    def shifts(self, site: Site) -> bool:
        """Never: every layer keeps its bias."""
        return False

    def build(self, layer: nn.Module | None, site: Site, ndim: int) -> nn.Module:
        """Return the layer itself."""
        return layer if layer is not None else nn.Identity()


def build(config: NormConfig) -> Norm:
    """Return the absence of a norm."""
    return NoNorm(config)

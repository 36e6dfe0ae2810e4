"""Weight normalisation: w = g·v/‖v‖ per output channel (Salimans & Kingma 2016, 1602.07868, eq. 2).

g starts as ‖v‖, so the initial network is that without normalisation, whatever the initialisation. The
paper's data-dependent initialisation is not part of it.
"""

from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from study.config import NormConfig
from study.norms._weights import WeightNorms
from study.norms.base import Norm, Site


class WeightNormalisation(WeightNorms):
    """Reparametrises each layer's weight by length and direction."""

    def parametrise(self, layer: nn.Module, site: Site) -> None:
        """Replace the weight by g (out×1×…) and v (the weight's shape), in that order."""
        weight_norm(layer, "weight", dim=0)


def build(config: NormConfig, seed: int) -> Norm:
    """Return weight normalisation."""
    return WeightNormalisation(config, seed)

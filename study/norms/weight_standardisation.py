"""Weight standardisation: ŵ = γ·(w − μ)/√(fan-in·(σ² + ε)) per output channel.

μ and the biased σ² are those of the output channel's fan-in weights (Qiao et al. 2019, 1903.10520, eq. 2).
The factor 1/√fan-in and the learned γ are those of Scaled Weight Standardisation (Brock et al. 2021,
2101.08692, §3): without them a layer multiplies the signal's scale by √fan-in, and a network without another
norm explodes. Each ‖ŵ‖ is γ (as ε → 0), which is what Xavier gives on average where fan-in = fan-out; the
scale of an initialisation has no effect.
"""

import math
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from study.config import NormConfig
from study.norms._weights import WeightNorms
from study.norms.base import Norm, Site, require_several


class Standardise(nn.Module):
    """The map from w to ŵ, with its γ (out)."""

    def __init__(self, gamma: nn.Parameter | None, eps: float) -> None:
        super().__init__()
        self.gamma, self.eps = gamma, eps

    def forward(self, w: Tensor) -> Tensor:
        """Return ŵ, of w's shape (out×in×…)."""
        rows = w.flatten(1)
        var, mean = torch.var_mean(rows, 1, correction=0, keepdim=True)
        factor = torch.rsqrt(var + self.eps) / math.sqrt(rows.shape[1])
        if self.gamma is not None:
            factor = factor * self.gamma[:, None]
        return ((rows - mean) * factor).view_as(w)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Take an assigned weight as w: only its direction can matter."""
        return weight


class WeightStandardisation(WeightNorms):
    """Standardises each layer's weight."""

    switches: ClassVar[frozenset[str]] = frozenset({"gamma", "gamma_init", "eps"})

    def parametrise(self, layer: nn.Module, site: Site) -> None:
        """Replace the weight by w and γ; raises StudyError where an output has a single weight."""
        fan_in = cast(Tensor, layer.weight)[0].numel()
        require_several(fan_in, site.name, "use more inputs or larger kernels", per="output's weights")
        parametrize.register_parametrization(
            layer, "weight", Standardise(self.gamma(site), self.config.eps), unsafe=True
        )


def build(config: NormConfig, seed: int) -> Norm:
    """Return weight standardisation."""
    return WeightStandardisation(config, seed)

"""Instance normalisation: each channel of each image, over its locations (Ulyanov et al. 2016, 1607.08022).

It is group normalisation with one channel per group. A linear layer's output has no locations, only one
value per image and channel, and nothing to take statistics of: there γ and β stand alone, and
Norm.normalises says so (run.json lists such sites as `unnormalised`). A VGG is then normalised in its
convolutions, as is usual; `mlp` nowhere, so that `in` is `bn_affine_only` there. A feature map of a single
location, in contrast, is refused when it comes: larger images would have more.
"""

from typing import ClassVar

from torch import Tensor, nn

from study.config import NormConfig
from study.norms._statistics import channel_affine
from study.norms.base import Norm, Normed, Site
from study.norms.group import GroupNorm


class Affine(nn.Module):
    """y = γ·x + β per channel. x is N×C."""

    def __init__(self, gamma: nn.Parameter | None, beta: nn.Parameter | None) -> None:
        super().__init__()
        self.weight, self.bias = gamma, beta

    def forward(self, x: Tensor) -> Tensor:
        """Return y, of x's shape."""
        if self.weight is None:
            return x if self.bias is None else x + self.bias
        return channel_affine(x, None, self.weight, self.bias)


class InstanceNorms(Norm):
    """Puts instance normalisation behind each layer."""

    switches: ClassVar[frozenset[str]] = frozenset({"gamma", "beta", "eps", "gamma_init"})

    def at(self, site: Site) -> bool:
        """Nor where there would be neither statistics nor γ nor β."""
        return super().at(site) and (site.locations or self.config.gamma or self.config.beta)

    def normalises(self, site: Site) -> bool:
        """Where there are locations."""
        return site.locations

    def shifts(self, site: Site) -> bool:
        """Where a channel's mean is subtracted or β is added."""
        return site.locations or self.config.beta

    def build(self, layer: nn.Module | None, site: Site, ndim: int) -> nn.Module:
        """Return the layer and its normalisation, or γ and β alone where there are no locations."""
        gamma, beta = self.gamma(site), self.beta(site)
        if ndim != 4:
            return Normed(layer, Affine(gamma, beta))
        return Normed(layer, GroupNorm(site.name, site.channels, self.config.eps, gamma, beta))


def build(config: NormConfig, seed: int) -> Norm:
    """Return instance normalisation."""
    return InstanceNorms(config, seed)

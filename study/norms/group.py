"""Group normalisation: each image, over the channels of a group and all locations (Wu & He 2018, 1803.08494).

`groups` groups of consecutive channels. They must divide the channels of every site, with two or more in
each: fewer groups somewhere would be another norm there, and one channel each is instance normalisation. The
default of 4 holds down to the narrowest site of a laptop's ResNet (8 channels, 2 per group); the paper's 32
groups stand at 64 to 2048 channels, 2 to 64 per group. γ and β per channel. Nothing depends on the other
images; training and evaluation are the same.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from study.config import NormConfig
from study.errors import ConfigError
from study.norms.base import Norm, Normed, Site, require_several

REMEDY = "use larger images, or a network that keeps larger maps (the batch does not matter)"


class GroupNorm(nn.Module):
    """One site's group normalisation. x is N×C or N×C×H×W."""

    def __init__(
        self, site: str, groups: int, eps: float, gamma: nn.Parameter | None, beta: nn.Parameter | None
    ) -> None:
        super().__init__()
        self.site, self.groups, self.eps = site, groups, eps
        self.weight, self.bias = gamma, beta

    def forward(self, x: Tensor) -> Tensor:
        """Return y, of x's shape; raises StudyError where a group of an image is a single value."""
        require_several(x[0].numel() // self.groups, self.site, REMEDY)
        # The CPU kernel for channels_last is made for few groups; two copies are cheaper.
        if x.is_cpu and self.groups > 1 and x.dim() == 4 and not x.is_contiguous():
            y = F.group_norm(x.contiguous(), self.groups, self.weight, self.bias, self.eps)
            return y.contiguous(memory_format=torch.channels_last)
        return F.group_norm(x, self.groups, self.weight, self.bias, self.eps)


class GroupNorms(Norm):
    """Puts group normalisation behind each layer."""

    switches: ClassVar[frozenset[str]] = frozenset({"groups", "gamma", "beta", "eps", "gamma_init"})

    def shifts(self, site: Site) -> bool:
        """Where β is added. Centring takes one mean off a group's channels, so it makes no bias redundant."""
        return self.config.beta

    def build(self, layer: nn.Module | None, site: Site, ndim: int) -> nn.Module:
        """Return the layer and its normalisation."""
        groups, channels = self.config.groups, site.channels
        if channels == groups:
            raise ConfigError(
                f"norm.groups={groups} leaves one channel per group at '{site.name}', which is norm=in; "
                "use fewer groups or a wider network"
            )
        if channels % groups:
            raise ConfigError(
                f"norm.groups={groups} does not divide the {channels} channels at '{site.name}'; "
                "use other groups or widths"
            )
        return Normed(layer, GroupNorm(site.name, groups, self.config.eps, self.gamma(site), self.beta(site)))


def build(config: NormConfig, seed: int) -> Norm:
    """Return group normalisation."""
    return GroupNorms(config, seed)

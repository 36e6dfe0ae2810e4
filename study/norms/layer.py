"""Layer normalisation: each image's whole layer, over channels and locations (C, H, W) together.

y = γ_c·(x − μ)/√(σ² + ε) + β_c with μ and the biased σ² of one image (Ba et al. 2016, 1607.06450), γ and β
per channel. Without centring it is RMS normalisation (Zhang & Sennrich 2019, 1910.07467): x/√(mean x² + ε).
Nothing depends on the other images, and training and evaluation are the same.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from study.config import NormConfig
from study.norms._statistics import channel_affine, moments
from study.norms.base import Norm, Normed, Site, require_several

REMEDY = "use a wider layer, or larger images (the batch does not matter)"


class LayerNorm(nn.Module):
    """One site's layer normalisation. x is N×C or N×C×H×W."""

    def __init__(
        self, site: Site, center: bool, eps: float, gamma: nn.Parameter | None, beta: nn.Parameter | None
    ) -> None:
        super().__init__()
        self.site, self.channels, self.center, self.eps = site.name, site.channels, center, eps
        self.weight, self.bias = gamma, beta

    def forward(self, x: Tensor) -> Tensor:
        """Return y, of x's shape; raises StudyError where an image's layer is a single value."""
        require_several(x.shape[1:].numel(), self.site, REMEDY, per="image")
        if self.center:
            return F.group_norm(x, 1, self.weight, self.bias, self.eps)
        # In memory an image is one stretch of numbers, so to the fused kernels it can be a channel.
        order = (0, 2, 3, 1) if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) else None
        images = x.permute(order) if order else x
        rows = images.reshape(1, len(x), -1)
        _, square = moments(rows, False, True, 2.0)
        assert square is not None
        scaled = channel_affine(rows, None, torch.rsqrt(square + self.eps), None).view(images.shape)
        y = scaled.permute(0, 3, 1, 2) if order else scaled
        if self.weight is None and self.bias is None:
            return y
        weight = torch.ones_like(square[:1]).expand(self.channels) if self.weight is None else self.weight
        return channel_affine(y, None, weight, self.bias)


class LayerNorms(Norm):
    """Puts layer normalisation behind each layer."""

    switches: ClassVar[frozenset[str]] = frozenset({"center", "gamma", "beta", "eps", "gamma_init"})

    def shifts(self, site: Site) -> bool:
        """Where β is added. Centring takes one mean off all channels, so it makes no bias redundant."""
        return self.config.beta

    def build(self, layer: nn.Module | None, site: Site, ndim: int) -> nn.Module:
        """Return the layer and its normalisation."""
        config = self.config
        norm = LayerNorm(site, config.center, config.eps, self.gamma(site), self.beta(site))
        return Normed(layer, norm)


def build(config: NormConfig, seed: int) -> Norm:
    """Return layer normalisation, or RMS normalisation with norm.center=false."""
    return LayerNorms(config, seed)

"""What a normalisation is to a network: sites, and the module that stands at each."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from study import registry
from study.config import SITE_KINDS, NormConfig
from study.errors import ConfigError, StudyError
from study.norms._watch import poisoned, watch
from study.seeding import generator

__all__ = ["SITE_KINDS", "Norm", "Normed", "Site", "build_norm", "poisoned", "set_weight", "watch"]


@dataclass(frozen=True)
class Site:
    """A place in a network where a norm may stand."""

    name: str
    """Unique and independent of the norm, as "block12.conv2"."""
    channels: int
    """Channels (or features) there."""
    kind: str
    """stem; inner (inside a residual branch, or any hidden layer); outer (end of a branch, before the add);
    shortcut (a projection); top (the classifier's input, before pooling: there is no layer there)."""
    index: int
    """Position in the order in which the network creates its sites, from 0."""
    locations: bool = True
    """Whether there are several values per image and channel (N×C×H×W), not one (N×C, a linear layer's)."""


class Norm:
    """A normalisation of one family, built from a NormConfig; stateless: its modules hold the state."""

    switches: ClassVar[frozenset[str]] = frozenset()
    """Fields of NormConfig this family reads, beyond name, family and sites; any other must stay default."""

    needs_calibration: bool = False
    """Whether `calibrate` does anything, so whether it must be handed training batches."""

    def __init__(self, config: NormConfig, seed: int = 0) -> None:
        """Check the switches; `seed` is the run's, for γ's random initial values and for noise."""
        self.config = config
        self.seed = seed
        default = NormConfig()
        for f in fields(NormConfig):
            read = f.name in {"name", "family", "sites"} | self.switches
            if not read and getattr(config, f.name) != getattr(default, f.name):
                raise ConfigError(f"norm.{f.name} has no effect on family '{config.family}'; leave it out")
        if not config.sites:
            raise ConfigError("norm.sites=[] normalises nothing; say norm=none")
        for kind in config.sites:
            if kind not in SITE_KINDS:
                raise ConfigError(f"norm.sites: unknown kind '{kind}'. Valid: {', '.join(SITE_KINDS)}.")
        bounds = config.gamma_init
        if len(bounds) not in (1, 2) or bounds[0] > bounds[-1]:
            raise ConfigError(
                f"norm.gamma_init={list(bounds)} must be one number, or the lower and the upper bound of a "
                "uniform distribution"
            )
        if not config.gamma and bounds != default.gamma_init:
            raise ConfigError("norm.gamma_init has no effect with norm.gamma=false; leave it out")

    def at(self, site: Site) -> bool:
        """Whether this norm stands at `site`."""
        return site.kind in self.config.sites

    def normalises(self, site: Site) -> bool:
        """Whether what stands at `site` normalises; False where the site leaves nothing to do so by."""
        return True

    def shifts(self, site: Site) -> bool:
        """Whether what stands at `site` makes a bias before it redundant (it centres, or adds its own)."""
        raise NotImplementedError

    def build(self, layer: nn.Module | None, site: Site, ndim: int) -> nn.Module:
        """Return the module that stands at `site`; called only where `at(site)`.

        `layer` is the convolution or linear layer whose output the site is (None at `top`); `ndim` is 4 for
        N×C×H×W outputs, 2 for N×C. The module must keep `layer` as a submodule, so that probes find it.
        """
        raise NotImplementedError

    def calibrate(self, network: nn.Module, batches: Iterable[Tensor]) -> None:
        """Set statistics from training images (N×C×H×W, standardised) before training; most need nothing."""

    def gamma(self, site: Site) -> nn.Parameter | None:
        """Return the site's initial γ (C), a function of (seed, site); None where norm.gamma=false."""
        if not self.config.gamma:
            return None
        low, high = self.config.gamma_init[0], self.config.gamma_init[-1]
        if low == high:
            return nn.Parameter(torch.full((site.channels,), low))
        draw = torch.rand(site.channels, generator=generator(self.seed, "gamma", site.name))
        return nn.Parameter(low + (high - low) * draw)

    def beta(self, site: Site) -> nn.Parameter | None:
        """Return the site's initial β, zeros (C); None where norm.beta=false."""
        return nn.Parameter(torch.zeros(site.channels)) if self.config.beta else None


class Normed(nn.Sequential):
    """A layer followed by what normalises its output: the usual module at a site."""

    def __init__(self, layer: nn.Module | None, norm: nn.Module) -> None:
        super().__init__()
        if layer is not None:
            self.add_module("layer", layer)
        self.add_module("norm", norm)


def build_norm(config: NormConfig, seed: int = 0) -> Norm:
    """Return the norm a config asks for; `seed` is the run's.

    Raises ConfigError where a switch has no effect or contradicts another.
    """
    return cast(Norm, registry.load("study.norms", config.family).build(config, seed))


@torch.no_grad()
def set_weight(layer: nn.Module, weight: Tensor) -> None:
    """Fill a layer's weight (the same shape), whatever stands behind it.

    A plain weight and a weight-normalised one (where g becomes ‖weight‖) equal `weight` afterwards. A
    standardised one takes its direction from `weight` and keeps its own gain: there the scale of an
    initialisation has no effect, by design.
    """
    if parametrize.is_parametrized(layer, "weight"):
        layer.weight = weight
    else:
        cast(Tensor, layer.weight).copy_(weight)


def require_several(
    values: int, site: str, remedy: str = "use a larger batch, or larger images", per: str = "channel"
) -> None:
    """Refuse statistics of a single value; every variant that takes statistics while training asks this.

    `values` is the number of values behind each mean: N·H·W for a batch, H·W for an instance, C·H·W for a
    layer, the fan-in for a weight. With one, the output would be a constant whatever the input (and the
    unbiased variance 0/0). `remedy` says what helps, `per` what has a mean of its own.
    """
    if values < 2:
        raise StudyError(
            f"the norm at '{site}' gets one value per {per}, and a single value has no variance; {remedy}"
        )

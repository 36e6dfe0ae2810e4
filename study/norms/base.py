"""What a normalisation is to a network: sites, and the module that stands at each."""

from dataclasses import dataclass, fields
from typing import ClassVar

from torch import Tensor, nn

from study.config import NormConfig
from study.errors import ConfigError

SITE_KINDS = ("stem", "inner", "outer", "shortcut", "top")


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


class Norm:
    """A normalisation of one family, built from a NormConfig; stateless: its modules hold the state."""

    switches: ClassVar[frozenset[str]] = frozenset()
    """Fields of NormConfig this family reads, beyond name, family and sites; any other must stay default."""

    def __init__(self, config: NormConfig) -> None:
        self.config = config
        default = NormConfig()
        for f in fields(NormConfig):
            read = f.name in {"name", "family", "sites"} | self.switches
            if not read and getattr(config, f.name) != getattr(default, f.name):
                raise ConfigError(f"norm.{f.name} has no effect on family '{config.family}'; leave it out")
        for kind in config.sites:
            if kind not in SITE_KINDS:
                raise ConfigError(f"norm.sites: unknown kind '{kind}'. Valid: {', '.join(SITE_KINDS)}.")

    def at(self, site: Site) -> bool:
        """Whether this norm stands at `site`."""
        return site.kind in self.config.sites

    def shifts(self, site: Site) -> bool:
        """Whether what stands at `site` makes a bias before it redundant (it centres, or adds its own)."""
        raise NotImplementedError

    def build(self, layer: nn.Module | None, site: Site, ndim: int) -> nn.Module:
        """Return the module that stands at `site`; called only where `at(site)`.

        `layer` is the convolution or linear layer whose output the site is (None at `top`); `ndim` is 4 for
        N×C×H×W outputs, 2 for N×C. The module must keep `layer` as a submodule, so that probes find it.
        """
        raise NotImplementedError

    def calibrate(self, network: nn.Module, batches: list[Tensor]) -> None:
        """Set statistics from training images (N×C×H×W, standardised) before training; most need nothing."""


class Normed(nn.Sequential):
    """A layer followed by what normalises its output: the usual module at a site."""

    def __init__(self, layer: nn.Module | None, norm: nn.Module) -> None:
        super().__init__()
        if layer is not None:
            self.add_module("layer", layer)
        self.add_module("norm", norm)

"""What every network is made of: numbered layers and normalisation sites, created in one place."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from study.config import ModelConfig
from study.norms.base import Norm, Site

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "sigmoid": F.sigmoid,
    "tanh": F.tanh,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
}


@dataclass(frozen=True)
class Layer:
    """One weight layer of a network."""

    name: str
    """Norm-independent name, that of its site ("stem", "block3.conv1", "classifier", …)."""
    number: int | None
    """The papers' layer number: 1 is the stem, block k holds 2k and 2k+1, the classifier is last; projections
    have none."""
    module: nn.Module
    """The convolution or linear layer itself (its output is the raw one, before any norm)."""
    site: Site | None
    """Where its output goes; None for the classifier."""


class Network(nn.Module):
    """Base of all networks; `layers` and `sites` are in order of execution."""

    layers: tuple[Layer, ...]
    sites: tuple[Site, ...]

    def conv_biases(self) -> dict[str, bool]:
        """Return for every layer with a site whether it has a bias (recorded in run.json)."""
        return {x.name: getattr(x.module, "bias", None) is not None for x in self.layers if x.site}


class Builder:
    """Creates a network's layers and sites; the one place that decides about biases.

    A layer before a site has a bias exactly where nothing at the site makes it redundant (Norm.shifts).
    """

    def __init__(self, norm: Norm, config: ModelConfig) -> None:
        self.norm = norm
        self.activation = ACTIVATIONS[config.activation]
        self.layers: list[Layer] = []
        self.sites: list[Site] = []

    def conv(
        self,
        name: str,
        number: int | None,
        kind: str,
        c_in: int,
        c_out: int,
        *,
        kernel: int = 3,
        stride: int = 1,
    ) -> nn.Module:
        """Return a "same"-padded convolution with what the norm puts at its site."""
        site = self._site(name, c_out, kind)
        conv = nn.Conv2d(c_in, c_out, kernel, stride, padding=kernel // 2, bias=self._bias(site))
        return self._add(name, number, conv, site, ndim=4)

    def linear(self, name: str, number: int | None, kind: str, f_in: int, f_out: int) -> nn.Module:
        """Return a hidden linear layer with what the norm puts at its site."""
        site = self._site(name, f_out, kind)
        return self._add(name, number, nn.Linear(f_in, f_out, bias=self._bias(site)), site, ndim=2)

    def top(self, channels: int, ndim: int) -> nn.Module:
        """Return what the norm puts at the classifier's input (identity for most)."""
        site = self._site("top", channels, "top")
        return self.norm.build(None, site, ndim) if self.norm.at(site) else nn.Identity()

    def classifier(self, number: int, f_in: int, n_classes: int) -> nn.Linear:
        """Return the last linear layer: always with a bias, never normalised."""
        linear = nn.Linear(f_in, n_classes)
        self.layers.append(Layer("classifier", number, linear, None))
        return linear

    def finish(self, network: Network) -> None:
        """Hand the collected layers and sites to the network; call at the end of its constructor."""
        network.layers, network.sites = tuple(self.layers), tuple(self.sites)

    def _site(self, name: str, channels: int, kind: str) -> Site:
        site = Site(name, channels, kind, len(self.sites))
        self.sites.append(site)
        return site

    def _bias(self, site: Site) -> bool:
        return not (self.norm.at(site) and self.norm.shifts(site))

    def _add(self, name: str, number: int | None, layer: nn.Module, site: Site, ndim: int) -> nn.Module:
        self.layers.append(Layer(name, number, layer, site))
        return self.norm.build(layer, site, ndim) if self.norm.at(site) else layer

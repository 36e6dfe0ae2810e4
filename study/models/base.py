"""What every network is made of: numbered layers and normalisation sites, created in one place.

A network is a module of this package with `build(config, builder, input_shape, n_classes) -> Network` and
`READS`, the fields of ModelConfig that it reads besides those that all read (`COMMON`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from study import registry
from study.config import ModelConfig, RunConfig, check_together
from study.errors import ConfigError
from study.models._dropout import Dropout
from study.norms.base import Norm, Normed, Site, build_norm, watch
from study.seeding import derived_seed

COMMON = frozenset({"name", "width_multiplier", "activation", "dropout"})

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
    at_site: nn.Module
    """The module whose output leaves the site: the norm or what holds it and the layer; else the layer."""


class Network(nn.Module):
    """Base of all networks; `layers` and `sites` are in order of execution."""

    layers: tuple[Layer, ...]
    sites: tuple[Site, ...]

    unnormalised: tuple[str, ...]
    """Names of sites where the norm stands and yet cannot normalise (Norm.normalises; in run.json)."""

    def conv_biases(self) -> dict[str, bool]:
        """Return for every layer with a site whether it has a bias (recorded in run.json)."""
        return {x.name: getattr(x.module, "bias", None) is not None for x in self.layers if x.site}


class PooledNetwork(Network):
    """A network that ends in top → mean over H, W → dropout → classifier."""

    top: nn.Module
    classifier: nn.Module

    def end(self, builder: "Builder", number: int, channels: int, n_classes: int) -> None:
        """Create these modules, `number` the classifier's; call at the end of the constructor."""
        self.top = builder.top(channels, ndim=4)
        self.classifier = builder.classifier(number, channels, n_classes)
        builder.finish(self)

    def logits(self, x: Tensor) -> Tensor:
        """Map the last feature map N×C×H×W to logits N×classes."""
        logits: Tensor = self.classifier(self.top(x).mean(dim=(2, 3)))
        return logits


class Builder:
    """Creates a network's layers and sites; the one place that decides about biases.

    A layer before a site has a bias exactly where nothing at the site makes it redundant (Norm.shifts).
    """

    def __init__(self, norm: Norm, config: ModelConfig, seed: int = 0, device: str = "cpu") -> None:
        self.norm = norm
        self.device = device
        self.config = config
        self.seed = seed
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
        """Return a "same"-padded convolution with what the norm puts at its site.

        A strided 1×1 convolution is refused: subsample before it instead (resnet.Subsample says why).
        """
        assert kernel > 1 or stride == 1
        site = self._site(name, c_out, kind)
        bias, padding = self._bias(site), kernel // 2
        conv = self._bare(nn.Conv2d, c_in, c_out, kernel, stride=stride, padding=padding, bias=bias)
        return self._add(name, number, conv, site, ndim=4)

    def linear(self, name: str, number: int | None, kind: str, f_in: int, f_out: int) -> nn.Module:
        """Return a hidden linear layer with what the norm puts at its site."""
        site = self._site(name, f_out, kind, locations=False)
        linear = self._bare(nn.Linear, f_in, f_out, bias=self._bias(site))
        return self._add(name, number, linear, site, ndim=2)

    def split(self, at_site: nn.Module) -> tuple[nn.Module, nn.Module]:
        """Return a layer and what normalises its output, for networks that add something in between.

        What has no separate norm (none, reparametrised weights) stays whole, and an identity follows.
        """
        if isinstance(at_site, Normed):
            layer, *rest = at_site.children()
            norm = rest[0] if len(rest) == 1 else nn.Sequential(*rest)
            self._leaves(layer, norm)
            return layer, norm
        return at_site, nn.Identity()

    def alone(self, at_site: nn.Module) -> nn.Module:
        """Return a layer without what normalises its output, for networks that do so elsewhere."""
        layer, _ = self.split(at_site)
        self._leaves(layer, layer)
        return layer

    def top(self, channels: int, ndim: int) -> nn.Module:
        """Return what the norm puts at the classifier's input (identity for most)."""
        site = self._site("top", channels, "top", locations=ndim == 4)
        return self.norm.build(None, site, ndim) if self.norm.at(site) else nn.Identity()

    def classifier(self, number: int, f_in: int, n_classes: int) -> nn.Module:
        """Return the last linear layer: always with a bias, never normalised; after any dropout."""
        linear = self._bare(nn.Linear, f_in, n_classes)
        self.layers.append(Layer("classifier", number, linear, None, linear))
        if self.config.dropout == 0:
            return linear
        return nn.Sequential(Dropout(self.config.dropout, derived_seed(self.seed, "dropout")), linear)

    def width(self, channels: int) -> int:
        """Return a width times `width_multiplier`, rounded, at least 1."""
        return max(1, round(channels * self.config.width_multiplier))

    def finish(self, network: Network) -> None:
        """Hand the collected layers and sites to the network; call at the end of its constructor."""
        network.layers, network.sites = tuple(self.layers), tuple(self.sites)
        stands = (s for s in self.sites if self.norm.at(s))
        network.unnormalised = tuple(s.name for s in stands if not self.norm.normalises(s))

    def _bare(self, cls: type[nn.Module], *args: int, **options: int) -> nn.Module:
        """Return a layer with its weights not yet set, which spares the framework's own initialisation."""
        layer = cls(*args, **options, device="meta")
        return layer if self.device == "meta" else layer.to_empty(device=self.device)

    def _site(self, name: str, channels: int, kind: str, *, locations: bool = True) -> Site:
        site = Site(name, channels, kind, len(self.sites), locations)
        self.sites.append(site)
        return site

    def _bias(self, site: Site) -> bool:
        return not (self.norm.at(site) and self.norm.shifts(site))

    def _add(self, name: str, number: int | None, layer: nn.Module, site: Site, ndim: int) -> nn.Module:
        built = self.norm.build(layer, site, ndim) if self.norm.at(site) else layer
        self.layers.append(Layer(name, number, layer, site, built))
        return built

    def _leaves(self, layer: nn.Module, at_site: nn.Module) -> None:
        """Record that a layer's values leave its site by another module than the one built for it."""
        self.layers = [replace(x, at_site=at_site) if x.module is layer else x for x in self.layers]


def check_size(config: ModelConfig, input_shape: tuple[int, int, int], least: int) -> None:
    """Raise ConfigError if an image side is below `least` pixels, which the network halves down to 1."""
    if min(input_shape[1:]) < least:
        size = "×".join(map(str, input_shape[1:]))
        raise ConfigError(
            f"network '{config.name}' needs images of at least {least}×{least} pixels, not {size}"
        )


def build_network(run: RunConfig, input_shape: tuple[int, int, int], n_classes: int) -> Network:
    """Return the initialised network of a run, on the CPU: a pure function of its arguments.

    `input_shape` is C×H×W. Each layer's weights depend on (seed, layer name) alone, so two norms start from
    the same weights. Raises ConfigError for a field that the network does not read, a depth or a width it
    cannot have, and images it cannot take.
    """
    from study.inits.base import initialise

    with torch.random.fork_rng(devices=[]):
        network = structure(run, input_shape, n_classes)
    initialise(network, run.init, run.seed)
    watch(network)
    return network


def structure(
    run: RunConfig, input_shape: tuple[int, int, int], n_classes: int, device: str = "cpu"
) -> Network:
    """Return a network whose weights are not set; on "meta" its layers have no weights at all, and no cost.

    Everything that can be wrong with a network shows here, as a ConfigError.
    """
    check_together(run)
    module = registry.load("study.models", run.model.name)
    default = ModelConfig()
    for f in fields(ModelConfig):
        read = f.name in COMMON | module.READS
        if not read and getattr(run.model, f.name) != getattr(default, f.name):
            raise ConfigError(f"model.{f.name} has no effect on network '{run.model.name}'; leave it out")
    builder = Builder(build_norm(run.norm, run.seed), run.model, run.seed, device)
    network: Network = module.build(run.model, builder, input_shape, n_classes)
    if run.norm.sites and not any(builder.norm.at(site) for site in network.sites):
        kinds = {site.kind for site in network.sites}
        if kinds & set(run.norm.sites):
            raise ConfigError(
                f"norm.family={run.norm.family} without γ and β has no effect on network '{run.model.name}', "
                "whose layers leave one value per channel; say norm=none"
            )
        raise ConfigError(
            f"norm.sites={list(run.norm.sites)}: network '{run.model.name}' has no such site; "
            f"it has {', '.join(sorted(kinds))}"
        )
    return network


def prepare(network: Network, run: RunConfig, batches: Callable[[], Iterable[Tensor]]) -> None:
    """Let the initialisation, then the norm, see training images before the first update.

    `batches()` gives N×C×H×W each, standardised, on the network's device; an initialisation uses the first
    one. It is called only for `init=lsuv` and norms that calibrate; for the others nothing happens.
    """
    from study.inits.base import calibrate, calibrates

    norm = build_norm(run.norm, run.seed)
    if calibrates(run.init):
        calibrate(network, run.init, next(iter(batches())))
    if norm.needs_calibration:
        norm.calibrate(network, batches())

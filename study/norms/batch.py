"""Batch normalisation and every variant that its switches make; what they do stands in _batchnorm.py."""

from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor, nn

from study.config import NormConfig
from study.errors import ConfigError
from study.norms._batchnorm import BatchNorm
from study.norms._calibration import recalibrate
from study.norms._noise import Noise
from study.norms.base import Norm, Normed, Site

ORDERS = (1.0, 2.0, float("inf"))
MOVING = frozenset({"batch", "ghost"})
"""Sources whose statistics are always those of the batch they normalise."""


class BatchNorms(Norm):
    """Puts batch normalisation behind each layer."""

    switches: ClassVar[frozenset[str]] = frozenset(
        {"center", "scale", "gamma", "beta", "gamma_init", "order", "source", "period", "ghost_size"}
        | {"detach", "noise", "momentum", "eps"}
    )

    def __init__(self, config: NormConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.needs_calibration = config.source == "frozen"
        _refuse_contradictions(config)

    def shifts(self, site: Site) -> bool:
        """Where β is added, or the subtracted mean moves with the bias in every training step (`MOVING`).

        Frozen or running statistics, or those of an earlier batch (periodic), are constants in a step: there
        a bias shifts the output as β would, and stays where there is no β.
        """
        return self.config.beta or (self.config.center and self.config.source in MOVING)

    def build(self, layer: nn.Module | None, site: Site, ndim: int) -> nn.Module:
        """Return the layer, its batch normalisation, and noise if asked for."""
        norm = BatchNorm(self.config, site.name, site.channels, self.gamma(site), self.beta(site))
        normed = Normed(layer, norm)
        if self.config.noise:
            normed.add_module("noise", Noise(self.seed, site.name, site.channels))
        return normed

    def calibrate(self, network: nn.Module, batches: Iterable[Tensor]) -> None:
        """Set the frozen statistics to the population's, each layer's under normalised layers below it."""
        if self.needs_calibration:
            recalibrate(network, batches)


def build(config: NormConfig, seed: int) -> Norm:
    """Return batch normalisation as the switches describe it."""
    return BatchNorms(config, seed)


def _refuse_contradictions(config: NormConfig) -> None:
    """Raise ConfigError for a switch that could do nothing beside the others."""
    if config.order not in ORDERS:
        raise ConfigError(f"norm.order={config.order:g} is out of range: it must be 1, 2 or inf")
    default = NormConfig()
    taken = config.center or config.scale
    constant = config.source in ("running", "frozen")
    rules = (
        ("source", taken, "without norm.center and norm.scale, which leave no statistics"),
        ("momentum", taken, "without norm.center and norm.scale, which leave no statistics"),
        ("momentum", config.source != "frozen", "with norm.source=frozen"),
        ("order", config.scale, "with norm.scale=false"),
        ("eps", config.scale, "with norm.scale=false"),
        ("period", config.source == "periodic", f"with norm.source={config.source}"),
        ("ghost_size", config.source == "ghost", f"with norm.source={config.source}"),
        ("detach", taken, "without norm.center and norm.scale, which leave no statistics"),
        ("detach", not constant, f"with norm.source={config.source}, whose statistics are constants already"),
    )
    for name, allowed, why in rules:
        if not allowed and getattr(config, name) != getattr(default, name):
            raise ConfigError(f"norm.{name} has no effect {why}; leave it out")
    if not (taken or config.gamma or config.beta or config.noise):
        raise ConfigError("norm.family=batch with centre, scale, γ and β all off is norm=none; say that")

"""Whether every network and norm of a launch can be built, before any of its trials writes anything."""

from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

from study.config import ModelConfig, RunConfig
from study.errors import ConfigError

N_CLASSES = 10
ASSUMED = (3, 32, 32)
"""Channels and size (pixels) where the data set's own are not known without loading it."""


def buildable(configs: Sequence[RunConfig]) -> None:
    """Build one network for each distinct (network, norm) on the CPU; imports torch.

    Raises ConfigError for what single fields cannot show: a depth the network cannot have, a switch that has
    no effect on the norm.
    """
    from study.models.base import build_network

    for config in distinct(configs):
        channels = config.data.channels or ASSUMED[0]
        size = config.data.size or ASSUMED[1]
        build_network(config, (channels, size, size), N_CLASSES)


def distinct(configs: Sequence[RunConfig]) -> list[RunConfig]:
    """Return one config for each distinct (network, norm, kind of initialisation, image shape), narrowed.

    Width costs time and memory, and validity does not depend on it beyond the widths themselves.
    """
    seen: dict[tuple[object, ...], RunConfig] = {}
    for config in configs:
        model = replace(config.model, width_multiplier=ModelConfig.width_multiplier)
        key = (model, config.norm, config.init.name, config.data.channels, config.data.size)
        seen.setdefault(key, config)
    return list(seen.values())


def report(configs: Sequence[RunConfig], pipe: Connection) -> None:
    """Send the text of the first error, or the empty text; for a process of the fork server."""
    try:
        buildable(configs)
    except ConfigError as error:
        pipe.send(str(error))
    else:
        pipe.send("")

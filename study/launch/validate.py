"""Whether every network and norm of a launch can be built, before any of its trials writes anything."""

import contextlib
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection

from study.config import RunConfig, check_together
from study.errors import ConfigError

N_CLASSES = 10
ASSUMED = (3, 32, 32)
"""Channels and size (pixels) where the data set's own are not known without loading it."""


def buildable(configs: Sequence[RunConfig]) -> None:
    """Build one network for each distinct (network, norm), full-size but without memory; imports torch.

    Raises ConfigError for what single fields cannot show: a depth the network cannot have, a switch that has
    no effect on the norm.
    """
    from study.models.base import structure

    for config in configs:
        check_together(config)
    for config in distinct(configs):
        channels = config.data.channels or ASSUMED[0]
        size = config.data.size or ASSUMED[1]
        structure(config, (channels, size, size), N_CLASSES, device="meta")


def distinct(configs: Sequence[RunConfig]) -> list[RunConfig]:
    """Return one config for each distinct (network, norm, kind of initialisation, image shape)."""
    seen: dict[tuple[object, ...], RunConfig] = {}
    for config in configs:
        key = (config.model, config.norm, config.init.name, config.data.channels, config.data.size)
        seen.setdefault(key, config)
    return list(seen.values())


def runnable_here(configs: Sequence[RunConfig]) -> None:
    """Raise ConfigError for a device that this machine lacks, or a batch beyond a stated number of images.

    Data sets are not loaded for it: where a subset does not tell their size, the trial itself refuses.
    """
    from study import device

    for name in dict.fromkeys(config.device for config in configs):
        device.resolve(name)
    for config in configs:
        n = config.data.subset - round(config.data.validation * config.data.subset)
        if config.data.subset and config.batch_size > n and config.epochs:
            raise ConfigError(
                f"batch_size={config.batch_size} is out of range: there are only {n} training images, and "
                "incomplete batches are dropped"
            )


def report(configs: Sequence[RunConfig], pipe: Connection) -> None:
    """Send the text of the first error, or the empty text; for a process of the fork server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the launcher's, which ends this process
    refusal = ""
    try:
        buildable(configs)
        runnable_here(configs)
    except ConfigError as error:
        refusal = str(error)
    with contextlib.suppress(OSError):  # the launcher is gone
        pipe.send(refusal)

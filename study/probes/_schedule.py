"""When probes are due: `probes.measure`, checked without importing torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from study import registry
from study.config import ProbesConfig
from study.errors import ConfigError, unknown

MOMENTS = ("init", "epoch_end", "divergence", "final")
"""Schedules that are moments between steps."""

NEEDED = (
    ("activation_moments", "moment_sides"),
    ("channel_pairs", "pair_layers"),
    ("class_gradients", "class_by"),
    ("class_gradients", "class_layers"),
    ("example_gradients", "example_layers"),
    ("gradient_agreement", "agreement_layers"),
    ("update_path", "path_layers"),
)
"""Lists without which a probe has no rows."""


@dataclass(frozen=True)
class Due:
    """One NAME@SCHEDULE."""

    name: str
    when: str
    """A moment, "first" or "every"."""
    n: int = 0
    """How many steps, or every how many."""

    def at_step(self, step: int) -> bool:
        """Whether it is due in the pass that follows `step` updates."""
        return (self.when == "first" and step < self.n) or (self.when == "every" and step % self.n == 0)


def check(config: ProbesConfig) -> None:
    """Raise ConfigError for an unknown probe or schedule, or a value that no probe can use."""
    measured = {split(entry)[0] for entry in config.measure}
    for probe, option in NEEDED:
        if probe in measured and not getattr(config, option):
            raise ConfigError(f"probes.{option}=[] leaves {probe} nothing to measure; leave {probe} out")
    for name, given, valid in (
        ("moment_sides", config.moment_sides, ("input", "output")),
        ("class_by", config.class_by, ("logit", "label")),
    ):
        for item in given:
            if item not in valid:
                raise unknown(f"probes.{name}", item, valid)
    if config.moments == 3:
        raise ConfigError("probes.moments=3 must be 2 (mean and variance) or 4 (everything)")
    if len(config.alphas) != 2 or config.alphas[0] >= config.alphas[1]:
        raise ConfigError(
            f"probes.alphas={list(config.alphas)} must be the smallest and the largest step size"
        )
    if not config.noise_batches or max(config.noise_batches) >= config.noise_subset:
        raise ConfigError(
            f"probes.noise_batches={list(config.noise_batches)} must all be below "
            f"probes.noise_subset={config.noise_subset}"
        )


def split(entry: str) -> tuple[str, Due | None]:
    """Return the probe's name and when it is due, None for its usual schedule; ConfigError."""
    name, at, schedule = entry.partition("@")
    if name not in registry.names("study.probes"):
        raise unknown("probe", name, registry.names("study.probes"))
    return name, due(name, schedule, entry) if at else None


def due(name: str, schedule: str, entry: str) -> Due:
    """Return when `schedule` is; `entry` is what was given, for the message."""
    when, colon, n = schedule.partition(":")
    if when in MOMENTS and not colon:
        return Due(name, when)
    if when in ("first", "every") and n.isdecimal() and int(n) >= 1:
        return Due(name, when, int(n))
    raise ConfigError(
        f"probes.measure: '{entry}' has no valid schedule; it must be NAME@ and one of "
        f"{', '.join(MOMENTS)}, first:N, every:N with N ≥ 1"
    )


def parse(measure: Sequence[str], usual: dict[str, str]) -> list[Due]:
    """Return what is due; `usual` gives the schedules of probes named without one."""
    found = []
    for entry in measure:
        name, when = split(entry)
        found.append(when or due(name, usual[name], entry))
    return found

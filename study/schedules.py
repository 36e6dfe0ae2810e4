"""The learning rate as a pure function of the epoch and the training losses so far: no state to save."""

from collections.abc import Sequence

from study.config import RunConfig
from study.criteria import plateaus


def rate(config: RunConfig, epoch: int, losses: Sequence[float]) -> float:
    """Return the learning rate of an epoch (counted from 0).

    `losses` are the mean training losses of the epochs before it; only the plateau schedule reads them.
    """
    schedule = config.schedule
    if epoch < schedule.warm_start_epochs:
        return schedule.warm_start_lr
    if schedule.name == "plateau":
        since = losses[schedule.warm_start_epochs : epoch]
        drops = min(schedule.max_drops, plateaus(since, schedule.patience, schedule.threshold))
    else:
        drops = sum(epoch >= drop_epoch(config.epochs, share) for share in schedule.milestones)
    return config.lr * schedule.factor**drops


def drop_epoch(epochs: int, share: float) -> int:
    """Return the first epoch (from 0) at a dropped rate: `share` of `epochs`, rounded half up, at least 1."""
    return max(1, int(epochs * share + 0.5))

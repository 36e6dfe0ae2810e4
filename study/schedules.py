"""The learning rate as a pure function of the epoch and the training losses so far: no state to save."""

from collections.abc import Sequence

from study.config import RunConfig, ScheduleConfig


def rate(config: RunConfig, epoch: int, losses: Sequence[float]) -> float:
    """Return the learning rate of an epoch (counted from 0).

    `losses` are the mean training losses of the epochs before it; only the plateau schedule reads them.
    """
    schedule = config.schedule
    if epoch < schedule.warm_start_epochs:
        return schedule.warm_start_lr
    if schedule.name == "plateau":
        drops = _plateaus(schedule, losses[schedule.warm_start_epochs : epoch])
    else:
        drops = sum(epoch >= drop_epoch(config.epochs, share) for share in schedule.milestones)
    return config.lr * schedule.factor**drops


def drop_epoch(epochs: int, share: float) -> int:
    """Return the first epoch (from 0) at a dropped rate: `share` of `epochs`, rounded half up, at least 1."""
    return max(1, int(epochs * share + 0.5))


def _plateaus(schedule: ScheduleConfig, losses: Sequence[float]) -> int:
    """Count the plateaus: `patience` epochs in a row without a loss below (1 − threshold) × the best."""
    best, waited, drops = float("inf"), 0, 0
    for loss in losses:
        if loss < (1 - schedule.threshold) * best:
            best, waited = loss, 0
        else:
            waited += 1
        if waited >= schedule.patience and drops < schedule.max_drops:
            drops, waited = drops + 1, 0
    return drops

import pytest

from study.config import RunConfig, ScheduleConfig
from study.schedules import drop_epoch, rate


def rates(run, losses=()):
    return [rate(run, epoch, losses) for epoch in range(run.epochs)]


def test_drops_at_half_and_three_quarters():
    run = RunConfig(lr=1.0, epochs=8)
    assert rates(run) == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_drop_epoch_rounds_half_up():
    assert [drop_epoch(15, 0.5), drop_epoch(15, 0.75), drop_epoch(165, 0.5), drop_epoch(1, 0.5)] == [
        8,
        11,
        83,
        1,
    ]


def test_warm_start_counts_among_the_epochs():
    run = RunConfig(lr=1.0, epochs=4, schedule=ScheduleConfig(warm_start_epochs=1, warm_start_lr=1e-4))
    assert rates(run) == pytest.approx([1e-4, 1, 0.1, 0.01])


def test_plateau_drops_after_patience_epochs_without_improvement():
    run = RunConfig(lr=1.0, epochs=8, schedule=ScheduleConfig(name="plateau", patience=2, max_drops=2))
    losses = [2.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    assert rates(run, losses) == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.1, 0.01])


def test_plateau_reads_only_the_past():
    run = RunConfig(lr=1.0, epochs=8, schedule=ScheduleConfig(name="plateau", patience=2))
    losses = [1.0] * 8
    assert rate(run, 3, losses[:3]) == rate(run, 3, losses)


def test_plateau_stops_at_max_drops():
    run = RunConfig(lr=1.0, epochs=20, schedule=ScheduleConfig(name="plateau", patience=1, max_drops=1))
    assert rates(run, [1.0] * 20)[-1] == pytest.approx(0.1)

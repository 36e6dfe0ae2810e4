import math

import torch

from study.monitor import Monitor, Reader, Tally


def test_crossings_and_divergence_are_told_apart():
    monitor = Monitor()
    losses = [5.0, 900.0, 1500.0, 4000.0, 5001.0]
    ended = [monitor.see(step, loss) for step, loss in enumerate(losses)]
    assert ended == [False, False, False, False, True]
    assert (monitor.initial_loss, monitor.absolute_step, monitor.relative_step) == (5.0, 2, 4)
    assert (monitor.diverged_step, monitor.diverged_loss) == (4, 5001.0)


def test_a_nonfinite_first_loss_ends_the_run_at_step_0():
    monitor = Monitor()
    assert monitor.see(0, math.nan)
    assert monitor.diverged_step == 0


def test_the_state_round_trips():
    monitor = Monitor()
    monitor.see(0, 2.0)
    monitor.see(1, 3000.0)
    assert Monitor(**monitor.state()) == monitor


def test_the_reader_gives_every_step_once_in_order():
    reader = Reader(torch.device("cpu"))
    seen = []
    for step in range(3):
        reader.push(step, torch.tensor(float(step)), torch.tensor(step))
        seen += reader.ready()
    assert seen == [(0, 0.0, 0), (1, 1.0, 1), (2, 2.0, 2)]
    assert reader.ready(all=True) == []


def test_the_tally_is_weighted_by_images():
    tally = Tally()
    tally.add(1.0, 2, 4)
    tally.add(4.0, 1, 2)
    assert (tally.loss, tally.correct, tally.n) == (12.0, 3, 6)

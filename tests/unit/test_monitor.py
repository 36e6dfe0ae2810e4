import math
from typing import ClassVar

import torch

from study.monitor import LAG, Monitor, Reader, Tally


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


class Event:
    """Stands for torch.cuda.Event: says which stream it was recorded on, and when it was waited for."""

    seen: ClassVar[list[object]] = []

    def record(self, stream):
        self.seen.append(stream)

    def synchronize(self):
        self.seen.append("waited")


def test_a_gpus_losses_are_read_late_and_waited_for_on_its_own_stream(monkeypatch):
    genuine = torch.empty
    monkeypatch.setattr(torch, "empty", lambda n, dtype, pin_memory: genuine(n, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: f"stream of {device}")
    reader = Reader(torch.device("cuda:1"))
    for step in range(LAG):
        reader.push(step, torch.tensor(float(step)), torch.tensor(step))
        assert reader.ready() == []
    reader.push(LAG, torch.tensor(float(LAG)), torch.tensor(LAG))
    assert Event.seen == ["stream of cuda:1"] * (LAG + 1)
    assert reader.ready() == [(0, 0.0, 0)]
    assert reader.ready(all=True) == [(step, float(step), step) for step in range(1, LAG + 1)]
    assert Event.seen[LAG + 1 :] == ["waited"] * (LAG + 1)

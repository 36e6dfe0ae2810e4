"""The training loop.

Order of events, which the code below follows line by line:

    for each epoch:
        set the learning rate                       (schedules.rate)
        for each batch:
            forward, loss, backward                 (probes due at this step watch this very pass)
            read the loss; has the run diverged?    → divergence probes, stop
            update the weights
            told to stop, or checkpoint due?        → checkpoint
        record the epoch's own training batches     (split "train")
        evaluate validation and test                (after the last epoch the training images as well)
        probes due at the end of an epoch
        checkpoint if due

`state.step` counts updates; the loop can be left and entered again after any of them. At a multiple of the
steps per epoch it means that the epoch has been evaluated.
"""

from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from study import schedules
from study.data.base import Split
from study.data.batches import evaluation_batches
from study.norms.base import poisoned
from study.state import TrainState

Row = dict[str, Any]


class Ending(StrEnum):
    """Why the loop was left."""

    COMPLETE = "complete"
    DIVERGED = "diverged"
    STOPPED = "stopped"


class Events(Protocol):
    """What the loop tells the outside, and asks of it."""

    def rows(self, rows: list[Row]) -> None:
        """Take rows of the metrics table."""

    def progress(self, loss: float, accuracy: float) -> None:
        """Hear how it goes, after every step."""

    def checkpoint_due(self) -> bool:
        """Whether it is time for a checkpoint."""

    def checkpoint(self) -> None:
        """Write a checkpoint."""

    def stop(self) -> bool:
        """Whether the run was told to stop."""


def train(state: TrainState, events: Events) -> Ending:
    """Train from where `state` stands to the end of the run, its divergence, or the request to stop."""
    run, per_epoch = state.run, state.steps_per_epoch
    while state.step < run.epochs * per_epoch:
        epoch, first = divmod(state.step, per_epoch)
        lr = schedules.rate(run, epoch, state.losses)
        state.set_rate(lr)
        batches = state.epoch_batches(epoch)
        for index in range(first, per_epoch):
            images, labels = batches.batch(index)
            state.remember()
            with state.probes.step(state.step, epoch, images, labels):
                logits = state.forward(images)
                loss = F.cross_entropy(logits.float(), labels)
                state.scaler.scale(loss).backward(retain_graph=state.probes.retain_graph)  # type: ignore[no-untyped-call]
            if _take(state, events, epoch, lr, logits, labels, loss):
                return _diverged(state, epoch)
            state.update()
            state.step += 1
            if index + 1 < per_epoch and (events.checkpoint_due() or events.stop()):
                if _read(state, events, epoch, lr, all=True):
                    return _diverged(state, epoch)
                events.checkpoint()
                if events.stop():
                    return Ending.STOPPED
        if _read(state, events, epoch, lr, all=True):
            return _diverged(state, epoch)
        _end_epoch(state, events, epoch, lr)
        if events.stop() and state.step < run.epochs * per_epoch:
            events.checkpoint()
            return Ending.STOPPED
        if events.checkpoint_due():
            events.checkpoint()
    return Ending.COMPLETE


def _diverged(state: TrainState, epoch: int) -> Ending:
    assert state.monitor.diverged_step is not None
    state.go_back(state.monitor.diverged_step)
    state.poisoned = poisoned(state.network)
    batch = state.epoch_batches(epoch).batch(state.step % state.steps_per_epoch)
    with state.as_before():
        state.probes.moment("divergence", state.step, epoch, batch)
    return Ending.DIVERGED


def _take(
    state: TrainState, events: Events, epoch: int, lr: float, logits: Tensor, labels: Tensor, loss: Tensor
) -> bool:
    """Queue what a step's pass showed and read what has arrived; return whether the run has diverged."""
    with torch.no_grad():
        predicted = logits.argmax(1)
        state.count(predicted)
        state.reader.push(state.step, loss, (predicted == labels).sum())
    return _read(state, events, epoch, lr)


def _read(state: TrainState, events: Events, epoch: int, lr: float, *, all: bool = False) -> bool:
    """Feed the losses that have arrived to monitor, tally and records, up to a diverging one."""
    n = state.run.batch_size
    for step, loss, correct in state.reader.ready(all=all):
        diverged = state.monitor.see(step, loss)
        state.tally.add(loss, correct, n)
        if diverged or step % state.run.log_every == 0:
            events.rows([_row(step, epoch, "batch", lr, loss, correct, n, None, bool(state.poisoned))])
        events.progress(loss, correct / n)
        if diverged:
            return True
    return False


def _end_epoch(state: TrainState, events: Events, epoch: int, lr: float) -> None:
    """Record the epoch's training batches, evaluate, measure; leave the state ready for the next epoch."""
    tally, sets = state.tally, state.image_set
    state.losses.append(tally.loss / tally.n)
    state.poisoned = poisoned(state.network)
    flag = bool(state.poisoned)
    splits: dict[str, Split | None] = {"validation": sets.validation, "test": sets.test}
    if epoch + 1 == state.run.epochs:
        splits["train_eval"] = sets.train
    counts = state.take_counts()
    loss = tally.loss / tally.n
    rows = [_row(state.step, epoch + 1, "train", lr, loss, tally.correct, tally.n, counts, flag)]
    for name, split in splits.items():
        if split is not None:
            rows.append(_row(state.step, epoch + 1, name, lr, *evaluate(state, split), flag))
    state.start_tally()
    events.rows(rows)
    state.probes.moment("epoch_end", state.step, epoch)


@torch.no_grad()
def evaluate(state: TrainState, split: Split) -> tuple[float, int, int, list[int]]:
    """Return (mean loss, correct, images, predictions by class) in eval mode; every image counts once."""
    sets = state.image_set
    loss = torch.zeros((), dtype=torch.float64, device=split.labels.device)
    predictions = []
    state.network.eval()
    for images, labels in evaluation_batches(split, sets.mean, sets.std, state.evaluation_batch):
        logits = state.forward(images).float()
        loss += F.cross_entropy(logits, labels, reduction="sum").double()
        predictions.append(logits.argmax(1))
    state.network.train()
    predicted = torch.cat(predictions)
    counts = (predicted[:, None] == torch.arange(sets.n_classes, device=predicted.device)).sum(0)
    correct = int((predicted == split.labels).sum())
    return float(loss) / len(split), correct, len(split), counts.tolist()


def _row(
    step: int,
    epoch: int,
    split: str,
    lr: float,
    loss: float,
    correct: int,
    n: int,
    predicted: list[int] | None,
    poisoned: bool,
) -> Row:
    return {
        "step": step,
        "epoch": epoch,
        "split": split,
        "lr": lr,
        "loss": loss,
        "accuracy": correct / n,
        "n": n,
        "predicted": predicted,
        "poisoned": poisoned,
    }

"""The probe engine: measures what is due, and leaves no trace in the run.

A probe is a module of this package with

    SCHEDULE   its usual schedule, as "init"
    PASSES     the passes of its own that it takes from `replay`, in words ("" if none)
    SCHEMA     its own columns (a pyarrow schema); COMMON stands before them in every table
    captures(network, options) -> list[Want]        what it needs of the instrumented pass
    measure(capture, replay) -> list[row]            one mapping of SCHEMA's columns per row

How a training loop calls the engine (`epoch` counts from 0, `step` counts the updates done):

    engine.moment("init", 0, 0)                        before the first step of a fresh run
    for each epoch, for each batch:
        with engine.step(step, epoch, images, labels):  gradients are None or zero on entry
            forward on exactly these tensors, loss = mean cross-entropy, (scaled) backward, once, with
        backward(retain_graph=engine.retain_graph): spares class_gradients a forward pass, changes no bit
        has the loss diverged?  engine.moment("divergence", step, epoch, batch), and stop
        unscale, clip, update, zero the gradients       everything that changes weights comes after
    engine.moment("epoch_end", step, epoch)            after each epoch
    engine.moment("final", step, epochs)               when training has ended

Which batch is measured follows from the schedule:

    first:N, every:K        the training batch; the step's own pass is the instrumented one
    divergence              the diverging training batch, its pass repeated by the engine
    init, epoch_end, final  the fixed probe batch (the first batch_size training images, standardised, not
                            augmented), in a pass of the engine's own

All passes are in train mode. In fp16 a factor on the loss that is too large is lowered in the engine's
passes; a training step shows its own, so where the scaler skips it, its infinite gradients. With compile=true
the training pass is left alone and a pass of the engine's own, eager, from the same state, is measured
instead. What a probe touches is restored before the loop goes on: weights, buffers, gradients, generators,
train/eval mode, requires_grad, modules' plain attributes, hooks. A probe that raises is reported through
`fail` and stops neither the run nor the other probes.
"""

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from study import registry
from study.config import RunConfig
from study.data.base import ImageSet
from study.errors import StudyError
from study.models.base import Network
from study.probes import _schedule
from study.probes._capture import Capture, Want, instrumented, own_pass
from study.probes._replay import Replay
from study.probes._schedule import Due
from study.probes._state import NetworkState

COMMON = pa.schema(
    [
        ("step", pa.int64()),  # updates done when measured
        ("epoch", pa.int32()),  # the epoch it belongs to, from 0; at final the epochs done
        ("when", pa.string()),  # the part of the schedule that was due: a moment, "first" or "every"
        ("layer", pa.string()),  # norm-independent name; null where a row is about the whole network
        ("number", pa.int32()),  # the papers' layer number; null for projections and the whole network
    ]
)

Write = Callable[[str, pa.Table], None]
Fail = Callable[[str, int, str], None]


def parse(measure: Sequence[str]) -> list[Due]:
    """Return the (probe, schedule) pairs of `probes.measure`; ConfigError names what is wrong.

    An entry without "@" takes the probe's usual schedule.
    """
    plain = [entry for entry in measure if "@" not in entry]
    return _schedule.parse(measure, {name: str(load(name).SCHEDULE) for name in plain})


def load(name: str) -> ModuleType:
    """Import a probe; ConfigError names the valid ones."""
    return registry.load("study.probes", name)


def schema(name: str) -> pa.Schema:
    """Return the schema of a probe's table."""
    return pa.schema([*COMMON, *load(name).SCHEMA])


class ProbeEngine:
    """Runs the probes of one run; see the module's docstring."""

    def __init__(
        self,
        run: RunConfig,
        network: Network,
        image_set: ImageSet,
        device: torch.device,
        write: Write,
        fail: Fail,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        scaler: "torch.amp.GradScaler | None" = None,
    ) -> None:
        """Parse the schedules (ConfigError) and keep references; `network` is the uncompiled one.

        `write` takes each table, `fail` the name, step and traceback (of a StudyError: the sentence) of a
        probe that raised. Without an `optimizer`, an update is what SGD's first one would be.
        """
        self.run, self.network, self.image_set, self.device = run, network, image_set, device
        self.write, self.fail = write, fail
        self.optimizer, self.scaler = optimizer, scaler
        _schedule.check(run.probes)
        self.due = parse(run.probes.measure)
        self._watching = any(d.when in ("first", "every") for d in self.due)
        self._asked, self._wanted = False, False
        self.graph_kept = False

    def step(self, step: int, epoch: int, images: Tensor, labels: Tensor) -> AbstractContextManager[None]:
        """Return the context of one training step's forward and backward; free when nothing is due."""
        if not self._watching:
            return contextlib.nullcontext()
        due = _once([d for d in self.due if d.at_step(step)])
        if not due:
            return contextlib.nullcontext()
        return self._watch(due, Capture(step, epoch, "", images, labels, self.network, self.run))

    @property
    def retain_graph(self) -> bool:
        """Whether the backward pass of this step is to leave its graph; asking promises that it will."""
        self._asked = self._wanted
        return self._wanted

    def moment(self, when: str, step: int, epoch: int, batch: tuple[Tensor, Tensor] | None = None) -> None:
        """Measure what is due at a moment between steps, on the fixed probe batch unless given another."""
        due = _once([d for d in self.due if d.when == when])
        if not due:
            return
        images, labels = batch or self.probe_batch()
        self._own_pass(due, Capture(step, epoch, when, images, labels, self.network, self.run))

    def probe_batch(self) -> tuple[Tensor, Tensor]:
        """Return the fixed probe batch: the first batch_size training images, not augmented, and labels."""
        return self.training_images(self.run.batch_size)

    def training_images(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the first n training images (all, if there are fewer), standardised, and their labels."""
        train, sets = self.image_set.train, self.image_set
        images = train.images[:n].to(self.device, torch.float32) / 255
        mean = torch.tensor(sets.mean, device=self.device)[:, None, None]
        std = torch.tensor(sets.std, device=self.device)[:, None, None]
        standardised = ((images - mean) / std).contiguous(memory_format=torch.channels_last)
        return standardised, train.labels[:n].to(self.device)

    @contextlib.contextmanager
    def _watch(self, due: list[Due], capture: Capture) -> Iterator[None]:
        """Instrument the pass inside the context, then measure."""
        before = NetworkState(self.network, self.device)
        if self.run.compile:
            yield
            self._own_pass(due, capture, before)
            return
        wants, due = self._wants(due, capture)
        self._asked, self._wanted = False, any(w.what == "graph" for w in wants)
        with instrumented(self.network, wants, capture):
            yield
        self.graph_kept, self._wanted = self._asked, False
        after = NetworkState(self.network, self.device)
        scale = self.scaler.get_scale() if self.scaler is not None and self.scaler.is_enabled() else 1.0
        self._guarded(due, capture, lambda: capture.finish_step(wants, scale))
        self._measure(due, capture, Replay(self, capture, before))
        after.restore()

    def _own_pass(self, due: list[Due], capture: Capture, before: NetworkState | None = None) -> None:
        """Run and measure a pass of the engine's own; `before` is the state it starts from, if not this."""
        after = NetworkState(self.network, self.device)
        before = before or after
        try:
            wants, due = self._wants(due, capture)
            self.graph_kept = True
            before.restore()
            self.network.train()
            self._guarded(due, capture, lambda: own_pass(self.network, wants, capture, self.scale()))
            self._measure(due, capture, Replay(self, capture, before))
        finally:
            after.restore()

    def _wants(self, due: list[Due], capture: Capture) -> tuple[list[Want], list[Due]]:
        """Return what the probes need captured, merged, and the probes that could say so."""
        wants: list[Want] = []
        able = []
        for d in due:
            try:
                wants += load(d.name).captures(self.network, self.run.probes)
                able.append(d)
            except Exception as error:
                self.fail(d.name, capture.step, _told(error))
        return list(dict.fromkeys(wants)), able

    def _guarded(self, due: list[Due], capture: Capture, what: Callable[[], None]) -> None:
        """Do the part that all probes share; if it fails, so have all of them."""
        try:
            what()
        except Exception as error:
            capture.error = _told(error)
        if capture.error:
            for d in due:
                self.fail(d.name, capture.step, capture.error)

    def _measure(self, due: list[Due], capture: Capture, replay: Replay) -> None:
        """Measure each probe and hand its table out; those that need the pass's graph come first."""
        if capture.error:
            return
        for d in sorted(due, key=lambda d: not _needs_graph(d.name, self)):
            if not _needs_graph(d.name, self):
                capture.drop_graph()
            capture.when = d.when
            module = load(d.name)
            try:
                with torch.no_grad():
                    rows = module.measure(capture, replay)
                table = _table(module.SCHEMA, rows, capture)
            except Exception as error:
                self.fail(d.name, capture.step, _told(error))
                continue
            finally:
                replay.restore()
            self.write(d.name, table)
        capture.drop_graph()

    def scale(self) -> float:
        """Factor on the loss in passes of the engine's own: the scaler's, a power of two; 1 without."""
        enabled = self.scaler is not None and self.scaler.is_enabled()
        return float(self.scaler.get_scale()) if enabled and self.scaler is not None else 1.0


def _told(error: Exception) -> str:
    """Return a mistake of the user's as its sentence, anything else as its traceback."""
    return str(error) if isinstance(error, StudyError) else traceback.format_exc()


def _needs_graph(name: str, engine: ProbeEngine) -> bool:
    return any(w.what == "graph" for w in load(name).captures(engine.network, engine.run.probes))


def _once(due: list[Due]) -> list[Due]:
    """Keep the first entry of each probe: no probe measures the same pass twice."""
    return list({d.name: d for d in reversed(due)}.values())[::-1]


def _table(own: pa.Schema, rows: list[dict[str, Any]], capture: Capture) -> pa.Table:
    numbers = {layer.name: layer.number for layer in capture.network.layers}
    common = {"step": capture.step, "epoch": capture.epoch, "when": capture.when}
    full = [{**common, "layer": None, "number": numbers.get(row.get("layer", "")), **row} for row in rows]
    return pa.Table.from_pylist(full, schema=pa.schema([*COMMON, *own]))

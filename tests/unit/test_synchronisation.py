"""No training step waits for the device, and none mixes in a tensor of the host.

On any machine the loop runs on the meta device, which has shapes and no values: whatever needs a value on the
host (`.item()`, `if tensor`, a boolean index, `nonzero`) raises, and a dispatch mode refuses tensors of the
host and copies of them. With a GPU the real loop runs under `torch.cuda.set_sync_debug_mode("error")`.
"""

import contextlib
import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from study import optim
from study import train as loop
from study.compose import compose
from study.data.batches import EpochBatches
from study.data.loading import load
from study.monitor import LAG, Reader
from study.rewind import History
from study.state import TrainState
from study.train import Ending, train

CPU = torch.device("cpu")
SETTINGS = ("scale=smoke", "model.widths=[2,3,4]", "data.flip=true", "data.crop_padding=2", "data.subset=160")
STEPS = LAG + 3
"""Beyond the steps in which the first losses arrive and the history of weights fills."""


class Events:
    """Hears the loop and asks it to stop after some steps."""

    def __init__(self, stop_after=None):
        self.asked, self.stop_after, self.heard = 0, stop_after, []

    def rows(self, rows):
        self.heard += rows

    def progress(self, loss, accuracy):
        assert isinstance(loss, float)
        assert isinstance(accuracy, float)

    def checkpoint_due(self):
        return False

    def checkpoint(self):
        pass

    def stop(self):
        self.asked += 1
        return self.stop_after is not None and self.asked >= self.stop_after


class NoHost(TorchDispatchMode):
    """Refuses tensors of the host, which the meta device takes in some places."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        host = [
            x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.device == CPU and x.dim()
        ]
        assert not host, f"{name} takes a tensor of the host"
        return func(*args, **(kwargs or {}))


class NoLiterals(TorchFunctionMode):
    """Refuses tensors made of numbers of the host, which a GPU waits for."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        assert func not in (torch.tensor, torch.as_tensor, Tensor.new_tensor), f"{func} copies from the host"
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def like_a_gpu():
    with NoHost(), NoLiterals():
        yield


class LateReader(Reader):
    """Keeps the lag of a GPU's reader; the values it gives are made up, for there are none."""

    def __init__(self):
        self.lag, self.waiting = LAG, []

    def push(self, step, loss, correct):
        torch.stack([loss.detach().double(), correct.double()])
        self.waiting.append((step, 1.0, 0))

    def ready(self, *, all=False):
        n = len(self.waiting) - (0 if all else self.lag)
        return [self.waiting.pop(0) for _ in range(n)]


def without_values(x):
    empty = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return nn.Parameter(empty) if isinstance(x, nn.Parameter) else empty


def strip(holder):
    """Replace the tensors that an object of study.data.batches holds."""
    for name, value in vars(holder).items():
        if isinstance(value, Tensor):
            setattr(holder, name, without_values(value))
        elif type(value).__module__ == "study.data.batches":
            strip(value)


def on_meta(run):
    """Return a state whose tensors have no values, and the batches of its first epoch."""
    state = TrainState(run, load(run.data, CPU), CPU)
    batches = state.epoch_batches(0)
    strip(batches)
    for module in state.network.modules():
        for tensors in (module._parameters, module._buffers):
            tensors.update({k: without_values(v) for k, v in tensors.items() if v is not None})
    state.optimizer = optim.build(run, state.network)
    for group in state.optimizer.param_groups:  # the fused kernel has no meta form; it is the framework's own
        group.update(fused=False, foreach=True)
    state.reader = LateReader()
    state.history = History(state.network, state.optimizer, LAG + 1)
    state._counts = without_values(state._counts)
    state.epoch_batches = lambda epoch: batches
    return state


@pytest.mark.parametrize(
    "settings",
    [
        ["norm=bn"],
        ["norm=none"],
        pytest.param(["norm=bn_noisy", "model.dropout=0.1"], marks=pytest.mark.slow),
        pytest.param(["norm=ghost", "norm.ghost_size=4"], marks=pytest.mark.slow),
    ],
    ids=lambda s: s[0],
)
def test_a_step_needs_no_value_and_no_tensor_of_the_host(settings):
    state = on_meta(compose([*SETTINGS, "batch_size=16", *settings]))
    with like_a_gpu():
        assert train(state, Events(stop_after=STEPS)) is Ending.STOPPED
    assert state.step == STEPS


@pytest.fixture(scope="module")
def waiting():
    return on_meta(compose([*SETTINGS, "batch_size=16", "norm=none"]))


@pytest.mark.parametrize(
    "bad",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.isfinite().all()),
        lambda x: x[x > 0],
        lambda x: x.tolist(),
        lambda x: x.nonzero(),
        lambda x: x.cpu(),
        lambda x: x * torch.ones(1),
        lambda x: x.index_select(0, torch.arange(2)),
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: x.new_tensor([1.0]),
        lambda x: torch.ones(3).to(x.device),
    ],
)
def test_the_check_finds_what_waits(monkeypatch, waiting, bad):
    monkeypatch.setattr(waiting, "count", lambda predicted: bad(predicted.double()))
    with like_a_gpu(), pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        train(waiting, Events(stop_after=STEPS))
    assert waiting.step == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("norm", ["bn", "none"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_gpu_is_never_waited_for_in_a_step(monkeypatch, norm, precision):
    """Two epochs; from the second step on, up to the end of each epoch, any synchronisation raises."""
    run = compose([*SETTINGS, "batch_size=16", f"norm={norm}", f"precision={precision}", "epochs=2"])
    batch, end = EpochBatches.batch, loop._end_epoch

    def strict(batches, step):
        torch.cuda.set_sync_debug_mode("error" if state.step else "default")
        return batch(batches, step)

    def reading_may_wait(*arguments):
        torch.cuda.set_sync_debug_mode("default")
        end(*arguments)

    monkeypatch.setattr(EpochBatches, "batch", strict)
    monkeypatch.setattr(loop, "_end_epoch", reading_may_wait)
    cuda = torch.device("cuda")
    events, state = Events(), TrainState(run, load(run.data, cuda), cuda)
    try:
        assert train(state, events) is Ending.COMPLETE
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert state.step == 2 * state.steps_per_epoch > 2 * STEPS
    monkeypatch.undo()
    on_cpu, there = Events(), dataclasses.replace(run, device="cpu")
    train(TrainState(there, load(run.data, CPU), CPU), on_cpu)
    first, expected = events.heard[0], on_cpu.heard[0]
    assert first["step"] == expected["step"] == 0
    assert first["loss"] == pytest.approx(expected["loss"], rel=1e-4 if precision == "fp32" else 0.05)

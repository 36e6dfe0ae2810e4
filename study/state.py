"""All that changes while a run trains: built from the config, saved to and loaded from a checkpoint."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from study import optim
from study.config import RunConfig
from study.data.base import ImageSet
from study.data.batches import EpochBatches, evaluation_batches
from study.models.base import Network, build_network, prepare
from study.monitor import Monitor, Reader, Tally
from study.rewind import History

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

EVALUATION_BATCH = 512
"""Images per evaluation batch; in eval mode no result depends on it."""


class NoProbes:
    """Stands where the probe engine does when nothing is measured."""

    retain_graph = False

    def step(self, step: int, epoch: int, images: Tensor, labels: Tensor) -> Any:
        """Return an empty context."""
        return contextlib.nullcontext()

    def moment(self, when: str, step: int, epoch: int, batch: Any = None) -> None:
        """Do nothing."""


def initial_network(run: RunConfig, image_set: ImageSet, device: torch.device) -> Network:
    """Return the network as it is before the first update: a function of config and data alone.

    Initialisations and norms that look at data are shown the training images, not augmented, in order.
    """
    shape = image_set.train.images.shape
    network = build_network(run, (shape[1], shape[2], shape[3]), image_set.n_classes)
    network.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def images() -> Iterator[Tensor]:
        train = image_set.train
        return (x for x, _ in evaluation_batches(train, image_set.mean, image_set.std, run.batch_size))

    prepare(network, run, images)
    return network


class TrainState:
    """Network, optimiser and progress of one run."""

    def __init__(self, run: RunConfig, image_set: ImageSet, device: torch.device) -> None:
        self.run, self.image_set, self.device = run, image_set, device
        self.network = initial_network(run, image_set, device)
        self.compiled = torch.compile(self.network) if run.compile else self.network
        self.optimizer = optim.build(run, self.network)
        self.scaler = torch.amp.GradScaler(device.type, enabled=run.precision == "fp16")
        self.steps_per_epoch = len(image_set.train) // run.batch_size
        self.evaluation_batch = EVALUATION_BATCH
        self.probes: Any = NoProbes()
        self.stateful = run.norm.noise or run.norm.source in ("running", "periodic") or run.model.dropout > 0
        """Whether a training pass depends on buffers (counters, averages): repeating one then needs them."""
        self.before: dict[str, Any] = {}
        """The network's buffers before the last training pass, where `stateful`."""
        self._buffers: list[Tensor] = []
        self.step = 0
        """Updates done."""
        self.losses: list[float] = []
        """Mean training loss of each finished epoch."""
        self.monitor = Monitor()
        self.reader = Reader(device)
        self.history = History(self.network, self.optimizer, self.reader.lag + 1)
        self.poisoned: list[tuple[str, int]] = []
        """(layer, step) of running statistics that a non-finite batch has reached."""
        self.start_tally()

    def forward(self, images: Tensor, network: nn.Module | None = None) -> Tensor:
        """Return the logits (N×classes) of standardised images (N×C×H×W), in the run's precision.

        `network` takes the place of the run's own (compiled) one.
        """
        dtype = DTYPES.get(self.run.precision)
        with torch.autocast(self.device.type, dtype, enabled=dtype is not None):
            logits: Tensor = (network or self.compiled)(images)
        return logits

    def remember(self) -> None:
        """Keep what it takes to come back to the pass that follows, and for `divergence` to repeat it."""
        if self.reader.lag:
            self.history.keep(self.step)
        if not self.stateful:
            return
        if not self.before:
            self.before = {name: b.detach().clone() for name, b in self.network.named_buffers()}
            self._buffers = list(self.network.buffers())
        else:
            torch._foreach_copy_(list(self.before.values()), self._buffers)

    def go_back(self, step: int) -> None:
        """Undo what came after the pass of `step`, whose loss was read late."""
        if self.reader.lag:
            self.before = self.history.go_back(step)
            self.step = step

    @contextlib.contextmanager
    def as_before(self) -> Iterator[None]:
        """Let the network's buffers be, inside, what they were before the last training pass."""
        own = {name: b for name, b in self.network.named_buffers() if name in self.before}
        after = {name: b.detach().clone() for name, b in own.items()}
        try:
            for name, b in own.items():
                b.copy_(self.before[name])
            yield
        finally:
            for name, b in own.items():
                b.copy_(after[name])

    def update(self) -> None:
        """Apply one step of the optimiser and forget the gradients."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def set_rate(self, lr: float) -> None:
        """Set the learning rate of every parameter group."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def epoch_batches(self, epoch: int) -> EpochBatches:
        """Return the training batches of one epoch: a pure function of (seed, epoch)."""
        return EpochBatches(self.run, self.image_set, epoch)

    def start_tally(self) -> None:
        """Begin the sums of a new epoch."""
        self.tally = Tally()
        self._counts = torch.zeros(self.image_set.n_classes, dtype=torch.int64, device=self.device)

    def count(self, predicted: Tensor) -> None:
        """Count predictions (N, int64) by class, on the device."""
        self._counts.scatter_add_(0, predicted, torch.ones_like(predicted))

    def take_counts(self) -> list[int]:
        """Return the epoch's predictions by class."""
        return [int(x) for x in self._counts.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values only, so that it loads with weights_only=True."""
        return {
            "step": self.step,
            "losses": list(self.losses),
            "monitor": self.monitor.state(),
            "tally": [self.tally.loss, self.tally.correct, self.tally.n],
            "counts": self._counts,
            "poisoned": [list(x) for x in self.poisoned],
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.step, self.losses = saved["step"], list(saved["losses"])
        self.monitor = Monitor(**saved["monitor"])
        self.tally = Tally(*saved["tally"])
        self._counts = saved["counts"].to(self.device)
        self.poisoned = [(layer, step) for layer, step in saved["poisoned"]]
        self.network.load_state_dict(saved["network"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scaler.load_state_dict(saved["scaler"])

"""Passes that a probe makes itself: other images, shifted weights, other cotangents.

Every pass starts from the state (buffers, generators, modes) in which the instrumented pass started, and
leaves no gradients.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from study.probes._capture import (
    Capture,
    Want,
    at_least_fp32,
    finite,
    forward,
    layer_of,
    own_pass,
    plain_weight,
)
from study.probes._state import NetworkState

if TYPE_CHECKING:
    from study.probes.base import ProbeEngine


class Replay:
    """Handed to `measure`."""

    def __init__(self, engine: "ProbeEngine", capture: Capture, before: NetworkState) -> None:
        self.engine, self.capture, self.before = engine, capture, before
        self.network, self.run = engine.network, engine.run
        self.parameters = list(self.network.parameters())
        self._saved: list[Tensor] | None = None

    def forward(
        self, wants: Sequence[Want] = (), images: Tensor | None = None, labels: Tensor | None = None
    ) -> Capture:
        """Make an instrumented pass in train mode, on the same batch unless `images` (N×C×H×W) are given."""
        here = self.capture
        if images is None:
            images, labels = here.images, here.labels
        elif labels is None:
            labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        capture = Capture(here.step, here.epoch, here.when, images, labels, self.network, self.run)
        self._start()
        own_pass(self.network, wants, capture, self.engine.scale())
        if capture.error:
            raise RuntimeError(capture.error)
        return capture

    def gradient(self, images: Tensor | None = None, labels: Tensor | None = None) -> list[Tensor]:
        """Return the gradient of the mean loss for every parameter, on the same batch or another."""
        return self.forward([Want("parameter_grads")], images, labels).parameter_grads

    def differentiable_gradient(self, images: Tensor, labels: Tensor) -> tuple[float, list[Tensor]]:
        """Return a batch's mean loss and its gradient for every parameter, itself with a graph.

        One pass; the graph lives as long as the gradient does.
        """
        self._start()
        with torch.enable_grad():
            logits = at_least_fp32(forward(self.network, images, self.run))
            loss = F.cross_entropy(logits, labels)
            gradient = torch.autograd.grad(
                loss, self.parameters, create_graph=True, allow_unused=True, materialize_grads=True
            )
        return float(loss.detach()), list(gradient)

    @contextlib.contextmanager
    def shifted(self, direction: Sequence[Tensor]) -> Iterator[Callable[[float], None]]:
        """Yield a function that sets all weights to w + factor·direction; w is back to the bit afterwards.

        Weights are written through `.data`, which leaves graphs built before usable.
        """
        data = [p.data for p in self.parameters]
        self._saved = saved = [w.clone() for w in data]

        def shift(factor: float) -> None:
            for w, w0, d in zip(data, saved, direction, strict=True):
                torch.add(w0, d, alpha=factor, out=w)

        try:
            yield shift
        finally:
            self.restore()

    @property
    def rate(self) -> float:
        """The learning rate of the next update: the optimiser's, or the run's first where there is none."""
        optimizer = self.engine.optimizer
        return float(self.run.lr if optimizer is None else optimizer.param_groups[0]["lr"])

    def update(self, lr: float = 0.0) -> list[Tensor]:
        """Return the change of every parameter by SGD's next update, at `lr` or the run's present rate."""
        grads, optimizer = self.capture.parameter_grads, self.engine.optimizer
        groups = optimizer.param_groups if optimizer is not None else _default_groups(self)
        found = {}
        grad_of = {id(p): g for p, g in zip(self.parameters, grads, strict=True)}
        for group in groups:
            for p in group["params"]:
                step = grad_of[id(p)] + group["weight_decay"] * p.detach()
                state = optimizer.state.get(p, {}) if optimizer is not None else {}
                buffer = state.get("momentum_buffer")
                if buffer is not None:
                    step = step + group["momentum"] * buffer
                found[id(p)] = -(lr or group["lr"]) * step
        return [found[id(p)] for p in self.parameters]

    def vjp(self, layers: Sequence[str], cotangents: Tensor) -> dict[str, Tensor]:
        """Return Σ cotangent·∂logits/∂weight for each cotangent (K×N×classes), as {layer: K×weight's shape}.

        Each product stops at the first of the layers. The instrumented pass's graph serves where it is there
        (Want "graph"; in a training step, if the loop kept it), otherwise one more forward pass is made.
        """
        graph = self.capture.graph
        if graph is None or not self.engine.graph_kept:
            graph = self.forward([Want("graph", x) for x in layers]).graph
        if graph is None:
            raise RuntimeError("the pass left no graph")
        logits, edges = graph
        owners = [x for x in layers for _ in edges[x]]
        targets = [e for x in layers for e in edges[x]]
        sums: dict[str, list[Tensor]] = {x: [] for x in layers}
        scale = self.engine.scale()  # as in training: small cotangents would vanish in fp16
        for cotangent in cotangents:
            if not cotangent.any():  # the product is 0, whatever the network's values: 0·∞ shall not be NaN
                for x in layers:
                    sums[x].append(torch.zeros_like(plain_weight(layer_of(self.network, x))))
                continue

            def product(s: float, cotangent: Tensor = cotangent) -> Sequence[Tensor]:
                scaled = (cotangent * s).to(logits.dtype)
                return torch.autograd.grad(logits, targets, scaled, retain_graph=True)

            grads, factor = finite(product, scale)
            for x in layers:
                calls = [g for owner, g in zip(owners, grads, strict=True) if owner == x]
                sums[x].append(torch.stack(calls).sum(0) / factor)
        return {x: torch.stack(kernels) for x, kernels in sums.items()}

    def training_images(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the first n training images (all, if there are fewer), standardised, and their labels."""
        return self.engine.training_images(n)

    def loss(self) -> float:
        """Return the batch's mean loss with the weights as they are, by one forward pass."""
        self._start()
        with torch.no_grad():
            logits = at_least_fp32(forward(self.network, self.capture.images, self.run))
            return float(F.cross_entropy(logits, self.capture.labels))

    def restore(self) -> None:
        """Put shifted weights back."""
        if self._saved is not None:
            for p, w in zip(self.parameters, self._saved, strict=True):
                p.data.copy_(w)
            self._saved = None

    def _start(self) -> None:
        self.before.restore()
        self.network.train()


def _default_groups(replay: Replay) -> list[dict[str, Any]]:
    run = replay.run
    return [{"params": replay.parameters, "weight_decay": run.weight_decay, "lr": run.lr, "momentum": 0.0}]

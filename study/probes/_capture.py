"""One instrumented pass: what the probes asked for, taken before anything downstream can change it.

Values are copied, or reduced, inside the forward hook of the layer itself; gradients come from the autograd
edge that the output had then. A module that is called twice gives two values, in the order of the calls.
"""

import contextlib
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.nn.utils import parametrize

from study.config import RunConfig
from study.models.base import Layer, Network
from study.probes._histogram import histogram
from study.probes._moments import first_two, moments

GRADIENTS = ("output_grad", "weight_grad")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

What = Literal["input", "output", "site", "output_grad", "weight_grad", "parameter_grads", "graph"]


class Want(NamedTuple):
    """One thing a probe needs of the instrumented pass."""

    what: What
    """input, output: of the layer itself, before any norm; site: the output of what stands at the layer's
    site, its norm included; output_grad, weight_grad: true gradients (unscaled) of the batch's mean loss;
    parameter_grads: of every parameter; graph: the pass stays differentiable for Replay.vjp."""
    layer: str = ""
    """Name of the layer; "" for parameter_grads and graph."""
    reduce: str = "raw"
    """raw copies the tensor; "moments", "first_two" and "histogram" reduce it inside the hook."""


REDUCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "raw": lambda x: x.detach().clone(),
    "moments": moments,
    "first_two": first_two,
    "histogram": histogram,
}


class Capture:
    """What one pass showed. `images` N×C×H×W, `labels` N, `logits` N×classes (fp32)."""

    def __init__(
        self,
        step: int,
        epoch: int,
        when: str,
        images: Tensor,
        labels: Tensor,
        network: Network,
        run: RunConfig,
    ) -> None:
        self.step, self.epoch, self.when = step, epoch, when
        self.images, self.labels, self.network, self.run = images, labels, network, run
        self.options = run.probes
        self.logits = torch.empty(0)
        self.parameter_grads: list[Tensor] = []
        """Of network.parameters(), in that order (zeros for one the loss does not reach)."""
        self.live_logits: Tensor | None = None
        """The pass's own logits, while it is differentiable."""
        self.graph: tuple[Tensor, dict[str, list[GradientEdge]]] | None = None
        self.handles: list[Any] = []
        """Hooks on tensors, which later products through a kept graph must not call."""
        self.error = ""
        """Traceback of a hook that failed."""
        self.values: dict[Want, list[Any]] = defaultdict(list)
        self.edges: dict[Want, list[GradientEdge]] = defaultdict(list)

    def get(self, what: What, layer: str, reduce: str = "raw") -> list[Any]:
        """Return what was captured at a layer, one value per call of its module."""
        return self.values[Want(what, layer, reduce)]

    def weight_grad(self, layer: str) -> Tensor:
        """Return the gradient of a layer's (effective) weight, all calls together."""
        return cast(Tensor, sum(self.get("weight_grad", layer)))

    def pairs(self, layer: str) -> list[tuple[Tensor, Tensor]]:
        """Return (input, output gradient) of every call of a layer, fp32 or better."""
        inputs, grads = self.get("input", layer), self.get("output_grad", layer)
        return [(at_least_fp32(i), at_least_fp32(g)) for i, g in zip(inputs, grads, strict=True)]

    def loss(self) -> Tensor:
        """Return the batch's mean cross-entropy, nats."""
        return F.cross_entropy(self.logits, self.labels)

    def logit_grads(self) -> Tensor:
        """Return ∂L/∂logits, N×classes."""
        with torch.enable_grad():
            logits = self.logits.detach().requires_grad_()
            loss = F.cross_entropy(logits, self.labels)
            return torch.autograd.grad(loss, logits)[0]

    def finish_step(self, wants: Sequence[Want], scale: float) -> None:
        """Take the gradients that the training step's own backward pass left, without the loss's factor."""
        if self.live_logits is not None and any(w.what == "graph" for w in wants):
            self.graph = (self.live_logits, _weight_edges(self.network, wants, self))
        self.live_logits = None
        for values in (v for w, v in self.values.items() if w.what in GRADIENTS):
            values[:] = [_unscaled(v, scale) for v in values]
        for want in wants:
            if want.what == "weight_grad" and not self.values[want]:
                grad = plain_weight(layer_of(self.network, want.layer)).grad
                self.values[want] = [] if grad is None else [_unscaled(grad, scale)]
            elif want.what == "parameter_grads":
                self.parameter_grads = [
                    torch.zeros_like(p) if p.grad is None else _unscaled(p.grad, scale)
                    for p in self.network.parameters()
                ]

    def drop_graph(self) -> None:
        """Free the pass's graph."""
        self.graph = self.live_logits = None


def own_pass(network: Network, wants: Sequence[Want], capture: Capture, scale: float = 1.0) -> None:
    """Run the instrumented pass on the capture's batch; `.grad` of the parameters is not touched.

    Only as much of the backward pass is done as the wants need.
    """
    kinds = {w.what for w in wants}
    gradients = kinds & {"output_grad", "weight_grad", "parameter_grads"}
    with torch.set_grad_enabled(bool(gradients) or "graph" in kinds):
        with instrumented(network, wants, capture, edges=True):
            logits = forward(network, capture.images, capture.run)
        if gradients and not capture.error:
            loss = F.cross_entropy(at_least_fp32(logits), capture.labels)
            _take_gradients(loss, network, wants, capture, scale)
        capture.live_logits = None
        if "graph" in kinds:
            capture.graph = (logits, _weight_edges(network, wants, capture))


def forward(network: nn.Module, images: Tensor, run: RunConfig) -> Tensor:
    """Return logits, under the run's autocast."""
    dtype = DTYPES.get(run.precision)
    if dtype is None:
        return cast(Tensor, network(images))
    with torch.autocast(images.device.type, dtype):
        return cast(Tensor, network(images))


@contextlib.contextmanager
def instrumented(
    network: Network, wants: Sequence[Want], capture: Capture, *, edges: bool = False
) -> Iterator[None]:
    """Hook the network for the passes inside; no hook is left behind, whatever happens.

    With `edges`, gradients are to be asked for with autograd.grad; otherwise they are taken as a backward
    pass comes by.
    """
    handles: list[Any] = [network.register_forward_hook(_logits_hook(capture))]
    try:
        by_layer: dict[str, list[Want]] = defaultdict(list)
        for want in wants:
            by_layer[want.layer].append(want)
        for layer in network.layers:
            handles += _layer_hooks(layer, by_layer[layer.name], capture, edges)
        yield
    finally:
        for handle in handles + capture.handles:
            handle.remove()
        capture.handles.clear()


def layer_of(network: Network, name: str) -> Layer:
    """Return a layer by name."""
    return next(layer for layer in network.layers if layer.name == name)


def _layer_hooks(layer: Layer, wants: list[Want], capture: Capture, edges: bool) -> list[Any]:
    at_layer = [w for w in wants if w.what in ("input", "output", "output_grad")]
    at_site = [w for w in wants if w.what == "site"]
    at_weight = [w for w in wants if w.what in ("weight_grad", "graph")]
    handles = []
    if at_layer:
        handles.append(layer.module.register_forward_hook(_hook(at_layer, capture, edges)))
    if at_site:
        handles.append(layer.at_site.register_forward_hook(_hook(at_site, capture, edges)))
    if at_weight and parametrize.is_parametrized(layer.module, "weight"):
        computed = cast(Any, layer.module).parametrizations["weight"]
        handles.append(computed.register_forward_hook(_hook(at_weight, capture, edges)))
    return handles


def _hook(wants: list[Want], capture: Capture, edges: bool) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if capture.error:
            return
        try:
            for want in wants:
                _take(want, inputs, output, capture, edges)
        except Exception:  # nothing that is measured may stop the pass that it watches
            capture.error = traceback.format_exc()

    return hook


def _take(want: Want, inputs: tuple[Any, ...], output: Tensor, capture: Capture, edges: bool) -> None:
    if want.what in ("input", "output", "site"):
        value = inputs[0] if want.what == "input" else output
        with torch.no_grad():
            capture.values[want].append(REDUCTIONS[want.reduce](value))
    elif output.requires_grad and (edges or want.what == "graph"):
        capture.edges[want].append(get_gradient_edge(output))
    elif output.requires_grad:
        values, call = capture.values[want], len(capture.values[want])
        values.append(torch.zeros_like(output, requires_grad=False))

        def take_gradient(grad: Tensor) -> None:
            values[call] = grad.detach()

        handle = output.register_hook(take_gradient)  # type: ignore[no-untyped-call]
        capture.handles.append(handle)


def _logits_hook(capture: Capture) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        capture.logits = at_least_fp32(output.detach())
        capture.live_logits = output

    return hook


def _take_gradients(
    loss: Tensor, network: Network, wants: Sequence[Want], capture: Capture, scale: float
) -> None:
    targets: list[GradientEdge] = []
    owners: list[tuple[Want, int]] = []
    weight_edges = {
        w: capture.edges[w] or [get_gradient_edge(plain_weight(layer_of(network, w.layer)))]
        for w in wants
        if w.what == "weight_grad"
    }
    for want in wants:
        found: Sequence[Any] = ()
        if want.what == "output_grad":
            found = capture.edges[want]
        elif want.what == "weight_grad":
            found = weight_edges[want]
        elif want.what == "parameter_grads":
            found = [get_gradient_edge(p) for p in network.parameters()]
        targets += found
        owners += [(want, i) for i in range(len(found))]
    keep = any(w.what == "graph" for w in wants)

    def scaled(s: float) -> Sequence[Tensor]:
        return torch.autograd.grad(
            loss * s, targets, retain_graph=keep or s > 1, allow_unused=True, materialize_grads=True
        )

    grads, scale = finite(scaled, scale)
    for (want, _), grad in zip(owners, grads, strict=True):
        destination = capture.parameter_grads if want.what == "parameter_grads" else capture.values[want]
        destination.append(_unscaled(grad, scale))


def finite(scaled: Callable[[float], Sequence[Tensor]], scale: float) -> tuple[Sequence[Tensor], float]:
    """Return gradients of a loss times `scale` and that factor, lowered to 1 until half precision holds them.

    In training the scaler skips the step and lowers its factor; what is measured shall not wait for that.
    """
    grads = scaled(scale)
    while scale > 1 and not all(bool(g.isfinite().all()) for g in grads):
        scale = max(1.0, scale / 16)
        grads = scaled(scale)
    return grads, scale


def _weight_edges(network: Network, wants: Sequence[Want], capture: Capture) -> dict[str, list[GradientEdge]]:
    found = {}
    for want in (w for w in wants if w.what == "graph"):
        plain = plain_weight(layer_of(network, want.layer))
        found[want.layer] = capture.edges[want] or [get_gradient_edge(plain)]
    return found


def plain_weight(layer: Layer) -> Tensor:
    """Return a layer's weight as it is used: behind a parametrisation, the computed one."""
    return cast(Tensor, layer.module.weight)


def _unscaled(grad: Tensor, scale: float) -> Tensor:
    """Divide in fp32 or better: in half precision, what the factor has saved would be lost again."""
    return grad.detach() if scale == 1.0 else at_least_fp32(grad.detach()) / scale


def at_least_fp32(x: Tensor) -> Tensor:
    """Return half-precision values as fp32."""
    return x if x.dtype == torch.float64 else x.float()

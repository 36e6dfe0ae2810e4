"""How far a batch's gradient is from the whole subset's (Bjorck et al. 2018, §2.1 and App. D).

On a fixed subset of N training images (the first, not augmented, standardised), with g its gradient:
E‖g_B − g‖² against the batch size b, C = E‖∇ℓᵢ − ∇ℓ‖², and App. D's bound C/b (times α² for a step α). Laws:

without_replacement  a shuffled loader's batch: (N − b)/(b(N − 1))·C
independent          the derivation's: every image is in with probability b/N, the sum is divided by b, and
                     the centred terms ∇ℓᵢ − ∇ℓ are summed: (N − b)/(bN)·C

Estimands: `image` where images do not influence each other (found out by trying): ∇ℓᵢ is the gradient of
image i's own loss. `batch_statistics` where they do (train-mode BN): every batch has its own statistics and
g is the gradient of the subset as one batch, so that C, taken from batches of the smallest size, and the
predictions are what the law would be if the bias were none.
"""

from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from study.config import ProbesConfig
from study.errors import ConfigError, StudyError
from study.models.base import Network
from study.probes._capture import Capture, Want
from study.probes._replay import Replay
from study.seeding import generator

SCHEDULE = "init"
PASSES = (
    "forward and backward on the whole subset, on all of it in batches of the smallest size, and on at most "
    "probes.noise_draws batches for every other size and law; before, two forward passes on two images and, "
    "where they do not influence each other, a forward and backward pass on one"
)
SCHEMA = pa.schema(
    [
        ("estimand", pa.string()),  # image or batch_statistics
        ("law", pa.string()),  # without_replacement or independent
        ("batch_size", pa.int32()),
        ("subset", pa.int32()),
        ("draws", pa.int32()),
        ("measured", pa.float64()),  # mean ‖g_B − g‖² over the draws; null if none was drawn
        ("standard_error", pa.float64()),  # of that mean, draws taken as independent
        ("predicted", pa.float64()),
        ("bound", pa.float64()),  # C/b: App. D's α²C/|B| for a step α = 1; the law times α² for any other
        ("c", pa.float64()),  # C
        ("gradient_norm2", pa.float64()),  # ‖g‖²
        ("bias2", pa.float64()),  # ‖mean of g_B − g‖² of the smallest batches; 0 for `image`
        ("nonfinite", pa.int64()),  # draws whose distance is NaN or ±∞; they make `measured` so
    ]
)


def captures(network: Network, options: ProbesConfig) -> list[Want]:
    """Nothing of the instrumented pass."""
    return []


def measure(capture: Capture, replay: Replay) -> list[dict[str, Any]]:
    """One row per law and batch size."""
    options = capture.options
    images, labels = replay.training_images(options.noise_subset)
    n = len(images)
    coupled = images_are_coupled(replay, images)
    least = 2 if coupled or not single_images_are_possible(replay, images, labels) else 1
    sizes = sorted({max(b, least) for b in options.noise_batches if max(b, least) < n})
    if not sizes:
        few = ", where batches of two are the smallest" if least > 1 else ""
        raise ConfigError(f"probes.noise_batches: none is below the {n} images there are{few}")
    draw = generator(capture.run.seed, "gradient noise")
    subset = _Subset(replay, images, labels)
    smallest = subset.without_replacement(sizes[0], n, draw)
    c = smallest.mean() * sizes[0] * (n - 1) / (n - sizes[0])
    common = {
        "estimand": "batch_statistics" if coupled else "image",
        "subset": n,
        "c": float(c),
        "gradient_norm2": _norm2(subset.gradient),
        "bias2": subset.bias2,
    }
    rows = []
    for b in sizes:
        found = smallest if b == sizes[0] else subset.without_replacement(b, options.noise_draws, draw)
        predicted = float(c) * (n - b) / (b * (n - 1))
        rows.append({**common, **_row("without_replacement", b, found, predicted, float(c))})
        found = subset.independent(b, options.noise_draws, draw, least=least)
        rows.append({**common, **_row("independent", b, found, float(c) * (n - b) / (b * n), float(c))})
    return rows


class _Subset:
    """Squared distances of batch gradients from the subset's."""

    def __init__(self, replay: Replay, images: Tensor, labels: Tensor) -> None:
        self.replay, self.images, self.labels = replay, images, labels
        self.gradient = replay.gradient(images, labels)
        self.bias2 = 0.0

    def without_replacement(self, b: int, draws: int, draw: torch.Generator) -> Tensor:
        """Return ‖g_B − g‖² of at most `draws` disjoint batches of b images; also takes the bias if whole."""
        order = torch.randperm(len(self.images), generator=draw)
        batches = order[: len(order) // b * b].view(-1, b)[:draws]
        total = [torch.zeros_like(g, dtype=torch.float64) for g in self.gradient]
        found = []
        for batch in batches:
            difference = self._difference(batch)
            found.append(_norm2(difference))
            for t, d in zip(total, difference, strict=True):
                t += d
        if b * len(batches) == len(order):
            self.bias2 = max(self.bias2, _norm2([t / len(batches) for t in total]))
        return torch.tensor(found, dtype=torch.float64)

    def independent(self, b: int, draws: int, draw: torch.Generator, least: int) -> Tensor:
        """Return the same for independent inclusion: (k/b)²‖g_B − g‖² with k images in; draws with fewer than
        `least` images but more than none are drawn again."""
        n = len(self.images)
        found: list[float] = []
        while len(found) < draws:
            batch = (torch.rand(n, generator=draw) < b / n).nonzero()[:, 0]
            if len(batch) == 0:
                found.append(0.0)
            elif len(batch) >= least:
                found.append((len(batch) / b) ** 2 * _norm2(self._difference(batch)))
        return torch.tensor(found, dtype=torch.float64)

    def _difference(self, batch: Tensor) -> list[Tensor]:
        here = batch.to(self.images.device)
        gradient = self.replay.gradient(self.images[here], self.labels[here])
        return [a - b for a, b in zip(gradient, self.gradient, strict=True)]


def images_are_coupled(replay: Replay, images: Tensor) -> bool:
    """Whether an image's logits depend on its company: the first image beside the second, and the third."""
    one = replay.forward((), images[[0, 1]]).logits[0]
    other = replay.forward((), images[[0, 2 if len(images) > 2 else 0]]).logits[0]
    return bool(((one - other).abs() > 1e-3 * one.abs().max()).any())


def single_images_are_possible(replay: Replay, images: Tensor, labels: Tensor) -> bool:
    """Whether the network takes a batch of one in train mode; some norms refuse a single value."""
    try:
        replay.gradient(images[:1], labels[:1])
    except StudyError:
        return False
    return True


def _row(law: str, b: int, found: Tensor, predicted: float, c: float) -> dict[str, Any]:
    spread = float(found.std() / len(found) ** 0.5) if len(found) > 1 else None
    return {
        "law": law,
        "batch_size": b,
        "draws": len(found),
        "measured": float(found.mean()) if len(found) else None,
        "standard_error": spread,
        "predicted": predicted,
        "bound": c / b,
        "nonfinite": int((~found.isfinite()).sum()),
    }


def _norm2(tensors: list[Tensor]) -> float:
    return float(sum(t.double().square().sum() for t in tensors))

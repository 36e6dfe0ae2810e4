"""Sharpness: the largest eigenvalues of the loss's Hessian on a fixed subset of the training images.

What Bjorck et al. 2018 (arXiv 1806.02375, §2.1) say of large rates and SGD's noise, that they lead to flatter
minima, can be tested with it. By Lanczos iterations (scipy's ARPACK) on Hessian–vector products, from a fixed
start vector; the Hessian is that of the mean cross-entropy with respect to all parameters, in train mode, the
subset as one batch, so that with batch normalisation its statistics are the subset's own. Weight decay is not
part of the loss. Where ReLUs switch the loss has no curvature; between switches the Hessian is exact.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from study.config import ProbesConfig
from study.models.base import Network
from study.probes._capture import Capture, Want
from study.probes._replay import Replay

Floats = NDArray[np.float64]

SCHEDULE = "final"
PASSES = (
    "one forward and backward pass on probes.sharpness_images images, kept differentiable, and one backward "
    "pass through both for each Lanczos iteration, some ten to a hundred"
)
SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),  # 1 is the largest
        ("eigenvalue", pa.float64()),  # nats a unit of weight squared; null if it did not converge
        ("images", pa.int32()),
        ("loss", pa.float64()),  # mean cross-entropy on them, nats
        ("gradient_norm", pa.float64()),  # of that loss
        ("products", pa.int32()),  # Hessian–vector products taken
        ("nonfinite", pa.int64()),  # entries of the gradient that are NaN or ∞: then nothing is iterated
    ]
)

TOLERANCE = 1e-2
"""Of ‖Hv − λv‖ relative to λ; the eigenvalue's own error is about its square. Subsets differ far more."""
MOST_RESTARTS = 30


def captures(network: Network, options: ProbesConfig) -> list[Want]:
    """Nothing of the instrumented pass."""
    return []


def measure(capture: Capture, replay: Replay) -> list[dict[str, Any]]:
    """One row per eigenvalue."""
    options = capture.options
    images, labels = replay.training_images(options.sharpness_images)
    loss, gradient = replay.differentiable_gradient(images, labels)
    flat = _flat(gradient).detach()
    bad = int((~flat.isfinite()).sum())
    k = min(options.sharpness_values, len(flat) - 1)
    hessian = _Hessian(gradient, replay.parameters)
    found = [math.nan] * k if bad else hessian.largest(k)
    common = {
        "images": len(images),
        "loss": loss,
        "gradient_norm": float(flat.double().norm()),
        "products": hessian.products,
        "nonfinite": bad,
    }
    return [{"rank": i, "eigenvalue": None if math.isnan(x) else x, **common} for i, x in enumerate(found, 1)]


class _Hessian:
    """Products with the derivative of a differentiable gradient, counted."""

    def __init__(self, gradient: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        self.gradient, self.parameters, self.products = gradient, parameters, 0
        self.sizes = [p.numel() for p in parameters]

    def times(self, vector: Floats) -> Floats:
        """Return H·v, (parameters,)."""
        self.products += 1
        first = self.parameters[0]
        flat = torch.as_tensor(vector.ravel(), dtype=first.dtype, device=first.device)
        pieces = torch.split(flat, self.sizes)
        with torch.enable_grad():
            product = torch.autograd.grad(
                self.gradient,
                self.parameters,
                [v.view(p.shape) for v, p in zip(pieces, self.parameters, strict=True)],
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        found: Floats = _flat(product).double().cpu().numpy()
        return found

    def largest(self, k: int) -> list[float]:
        """Return the k algebraically largest eigenvalues, descending; NaN for those not found in time."""
        n = sum(self.sizes)
        start = np.random.default_rng(0).standard_normal(n)
        operator = LinearOperator((n, n), matvec=self.times, dtype=np.float64)
        options: dict[str, Any] = {"which": "LA", "v0": start, "tol": TOLERANCE, "maxiter": MOST_RESTARTS}
        values: Any
        try:
            values = eigsh(operator, k, return_eigenvectors=False, **options)
        except ArpackNoConvergence as error:
            values = error.eigenvalues
        except ArpackError:
            if self.times(start).any():
                raise
            return [0.0] * k  # a loss without curvature, as of a single class
        found = sorted(map(float, values), reverse=True)
        return found + [math.nan] * (k - len(found))


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])

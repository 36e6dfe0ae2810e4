"""Every probe against a slow, obvious twin in double precision: loops over images, positions, classes."""

import contextlib
import dataclasses
import functools
import itertools
import math
from typing import Any

import diptest
import numpy as np
import powerlaw
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from study.config import ProbesConfig
from study.data.batches import noise_batch
from study.models.base import Network
from study.optim import build as build_optimizer
from study.probes import _histogram
from study.probes._layers import layer_at
from tests import probing

NORMS = ("none", "bn", "ln")
OPTIONS = ProbesConfig(
    agreement_layers=(54,),
    pair_layers=(54, 90),
    tail_layers=(90,),
    class_layers=(52,),
    class_by=("logit", "label"),
    example_layers=(90,),
    example_weights=5,
    path_layers=(8, 80),
    path_points=3,
    alphas=(1e-4, 10.0),
    alpha_points=6,
    noise_subset=6,
    noise_batches=(2, 3),
    noise_draws=60,
    measure=(
        *(f"{p}@first:1" for p in probing.PROBES if p not in ("gradient_noise", "sharpness")),
        "gradient_noise@init",
    ),
)
RTOL = 1e-6


@dataclasses.dataclass
class Case:
    """One pass in double precision, and what the probes said of it."""

    network: Network
    images: Tensor
    labels: Tensor
    trace: probing.Trace
    sets: Any
    run: Any

    def rows(self, probe: str) -> list[dict[str, Any]]:
        return self.trace.rows(probe)

    def layer(self, number: int) -> Any:
        return layer_at(self.network, number)


@functools.cache
def case(norm: str) -> Case:
    run = probing.config(norm=norm, probes=OPTIONS)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, dropout=0.0))
    sets = probing.image_set()
    network = probing.network_of(run, sets).double()
    for p in network.parameters():  # away from the symmetric start: γ = 1, β = 0, biases 0
        p.data += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3), dtype=p.dtype)
    trace = probing.Trace()
    engine = probing.engine_of(run, network, sets, trace)
    images, labels = engine.probe_batch()
    images, labels = images.double()[:4], labels[:4]
    with engine.step(0, 0, images, labels):
        F.cross_entropy(network(images), labels).backward()
    network.zero_grad()
    engine.training_images = (
        lambda n: (  # type: ignore[method-assign]
            probing.engine_of(run, network, sets, trace).probe_batch()[0].double()[:n],
            sets.train.labels[:n],
        )
    )
    engine.moment("init", 0, 0)
    assert trace.failures == []
    return Case(network, images, labels, trace, sets, run)


def plain_run(norm: str, probes: ProbesConfig, **fields: Any) -> Any:
    """Return a tiny run without dropout."""
    run = probing.config(norm=norm, probes=probes, **fields)
    return dataclasses.replace(run, model=dataclasses.replace(run.model, dropout=0.0))


def observed(c: Case, module: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """Return input, output and ∂L/∂output of a module, by retaining the gradient."""
    kept: list[Tensor] = []

    def hook(m: nn.Module, i: tuple[Tensor], o: Tensor) -> None:
        o.retain_grad()
        kept.extend([i[0], o])

    handle = module.register_forward_hook(hook)
    loss(c).backward()
    handle.remove()
    c.network.zero_grad()
    assert kept[1].grad is not None
    return kept[0].detach(), kept[1].detach(), kept[1].grad


def loss(c: Case) -> Tensor:
    return F.cross_entropy(c.network(c.images), c.labels)


def terms(conv: nn.Conv2d, x: Tensor, grad: Tensor) -> Tensor:
    """Return every d = ∂L/∂O·I as images × out × in × kernel × kernel × positions, by plain loops."""
    k, s = conv.kernel_size[0], conv.stride[0]
    padded = F.pad(x, [k // 2] * 4)
    n, out, height, width = grad.shape
    d = torch.zeros(n, out, x.shape[1], k, k, height, width, dtype=x.dtype)
    for b, u, v, y, z in itertools.product(range(n), range(k), range(k), range(height), range(width)):
        d[b, :, :, u, v, y, z] = grad[b, :, y, z, None] * padded[b, None, :, y * s + u, z * s + v]
    return d.flatten(5)


def close(found: Any, expected: Any, rtol: float = RTOL, atol: float = 1e-12) -> None:
    torch.testing.assert_close(
        torch.as_tensor(found, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64).cpu(),
        rtol=rtol,
        atol=atol,
        equal_nan=True,
    )


@pytest.mark.parametrize("norm", NORMS)
def test_activation_moments(norm: str) -> None:
    c = case(norm)
    for row in c.rows("activation_moments"):
        if row["layer"] not in ("stem", "block2.conv1", "block3.shortcut", "classifier"):
            continue
        module = next(x.module for x in c.network.layers if x.name == row["layer"])
        x = observed(c, module)[0 if row["side"] == "input" else 1]
        for channel in range(x.shape[1]):
            values = x[:, channel].flatten().numpy()
            mean = sum(values) / len(values)
            central = [sum((v - mean) ** p for v in values) / len(values) for p in (2, 3, 4)]
            close(row["mean"][channel], mean, atol=1e-9)
            close(row["variance"][channel], central[0])
            if central[0] > 1e-20:
                close(row["skewness"][channel], central[1] / central[0] ** 1.5, rtol=1e-5, atol=1e-9)
                close(row["kurtosis"][channel], central[2] / central[0] ** 2, rtol=1e-5)
            close(row["zeros"][channel], sum(v == 0 for v in values) / len(values))
            assert row["nonfinite"][channel] == 0
            assert row["n"] == len(values)


@pytest.mark.parametrize("norm", NORMS)
def test_activation_moments_of_noise(norm: str) -> None:
    measure = ("activation_moments@init", "activation_moments@first:1")
    run, sets = plain_run(norm, ProbesConfig(measure=measure, noise_images=5)), probing.image_set()
    network, trace = probing.network_of(run, sets).double(), probing.Trace()
    engine = probing.engine_of(run, network, sets, trace)
    images, labels = (x.double() if x.is_floating_point() else x for x in engine.probe_batch())
    engine.training_images = lambda n: (images[:n], labels[:n])  # type: ignore[method-assign]
    engine.moment("init", 0, 0)
    with engine.step(0, 0, images, labels):
        F.cross_entropy(network(images), labels).backward()
    assert trace.failures == []
    rows = [r for r in trace.rows("activation_moments") if r["source"] == "noise"]
    assert {r["when"] for r in rows} == {"init"}
    assert len(rows) == 2 * len(network.layers)
    seen: dict[tuple[str, str], Tensor] = {}
    for layer in network.layers:

        def hook(m: nn.Module, i: tuple[Tensor], o: Tensor, name: str = layer.name) -> None:
            seen[name, "input"], seen[name, "output"] = i[0].detach(), o.detach()

        layer.module.register_forward_hook(hook)
    network(noise_batch(torch.zeros(5, *images.shape[1:], dtype=torch.float64), run.seed, 0))
    for row in rows:
        channels = seen[row["layer"], row["side"]].transpose(0, 1).flatten(1)
        assert row["n"] == channels.shape[1]
        close(row["mean"], channels.mean(1), atol=1e-9)
        close(row["variance"], channels.var(1, correction=0))
        close(row["zeros"], (channels == 0).double().mean(1))


@pytest.mark.parametrize("norm", NORMS)
def test_activation_histogram(norm: str) -> None:
    c = case(norm)
    edges = _histogram.edges()
    sides = {(r["layer"], r["side"]) for r in c.rows("activation_histogram")}
    assert (("stem", "site") in sides) == (norm != "none")
    for row in c.rows("activation_histogram"):
        if row["layer"] not in ("stem", "block3.conv1", "classifier"):
            continue
        layer = next(x.module for x in c.network.layers if x.name == row["layer"])
        module = layer if row["side"] == "output" else whole_site(c, layer)
        values = observed(c, module)[1].float().flatten().tolist()
        counts = [0] * len(row["counts"])
        for v in values:
            below = sum(e <= v for e in edges) if v >= 0 else sum(e < v for e in edges)
            counts[below] += 1
        assert row["counts"] == counts
        assert row["zeros"] == sum(v == 0 for v in values)
        drawn = _histogram.histogram(observed(c, module)[1]).sample.double().numpy()
        assert set(drawn.tolist()) <= set(values)
        assert (row["dip"], row["unimodal_p"]) == diptest.diptest(drawn)
    last = [r for r in c.rows("activation_histogram") if r["percentiles"] is not None]
    assert len(last) == 1
    assert (last[0]["layer"], last[0]["side"]) == ("block3.conv2", "output" if norm == "none" else "site")
    layer = next(x.module for x in c.network.layers if x.name == "block3.conv2")
    units = observed(c, whole_site(c, layer))[1].transpose(0, 1).flatten(1)
    assert len(last[0]["percentiles"]) == min(len(units), c.run.probes.unit_channels)
    for found, unit in zip(last[0]["percentiles"], units, strict=False):
        close(found, np.quantile(unit.numpy(), [0.15, 0.5, 0.85]))


def whole_site(c: Case, layer: nn.Module) -> nn.Module:
    """Return what a layer and its norm make up, by the module's name."""
    (name,) = [name for name, module in c.network.named_modules() if module is layer]
    return c.network.get_submodule(name.removesuffix(".layer"))


def test_dip_statistic_of_known_samples() -> None:
    even = np.arange(50.0)
    assert diptest.dipstat(even) <= 1 / 100
    two = np.array([0.0] * 50 + [1.0] * 50)
    assert diptest.dipstat(two + 1e-9 * np.arange(100)) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("norm", NORMS)
def test_gradient_agreement(norm: str) -> None:
    c = case(norm)
    (row,) = c.rows("gradient_agreement")
    module = c.layer(54).module
    x, _, grad = observed(c, module)
    d = terms(module, x, grad)
    close(row["sum_abs"], d.abs().sum((0, 5)).flatten(), rtol=1e-5)
    close(row["gradient"], d.sum((0, 5)).flatten(), rtol=1e-4, atol=1e-9)
    close(row["image_abs"], d.sum(5).abs().sum(0).flatten(), rtol=1e-5, atol=1e-9)
    a, b = d.abs().sum((0, 5)).mean(), d.sum((0, 5)).abs().mean()
    close(row["a"], a)
    close(row["b"], b)
    close(row["ratio"], a / b)
    close(row["image_ratio"], d.sum(5).abs().sum(0).mean() / b)
    loss(c).backward()
    close(row["gradient"], module.weight.grad.flatten(), rtol=1e-4, atol=1e-9)
    c.network.zero_grad()


@pytest.mark.parametrize("norm", NORMS)
def test_channel_pairs(norm: str) -> None:
    c = case(norm)
    for row, number in zip(c.rows("channel_pairs"), (54, 90), strict=True):
        module = c.layer(number).module
        x, _, _ = observed(c, module)
        loss(c).backward()
        gradient = module.weight.grad
        c.network.zero_grad()
        expected = [[float(g.abs().mean()) for g in out] for out in gradient]
        close(row["mean_abs"], torch.tensor(expected, dtype=torch.float64).flatten())
        close(row["input_mean"], [float(x[:, i].mean()) for i in range(x.shape[1])], atol=1e-9)
        dead = [sum(v == 0 for v in x[:, i].flatten().tolist()) for i in range(x.shape[1])]
        close(row["input_zeros"], [n * x.shape[1] / x.numel() for n in dead])
        values = np.linalg.svd(np.array(expected), compute_uv=False)
        close(row["top_share"], values[0] / values.sum())


@pytest.mark.parametrize("norm", NORMS)
def test_logit_gradients(norm: str) -> None:
    c = case(norm)
    (row,) = c.rows("logit_gradients")
    with torch.no_grad():
        logits = c.network(c.images).tolist()
    gradient, mass = [], [0.0] * probing.CLASSES
    for image, label in zip(logits, c.labels.tolist(), strict=True):
        total = sum(math.exp(z) for z in image)
        probabilities = [math.exp(z) / total for z in image]
        mass = [m + p / len(logits) for m, p in zip(mass, probabilities, strict=True)]
        gradient.append([(p - (k == label)) / len(logits) for k, p in enumerate(probabilities)])
    close(row["gradient"], torch.tensor(gradient, dtype=torch.float64).flatten(), rtol=1e-5, atol=1e-8)
    close(row["mass"], mass)
    close(row["top_mass"], max(mass))
    positive = [sum(max(0.0, g[k]) for g in gradient) for k in range(probing.CLASSES)]
    close(row["positive_share"], [p / sum(positive) for p in positive], rtol=1e-5)
    cosines = [
        np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.combinations(gradient, 2)
    ]
    close(row["mean_row_cosine"], np.mean(cosines))


@pytest.mark.parametrize("norm", NORMS)
def test_class_gradients(norm: str) -> None:
    c = case(norm)
    weight = c.layer(52).module.weight
    rows = c.rows("class_gradients")
    assert len(rows) == 2 * probing.CLASSES
    for by, k in itertools.product(("logit", "label"), range(probing.CLASSES)):
        logits = c.network(c.images)
        (cotangent,) = torch.autograd.grad(F.cross_entropy(logits, c.labels), logits, retain_graph=True)
        masked = torch.zeros_like(cotangent)
        for b, j in itertools.product(range(len(c.labels)), range(probing.CLASSES)):
            if (j if by == "logit" else int(c.labels[b])) == k:
                masked[b, j] = cotangent[b, j]
        logits.backward(masked)
        (row,) = [r for r in rows if (r["by"], r["class"]) == (by, k)]
        close(row["gradient"], weight.grad.flatten(), rtol=1e-4, atol=1e-9)
        close(row["mean_abs"], weight.grad.abs().mean())
        close(row["max_abs"], max(abs(v) for v in weight.grad.flatten().tolist()), rtol=1e-4, atol=1e-9)
        squares = sum(v * v for v in weight.grad.flatten().tolist())
        close(row["kernel_norm"], math.sqrt(squares), rtol=1e-4, atol=1e-9)
        assert row["count"] == int((c.labels == k).sum())
        assert row["nonfinite"] == 0
        c.network.zero_grad()
    loss(c).backward()
    for by in ("logit", "label"):
        total = sum(torch.tensor(r["gradient"], dtype=torch.float64) for r in rows if r["by"] == by)
        close(total, weight.grad.flatten(), rtol=1e-4, atol=1e-8)
    c.network.zero_grad()
    assert any(r["count"] == 0 for r in rows)  # a class the batch lacks


@pytest.mark.parametrize("norm", NORMS)
def test_example_gradients(norm: str) -> None:
    c = case(norm)
    (row,) = c.rows("example_gradients")
    module = c.layer(90).module
    x, _, grad = observed(c, module)
    per_image = terms(module, x, grad).sum(5).flatten(1) * len(x)
    close(row["gradient"], per_image[:, row["weight"]].T.flatten(), rtol=1e-4, atol=1e-9)
    loss(c).backward()
    majority, leaning, skews = [], [], []
    for values in per_image.T.tolist():
        majority.append(max(sum(v > 0 for v in values), sum(v < 0 for v in values)) / len(values))
        centre = sum(values) / len(values)
        deviation = math.sqrt(sum((v - centre) ** 2 for v in values) / len(values))
        if deviation > 0:
            leaning.append(abs(centre) / deviation)
            skews.append(abs(sum((v - centre) ** 3 for v in values)) / len(values) / deviation**3)
    close(row["majority_share"], sum(majority) / len(majority))
    close(row["mean_to_deviation"], sorted(leaning)[(len(leaning) - 1) // 2], rtol=1e-4)
    close(row["skewness"], sorted(skews)[(len(skews) - 1) // 2], rtol=1e-4)
    mean = torch.tensor(row["gradient"], dtype=torch.float64).view(-1, len(x)).mean(1)
    close(mean, module.weight.grad.flatten()[row["weight"]], rtol=1e-4, atol=1e-8)
    c.network.zero_grad()
    if norm != "bn":  # no layer couples the images: the gradient of the image's own loss
        for b in range(len(x)):
            F.cross_entropy(c.network(c.images[b : b + 1]), c.labels[b : b + 1]).backward()
            close(per_image[b], module.weight.grad.flatten(), rtol=1e-6, atol=1e-10)
            c.network.zero_grad()


@pytest.mark.parametrize("norm", NORMS)
def test_loss_along_gradient(norm: str) -> None:
    c = case(norm)
    (row,) = c.rows("loss_along_gradient")
    parameters = list(c.network.parameters())
    initial = loss(c)
    grads = torch.autograd.grad(initial, parameters)
    saved = [p.detach().clone() for p in parameters]
    losses = []
    for alpha in row["alpha"]:
        with torch.no_grad():
            for p, w, g in zip(parameters, saved, grads, strict=True):
                p.copy_(w - alpha * g)
            losses.append(float(loss(c)))
            for p, w in zip(parameters, saved, strict=True):
                p.copy_(w)
    close(row["initial_loss"], float(initial.detach()))
    close(row["loss"], losses)
    ratios = [x / float(initial.detach()) for x in losses]
    close(row["ratio"], ratios)
    for column, bound in (("past_1_05", 1.05), ("past_10", 10.0), ("past_1000", 1000.0)):
        beyond = [a for a, r in zip(row["alpha"], ratios, strict=True) if not r <= bound]
        assert (row[column] is None) == (not beyond)
        if beyond:
            assert row["alpha"][max(0, row["alpha"].index(beyond[0]) - 1)] <= row[column] <= beyond[0]
    least = min(ratios)
    assert (row["best_alpha"] is None) == (least >= 1)
    if least < 1:
        assert row["best_alpha"] == row["alpha"][ratios.index(least)]
        close(row["best_ratio"], least)
    close(row["gradient_norm"], math.sqrt(sum(float((g**2).sum()) for g in grads)))


@pytest.mark.parametrize("norm", NORMS)
def test_update_path(norm: str) -> None:
    c = case(norm)
    rows = c.rows("update_path")
    run, parameters = c.run, list(c.network.parameters())
    saved = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.SGD(parameters, lr=run.lr, momentum=run.momentum, weight_decay=run.weight_decay)
    loss(c).backward()
    optimizer.step()
    after = [p.detach().clone() for p in parameters]
    c.network.zero_grad()
    for share in (0.0, 0.5, 1.0):
        for p, w, v in zip(parameters, saved, after, strict=True):
            p.data = w + share * (v - w)
        for number in (8, 80):
            layer = c.layer(number)
            _, output, _ = observed(c, layer.module)
            (row,) = [r for r in rows if (r["layer"], r["share"]) == (layer.name, share)]
            close(row["mean"], output.mean((0, 2, 3)), rtol=1e-5, atol=1e-9)
            close(row["variance"], output.var((0, 2, 3), correction=0), rtol=1e-5)
            close(row["loss"], float(loss(c).detach()))
            assert row["rate"] == run.lr
    for p, w in zip(parameters, saved, strict=True):
        p.data = w


@pytest.mark.parametrize("path_lr", [0.0, 0.3])
def test_update_path_of_a_later_step(path_lr: float) -> None:
    """With momentum from two steps, no decay of γ, β and biases, and at another rate."""
    probes = ProbesConfig(
        measure=("update_path@first:1",), path_layers=(8, 80), path_points=3, path_lr=path_lr
    )
    fields = {"momentum": 0.8, "weight_decay": 0.2, "decay_norm_and_bias": False}
    run, sets, trace = plain_run("bn", probes, **fields), probing.image_set(), probing.Trace()
    network = probing.network_of(run, sets).double()
    optimizer = build_optimizer(run, network)
    engine = probing.engine_of(run, network, sets, trace, optimizer=optimizer)
    images, labels = (x.double() if x.is_floating_point() else x for x in engine.probe_batch())
    parameters = list(network.parameters())
    kernels = {id(x.module.weight) for x in network.layers}
    velocity = [torch.zeros_like(p) for p in parameters]
    for step in (-2, -1, 0):
        weights = [p.detach().clone() for p in parameters]
        grads = torch.autograd.grad(F.cross_entropy(network(images), labels), parameters)
        for p, g, v in zip(parameters, grads, velocity, strict=True):
            decay = run.weight_decay * p.detach() if id(p) in kernels else 0.0
            v.copy_(run.momentum * v + g + decay)
        with engine.step(step, 0, images, labels) if step == 0 else contextlib.nullcontext():
            F.cross_entropy(network(images), labels).backward()
        if step < 0:
            optimizer.step()
        optimizer.zero_grad()
    assert trace.failures == []
    rows = trace.rows("update_path")
    c = Case(network, images, labels, trace, sets, run)
    for share in (0.0, 0.5, 1.0):
        for p, w, v in zip(parameters, weights, velocity, strict=True):
            p.data = w - share * (path_lr or run.lr) * v
        for number in (8, 80):
            layer = layer_at(network, number)
            _, output, _ = observed(c, layer.module)
            (row,) = [r for r in rows if (r["layer"], r["share"]) == (layer.name, share)]
            close(row["mean"], output.mean((0, 2, 3)), rtol=1e-5, atol=1e-9)
            close(row["variance"], output.var((0, 2, 3), correction=0), rtol=1e-5)
            close(row["loss"], float(loss(c).detach()))
            assert row["rate"] == (path_lr or run.lr)


@pytest.mark.filterwarnings("ignore")  # how the optimiser of the library fared
def test_the_tails_likelihood_ratios_are_the_librarys() -> None:
    probes = ProbesConfig(measure=("gradient_tails@first:1",), tail_layers=(90,), tail_test=True)
    run, sets, trace = plain_run("bn", probes), probing.image_set(), probing.Trace()
    network = probing.network_of(run, sets).double()
    engine = probing.engine_of(run, network, sets, trace)
    images, labels = engine.probe_batch()
    images = images.double()
    with engine.step(0, 0, images, labels):
        F.cross_entropy(network(images), labels).backward()
    assert trace.failures == []
    layer = layer_at(network, 90)
    assert layer.module.weight.grad is not None
    gradient = layer.module.weight.grad.flatten().numpy()
    gradient = gradient[gradient != 0]
    far = np.sort(np.abs(gradient - np.median(gradient)))[::-1]
    k = math.isqrt(len(gradient))
    fit = powerlaw.Fit(far[: k + 1] / far[k], xmin=1.0, verbose=False)
    rows = {r["layer"]: r for r in trace.rows("gradient_tails")}
    for other in ("exponential", "lognormal"):
        ratio, p = fit.distribution_compare("power_law", other, normalized_ratio=True)
        assert math.isfinite(ratio)
        close(rows[layer.name][f"against_{other}"], ratio)
        close(rows[layer.name][f"{other}_p"], p)
        assert all(r[f"against_{other}"] is None for name, r in rows.items() if name != layer.name)


@pytest.mark.parametrize("norm", NORMS)
def test_gradient_tails(norm: str) -> None:
    c = case(norm)
    loss(c).backward()
    for layer, row in zip(c.network.layers, c.rows("gradient_tails"), strict=True):
        g = layer.module.weight.grad.flatten().numpy()
        g = np.array([x for x in g if x != 0])
        assert row["n"] == len(g)
        assert row["zeros"] == layer.module.weight.numel() - len(g)
        close(row["mean"], sum(g) / len(g), rtol=1e-5, atol=1e-12)
        close(row["deviation"], math.sqrt(sum((g - g.mean()) ** 2) / len(g)))
        close(row["kurtosis"], np.mean((g - g.mean()) ** 4) / np.var(g) ** 2)
        close(row["skewness"], np.mean((g - g.mean()) ** 3) / np.var(g) ** 1.5, rtol=1e-5, atol=1e-9)
        q = np.quantile(g, [0.005, 0.995, 0.25, 0.75])
        close(row["tail_ratio"], (q[1] - q[0]) / (q[3] - q[2]) / (2.5758293035489 / 0.67448975019608))
        close(row["channel_abs"], [float(w.abs().mean()) for w in layer.module.weight.grad])
        close(row["quantiles"][4], np.median(g))
        assert sum(row["counts"]) == len(g)
        if layer.name == c.layer(90).name:
            far = sorted(abs(g - np.median(g)))[::-1]
            k = math.isqrt(len(g))
            expected = k / sum(math.log(far[i] / far[k]) for i in range(k))
            close(row["tail_index"], expected)
            assert row["low"] < row["tail_index"] < row["high"]
            ks = row["curve_k"]
            assert (ks[0], ks[-1]) == (10, len(g) // 10)
            assert ks == sorted(set(ks))
            logs = [math.log(x) for x in far]
            close(row["curve_index"], [i / sum(x - logs[i] for x in logs[:i]) for i in ks])
    c.network.zero_grad()


@pytest.mark.parametrize("norm", NORMS)
def test_gradient_noise(norm: str) -> None:
    c = case(norm)
    rows = c.rows("gradient_noise")
    n = 6
    images = probing.engine_of(c.run, c.network, c.sets, probing.Trace()).probe_batch()[0].double()[:n]
    labels = c.sets.train.labels[:n]

    def gradient(which: list[int]) -> Tensor:
        F.cross_entropy(c.network(images[which]), labels[which]).backward()
        found = torch.cat([p.grad.flatten() for p in c.network.parameters() if p.grad is not None])
        c.network.zero_grad()
        return found

    g = gradient(list(range(n)))
    close(rows[0]["gradient_norm2"], float(g @ g))
    coupled = norm == "bn"
    assert {r["estimand"] for r in rows} == {"batch_statistics" if coupled else "image"}
    every = {
        b: [float((gradient(list(i)) - g).square().sum()) for i in itertools.combinations(range(n), b)]
        for b in (2, 3)
    }
    for row in rows:
        if row["law"] == "without_replacement":  # a partition into disjoint batches: each value is one of all
            assert min(every[row["batch_size"]]) * 0.999 <= row["measured"]
            assert row["measured"] <= max(every[row["batch_size"]]) * 1.001
    partitions = [
        [list(p[i : i + 2]) for i in (0, 2, 4)]
        for p in itertools.permutations(range(n))
        if p[0] < p[1] and p[2] < p[3] and p[4] < p[5] and p[0] < p[2] < p[4]
    ]
    differences = [[gradient(pair) - g for pair in pairs] for pairs in partitions]
    means = [np.mean([float(d @ d) for d in found]) for found in differences]
    (smallest,) = [r for r in rows if (r["law"], r["batch_size"]) == ("without_replacement", 2)]
    which = int(np.argmin([abs(mean - smallest["measured"]) for mean in means]))
    close(smallest["measured"], means[which])
    bias = sum(differences[which]) / 3
    c_found = means[which] * 2 * (n - 1) / (n - 2)
    for row in rows:
        b, whole = row["batch_size"], n - 1 if row["law"] == "without_replacement" else n
        close(row["c"], c_found)
        close(row["predicted"], c_found * (n - b) / (b * whole))
        close(row["bound"], c_found / b)
        close(row["bias2"], float((bias**2).sum()))
    assert (rows[0]["bias2"] > 1e-9) == coupled
    if not coupled:
        single = torch.stack([gradient([i]) for i in range(n)])
        c_true = float((single - g).square().sum(1).mean())
        for b in (2, 3):  # the laws themselves
            close(np.mean(every[b]), (n - b) / (b * (n - 1)) * c_true)
            inclusion = 0.0
            for inside in itertools.product((0, 1), repeat=n):
                share = np.prod([b / n if i else 1 - b / n for i in inside])
                centred = sum((single[i] - g) * inside[i] for i in range(n)) / b
                inclusion += share * float((centred**2).sum())
            close(inclusion, (n - b) / (b * n) * c_true)
            (row,) = [r for r in rows if (r["law"], r["batch_size"]) == ("independent", b)]
            assert abs(row["measured"] - inclusion) < 5 * row["standard_error"]


@pytest.mark.parametrize("norm", NORMS)
def test_sharpness(norm: str) -> None:
    """Against differences of the gradient along every single parameter, and a dense solver."""
    options = ProbesConfig(measure=("sharpness@init",), sharpness_images=6, sharpness_values=3)
    run = probing.config(norm=norm, probes=options)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, dropout=0.0, widths=(1, 2, 2)))
    sets, trace = probing.image_set(), probing.Trace()
    network = probing.network_of(run, sets).double()
    for p in network.parameters():  # away from γ = 1, β = 0 and biases 0, where ReLUs have their kinks
        p.data += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3), dtype=p.dtype)
    engine = probing.engine_of(run, network, sets, trace)
    images, labels = engine.training_images(6)
    images = images.double()
    engine.training_images = lambda n: (images[:n], labels[:n])  # type: ignore[method-assign]
    engine.moment("init", 0, 0)
    assert trace.failures == []
    rows = trace.rows("sharpness")
    parameters = list(network.parameters())

    def gradient() -> Tensor:
        mean = F.cross_entropy(network(images), labels)
        return torch.cat([g.flatten() for g in torch.autograd.grad(mean, parameters)])

    step, columns = 1e-6, []
    for p, place in [(q, i) for q in parameters for i in np.ndindex(*q.shape)]:
        value = float(p.data[place])
        p.data[place] = value + step
        above = gradient()
        p.data[place] = value - step
        columns.append((above - gradient()) / (2 * step))
        p.data[place] = value
    hessian = torch.stack(columns)
    assert float((hessian - hessian.T).abs().max()) < 1e-4 * float(hessian.abs().max())
    expected = torch.linalg.eigvalsh((hessian + hessian.T) / 2).flip(0)[:3]
    assert [r["rank"] for r in rows] == [1, 2, 3]
    close([r["eigenvalue"] for r in rows], expected, rtol=2e-3)
    close(rows[0]["gradient_norm"], float(gradient().norm()))
    close(rows[0]["loss"], float(F.cross_entropy(network(images), labels).detach()))
    assert rows[0]["images"] == 6
    assert rows[0]["products"] > 5


def test_the_sharpness_of_a_diverged_network_is_null() -> None:
    options = ProbesConfig(measure=("sharpness@init",), sharpness_images=4, sharpness_values=2)
    run, sets, trace = probing.config(probes=options), probing.image_set(), probing.Trace()
    network = probing.network_of(run, sets)
    next(network.parameters()).data.fill_(float("inf"))
    probing.engine_of(run, network, sets, trace).moment("init", 0, 0)
    assert trace.failures == []
    rows = trace.rows("sharpness")
    assert [r["eigenvalue"] for r in rows] == [None, None]
    assert rows[0]["products"] == 0
    assert rows[0]["nonfinite"] > 0

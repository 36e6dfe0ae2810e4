"""`python -m study.bench scale`: what it measures of initial networks, by hand."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import nn
from torch.nn import functional as F

from study import bench_scale
from study.bench_scale import Initial, Setting
from study.config import DataConfig, ModelConfig, RunConfig
from study.data.batches import EpochBatches
from study.data.loading import load
from study.models.base import build_network

RUN = RunConfig(
    data=DataConfig(),
    model=ModelConfig(depth=8, widths=(2, 3, 4)),
    norm=bench_scale.NORMS["none"],
    batch_size=32,
    seed=3,
)


def two_logits(labels):
    """Return a network whose logits are its weights, the gradient of its loss, images, labels and loss."""
    network = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(network.weight)
    x, y = torch.ones(len(labels), 1), torch.tensor(labels)
    loss = F.cross_entropy(network(x), y)
    return network, torch.autograd.grad(loss, list(network.parameters())), x, y, loss.item()


def test_the_tolerance_is_where_the_loss_passes_its_bound():
    """Three of four images of class 0: with d the logits' difference, L(d) = ¾·ln(1 + e⁻ᵈ) + ¼·ln(1 + eᵈ).

    L(0) = ln 2 and L′(0) = −¼, so that each of the two logits moves by ¼ of a step, and d by half of it.
    """
    network, gradient, x, y, initial = two_logits([0, 0, 0, 1])
    assert initial == pytest.approx(math.log(2))

    def beyond(step):
        d = step / 2
        return 0.75 * math.log1p(math.exp(-d)) + 0.25 * math.log1p(math.exp(d)) - 1.05 * math.log(2)

    exact = brentq(beyond, 1, 20)
    found = bench_scale.tolerance(network, gradient, x, y, initial)
    assert abs(math.log2(found / exact)) <= 1 / 32 + 1e-6


def test_a_step_that_always_helps_has_no_bound():
    assert bench_scale.tolerance(*two_logits([0, 0])) == math.inf


@pytest.mark.parametrize("norm", ["none", "bn"])
def test_a_network_is_measured_as_by_hand(norm):
    run = Setting("tiny", RUN.data, RUN.model.widths, RUN.batch_size).run(norm, RUN.seed)
    run = RunConfig(data=run.data, model=RUN.model, norm=run.norm, batch_size=32, seed=3)
    sets = load(run.data, "cpu")
    x, y = EpochBatches(run, sets, 0).batch(0)
    network = build_network(run, tuple(x.shape[1:]), 10)
    outputs = {}
    for layer in network.layers:
        if layer.number is not None and layer.name != "classifier":
            layer.module.register_forward_hook(
                lambda m, i, out, number=layer.number: outputs.update({number: out.detach().numpy()})
            )
    logits = network(x)
    loss = -logits.log_softmax(1)[range(len(y)), y].mean()
    spread = {n: math.log10(out.std(axis=(0, 2, 3)).mean()) for n, out in outputs.items()}
    assert sorted(spread) == list(range(1, 8))
    slope = np.polyfit(list(spread), list(spread.values()), 1)[0]
    gradient = torch.autograd.grad(loss, list(network.parameters()))
    start = [p.detach().clone() for p in network.parameters()]

    def grown(step):
        with torch.no_grad():
            for p, w, g in zip(network.parameters(), start, gradient, strict=True):
                p.copy_(w - step * g)
            return not float(F.cross_entropy(network(x), y)) <= 1.05 * loss.item()

    found = bench_scale.measure(run)
    assert found.loss == pytest.approx(loss.item(), rel=1e-4)
    assert found.growth == pytest.approx(6 * slope, rel=1e-3)
    assert not any(grown(step) for step in np.geomspace(1e-4, min(10.0, found.tolerance / 1.03), 12))
    assert found.tolerance == math.inf if norm == "none" else grown(found.tolerance * 1.03)


def test_mismatch_is_the_mean_distance_of_medians_in_decades():
    full = {"none": [Initial(1e3, 1e-3, 4.0)] * 3, "bn": [Initial(2.0, 0.1, 0.5)]}
    near = [Initial(1.0, 1e-3, 4.0), Initial(1e2, 1e-1, 1.0), Initial(1e4, 1e-4, 9.0)]  # medians 1e2, 1e-3, 4
    assert bench_scale.mismatch({"none": near, "bn": full["bn"]}, full) == pytest.approx(1 / 6)
    beyond = {**full, "bn": [Initial(2.0, math.inf, 0.0)]}  # counts as a tolerance of 10: 2 decades, and ½
    assert bench_scale.mismatch(beyond, full) == pytest.approx(2.5 / 6)


def test_costs_are_medians_without_the_first_round(monkeypatch):
    setting = Setting("tiny", RUN.data, (2, 3, 4), 32)
    monkeypatch.setattr(
        bench_scale, "first_batch", lambda run: (nn.Linear(2, 2), torch.ones(1, 2), torch.zeros(1).long())
    )
    clock = iter([0.0, 0.0, 5.0, 10.0, 11.0, 20.0, 23.0])
    monkeypatch.setattr(bench_scale.time, "process_time", lambda: next(clock))
    assert bench_scale.step_costs([setting], 3) == {setting: 3.0}
    assert next(clock, None) is None


def test_the_table_gives_medians_ranges_mismatch_and_cost():
    full, small = Setting("full", RUN.data, (16, 32, 64), 128), Setting("small", RUN.data, (8, 16, 32), 64)
    by_norm = {norm: [Initial(2.0, 0.5, 1.0), Initial(4.0, 0.5, 1.0)] for norm in bench_scale.NORMS}
    lines = bench_scale.table({full: by_norm, small: by_norm}, full, {full: 3.0, small: 1.5}).splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    assert cells[2][:5] == ["full", "16/32/64", "128", "2", "3 [2–4]"]
    assert cells[2][-3:] == ["0", "2.0", ""]
    assert cells[3][-3:] == ["0.00", "1.0", "472"]  # 15 epochs of 21 steps

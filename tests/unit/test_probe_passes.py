"""How many passes probes make, and that they keep no memory."""

import gc
import sys
from typing import Any

import psutil
import pytest
import torch
import yaml
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from study.bench_probes import ONE_PASS
from study.config import ProbesConfig
from study.models.base import Network
from study.probes import base
from study.registry import names
from tests import probing
from tests.probing import CONF, SMALL


class Passes(TorchDispatchMode):
    """Counts forward and backward passes of a network by its classifier's weight, which each must meet."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.weight = network.layers[-1].module.weight.data_ptr()  # type: ignore[operator, union-attr]
        self.forward, self.backward = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if any(isinstance(x, Tensor) and x.data_ptr() == self.weight for x in args):
            self.forward += func is torch.ops.aten.addmm.default  # bias + input × weight
            self.backward += func is torch.ops.aten.mm.default  # output's gradient × weight
        return func(*args, **(kwargs or {}))


def passes(measure: list[str], norm: str = "bn", **options: Any) -> tuple[int, int]:
    """Return the (forward, backward) passes at init, or of a training step where a schedule is first:1."""
    probes = ProbesConfig(measure=tuple(measure), **{**SMALL, **options})
    sets, trace = probing.image_set("plain"), probing.Trace()
    run = probing.config("plain", norm, probes=probes)
    network = probing.network_of(run, sets)
    engine = probing.engine_of(run, network, sets, trace)
    images, labels = engine.probe_batch()
    with Passes(network) as counted:
        if measure[0].endswith("init"):
            engine.moment("init", 0, 0)
        else:
            with engine.step(0, 0, images, labels):
                loss = nn.functional.cross_entropy(network(images), labels)
                loss.backward(retain_graph=engine.retain_graph)
    assert trace.failures == []
    assert set(trace.tables) == {x.partition("@")[0] for x in measure}
    return counted.forward, counted.backward


SHARED = {
    "activation_moments": (1, 0),
    "activation_histogram": (1, 0),
    "logit_gradients": (1, 0),
    "gradient_tails": (1, 1),
    "gradient_agreement": (1, 1),
    "channel_pairs": (1, 1),
    "example_gradients": (1, 1),
}
"""What the one instrumented pass consists of where a probe needs no other."""


def test_the_one_pass_probes_are_those_of_init_without_passes_of_their_own() -> None:
    chosen = yaml.safe_load((CONF / "probes/init.yaml").read_text())["measure"]
    found = {name for name, _, _ in (x.partition("@") for x in chosen) if not base.load(name).PASSES}
    # but for noise images, which the ledger counts to the others
    assert found | {"activation_moments"} == set(ONE_PASS) == set(SHARED)


@pytest.mark.parametrize("name", ONE_PASS)
def test_a_one_pass_probe_makes_one_pass(name: str) -> None:
    assert passes([f"{name}@init"], noise_images=0) == SHARED[name]
    assert passes([f"{name}@first:1"], noise_images=0) == (1, 1)  # the training step's own


@pytest.mark.parametrize("norm", ["bn", "none", "ws"])
def test_one_pass_probes_share_it(norm: str) -> None:
    together = [f"{name}@init" for name in ONE_PASS]
    assert passes(together, norm, noise_images=0) == (1, 1)
    assert passes([x.replace("init", "first:1") for x in together], norm, noise_images=0) == (1, 1)


OWN = {
    # noise images
    "activation_moments": ((1, 0), (1, 0)),
    # all classes but one; the last too, if it does not follow with all its digits
    "class_gradients": ((0, probing.CLASSES - 1), (0, probing.CLASSES)),
    "loss_along_gradient": ((SMALL["alpha_points"], 0),) * 2,
    "update_path": ((SMALL["path_points"], 0),) * 2,
    # two for whether images influence each other, the whole subset, its two halves, one draw (or none in it)
    "gradient_noise": ((2 + 1 + 2 + 0, 1 + 2 + 0), (2 + 1 + 2 + 1, 1 + 2 + 1)),
}
"""Fewest and most passes, as (forward, backward), beyond the instrumented one, with SMALL's options."""


@pytest.mark.parametrize("name", names("study.probes"))
def test_passes_declared_are_passes_made(name: str) -> None:
    """Where PASSES is empty nothing is counted; where it is not, what it says."""
    counted = passes([f"{name}@init"], class_by=("logit",))
    if name == "sharpness":  # products with the Hessian are no plain passes; their number is in its table
        assert counted[0] == 2
        return
    needs_gradient = name not in ("activation_moments", "activation_histogram", "logit_gradients")
    shared = SHARED.get(name, (1, int(needs_gradient and name != "gradient_noise")))
    own = counted[0] - shared[0], counted[1] - shared[1]
    fewest, most = OWN.get(name, ((0, 0), (0, 0)))
    assert fewest[0] <= own[0] <= most[0]
    assert fewest[1] <= own[1] <= most[1]
    assert bool(base.load(name).PASSES) == (own != (0, 0))


@pytest.mark.parametrize(
    "chosen",
    [
        ("activation_moments", "logit_gradients", "class_gradients"),
        pytest.param(
            (*ONE_PASS, "class_gradients", "loss_along_gradient", "update_path"), marks=pytest.mark.slow
        ),
    ],
    ids=["few", "many"],
)
def test_memory_stays_flat(chosen: tuple[str, ...]) -> None:
    """Over 200 probed steps: bytes of live tensors, blocks of Python's objects, bytes of the process.

    One layer's activations kept in every step would be 150·64 KiB, 9.4 MiB.
    """
    measure = tuple(f"{n}@every:1" for n in chosen)
    run = probing.config("mlp", probes=ProbesConfig(measure=measure, **{**SMALL, "noise_images": 0}))
    sets, trace = probing.image_set("mlp"), probing.Trace()
    network = probing.network_of(run, sets)
    engine = probing.engine_of(run, network, sets, trace)
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(1024, *engine.probe_batch()[0].shape[1:], generator=draw)
    labels = torch.randint(probing.CLASSES, (1024,), generator=draw)
    found = []
    for step in range(200):
        with engine.step(step, 0, images, labels):
            loss = nn.functional.cross_entropy(network(images), labels)
            loss.backward(retain_graph=engine.retain_graph)
        network.zero_grad(set_to_none=True)
        del loss
        trace.tables.clear()
        if step % 50 == 49:
            gc.collect()
            found.append((tensor_bytes(), sys.getallocatedblocks(), resident()))
    assert trace.failures == []
    tensors, objects, process = zip(*found, strict=True)
    assert tensors == tensors[:1] * 4
    assert objects[-1] - objects[0] < 150
    assert min(process[2:]) - process[0] < 8 << 20  # the allocator keeps some megabytes


def tensor_bytes() -> int:
    """Return the bytes of all tensors that the garbage collector knows, shared storage once."""
    storages = [
        x.untyped_storage()
        for x in gc.get_objects()
        if issubclass(type(x), Tensor) and not issubclass(type(x), FakeTensor) and not x.is_meta
    ]  # of a compiled network in an earlier test, torch keeps fake tensors, which have no memory
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def resident() -> int:
    return int(psutil.Process().memory_info().rss)

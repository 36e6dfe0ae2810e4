"""Tiny runs with probes: what the tests of the engine and of the probes share."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

from study import registry
from study.config import ProbesConfig, RunConfig, from_mapping, to_mapping
from study.data.base import ImageSet, Split
from study.models.base import Network, build_network
from study.optim import build as build_optimizer
from study.probes.base import ProbeEngine

CONF = Path(__file__).parents[1] / "conf"
PROBES = registry.names("study.probes")
MODELS = registry.names("study.models")
NORMS = sorted(p.stem for p in (CONF / "norm").glob("*.yaml"))
TINY: dict[str, dict[str, Any]] = {
    "resnet": {"depth": 8, "widths": [8, 8, 16], "dropout": 0.2},
    "preact_resnet": {"depth": 6, "widths": [8, 16], "branch_scale": "skipinit"},
    "plain": {"depth": 5, "widths": [8, 16]},
    "mlp": {"depth": 3, "widths": [16]},
}
SMALL = {
    "noise_images": 3,
    "noise_subset": 4,
    "noise_batches": (2,),
    "noise_draws": 1,
    "alpha_points": 3,
    "path_points": 2,
    "class_by": ("logit", "label"),
    "sharpness_images": 4,
    "sharpness_values": 1,
}
CLASSES, BATCH = 5, 8


def config(
    model: str = "resnet", norm: str = "bn", *, probes: ProbesConfig | None = None, **fields: Any
) -> RunConfig:
    chosen = {
        name: yaml.safe_load((CONF / name / f"{x}.yaml").read_text())
        for name, x in (("model", model), ("norm", norm))
    }
    chosen["model"] |= TINY.get(model, {"width_multiplier": 1 / (16 if norm == "gn" else 32), "dropout": 0.2})
    if norm == "gn" and model not in TINY:
        chosen["norm"]["groups"] = 2
    if norm == "ghost":
        chosen["norm"]["ghost_size"] = BATCH // 2
    chosen["probes"] = to_mapping(probes or ProbesConfig())
    return from_mapping({**chosen, "batch_size": BATCH, "lr": 0.05, **fields})


def image_set(model: str = "resnet", n: int = 24) -> ImageSet:
    draw = torch.Generator().manual_seed(1)
    size = 32 if model.startswith("vgg") else 8
    images = torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=draw)
    split = Split(images, torch.randint(CLASSES, (n,), generator=draw))
    return ImageSet(split, split, None, CLASSES, (0.5,) * 3, (0.25,) * 3)


def network_of(run: RunConfig, sets: ImageSet) -> Network:
    shape = sets.train.images.shape
    network = build_network(run, (shape[1], shape[2], shape[3]), CLASSES)
    return network.to(memory_format=torch.channels_last).train()


@dataclass
class Trace:
    """What a run leaves."""

    losses: list[float] = field(default_factory=list)
    tables: dict[str, list[pa.Table]] = field(default_factory=dict)
    failures: list[tuple[str, int, str]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    network: Network | None = None

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [row for table in self.tables.get(name, []) for row in table.to_pylist()]


def engine_of(run: RunConfig, network: Network, sets: ImageSet, trace: Trace, **kwargs: Any) -> ProbeEngine:
    return ProbeEngine(
        run,
        network,
        sets,
        torch.device("cpu"),
        lambda name, table: trace.tables.setdefault(name, []).append(table),
        lambda name, step, text: trace.failures.append((name, step, text)),
        **kwargs,
    )


def train(run: RunConfig, sets: ImageSet, *, steps: int = 2, network: Network | None = None) -> Trace:
    """Train a few steps just as the loop does, visiting every moment; return all that can be compared."""
    torch.manual_seed(5)
    trace = Trace()
    network = trace.network = network or network_of(run, sets)
    optimizer = build_optimizer(run, network)
    scaler = torch.amp.GradScaler("cpu", enabled=run.precision == "fp16", init_scale=2.0**10)
    engine = engine_of(run, network, sets, trace, optimizer=optimizer, scaler=scaler)
    forward = torch.compile(network) if run.compile else network
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(run.precision)
    engine.moment("init", 0, 0)
    for step in range(steps):
        order = torch.randperm(len(sets.train))[: run.batch_size]
        images = ((sets.train.images[order].float() / 255 - 0.5) / 0.25).contiguous(
            memory_format=torch.channels_last
        )
        labels = sets.train.labels[order]
        with engine.step(step, 0, images, labels):
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                logits = forward(images)
            loss = F.cross_entropy(logits.float(), labels)
            scaler.scale(loss).backward(retain_graph=engine.retain_graph)
        trace.losses.append(float(loss.detach()))
        if step == steps - 1:
            engine.moment("divergence", step, 0, (images, labels))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    engine.moment("epoch_end", steps, 0)
    network.eval()
    engine.moment("final", steps, 1)
    trace.state = {
        "network": copy.deepcopy(network.state_dict()),
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "rng": torch.get_rng_state(),
        "modes": [m.training for m in network.modules()],
        "grads": [p.grad for p in network.parameters()],
        "requires_grad": [p.requires_grad for p in network.parameters()],
        "hooks": hooks(network),
    }
    return trace


def hooks(network: torch.nn.Module) -> int:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(m, name)) for m in network.modules() for name in names)


def same(a: Any, b: Any) -> bool:
    """Whether two nested values are equal to the bit (NaN equals NaN)."""
    if isinstance(a, Tensor):
        if not isinstance(b, Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b or (a != a and b != b))


def everywhere(names: Sequence[str] = PROBES) -> ProbesConfig:
    """All probes named, on every schedule, at small cost."""
    schedules = ("init", "first:1", "every:1", "divergence", "epoch_end", "final")
    return ProbesConfig(measure=tuple(f"{n}@{s}" for n in names for s in schedules), **SMALL)  # type: ignore[arg-type]

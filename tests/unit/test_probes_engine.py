"""The engine leaves no trace: probes on ≡ probes off, to the bit, also when a probe fails half-way."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from study.config import ModelConfig, ProbesConfig, RunConfig
from study.errors import ConfigError
from study.models.base import Builder, Network
from study.norms.base import build_norm
from study.probes import base
from study.probes._capture import Capture, Want, own_pass
from study.probes._histogram import histogram
from study.probes._layers import layer_at
from study.probes._schedule import NEEDED
from tests import probing
from tests.probing import MODELS, NORMS, PROBES, config, everywhere, hooks, image_set, same, train

EVERYTHING = [("resnet", "bn"), ("resnet", "none")]
REST = [p for p in itertools.product(MODELS, NORMS) if p not in EVERYTHING]


def diagonal() -> list[tuple[str, str, str]]:
    """Return (network, norm, probe) triples in which each of the three occurs; the slow test has the product.

    VGGs, the largest of the networks, stand once each, beside norms that every network takes.
    """
    small = itertools.cycle(m for m in MODELS if not m.startswith(("vgg", "mlp")))
    large = iter(m for m in MODELS if m.startswith(("vgg", "mlp")))
    probes, found = itertools.cycle(PROBES), []
    for norm in NORMS:
        anywhere = norm in ("bn", "bn_no_mean", "ln", "none", "rms", "ws")
        found.append((next(large, None) or next(small) if anywhere else next(small), norm, next(probes)))
    return found


def check_no_trace(model: str, norm: str, probes: ProbesConfig, **fields: object) -> probing.Trace:
    sets = image_set(model)
    off = train(config(model, norm, **fields), sets)
    on = train(config(model, norm, probes=probes, **fields), sets)
    assert on.failures == []
    assert on.losses == off.losses or not all(x == x for x in off.losses)
    assert same(on.state, off.state)
    assert on.state["hooks"] == off.state["hooks"]
    return on


@pytest.mark.parametrize(("model", "norm"), EVERYTHING)
def test_all_probes_leave_no_trace(model: str, norm: str) -> None:
    on = check_no_trace(model, norm, everywhere())
    assert set(on.tables) == set(PROBES)


@pytest.mark.parametrize(("model", "norm", "probe"), diagonal())
def test_every_norm_network_and_probe_once(model: str, norm: str, probe: str) -> None:
    on = check_no_trace(model, norm, everywhere([probe]))
    assert set(on.tables) == {probe}


def test_the_diagonal_leaves_none_out() -> None:
    models, norms, probes = (set(names) for names in zip(*diagonal(), strict=True))
    assert (models, norms, probes) == (set(MODELS), set(NORMS), set(PROBES))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "norm"), REST)
def test_all_probes_leave_no_trace_everywhere(model: str, norm: str) -> None:
    check_no_trace(model, norm, everywhere())


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_each_probe_alone_leaves_no_trace(probe: str) -> None:
    on = check_no_trace("resnet", "bn_noisy", everywhere([probe]))
    whens = [table["when"][0].as_py() for table in on.tables[probe]]
    assert whens == ["init", "first", "every", "divergence", "epoch_end", "final"]
    for table in on.tables[probe]:
        assert table.schema == base.schema(probe)
        assert table.num_rows > 0


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_no_trace_in_half_precision(precision: str) -> None:
    check_no_trace("resnet", "bn", everywhere(), precision=precision)


def test_nothing_due_is_free() -> None:
    sets = image_set()
    run = config(probes=ProbesConfig(measure=("logit_gradients@every:7",)))
    network = probing.network_of(run, sets)
    trace = probing.Trace()
    engine = probing.engine_of(run, network, sets, trace)
    images, labels = engine.probe_batch()
    with engine.step(3, 0, images, labels):
        assert hooks(network) == hooks(probing.network_of(run, sets))
        network(images)
    assert trace.tables == {}


@pytest.mark.parametrize("where", ["captures", "hook", "measure", "table"])
@pytest.mark.parametrize("schedule", ["init", "first:1", "every:1", "divergence", "epoch_end", "final"])
def test_a_probe_that_fails_half_way(where: str, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = base.load("loss_along_gradient")
    sets = image_set()
    off = train(config(), sets)

    def broken(*args: object) -> object:
        raise RuntimeError("half-way")

    if where == "captures":
        monkeypatch.setattr(probe, "captures", broken)
    elif where == "hook":
        monkeypatch.setitem(probing_reductions(), "moments", broken)
        probe = base.load("activation_moments")
    elif where == "measure":
        monkeypatch.setattr("study.probes._replay.Replay.loss", broken)  # the weights are shifted by then
    else:
        monkeypatch.setattr(probe, "measure", lambda capture, replay: [{"alpha": "not a list"}])
    name = probe.__name__.rpartition(".")[2]
    measure = (f"{name}@{schedule}", f"logit_gradients@{schedule}")
    on = train(config(probes=ProbesConfig(measure=measure, alpha_points=3)), sets)
    assert name in {n for n, _, _ in on.failures}
    assert where == "hook" or "logit_gradients" in on.tables  # the others still measure
    assert "half-way" in on.failures[0][2] or where == "table"
    assert same(on.state, off.state)
    assert on.losses == off.losses


def probing_reductions() -> dict[str, object]:
    from study.probes._capture import REDUCTIONS

    return REDUCTIONS  # type: ignore[return-value]


def test_an_interrupted_pass_leaves_no_hook() -> None:
    sets = image_set()
    run = config(probes=ProbesConfig(measure=("gradient_agreement@every:1",)))
    network = probing.network_of(run, sets)
    engine = probing.engine_of(run, network, sets, probing.Trace())
    before = hooks(network)
    batch = engine.probe_batch()

    def interrupted() -> None:
        with engine.step(0, 0, *batch):
            assert hooks(network) > before
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert hooks(network) == before


def test_columns_of_a_probe_are_not_those_that_frames_put_beside_them() -> None:
    beside = {"run_id", "norm", "lr", "seed", "depth", "model", "data", *base.COMMON.names}
    for name in PROBES:
        assert not beside & set(base.load(name).SCHEMA.names), name


def test_schedules() -> None:
    found = base.parse(["logit_gradients", "gradient_tails@first:7", "gradient_tails@every:50"])
    assert found == [
        base.Due("logit_gradients", "init"),
        base.Due("gradient_tails", "first", 7),
        base.Due("gradient_tails", "every", 50),
    ]
    assert [s for s in range(120) if found[1].at_step(s)] == list(range(7))
    assert [s for s in range(120) if found[2].at_step(s)] == [0, 50, 100]


@pytest.mark.parametrize(
    "entry",
    ["gradient_tail@init", "gradient_tails@sometimes", "gradient_tails@every:0", "gradient_tails@init:3"],
)
def test_bad_schedules_are_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"gradient_tails|valid schedule"):
        base.parse([entry])


@pytest.mark.parametrize(
    "fields",
    [
        {"measure": ("gradient_tail@init",)},
        {"class_by": ("image",)},
        {"moment_sides": ("outputs",)},
        {"moments": 3},
        {"alphas": (1.0, 0.1)},
        {"noise_subset": 8, "noise_batches": (8,)},
        *({"measure": (f"{probe}@init",), option: ()} for probe, option in NEEDED),
    ],
)
def test_bad_options_are_refused_with_the_config(fields: dict[str, object]) -> None:
    last = next(reversed(fields))
    with pytest.raises(ConfigError, match=last if last != "measure" else "gradient_tails"):
        RunConfig(probes=ProbesConfig(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["none", "wn", "ws"])
def test_weight_gradients_are_those_of_the_weight_that_is_used(norm: str) -> None:
    """Behind weight normalisation and standardisation too: Σ over images and positions gives the same."""
    probes = ProbesConfig(
        measure=("gradient_agreement@first:1", "channel_pairs@first:1", "channel_pairs@init")
    )
    trace = train(config(norm=norm, probes=probes), image_set(), steps=1)
    assert trace.failures == []
    pairs = [r for r in trace.rows("channel_pairs") if r["when"] == "first"]
    for found, exact in zip(pairs, trace.rows("gradient_agreement"), strict=True):
        gradient = torch.tensor(exact["gradient"]).view(exact["shape"])
        expected = gradient.abs().flatten(2).mean(-1).flatten().double()
        torch.testing.assert_close(
            torch.tensor(found["mean_abs"], dtype=torch.float64), expected, rtol=1e-4, atol=1e-7
        )


def test_training_and_own_pass_agree() -> None:
    """The compiled run's own eager pass and the training step's own pass measure the same thing."""
    sets, probes = image_set(), everywhere()
    watched = train(config(probes=probes), sets, steps=1)
    run = config(probes=probes)
    network = probing.network_of(run, sets)
    trace = probing.Trace()
    engine = probing.engine_of(
        RunConfig(**{**vars(run), "compile": True}),
        network,
        sets,
        trace,  # the pass is never watched
    )
    torch.manual_seed(5)
    order = torch.randperm(len(sets.train))[: run.batch_size]
    images = ((sets.train.images[order].float() / 255 - 0.5) / 0.25).contiguous(
        memory_format=torch.channels_last
    )
    with engine.step(0, 0, images, sets.train.labels[order]):
        pass
    assert trace.failures == []
    for name in PROBES:
        if name in ("update_path",):  # without an optimiser its first step has no momentum; the same here
            continue
        first = [r for r in watched.rows(name) if r["when"] == "first"]
        assert_close(first, trace.rows(name))


def assert_close(a: object, b: object, path: str = "") -> None:
    if isinstance(a, dict) and isinstance(b, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_close(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list) and isinstance(b, list):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_close(x, y, f"{path}[{i}]")
    elif isinstance(a, float):
        assert b == pytest.approx(a, rel=2e-3, abs=1e-5, nan_ok=True), path
    else:
        assert a == b, path


class Twice(Network):
    """One convolution applied twice, changed in place both times."""

    def __init__(self, builder: Builder) -> None:
        super().__init__()
        self.stem = builder.conv("stem", 1, "stem", 3, 8)
        self.shared = builder.conv("block1.conv1", 2, "inner", 8, 8)
        self.classifier = builder.classifier(3, 8, probing.CLASSES)
        builder.finish(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu_()
        x = self.shared(x).relu_()
        x = self.shared(x).mul_(0.5).relu_()
        return self.classifier(x.mean((2, 3)))


def test_modules_called_twice_and_changed_in_place() -> None:
    sets = image_set()
    probes = ProbesConfig(
        measure=("activation_moments@first:1", "gradient_agreement@first:1", "class_gradients@first:1"),
        agreement_layers=(50,),
        class_layers=(50,),
    )
    run = config(norm="none", probes=probes)
    torch.manual_seed(0)
    network = Twice(Builder(build_norm(run.norm), ModelConfig())).train()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.2)
    trace = train(run, sets, steps=1, network=network)
    assert trace.failures == []
    rows = [r for r in trace.rows("activation_moments") if r["layer"] == "block1.conv1"]
    assert [(r["side"], r["call"]) for r in rows] == [
        ("input", 0), ("input", 1), ("output", 0), ("output", 1)
    ]  # fmt: skip
    outputs = [r["mean"] for r in rows if r["side"] == "output"]
    assert any(m < 0 for m in outputs[0])  # before the in-place ReLU
    assert outputs[0] != outputs[1]
    agreement = trace.rows("gradient_agreement")[0]
    total = sum(torch.tensor(r["gradient"]) for r in trace.rows("class_gradients"))
    torch.testing.assert_close(total, torch.tensor(agreement["gradient"]), rtol=1e-3, atol=1e-6)


def test_first_layer_and_classifier_are_measured_like_any_other() -> None:
    """Neither the missing gradient of the images nor a linear layer's shapes are in the way."""
    names = ("gradient_agreement", "channel_pairs", "class_gradients", "example_gradients", "gradient_tails")
    ends = (1, 110)
    probes = ProbesConfig(
        measure=tuple(f"{n}@{s}" for n in names for s in ("first:1", "init")),
        agreement_layers=ends, pair_layers=ends, class_layers=ends, example_layers=ends, tail_layers=ends,
        example_weights=10_000,
    )  # fmt: skip
    run, sets = config("plain", "bn", probes=probes), image_set("plain")
    network, trace = probing.network_of(run, sets), probing.Trace()
    engine = probing.engine_of(run, network, sets, trace)
    engine.moment("init", 0, 0)
    images, labels = engine.probe_batch()
    with engine.step(0, 0, images, labels):
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward(retain_graph=engine.retain_graph)
    assert trace.failures == []
    for layer, when in itertools.product((network.layers[0], network.layers[-1]), ("first", "init")):
        gradient = layer.module.weight.grad.flatten()  # type: ignore[operator, union-attr]

        def of(name: str, layer: str = layer.name, when: str = when) -> list[dict[str, object]]:
            return [r for r in trace.rows(name) if (r["layer"], r["when"]) == (layer, when)]

        (agreement,), (pairs,), (examples,) = (of(n) for n in names if n not in names[2::2])
        each = torch.tensor(examples["gradient"]).view(-1, len(images)).mean(1)
        total = sum(torch.tensor(r["gradient"]) for r in of("class_gradients"))
        for found in (torch.tensor(agreement["gradient"]), each, total):
            torch.testing.assert_close(found, gradient, rtol=1e-3, atol=1e-6)
        kernel = gradient.abs().view(pairs["outputs"], pairs["inputs"], -1).mean(-1).flatten().double()
        torch.testing.assert_close(torch.tensor(pairs["mean_abs"], dtype=torch.float64), kernel)
        assert of("gradient_tails")[0]["n"] + of("gradient_tails")[0]["zeros"] == len(gradient)


class ConvolutionBackwards(TorchDispatchMode):
    """Records what is asked of each convolution's backward pass: (input's, weight's, bias's gradient)."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[bool]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.convolution_backward.default:
            self.asked.append(args[-1])
        return func(*args, **(kwargs or {}))


def test_a_norm_behind_an_addition_stands_at_the_site_of_the_layer_before_it() -> None:
    """In a pre-activation network too the histogram shows values after the norm, not raw ones."""
    run = config("preact_resnet", probes=ProbesConfig(measure=("activation_histogram@init",)))
    sets, trace = image_set(), probing.Trace()
    network = probing.network_of(run, sets)
    engine = probing.engine_of(run, network, sets, trace)
    engine.moment("init", 0, 0)
    assert trace.failures == []
    rows = trace.rows("activation_histogram")
    normed = [x.name for x in network.layers if x.site and not x.name.endswith("shortcut")]
    assert {n for n in normed if n.endswith("conv2")}
    assert [r["layer"] for r in rows if r["side"] == "site"] == normed
    capture = Capture(0, 0, "init", *engine.probe_batch(), network, run)
    own_pass(network, [Want("site", name) for name in normed], capture)
    for name in normed:
        (values,) = capture.get("site", name)
        torch.testing.assert_close(values.mean((0, 2, 3)), torch.zeros(values.shape[1]), rtol=0, atol=1e-4)
        spread = values.var((0, 2, 3), correction=0)
        torch.testing.assert_close(spread, torch.ones(values.shape[1]), rtol=0.05, atol=0)
        (row,) = [r for r in rows if (r["layer"], r["side"]) == (name, "site")]
        assert row["counts"] == histogram(values).counts.tolist()
    (last,) = [r for r in rows if r["percentiles"] is not None]
    assert (last["layer"], last["side"]) == (normed[-1], "site")
    units = values.transpose(0, 1).flatten(1)[: len(last["percentiles"])]
    for found, unit in zip(last["percentiles"], units, strict=True):
        assert found == pytest.approx(np.quantile(unit.double(), [0.15, 0.5, 0.85]), abs=1e-6)


def test_class_gradients_stop_at_their_layer() -> None:
    """In a training step: a pass for all classes but one, down to the kernel, no other weight's gradient."""
    probes = ProbesConfig(measure=("class_gradients@first:1",), class_layers=(52,))
    run, sets = config("plain", probes=probes), image_set("plain")
    network, trace = probing.network_of(run, sets), probing.Trace()
    engine = probing.engine_of(run, network, sets, trace)
    images, labels = engine.probe_batch()
    convolutions = [x.name for x in network.layers if isinstance(x.module, nn.Conv2d)]
    above = len(convolutions) - 1 - convolutions.index(layer_at(network, 52).name)
    assert above > 0
    with ConvolutionBackwards() as seen, engine.step(0, 0, images, labels):
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward(retain_graph=engine.retain_graph)
        assert len(seen.asked) == len(convolutions)
        seen.asked.clear()
    assert trace.failures == []
    passes = probing.CLASSES - 1
    assert sum(weight for _, weight, _ in seen.asked) == passes
    assert len(seen.asked) == passes * (above + 1)


def test_layer_numbers_of_the_paper() -> None:
    run = RunConfig(model=ModelConfig(depth=110, widths=(2, 2, 2)))
    from study.models.base import build_network

    deep = build_network(run, (3, 8, 8), 10)
    for number in (1, 2, 18, 52, 54, 55, 90, 109, 110):
        assert layer_at(deep, number).number == number
    shallow = build_network(RunConfig(model=ModelConfig(depth=20, widths=(2, 2, 2))), (3, 8, 8), 10)
    assert layer_at(shallow, 110).name == "classifier"
    assert layer_at(shallow, 1).name == "stem"
    assert layer_at(shallow, 54).site.kind == "inner"  # type: ignore[union-attr]
    assert abs((layer_at(shallow, 54).number or 0) - 10) <= 1


@pytest.mark.slow
def test_no_trace_on_a_compiled_network() -> None:
    """And each probe's values are the eager ones, from the training step as well."""
    on = check_no_trace("plain", "bn", everywhere(), compile=True)
    eager = train(config("plain", probes=everywhere()), image_set("plain"))
    for name, when in itertools.product(PROBES, ("init", "first")):
        if (name, when) != ("update_path", "first"):  # see above
            a, b = ([r for r in t.rows(name) if r["when"] == when] for t in (eager, on))
            assert a
            assert_close(a, b)

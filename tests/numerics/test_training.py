"""The training loop against a bare one, and what a run says of its own divergence."""

import math
import weakref

import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional as F

from study import optim
from study.config import from_mapping
from study.data.batches import EpochBatches, evaluation_batches
from study.data.loading import load
from study.divergence import first_bad_layer
from study.execute import execute, run_paths
from study.models.base import build_network
from study.monitor import LAG, Monitor, Reader
from study.records import read_record
from study.state import TrainState, initial_network
from tests.runs import assert_same_results, tiny

CPU = torch.device("cpu")

SCHEDULES = {
    "drops": ({"name": "drops"}, [0.05, 0.05, 0.005, 0.0005]),
    "warm start": ({"warm_start_epochs": 1, "warm_start_lr": 1e-3}, [1e-3, 0.05, 0.005, 0.0005]),
    "plateau": (
        {"name": "plateau", "patience": 1, "threshold": 0.99, "max_drops": 1},
        [0.05, 0.05, 0.005, 0.005],
    ),
}


def plain_training(run, rates):
    """Return (rows, weights) of SGD with momentum and coupled weight decay, written out by hand."""
    sets = load(run.data, CPU)
    network = build_network(run, tuple(sets.train.images.shape[1:]), sets.n_classes)
    network = network.to(memory_format=torch.channels_last)
    velocity = [torch.zeros_like(p) for p in network.parameters()]
    weights = {id(layer.module.weight) for layer in network.layers}
    rows, step = [], 0
    for epoch, rate in enumerate(rates):
        total, correct, counts = 0.0, 0, torch.zeros(sets.n_classes, dtype=torch.int64)
        batches = EpochBatches(run, sets, epoch)
        for i in range(len(batches)):
            x, y = batches.batch(i)
            logits = network(x)
            loss = F.cross_entropy(logits, y)
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            loss = loss.detach()
            right = int((logits.argmax(1) == y).sum())
            rows.append((step, "batch", float(loss), right / len(y)))
            total, correct = total + float(loss) * len(y), correct + right
            counts += torch.bincount(logits.argmax(1), minlength=sets.n_classes)
            with torch.no_grad():
                for p, g, v in zip(network.parameters(), gradients, velocity, strict=True):
                    decayed = run.decay_norm_and_bias or id(p) in weights
                    g = g + run.weight_decay * p if decayed else g
                    v.copy_(g if step == 0 else run.momentum * v + g)
                    p -= rate * v
            step += 1
        n = len(batches) * run.batch_size
        rows.append((step, "train", total / n, correct / n, counts.tolist()))
        network.eval()
        with torch.no_grad():
            logits = torch.cat(
                [network(x) for x, _ in evaluation_batches(sets.test, sets.mean, sets.std, 64)]
            )
        network.train()
        loss = float(F.cross_entropy(logits.double(), sets.test.labels))
        predicted = logits.argmax(1)
        rows.append(
            (
                step,
                "test",
                loss,
                float((predicted == sets.test.labels).float().mean()),
                torch.bincount(predicted, minlength=sets.n_classes).tolist(),
            )
        )
    return rows, network.state_dict()


@pytest.mark.parametrize("norm", ["bn", "none"])
@pytest.mark.parametrize("decay_all", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_loop_is_plain_sgd(tmp_path, schedule, decay_all, norm):
    settings, rates = SCHEDULES[schedule]
    run = tiny(
        tmp_path,
        schedule=settings,
        epochs=4,
        decay_norm_and_bias=decay_all,
        weight_decay=0.1,
        norm={"family": "batch" if norm == "bn" else "none", "name": norm},
        model={"depth": 8, "widths": [2, 3, 4]},
    )
    execute(run)
    expected, weights = plain_training(run, rates)
    rows = pq.read_table(run_paths(run).metrics).to_pylist()
    assert [r["lr"] for r in rows if r["split"] == "train"] == pytest.approx(rates)
    mine = [r for r in rows if r["split"] in ("batch", "train", "test")]
    assert len(mine) == len(expected)
    for row, (step, split, loss, accuracy, *counts) in zip(mine, expected, strict=True):
        assert (row["step"], row["split"]) == (step, split)
        assert row["loss"] == pytest.approx(loss, rel=1e-4)
        assert row["accuracy"] == pytest.approx(accuracy, abs=1e-6)
        if counts:
            assert row["predicted"] == counts[0]
    stored = torch.load(run_paths(run).weights, weights_only=True)
    for name, value in weights.items():
        torch.testing.assert_close(stored[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("threshold", "reached"), [(0.99, True), (0.0, False)])
def test_every_epoch_records_every_split_and_the_run_whether_a_plateau_was_reached(
    tmp_path, threshold, reached
):
    schedule = {"name": "plateau", "patience": 1, "threshold": threshold, "max_drops": 0}
    run = tiny(tmp_path, epochs=3, schedule=schedule)
    record = execute(run)
    assert record["plateau_reached"] is reached
    rows = [r for r in pq.read_table(run_paths(run).metrics).to_pylist() if r["split"] != "batch"]
    splits = [(r["split"], r["epoch"]) for r in rows]
    each = [(split, epoch) for epoch in (1, 2, 3) for split in ("train", "validation", "test")]
    assert splits == [*each, ("train_eval", 3)]
    sets = load(run.data, CPU)
    n = {"train": 128, "validation": len(sets.validation), "test": len(sets.test), "train_eval": 128}
    for row in rows:
        assert row["n"] == n[row["split"]] == sum(row["predicted"])
        assert len(row["predicted"]) == sets.n_classes
        assert 0 <= row["accuracy"] <= 1
        assert math.isfinite(row["loss"])
    state = TrainState(run, sets, CPU)
    state.network.load_state_dict(torch.load(run_paths(run).weights, weights_only=True))
    state.network.eval()
    for row in rows[-3:]:
        split = {"validation": sets.validation, "test": sets.test, "train_eval": sets.train}[row["split"]]
        with torch.no_grad():
            (images, labels), *_ = evaluation_batches(split, sets.mean, sets.std, len(split))
            logits = state.network(images)
        assert row["loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
        assert row["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precisions_train(tmp_path, precision):
    run = tiny(tmp_path, precision=precision, epochs=3)
    record = execute(run)
    assert record["outcome"] == "trained"
    losses = [r["loss"] for r in pq.read_table(run_paths(run).metrics).to_pylist() if r["split"] == "train"]
    exact = execute(tiny(tmp_path, epochs=3))
    assert exact["run_id"] != record["run_id"]
    assert all(math.isfinite(x) for x in losses)
    weights = torch.load(run_paths(run).weights, weights_only=True)
    assert all(v.dtype != torch.float16 for v in weights.values())


def test_divergence_is_a_result(tmp_path):
    run = tiny(tmp_path, lr=1e4, norm={"family": "none", "name": "none"})
    record = execute(run)
    assert (record["status"], record["outcome"]) == ("finished", "diverged")
    rows = pq.read_table(run_paths(run).metrics).to_pylist()
    last = rows[-1]
    assert record["divergence"]["step"] == last["step"] >= 1
    limit = 1e3 * max(1.0, record["initial_loss"])
    assert not last["loss"] <= limit
    assert all(r["loss"] <= limit for r in rows[:-1])
    assert record["crossings"]["absolute_step"] <= last["step"]
    assert record["divergence"]["layer"] in record["conv_biases"] | {"classifier": True}
    assert read_record(run_paths(run)) == record


class LateReader(Reader):
    """Reads losses late, as on a GPU."""

    def __init__(self, device):
        super().__init__(device)
        self.lag = LAG


@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["a checkpoint each step", "no checkpoint"])
@pytest.mark.parametrize(
    "changes",
    [
        {"norm": {"family": "none"}, "lr": 1e3},
        {"norm": {"family": "none"}, "lr": 1e3, "schedule": {"warm_start_epochs": 1}},
        {"lr": 1e6},
        {"norm": {"noise": True}, "lr": 1e6},
    ],
    ids=["none", "none, in the second epoch", "bn", "bn_noisy"],
)
def test_losses_that_are_read_late_change_nothing(tmp_path, monkeypatch, changes, seconds):
    """A GPU's losses arrive some updates late; the run ends as if they had not."""
    measured = ["activation_moments@every:1", "activation_moments@divergence", "update_path@divergence"]
    probes = {"measure": measured}
    settings = {**changes, "probes": probes, "epochs": 3}
    at_once, late = (
        tiny(tmp_path / name, **settings, checkpoint_seconds=s) for name, s in (("a", 1e9), ("b", seconds))
    )
    execute(at_once)
    monkeypatch.setattr("study.state.Reader", LateReader)
    record = execute(late)
    assert record["outcome"] == "diverged"
    assert_same_results(run_paths(at_once), run_paths(late))


def test_a_diverged_run_says_that_its_running_statistics_are_spoilt(tmp_path):
    run = tiny(tmp_path, lr=1e6, norm={"scale": False, "name": "bn_no_var"})
    record = execute(run)
    assert record["outcome"] == "diverged"
    assert record["poisoned"]
    assert all(0 <= p["step"] <= record["divergence"]["step"] for p in record["poisoned"])


def test_a_run_that_goes_on_marks_its_rows_from_the_batch_that_spoilt_the_statistics(tmp_path, monkeypatch):
    """One value whose square overflows: the batch's own loss stays finite, and so does every later one."""
    genuine = TrainState.epoch_batches

    def epoch_batches(state, epoch):
        batches = genuine(state, epoch)
        if epoch != 1 or "batch" in vars(batches):
            return batches
        inner = batches.batch

        def batch(step):
            images, labels = inner(step)
            if step == 2:
                images = images.clone()
                images[0, 0, 3, 3] = 1e30
            return images, labels

        batches.batch = batch
        return batches

    monkeypatch.setattr(TrainState, "epoch_batches", epoch_batches)
    run = tiny(tmp_path, epochs=3)
    record = execute(run)
    assert (record["status"], record["divergence"]) == ("finished", None)
    per_epoch = 4
    assert record["poisoned"][0] == {"layer": "stem", "step": per_epoch + 2}
    rows = pq.read_table(run_paths(run).metrics).to_pylist()
    ends = [(r["split"], r["epoch"], r["poisoned"]) for r in rows if r["split"] != "batch"]
    assert ends == [
        *((split, epoch, epoch >= 2) for epoch in (1, 2, 3) for split in ("train", "validation", "test")),
        ("train_eval", 3, True),
    ]
    inside = [(r["step"], r["poisoned"], math.isfinite(r["loss"])) for r in rows if r["split"] == "batch"]
    assert inside == [(step, step >= 2 * per_epoch, True) for step in range(3 * per_epoch)]


def test_where_a_norm_cannot_normalise_is_recorded(tmp_path):
    model = {"name": "mlp", "depth": 3, "widths": [4]}
    run = tiny(tmp_path, model=model, norm={"family": "instance", "name": "in"}, epochs=0)
    assert execute(run)["unnormalised"] == ["linear1", "linear2"]
    assert execute(tiny(tmp_path, epochs=0))["unnormalised"] == []


SOURCES = {
    "bn": {},
    "alternating": {"norm": {"source": "periodic", "name": "bn_alternating"}},
    "running": {"norm": {"source": "running", "name": "bn_running"}},
    "noisy": {"norm": {"noise": True, "name": "bn_noisy"}},
    "dropout": {"model": {"depth": 8, "widths": [2, 3, 4], "dropout": 0.5}},
    "fp16": {"precision": "fp16"},
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_bad_layer_is_found_by_the_very_pass(tmp_path, source):
    """Spoil one kernel so that its layer is the first with a non-finite output, and repeat a pass."""
    changes = {"model": {"depth": 8, "widths": [2, 3, 4]}} | SOURCES[source]
    run = tiny(tmp_path, **changes)
    state = TrainState(run, load(run.data, CPU), CPU)
    for step in (0, 1):
        state.remember()
        seen = state.forward(state.epoch_batches(0).batch(step)[0])
    again = {}
    name = "block2.conv1"
    layer = next(x for x in state.network.layers if x.name == name)
    handle = state.network.layers[-1].module.register_forward_hook(
        lambda m, i, out: again.setdefault("logits", out.detach().clone())
    )
    after = {k: b.clone() for k, b in state.network.named_buffers()}
    assert first_bad_layer(state, 1) in {x.name for x in state.network.layers}
    assert again["logits"].equal(seen)
    handle.remove()
    with torch.no_grad():
        layer.module.weight.fill_(float("inf"))
    assert first_bad_layer(state, 1) == name
    for key, buffer in state.network.named_buffers():
        assert buffer.equal(after[key]), key


@pytest.mark.parametrize("source", ["alternating", "running", "noisy"])
def test_divergence_probes_show_the_very_pass(tmp_path, monkeypatch, source):
    """The second step is said to diverge: what it shows is what a probe of that step sees."""
    model = {"depth": 8, "widths": [2, 3, 4]}
    measured = [f"activation_moments@{when}" for when in ("every:1", "divergence")]
    run = tiny(tmp_path, model=model, probes={"measure": measured}, **SOURCES[source])
    monkeypatch.setattr("study.monitor.Monitor.see", diverged_at(1, Monitor.see))
    record = execute(run)
    assert (record["outcome"], record["divergence"]["step"]) == ("diverged", 1)
    rows = pq.read_table(run_paths(run).probe("activation_moments")).to_pylist()
    seen, again = (
        [row | {"when": ""} for row in rows if (row["when"], row["step"]) == (when, 1)]
        for when in ("every", "divergence")
    )
    assert seen
    assert repr(again) == repr(seen)


def diverged_at(step, see):
    def seen(self, now, loss):
        see(self, now, loss)
        if now == step:
            self.diverged_step, self.diverged_loss = now, loss
        return now == step

    return seen


def test_growth_beyond_the_initial_network_is_found(tmp_path):
    run = tiny(tmp_path, norm={"family": "none", "name": "none"})
    state = TrainState(run, load(run.data, CPU), CPU)
    with torch.no_grad():
        next(x for x in state.network.layers if x.name == "block3.conv1").module.weight.mul_(1e4)
    assert first_bad_layer(state, 0) == "block3.conv1"


def test_the_initial_network_is_a_function_of_the_config(tmp_path):
    run = tiny(tmp_path)
    sets = load(run.data, CPU)
    first, second = (initial_network(run, sets, CPU).state_dict() for _ in range(2))
    torch.manual_seed(99)
    third = initial_network(run, sets, CPU).state_dict()
    assert all(first[k].equal(second[k]) and first[k].equal(third[k]) for k in first)


@pytest.mark.parametrize("settings", [{"norm": {"source": "frozen"}}, {"init": {"name": "lsuv"}}])
def test_calibration_holds_a_few_batches_at_a_time(tmp_path, monkeypatch, settings):
    """Not the training set in floating point, which may not fit into memory."""
    given, most = [], 0

    def watched(*args, **kwargs):
        nonlocal most
        for images, labels in evaluation_batches(*args, **kwargs):
            given.append(weakref.ref(images))
            most = max(most, sum(x() is not None for x in given))
            yield images, labels

    monkeypatch.setattr("study.state.evaluation_batches", watched)
    run = tiny(tmp_path, batch_size=4, **settings)
    sets = load(run.data, CPU)
    initial_network(run, sets, CPU)
    assert len(given) == (1 if "init" in settings else math.ceil(len(sets.train) / 4))
    assert most <= 3


def test_every_parameter_is_in_exactly_one_group(tmp_path):
    for decay_all in (True, False):
        run = from_mapping(
            {"model": {"depth": 8, "branch_scale": "skipinit"}, "decay_norm_and_bias": decay_all}
        )
        network = build_network(run, (3, 16, 16), 10)
        grouped = [id(p) for group in optim.build(run, network).param_groups for p in group["params"]]
        assert sorted(grouped) == sorted(id(p) for p in network.parameters())

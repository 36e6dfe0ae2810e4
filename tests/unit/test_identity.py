"""Run ids: pinned for good, moved by every scientific field and by nothing else."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from study import identity, naming, registry
from study.config import RunConfig, from_mapping, with_values
from study.describe import settings
from study.errors import ConfigError
from study.identity import run_id

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "run_ids.json").read_text())
CANDIDATES = [0.25, 0.75, 3, 7, True, False, "tanh", "depth", "ghost", "plateau", "bf16", "padding", "cpu",
              [3], [0.25], ["top"], 2, 256, [0.1, 1.0], ["input"], ["label"],
              ["activation_moments@init"]]  # fmt: skip


@pytest.mark.parametrize("entry", GOLDEN, ids=lambda e: e["run_id"])
def test_golden_ids(entry):
    """An id that changes here orphans every run on every disk: bump a component's version instead."""
    assert run_id(from_mapping(entry["config"])) == entry["run_id"]


def _other(name):
    """Return the default config with one field changed to some other valid value."""
    default = settings()[name].default
    for value in (*CANDIDATES, *settings()[name].allowed.split(", ")):
        try:
            run = with_values(RunConfig(), {name: value})
        except ConfigError:
            continue
        if value != default:
            return run
    raise AssertionError(f"no other value of {name} among the candidates")


@pytest.mark.parametrize("name", [s.name for s in settings().values() if s.scientific])
def test_every_scientific_field_moves_the_id(name):
    assert name == "norm.name" or run_id(_other(name)) != run_id(RunConfig())


def test_the_norms_name_is_a_label():
    named = with_values(RunConfig(), {"norm.name": "other"})
    assert named == RunConfig()


def test_no_label_is_in_an_id(tmp_path, monkeypatch):
    """Another yaml may name what had no name, or rename what had one: the directory stays the same."""
    switches = {"norm.eps": 1e-3, "norm.center": False}
    before = with_values(RunConfig(), switches)
    (tmp_path / "mine.yaml").write_text("family: batch\neps: 0.001\ncenter: false\n")
    monkeypatch.setattr(naming, "NORMS", tmp_path)
    try:
        naming.forget()
        after = with_values(RunConfig(), switches)
        assert (before.norm.name, after.norm.name) == ("bn[center=false,eps=0.001]", "mine")
        assert run_id(after) == run_id(before)
        assert [run_id(from_mapping(e["config"])) for e in GOLDEN] == [e["run_id"] for e in GOLDEN]
    finally:
        monkeypatch.undo()
        naming.forget()


def test_only_networks_that_have_a_depth_show_one():
    for name in registry.names("study.models"):
        run = with_values(RunConfig(), {"model.name": name})
        reads = "depth" in registry.load("study.models", name).READS
        assert identity.depth_of(run) == (110 if reads else None)
        assert f"-{name}{'110' if reads else ''}-batch-" in run_id(run)


def test_a_slugs_norm_is_its_family():
    for norm in naming.norms().values():
        assert f"-{norm.family}-" in run_id(dataclasses.replace(RunConfig(), norm=norm))


@pytest.mark.parametrize("name", [s.name for s in settings().values() if not s.scientific])
def test_no_other_field_moves_the_id(name):
    assert run_id(_other(name)) == run_id(RunConfig())


def test_a_version_moves_only_its_own_component(monkeypatch):
    resnet, mlp = RunConfig(), with_values(RunConfig(), {"model.name": "mlp"})
    before = run_id(resnet), run_id(mlp)
    monkeypatch.setitem(identity.VERSIONS, "model.mlp", 2)
    assert run_id(resnet) == before[0]
    assert run_id(mlp) != before[1]


def test_ids_are_safe_names():
    odd = with_values(RunConfig(), {"norm.family": "weight_standardisation", "lr": 1e6, "seed": 2**31 - 1})
    assert "lr1e06" in run_id(odd)
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,115}", run_id(odd))

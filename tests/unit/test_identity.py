"""Run ids: pinned for good, moved by every scientific field and by nothing else."""

import json
import re
from pathlib import Path

import pytest

from study import identity
from study.config import RunConfig, from_mapping, with_values
from study.describe import settings
from study.errors import ConfigError
from study.identity import run_id, scientific

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "run_ids.json").read_text())
CANDIDATES = [0.25, 0.75, 3, 7, True, False, "tanh", "depth", "ghost", "plateau", "bf16", "padding",
              [3], [0.25], ["top"]]  # fmt: skip


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
    renamed = with_values(RunConfig(), {"norm.name": "other"})
    assert scientific(renamed) == scientific(RunConfig())


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
    odd = with_values(RunConfig(), {"norm.name": "bn[center=false, order='∞']/.." + "x" * 200})
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,115}", run_id(odd))

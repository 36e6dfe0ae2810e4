"""A norm's name follows from its switches."""

import dataclasses
import re
import subprocess
import sys

import pytest

from study import naming
from study.config import NormConfig, RunConfig, from_mapping, with_values
from study.errors import ConfigError
from study.identity import run_id


@pytest.mark.parametrize("name", sorted(naming.norms()))
def test_every_yaml_is_named_as_its_file(name):
    config = naming.norms()[name]
    assert config.name == name
    assert naming.canonical(dataclasses.replace(config, name="whatever")) == config


@pytest.mark.parametrize("made", ["constructor", "replace", "mapping", "values"])
def test_no_run_has_a_norm_of_another_name(made):
    """However a RunConfig comes about, its norm is called by its switches."""
    no_mean = NormConfig(center=False)
    assert no_mean.name == "bn"
    run = {
        "constructor": lambda: RunConfig(norm=no_mean),
        "replace": lambda: dataclasses.replace(RunConfig(), norm=no_mean),
        "mapping": lambda: from_mapping({"norm": {"center": False}}),
        "values": lambda: with_values(RunConfig(), {"norm.center": False}),
    }[made]()
    assert run.norm.name == "bn_no_mean"


def test_sites_are_a_set():
    runs = [
        from_mapping({"norm": {"sites": sites}})
        for sites in (["inner", "top"], ["top", "inner"], ["inner", "top", "inner"])
    ]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0].norm.sites == ("inner", "top")
    assert run_id(runs[0]) == run_id(runs[2])


@pytest.mark.parametrize(
    ("switches", "name"),
    [
        ({}, "bn"),
        ({"center": False}, "bn_no_mean"),
        ({"gamma": False, "beta": False}, "bn_no_affine"),
        ({"center": False, "order": 1.0}, "bn[center=false,order=1]"),
        ({"order": float("inf")}, "bn_linf"),
        ({"source": "ghost", "ghost_size": 32}, "bn[source=ghost,ghost_size=32]"),
        ({"sites": ("inner", "outer")}, "bn[sites=inner+outer]"),
        ({"eps": 1e-3, "gamma_init": (0.0, 1.0)}, "bn[eps=0.001,gamma_init=0+1]"),
        ({"family": "group", "groups": 8}, "gn[groups=8]"),
        ({"family": "layer", "center": False}, "ln[center=false]"),
        ({"family": "none"}, "none"),
    ],
)
def test_names(switches, name):
    assert naming.canonical_name(dataclasses.replace(NormConfig(name="x"), **switches)) == name


def test_yamls_have_switches_of_their_own():
    configs = [dataclasses.replace(c, name="") for c in naming.norms().values()]
    assert len(set(configs)) == len(configs)


def test_needs_no_torch():
    code = "import sys; from study import naming; naming.norms(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("text", ["centre: false\n", "center: [\n", "- bn\n", "family: 3\n"])
def test_a_wrong_yaml_is_named(tmp_path, text):
    file = tmp_path / "odd.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(file))) as refusal:
        naming.read(file)
    assert "\n" not in str(refusal.value)

"""Every named norm has a fingerprint of its own; a switch that does nothing is found out."""

import dataclasses

import pytest

from study import naming
from study.config import NormConfig
from study.errors import ConfigError
from study.norms.base import build_norm
from tests.norm_fingerprint import duplicates, fingerprint

NAMED = """
    bn bn_top bn_alternating bn_frozen bn_running bn_detached bn_no_affine bn_affine_only bn_no_mean bn_no_var
    bn_no_gamma bn_no_beta bn_l1 bn_linf bn_noisy none_noisy ghost none ln gn in rms ws wn
"""


def test_all_the_studys_norms_are_there():
    assert set(NAMED.split()) <= set(naming.norms())


def test_no_two_norms_share_a_fingerprint():
    assert duplicates(naming.norms()) == []


LAYER, ZEROS, ONES = ((16, 16, 1, 1), 0.0, 1.0), ((16,), 0.0, 0.0), ((16,), 1.0, 1.0)
BN = ("moments", ("batch mean", "batch mean square", "batch variance"))

# What tells each from `bn`, in so many words: (property, value) that `bn` does not have.
KNOWN = {
    "bn_top": ("sites", ("top",)),
    "bn_alternating": ("own statistics by step", ((True, True), (False, False)) * 3),
    "bn_frozen": ("calibration", True),
    "bn_running": ("images", 1),
    "bn_detached": ("dx ∥ dy", True),
    "bn_no_affine": ("trained", (True,)),
    "bn_affine_only": ("input", True),
    "bn_no_mean": ("moments", ("batch mean square",)),
    "bn_no_var": ("moments", ("batch mean",)),
    "bn_no_gamma": ("parameters", (LAYER, ZEROS)),
    "bn_no_beta": ("parameters", (LAYER, ONES)),
    "bn_l1": ("moments", ("batch mean", "order 1")),
    "bn_linf": ("moments", ("batch mean", "order ∞")),
    "bn_noisy": ("evaluation of the start", 1.125),
    "none_noisy": ("evaluation of the start", 1.125),
    "ghost": ("images", 16),
    "none": ("sites", ()),
    "ln": ("channels", 16),
    "gn": ("channels", 4),
    "in": ("Σ dx by image", True),
    "rms": ("trained", (True, True)),
    "ws": ("images", 1),
    "wn": ("3 × weight", (3.0, 3.0, 3.0)),
}


@pytest.fixture(scope="module")
def of_bn():
    return fingerprint(naming.norms()["bn"])


def test_bn_is_known_by_its_moments(of_bn):
    assert of_bn[BN[0]] == BN[1]
    assert set(KNOWN) == set(NAMED.split()) - {"bn"}


@pytest.mark.parametrize("name", KNOWN)
def test_known_signs(name, of_bn):
    key, value = KNOWN[name]
    assert fingerprint(naming.norms()[name])[key] == value
    assert of_bn[key] != value


def test_layer_norms_are_told_apart():
    """By γ alone: with the mean subtracted or not."""
    known = naming.norms()
    plain = {n: dataclasses.replace(known[n], beta=False) for n in ("ln", "rms")}
    assert duplicates(plain) == []


VARIATIONS = [
    ("bn", {"momentum": 0.2}),
    ("bn", {"eps": 1e-3}),
    ("bn", {"gamma_init": (0.5,)}),
    ("bn", {"gamma_init": (0.0, 1.0)}),
    ("bn", {"sites": ("inner", "top")}),
    ("bn_alternating", {"period": 3}),
    ("bn_alternating", {"detach": True}),
    ("ghost", {"ghost_size": 8}),
    ("ghost", {"order": 1.0}),
    ("gn", {"groups": 8}),
    ("gn", {"eps": 1e-3}),
    ("ln", {"gamma": False}),
    ("rms", {"beta": True}),
    ("ws", {"gamma": False}),
    ("bn_no_mean", {"order": 1.0}),
    ("bn_no_mean", {"detach": True}),
    ("bn_affine_only", {"noise": True}),
]


@pytest.mark.parametrize(("name", "change"), VARIATIONS, ids=lambda v: str(v))
def test_every_switch_shows(name, change):
    """A yaml that changes any one switch gets a fingerprint of its own."""
    known = naming.norms()
    assert duplicates({name: known[name], "changed": dataclasses.replace(known[name], **change)}) == []


def test_a_copy_of_a_yaml_is_found(tmp_path):
    """The harness bites: a new yaml that changes nothing, or only what does nothing, fails."""
    (tmp_path / "bn.yaml").write_text((naming.NORMS / "bn.yaml").read_text())
    (tmp_path / "new.yaml").write_text("name: new\nfamily: batch\nmomentum: 0.1\n")
    configs = {p.stem: naming.read(p) for p in sorted(tmp_path.glob("*.yaml"))}
    assert duplicates(configs) == [["bn", "new"]]


@pytest.mark.parametrize(
    "switch", ["detach", "center", "scale", "gamma", "beta", "order", "source", "noise", "sites"]
)
def test_a_dead_switch_is_found(switch):
    """The harness bites: were a switch never passed on, some named norm would be another's double."""
    default = getattr(NormConfig(), switch)

    def forgetful(config, seed):
        return build_norm(dataclasses.replace(config, **{switch: default}), seed)

    batch = {n: c for n, c in naming.norms().items() if c.family == "batch"}
    affected = {n: c for n, c in batch.items() if getattr(c, switch) != default} | {"bn": batch["bn"]}
    try:
        assert duplicates(affected, forgetful)
    except ConfigError as error:
        pytest.fail(f"refused instead: {error}")

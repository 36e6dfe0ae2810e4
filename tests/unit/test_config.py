"""The dataclasses: conversion without loss, ranges, and changing single fields."""

import dataclasses

import pytest

from study.config import RunConfig, from_mapping, to_mapping, with_values
from study.describe import settings
from study.errors import ConfigError


def test_mapping_round_trip():
    assert from_mapping(to_mapping(RunConfig())) == RunConfig()


def test_integers_stand_for_numbers_and_lists_for_tuples():
    run = from_mapping({"lr": 1, "epochs": 3.0, "model": {"widths": [4, 8]}})
    assert (run.lr, run.epochs, run.model.widths) == (1.0, 3, (4, 8))
    assert isinstance(run.lr, float)
    assert isinstance(run.epochs, int)


@pytest.mark.parametrize(
    "mapping",
    [
        {"lr": True},
        {"lr": "0.1"},
        {"lr": float("nan")},
        {"epochs": 1.5},
        {"epochs": -1},
        {"data": {"validation": 1.0}},
        {"data": 3},
        {"model": {"widths": [0]}},
        {"model": {"name": "nope"}},
        {"nope": 1},
        {"runs_dir": "a\nb"},
    ],
)
def test_wrong_values_are_refused(mapping):
    with pytest.raises(ConfigError):
        from_mapping(mapping)


def test_a_config_made_in_python_is_checked_too():
    with pytest.raises(ConfigError, match=r"lr=-1"):
        RunConfig(lr=-1)


VALUES = [1, 0.5, -1, 3.0, True, "x", "relu", "fp32", [1, 2], [0.25], ["stem"], None, float("inf")]


@pytest.mark.parametrize("name", settings())
def test_changing_one_field_equals_building_anew(name):
    """Values and error messages alike."""
    group, _, key = name.rpartition(".")
    for value in VALUES:
        mapping = {group: {key: value}} if group else {key: value}
        try:
            expected: object = from_mapping(mapping)
        except ConfigError as error:
            expected = str(error)
        try:
            found: object = with_values(RunConfig(), {name: value})
        except ConfigError as error:
            found = str(error)
        assert found == expected


def test_changing_a_field_leaves_the_original_alone():
    run = RunConfig()
    changed = with_values(run, {"norm.eps": 0.5, "norm.beta": False, "lr": 2})
    assert run == RunConfig()
    assert (changed.norm.eps, changed.norm.beta, changed.lr) == (0.5, False, 2.0)


def nested(config):
    yield config
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            yield from nested(value)


def test_configs_are_frozen_throughout():
    found = list(nested(RunConfig()))
    assert len(found) == 8  # the run; data, model, norm, init, schedule, probes, tracker
    for config in found:
        for f in dataclasses.fields(config):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(config, f.name, getattr(config, f.name))


def test_every_number_has_a_range():
    for s in settings().values():
        first = s.default[0] if isinstance(s.default, tuple) and s.default else s.default
        if isinstance(first, (int, float)) and not isinstance(first, bool):
            assert any(sign in s.allowed for sign in "≥>"), s.name

"""What a launch refuses before anything starts, and that finding out costs no memory."""

import pytest

from study import naming
from study.compose import compose
from study.errors import ConfigError
from study.launch import validate
from study.models.base import structure
from study.registry import names


@pytest.mark.parametrize("model", names("study.models"))
def test_validating_builds_at_full_size_without_memory(model):
    network = structure(compose([f"model={model}", "norm=bn"]), (3, 32, 32), 10, device="meta")
    assert all(layer.module.weight.is_meta for layer in network.layers)


def test_every_norm_can_be_validated():
    validate.buildable([compose(["scale=smoke", f"norm={name}"]) for name in naming.norms()])


def test_widths_are_validated_as_they_are():
    """Eight groups divide the 16 channels of the full width, not the 4 of a quarter."""
    given = ["norm=gn", "norm.groups=8", "model=resnet"]
    wide, narrow = (compose([*given, f"model.width_multiplier={x}"]) for x in (1, 0.25))
    validate.buildable([wide])
    with pytest.raises(ConfigError, match="groups"):
        validate.buildable([wide, narrow])


def test_a_device_that_is_not_there_and_a_batch_beyond_the_subset_are_refused():
    validate.runnable_here([compose(["scale=smoke", "device=cpu"])])
    with pytest.raises(ConfigError, match="cuda:99"):
        validate.runnable_here([compose(["scale=smoke", "device=cuda:99"])])
    with pytest.raises(ConfigError, match="only 80 training images"):
        validate.runnable_here([compose(["scale=smoke", "batch_size=81", "data.validation=0.5"])])

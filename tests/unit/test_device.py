"""Which device a run takes, and that fp32 there means fp32."""

import pytest
import torch

from study import device
from study.config import RunConfig
from study.errors import ConfigError

FLAGS = (
    (torch.backends.cudnn, "allow_tf32", True),
    (torch.backends.cuda.matmul, "allow_tf32", True),
    (torch.backends.cudnn, "deterministic", False),
    (torch.backends.cudnn, "benchmark", True),
)
"""Settings of the framework, and what each is not to be on a GPU."""


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Put the framework's settings back after each test."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before, threads = [getattr(owner, name) for owner, name, _ in FLAGS], torch.get_num_threads()
    yield
    for (owner, name, _), value in zip(FLAGS, before, strict=True):
        setattr(owner, name, value)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("there", "taken"), [(0, "cpu"), (2, "cuda")])
def test_auto_takes_a_gpu_if_there_is_one(monkeypatch, there, taken):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    assert device.resolve("auto") == torch.device(taken)
    assert device.resolve("cpu") == torch.device("cpu")


def test_a_gpu_by_number_is_the_current_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert device.prepare(RunConfig(device="cuda:1")) == torch.device("cuda:1")
    assert taken == [torch.device("cuda:1")]
    with pytest.raises(ConfigError, match="shows 2 CUDA devices"):
        device.resolve("cuda:2")


def test_fp32_is_the_default_and_no_tf32_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for owner, name, value in FLAGS:
        setattr(owner, name, value)
    run = RunConfig(device="cuda")
    assert run.precision == "fp32"
    assert device.prepare(run) == torch.device("cuda")
    assert [getattr(owner, name) for owner, name, _ in FLAGS] == [False, False, True, False]
    assert torch.get_num_threads() == run.threads

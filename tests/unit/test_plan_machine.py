"""Which trial gets which cores or GPU."""

from types import SimpleNamespace

import pytest

from study.config import RunConfig, with_values
from study.launch import machine


def trials(*configs):
    return [SimpleNamespace(config=c) for c in configs]


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(machine, "gpus", list)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(machine, "gpus", lambda: ["2", "5"])


def taken(room, config, n=20):
    """Take places until there is none."""
    places = []
    while (place := room.take(config)) is not None and len(places) < n:
        places.append(place)
    return places


@pytest.mark.parametrize(("threads", "expected"), [(1, 4), (2, 2), (3, 1), (9, 1)])
def test_as_many_trials_as_cores_allow(four_cores, threads, expected):
    config = with_values(RunConfig(), {"threads": threads})
    all_ = trials(*[config] * 10)
    assert len(taken(machine.Room(all_, 0), config)) == expected
    assert machine.at_once(all_, 0) == expected
    assert machine.at_once(all_[:1], 0) == 1


def test_workers_override_the_count(four_cores):
    all_ = trials(*[RunConfig()] * 10)
    assert len(taken(machine.Room(all_, 7), RunConfig())) == 7
    assert machine.at_once(all_, 7) == 7


def test_a_place_given_back_is_free_again(four_cores):
    room = machine.Room(trials(RunConfig()), 0)
    places = taken(room, RunConfig())
    room.give_back(places[0])
    assert len(taken(room, RunConfig())) == 1


def test_one_trial_per_gpu(two_gpus):
    room = machine.Room(trials(RunConfig()), 0)
    places = taken(room, RunConfig())
    assert [p.gpu for p in places] == ["2", "5"]
    room.give_back(places[1])
    assert [p.gpu for p in taken(room, RunConfig())] == ["5"]


def test_more_workers_than_gpus_spread_evenly(two_gpus):
    room = machine.Room(trials(RunConfig()), 4)
    assert sorted(str(p.gpu) for p in taken(room, RunConfig())) == ["2", "2", "5", "5"]


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_a_device_chosen_by_name_is_left_alone(two_gpus, device):
    config = with_values(RunConfig(), {"device": device})
    assert all(p.gpu is None for p in taken(machine.Room(trials(config), 0), config))


def test_gpus_are_those_the_process_may_see(monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(machine, "DEVICE_FILES", (str(tmp_path),))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,7")
    assert machine.gpus() == ["3", "7"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert machine.gpus() == ["0", "1"]
    monkeypatch.setattr(machine, "DEVICE_FILES", (str(tmp_path / "none"),))
    assert machine.gpus() == []

"""The limit density of random products, its test of fit, and the command's tables."""

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.integrate import quad

from study import randmat
from study import randmat_density as limit
from study.errors import StudyError
from study.records import RANDOM_MATRICES

ROOT = Path(__file__).parents[2]
SMALL = ["--n", "24", "--most", "4", "--draws", "2", "--matrices", "20", "--fit-n", "10", "--workers", "1"]


@pytest.mark.parametrize(("m", "edge"), [(1, 2.0), (2, 2.598), (3, 3.079), (5, 3.864)])
def test_edges(m, edge):
    assert limit.edge(m) == pytest.approx(edge, abs=5e-4)
    assert limit.density([0.0, limit.edge(m) * 1.001, -1.0], m).tolist() == [0, 0, 0]
    assert limit.cdf([0.0, limit.edge(m), 9.0], m) == pytest.approx([0, 1, 1], abs=1e-9)


@pytest.mark.parametrize(("m", "share"), [(1, 0.064), (2, 0.172), (3, 0.268), (5, 0.411)])
def test_share_of_small_singular_values(m, share):
    assert float(limit.cdf(0.1, m)) == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize("m", [1, 2, 3, 5, 10, 50])
def test_mass_and_second_moment_are_one(m):
    p, w = np.polynomial.legendre.leggauss(400)
    phi = (p + 1) / 2 * np.pi / (m + 1)
    mass = limit._mass(phi, m) * w * np.pi / (m + 1) / 2
    assert mass.sum() == pytest.approx(1, abs=1e-9)
    assert (mass * np.exp(2 * limit.log_x(phi, m))).sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_the_distribution_function_is_the_densitys_integral(m):
    for low, high in itertools.pairwise([0.01, 0.1, 1.0, limit.edge(m) * 0.99]):
        expected = quad(lambda x: float(limit.density(x, m)), low, high)[0]
        assert float(limit.cdf(high, m) - limit.cdf(low, m)) == pytest.approx(expected, abs=1e-7)


def test_one_factor_gives_the_quarter_circle():
    x = np.linspace(0.01, 1.99, 30)
    np.testing.assert_allclose(limit.density(x, 1), np.sqrt(4 - x**2) / np.pi, rtol=1e-9)


def test_the_test_of_fit_accepts_the_right_number_of_factors_and_no_other():
    values = limit.independent_values(2, 60, 400, seed=0)
    assert limit.fit(values, 2)[1] > 0.05
    assert limit.fit(values, 1)[1] < 1e-3
    assert limit.fit(values, 3)[1] < 1e-3


def test_p_values_of_samples_from_the_limit_are_uniform():
    grid = np.linspace(0, limit.edge(3), 4001)
    shares = limit.cdf(grid, 3)
    draw = np.random.default_rng(0)
    p = [limit.fit(np.interp(draw.random(50), shares, grid), 3)[1] for _ in range(60)]
    assert 0.3 < np.mean(p) < 0.7
    assert np.mean(np.array(p) < 0.05) < 0.2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("randmat") / "tables"
    assert randmat.main([*SMALL, "--out", str(folder)]) == 0
    return folder


def test_tables_follow_their_schemas_and_are_whole(folder):
    for name, schema in RANDOM_MATRICES.items():
        table = randmat.read(folder, name)
        assert table.schema.equals(schema)
        assert table.num_rows > 0, name
    products = randmat.read(folder, "products").to_pandas()
    assert sorted(zip(products["draw"], products["m"], strict=True)) == [
        (d, m) for d in (0, 1) for m in (1, 2, 3, 4)
    ]
    difference = products["log10_largest"] - products["log10_smallest"]
    assert np.allclose(products["log10_condition"], difference)
    spectra = randmat.read(folder, "spectra").to_pandas()
    for row in spectra.itertuples():
        mine = products[(products["draw"] == row.draw) & (products["m"] == row.m)].iloc[0]
        ends = (row.log10_values[0], row.log10_values[-1])
        assert ends == pytest.approx((mine["log10_largest"], mine["log10_smallest"]), abs=1e-9)


def test_a_number_depends_on_seed_draw_and_m_alone(folder, tmp_path):
    longer = randmat.Draw(24, 6, 1.0, 0, 1, tmp_path)
    longer.run()
    mine = pq.read_table(longer.path("products")).to_pylist()
    theirs = [r for r in randmat.read(folder, "products").to_pylist() if r["draw"] == 1]
    for a, b in zip(mine[:4], theirs, strict=True):
        assert a == pytest.approx(b, abs=1e-12)
    other = randmat.Draw(24, 1, 1.0, 1, 1, tmp_path)
    assert not np.array_equal(other.factor(1), longer.factor(1))


def test_what_is_there_is_not_repeated_and_what_is_damaged_is(folder, tmp_path, capsys):
    jobs = [randmat.Draw(24, 4, 1.0, 0, k, folder) for k in (0, 1)]
    assert all(job.done for job in jobs)
    assert not randmat.Draw(24, 5, 1.0, 0, 0, folder).done
    assert randmat.run_all(jobs, 1) == 0
    job = randmat.Draw(8, 2, 1.0, 0, 0, tmp_path)
    job.run()
    assert job.done
    for table in ("products", "spectra", "regression"):
        job.path(table).write_bytes(b"half a file")
        assert not job.done
        assert randmat.run_all([job], 1) == 1
        job.path(table).unlink()
        assert not job.done
        job.run()
        assert job.done


class Dying:
    """A job whose process is killed."""

    done = False

    def run(self):
        os._exit(9)


def test_a_killed_process_is_one_plain_sentence(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with pytest.raises(StudyError, match="a process was killed"):
        randmat.run_all([Dying()], 1)
    assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--n", "1"], "--n 1 is out of range: it must be ≥ 2"),
        (["--draws", "0"], "--draws 0 is out of range"),
        (["--gain", "nan"], "--gain nan is out of range"),
        (["--gain", "x"], "invalid float value"),
        (["--ou", "x", "--nn"], "unrecognized arguments"),
        (["--out", "/proc/nowhere"], "cannot write to /proc/nowhere"),
    ],
)
def test_bad_input_is_one_plain_sentence(words, said, capsys):
    try:
        code = randmat.main(words)
    except SystemExit as end:
        code = end.code
    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert error.count("\n") == 1


def test_it_needs_no_torch():
    code = "import sys, study.randmat; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == "False"


def test_condition_numbers_grow_as_the_factors_do(folder):
    products = randmat.read(folder, "products").to_pandas()
    mean = products.groupby("m")["log10_condition"].mean().to_numpy()
    assert (np.diff(mean) > 0.3).all()
    assert math.isfinite(mean.sum())

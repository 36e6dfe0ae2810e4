"""Products of random matrices: `python -m study.randmat [--n 1000] [--most 100] [--draws 5] [--out DIR]`.

What ill-conditions a deep linear network (Bjorck et al. 2018, §5, App. C; Figs 8-10, 20, 21): for M = 1…most
independent N×N Gaussian factors the condition number and the largest singular value; for some M all singular
values, their limit density with a test of fit, and the steps of gradient descent on a linear regression.
Tables: study/records.py, RANDOM_MATRICES. A draw that is there already is not repeated; every number is a
function of (n, gain, seed, draw, m) alone, on one BLAS thread a process.
"""

import argparse
import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from study import pipes
from study import randmat_density as limit
from study.arguments import Parser, counted
from study.errors import ConfigError, StudyError
from study.paths import RANDOM_MATRICES as FOLDER
from study.randmat_product import Product
from study.randmat_regression import log10_steps
from study.records import RANDOM_MATRICES, write_table

SPECTRA = (1, 2, 3, 5, 10)
"""M whose whole spectrum is kept."""
FIT = (1, 2, 3, 5)
"""M whose density is tested."""
TOLERANCE = 1e-3
"""Of the regression."""
LN10 = math.log(10)


@dataclass(frozen=True)
class Draw:
    """One independent repetition: products of 1…most factors."""

    n: int
    most: int
    gain: float
    seed: int
    draw: int
    folder: Path

    def path(self, table: str) -> Path:
        """File of one of its tables."""
        return self.folder / f"{table}-n{self.n}-gain{self.gain:g}-seed{self.seed}-draw{self.draw}.parquet"

    @property
    def done(self) -> bool:
        """Whether its tables are there, with as many factors as asked for."""
        spectra = sum(m <= self.most for m in SPECTRA)
        wanted = {"products": self.most, "spectra": spectra, "regression": spectra}
        found = {table: _read(self.path(table), table) for table in wanted}
        return all(rows is not None and rows.num_rows >= wanted[table] for table, rows in found.items())

    def factor(self, m: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """The m-th factor, from 1: N×N, entries of variance gain²/N."""
        rng = np.random.default_rng([self.seed, self.draw, self.n, m])
        return rng.standard_normal((self.n, self.n)) * (self.gain / math.sqrt(self.n))

    def run(self) -> float:
        """Compute and write its tables; return the seconds it took."""
        began = time.perf_counter()
        found: dict[str, list[dict[str, Any]]] = {"spectra": [], "regression": [], "products": []}
        product = Product(self.n)
        for m in range(1, self.most + 1):
            product.append(self.factor(m))
            found["products"].append(self._extremes(product))
            if m in SPECTRA:
                spectrum, steps = self._spectrum(product)
                found["spectra"].append(spectrum)
                found["regression"].append(steps)
        for table, rows in found.items():
            write_table(self.path(table), pa.Table.from_pylist(rows, schema=RANDOM_MATRICES[table]))
        return time.perf_counter() - began

    @property
    def _names(self) -> dict[str, Any]:
        return {"seed": self.seed, "draw": self.draw, "n": self.n}

    def _extremes(self, product: Product) -> dict[str, Any]:
        largest, smallest = product.extremes()
        return {
            **self._names,
            "m": product.m,
            "gain": self.gain,
            "log10_condition": (largest - smallest) / LN10,
            "log10_largest": largest / LN10,
            "log10_smallest": smallest / LN10,
        }

    def _spectrum(self, product: Product) -> tuple[dict[str, Any], dict[str, Any]]:
        values = product.singular_values() - product.m * math.log(self.gain)
        target = np.random.default_rng([self.seed, self.draw, self.n, product.m, 1]).standard_normal(self.n)
        weights, loss = log10_steps(values, target, TOLERANCE)
        names = {**self._names, "m": product.m}
        spectrum = {"log10_values": values / LN10, "distance": limit.distance(np.exp(values), product.m)}
        steps = {
            "log10_condition": (values[0] - values[-1]) / LN10,
            "tolerance": TOLERANCE,
            "log10_steps_weights": weights,
            "log10_steps_loss": loss,
        }
        return {**names, **spectrum}, {**names, **steps}


@dataclass(frozen=True)
class Fit:
    """Kolmogorov's test of the limit density for one M, on independent matrices."""

    n: int
    m: int
    matrices: int
    seed: int
    folder: Path

    @property
    def path(self) -> Path:
        """Its file."""
        return self.folder / f"fit-n{self.n}-m{self.m}-matrices{self.matrices}-seed{self.seed}.parquet"

    @property
    def done(self) -> bool:
        """Whether its table is there."""
        return _read(self.path, "fit") is not None

    def run(self) -> float:
        """Compute and write its table; return the seconds it took."""
        began = time.perf_counter()
        values = limit.independent_values(self.m, self.n, self.matrices, self.seed)
        distance, p_value = limit.fit(values, self.m)
        row = {"seed": self.seed, "n": self.n, "m": self.m, "matrices": self.matrices}
        rows = [{**row, "distance": distance, "p_value": p_value}]
        write_table(self.path, pa.Table.from_pylist(rows, schema=RANDOM_MATRICES["fit"]))
        return time.perf_counter() - began


def write_density(folder: Path, factors: Sequence[int] = SPECTRA) -> None:
    """Write the limit densities, on points spaced for a linear and for a logarithmic axis."""
    rows = []
    for m in factors:
        end = limit.edge(m)
        x = np.unique([*np.linspace(0, end, 401)[1:], *np.geomspace(1e-12 * end, end, 401)])
        curve = {"density": limit.density(x, m), "cdf": limit.cdf(x, m)}
        rows.append({"m": m, "x": x, **curve, "edge": end})
    write_table(folder / "density.parquet", pa.Table.from_pylist(rows, schema=RANDOM_MATRICES["density"]))


def read(folder: Path, table: str) -> pa.Table:
    """Return all rows of one table, in the order of its files' names."""
    found = [t for p in sorted(folder.glob(f"{table}*.parquet")) if (t := _read(p, table)) is not None]
    return pa.concat_tables([RANDOM_MATRICES[table].empty_table(), *found])


def run_all(jobs: Iterable[Draw | Fit], workers: int, say: Callable[[str], None] = print) -> int:
    """Do what is not done yet, in `workers` processes; return how many jobs were done."""
    todo = [job for job in jobs if not job.done]
    if not todo:
        return 0
    with _one_thread():
        pool = ProcessPoolExecutor(min(workers, len(todo)), mp_context=get_context("spawn"))
        try:
            futures = {pool.submit(job.run): job for job in todo}
            for k, future in enumerate(as_completed(futures), 1):
                took = future.result()
                say(f"{k} of {len(todo)}  {_label(futures[future])}  {took:.1f} s")
        except OSError as error:
            raise StudyError(f"cannot write to {error.filename}: {error.strerror}") from error
        except BrokenExecutor as error:
            raise StudyError(
                "a process was killed, for want of memory perhaps; the same command goes on, with fewer "
                "--workers if so"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)
    return len(todo)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that start inside compute on one thread each: sums are then the same on any machine."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def summary(folder: Path, n: int, gain: float, seed: int) -> str:
    """Return mean log₁₀ condition number and largest singular value by M, and the test of fit."""
    import pandas as pd

    rows = read(folder, "products").to_pandas()
    mine = rows[(rows["n"] == n) & (rows["gain"] == gain) & (rows["seed"] == seed)]
    groups = mine.groupby("m")
    shown = pd.DataFrame(
        {
            "draws": groups.size(),
            "log10 condition": groups["log10_condition"].mean().round(2),
            "lowest": groups["log10_condition"].min().round(2),
            "highest": groups["log10_condition"].max().round(2),
            "log10 largest": groups["log10_largest"].mean().round(3),
        }
    )
    most = int(shown.index.max())
    keep = [m for m in shown.index if m <= 6 or m % 10 == 0 or m == most]
    tests = read(folder, "fit").to_pandas()
    lines = [shown.loc[keep].to_string(), ""]
    lines += [
        f"limit density, M = {t.m}: {t.matrices} independent values of N = {t.n}, largest distance "
        f"{t.distance:.3f}, p = {t.p_value:.2f}"
        for t in tests[tests["seed"] == seed].sort_values("m").itertuples()
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = _parser().parse_args(argv)
    try:
        _check(args)
        try:
            args.out.mkdir(parents=True, exist_ok=True)
            write_density(args.out)
        except OSError as error:
            raise StudyError(f"cannot write to {args.out}: {error.strerror}") from error
        draws = _draws(args)
        fits = [Fit(args.fit_n, m, args.matrices, args.seed, args.out) for m in FIT if args.matrices]
        began = time.perf_counter()
        n = run_all([*draws, *fits], args.workers, lambda text: print(text, flush=True))
        print(f"{counted(n, 'job')} done in {time.perf_counter() - began:.0f} s, tables in {args.out}\n")
        print(summary(args.out, args.n, args.gain, args.seed))
    except StudyError as error:
        print(f"study.randmat: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on where this one stopped", file=sys.stderr)
        return 130
    return 0


def draws_of(argv: Sequence[str]) -> list[Draw]:
    """Return the draws that a command line asks for."""
    return _draws(_parser().parse_args(argv))


def _draws(args: argparse.Namespace) -> list[Draw]:
    return [Draw(args.n, args.most, args.gain, args.seed, k, args.out) for k in range(args.draws)]


def _parser() -> Parser:
    parser = Parser(prog="python -m study.randmat", description="Measure products of random matrices.")
    parser.add_argument("--n", type=int, default=1000, help="rows and columns of each factor (1000)")
    parser.add_argument("--most", type=int, default=100, help="largest number of factors M (100)")
    parser.add_argument("--draws", type=int, default=5, help="independent repetitions (5)")
    parser.add_argument("--gain", type=float, default=1.0, help="factor on every matrix (1)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--fit-n", type=int, default=200, help="size of the matrices in the test of fit (200)"
    )
    parser.add_argument(
        "--matrices", type=int, default=500, help="matrices in the test of fit; 0: no test (500)"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (one per core)")
    parser.add_argument("--out", type=Path, default=Path("runs") / FOLDER, help=f"(runs/{FOLDER})")
    return parser


def _check(args: Any) -> None:
    ranges = {"n": (2, 20_000), "most": (1, 100_000), "draws": (1, 10_000), "gain": (1e-6, 1e6),
              "seed": (0, 2**31 - 1), "fit_n": (2, 5_000), "matrices": (0, 1_000_000),
              "workers": (1, 1024)}  # fmt: skip
    for name, (low, high) in ranges.items():
        value = getattr(args, name)
        if not low <= value <= high:
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} {value:g} is out of range: it must be ≥ {low:g} and ≤ {high:g}")


def _read(path: Path, table: str) -> pa.Table | None:
    """Return a file's rows; None where it is absent, or not a table of ours: then it is made again."""
    try:
        found = pq.read_table(path)
    except (OSError, pa.ArrowException):
        return None
    return found if found.schema.equals(RANDOM_MATRICES[table]) else None


def _label(job: Draw | Fit) -> str:
    if isinstance(job, Draw):
        return f"draw {job.draw}: products of 1 to {job.most} matrices, N = {job.n}"
    return f"fit of the limit density, M = {job.m}"


if __name__ == "__main__":
    pipes.run(main)

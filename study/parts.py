"""The study of "Understanding Batch Normalization", part by part: `python -m study.parts plan|run [PART …]`.

Each part is a sweep, a search for the highest rates or the random matrices, each resumable by itself, so that
`run` goes on where it was stopped, at any point. `plan` shows runs and cost; so does `run`, before it starts.
Without names, those parts whose claims the laptop scale can decide; --all takes the others too.
"""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from study import brackets, max_lr, pipes
from study.arguments import Parser, whole
from study.errors import ConfigError, StudyError, unknown
from study.launch.cost import duration
from study.paths import RANDOM_MATRICES

SWEEPS = Path(__file__).parents[1] / "sweeps"
SEARCH = {"ratio": brackets.RATIO, "low": brackets.LOW, "high": brackets.HIGH}
"""Options of the searches."""
RUNS_A_SEARCH = 8
"""At most: both ends of twelve rates, five between them while none trains, one that halves the bracket."""


@dataclass(frozen=True)
class Part:
    """One part of the study."""

    name: str
    """Of its sweep."""
    what: str
    laptop: float
    """Seconds of one run at scale=laptop on one core of an AMD EPYC, measured (conf/experiment/NAME.yaml)."""
    workstation: float
    """The same at scale=workstation, estimated: fig01's and lsuv's from steps measured on a quiet machine,
    the others' in proportion."""
    decides: bool = True
    """Whether its claims can be decided on the digits; where not, larger or more images are needed."""
    search: bool = False
    full_size: bool = False
    """Whether it keeps its size at every scale."""

    def seconds(self, scale: str) -> float:
        """Of one run on one core, where none like it was measured; NaN if that is not known."""
        if self.full_size:
            return self.laptop
        known = {"smoke": 2.0, "laptop": self.laptop, "workstation": self.workstation}
        return known.get(scale, math.nan)

    def plan(self, settings: Sequence[str]) -> Any:
        """Return its study.launch.plan.Plan; of a search, one trial for each configuration and seed."""
        from study.sweep import plan_of, read_sweep

        if self.search:
            max_lr.refuse_rates(settings)
        return plan_of(read_sweep(SWEEPS / f"{self.name}.yaml"), list(settings))

    def run(self, settings: Sequence[str]) -> int:
        """Do what is left of it; return the exit code."""
        from study import sweep

        words = [str(SWEEPS / f"{self.name}.yaml"), *settings]
        if self.search:
            return sweep.main(
                ["max_lr", *words, *(w for k, v in SEARCH.items() for w in (f"--{k}", f"{v:g}"))]
            )
        return sweep.main(["launch", *words]) or self.measure(settings)

    def measure(self, settings: Sequence[str]) -> int:
        """Measure what its runs lack because an earlier part made them; return the exit code.

        Only what the kept weights tell: probes of before and after training.
        """
        from study.probe import probe_run
        from study.probes.base import parse

        failures = []
        for trial in self.plan(settings).trials:
            probes = trial.config.probes
            for at in ("init", "final"):
                due = [d.name for d in parse(probes.measure) if d.when == at]
                lacking = [name for name in due if not trial.paths.probe(name).exists()]
                if lacking and trial.done:
                    failures += probe_run(trial.paths, replace(probes, measure=tuple(lacking)), at)[1]
        for name, text in failures:
            print(f"study.parts: {name} failed:\n{text}", file=sys.stderr)
        return 1 if failures else 0


PARTS = (
    Part("bjorck_init", "networks before training, full size", 100, 100, full_size=True),
    Part("loss_along_gradient", "the loss along the gradient", 31, 1200),
    Part("diverging_update", "an update that diverges", 31, 1200),
    Part("early_moments", "moments over the first mini-batches", 26, 1200),
    Part("gradient_noise", "gradient noise against batch size", 22, 110),
    Part("fig01", "learning curves by rate", 52, 7600),
    Part("bn_on_top", "BN on the classifier's input alone", 52, 7200),
    Part("max_lr", "highest rate without BN, by depth", 25, 3700, search=True),
    Part("max_lr_alternating", "highest rate, alternating statistics", 31, 4500, search=True),
    # Its warm start is one epoch: 23 steps here, 391 in the paper.
    Part("max_lr_warm_start", "highest rate, warm start", 38, 5600, decides=False, search=True),
    Part("max_lr_table", "highest rates, all depths", 26, 3800, decides=False, search=True),
    Part("bn_parts", "BN without its parts", 55, 8300, decides=False),
    Part("schemes", "other normalisations by rate", 55, 8300, decides=False),
    Part("lsuv", "LSUV in the place of BN", 52, 6500, decides=False),
    Part("zero_or_large", "weights that are 0 or large", 52, 7200, decides=False),
    Part("batch_rate", "batch size, rate, sharpness", 170, 18000, decides=False),
)
RANDMAT = "randmat"
DRAWS = 11
"""Draws of matrices: as many as the claims' test of single cells needs."""
DRAW_SECONDS = 60.0
"""Of one core, products of up to a hundred matrices."""


@dataclass(frozen=True)
class Line:
    """What is left of a part."""

    name: str
    what: str
    total: int
    left: int
    seconds: float
    """Of one core, at most; NaN if that is not known."""
    shared: int = 0
    """Runs that are still to do and stand with an earlier part."""


def lines_of(parts: Sequence[Part], settings: Sequence[str], seen: set[str]) -> list[Line]:
    """Return runs and cost of what is left of each part; a run that an earlier part makes (`seen`) is not.

    Costs are those of runs like them where some were measured here, else as noted with the part.
    """
    found = []
    for part in parts:
        plan = part.plan(settings)
        if part.search:
            searches = max_lr.recall((t.config for t in plan.trials), **SEARCH)
            still = {
                s.run_id: max(1, RUNS_A_SEARCH - len(s.known)) for s in searches if s.next_runs(confirm=True)
            }
            left = sum(n for name, n in still.items() if name not in seen)
            total, shared = RUNS_A_SEARCH * len(searches), sum(still.values()) - left
            seen |= set(still)
            each = max((part.seconds(scale) for scale in {t.config.scale for t in plan.trials}), default=0.0)
            found.append(Line(part.name, part.what, total, left, left * each if left else 0.0, shared))
            continue
        costs = dict(zip((t.run_id for t in plan.todo), plan.estimates, strict=True))
        own = [t for t in plan.todo if t.run_id not in seen]
        seen |= set(costs)
        known = [costs[t.run_id] if t.config.epochs > 1 else None for t in own]
        seconds = sum(
            part.seconds(t.config.scale) if s is None else s for t, s in zip(own, known, strict=True)
        )
        shared = len(plan.todo) - len(own)
        found.append(Line(part.name, part.what, len(plan.trials), len(own), seconds, shared))
    return found


def table(lines: Sequence[Line], at_once: int) -> str:
    """Return runs, what is left and its cost, part by part, and the sum; unknown costs are left open."""
    rows = [("part", "runs", "left", "cost", "")]
    rows += [(x.name, str(x.total), str(x.left), _cost(x.seconds / at_once), _what(x)) for x in lines]
    whole = sum(x.seconds for x in lines) / at_once
    rows.append(("together", "", str(sum(x.left for x in lines)), _cost(whole), ""))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        f"{a:{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}  {e}".rstrip()
        for a, b, c, d, e in rows
    )


def _cost(seconds: float) -> str:
    return "?" if math.isnan(seconds) else duration(seconds)


def _what(line: Line) -> str:
    return f"{line.what} ({line.shared} more stand with a part above)" if line.shared else line.what


def randmat_line(folder: Path) -> Line:
    """Return what is left of the random matrices."""
    from study.randmat import draws_of

    still = sum(not draw.done for draw in draws_of(["--draws", str(DRAWS), "--out", str(folder)]))
    return Line(RANDMAT, "products of random matrices", DRAWS, still, DRAW_SECONDS * still)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    args = _parser().parse_intermixed_args(argv)
    names = [w for w in args.words if "=" not in w]
    settings = [w for w in args.words if "=" in w]
    try:
        return _main(args, names, settings)
    except StudyError as error:
        print(f"study.parts: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on where this one stopped", file=sys.stderr)
        return 130


def _main(args: Any, names: Sequence[str], settings: Sequence[str]) -> int:
    by_name = {part.name: part for part in PARTS}
    for name in names:
        if name not in (RANDMAT, *by_name):
            raise unknown("part", name, (RANDMAT, *by_name))
    folder = _runs_dir(settings) / RANDOM_MATRICES
    wanted = names or [RANDMAT, *(p.name for p in PARTS if p.decides or args.all)]
    seen: set[str] = set()
    lines = [randmat_line(folder)] if RANDMAT in wanted else []
    lines += lines_of([by_name[n] for n in wanted if n != RANDMAT], settings, seen)
    print(
        f"at most, {args.workers} at once; a run that diverges costs next to nothing, shared runs count once:"
    )
    print(table(lines, args.workers), flush=True)
    rest = [] if names else [p for p in PARTS if p.name not in wanted]
    others = lines_of(rest, settings, seen)
    if others:
        print("\nnot decided by the digits, left to --all, to scale=workstation or to scale=paper:")
        print(table(others, args.workers), flush=True)
    if any(math.isnan(line.seconds) for line in [*lines, *others]):
        print("?: never measured; `python -m study.estimate PART scale=paper` counts what a GPU would take")
    if args.command == "plan":
        return 0
    worst = 0
    for i, name in enumerate(wanted):
        print(f"\n{name}", flush=True)
        code = _run(name, by_name, folder, settings, args.workers)
        if code == max_lr.INTERRUPTED:
            after = f", before {', '.join(wanted[i + 1 :])}" if wanted[i + 1 :] else ""
            print(f"stopped in {name}{after}; the same command goes on here", file=sys.stderr)
            return code
        worst = max(worst, code)
    return worst


def _runs_dir(settings: Sequence[str]) -> Path:
    """Return the folder that settings name. Raises ConfigError if they name several."""
    from hydra.core.override_parser.types import QuotedString

    from study.compose import check

    named = [x for x in check(settings, multirun=True) if x.key_or_group == "runs_dir"]
    if any(x.is_sweep_override() for x in named):
        raise ConfigError("the parts go into one folder: give one runs_dir, quoted if it holds a comma")
    value = named[-1].value() if named else "runs"
    return Path(value.text if isinstance(value, QuotedString) else str(value))


def _run(name: str, by_name: dict[str, Part], folder: Path, settings: Sequence[str], workers: int) -> int:
    if name != RANDMAT:
        return by_name[name].run(settings)
    from study import randmat

    return randmat.main(["--draws", str(DRAWS), "--out", str(folder), "--workers", str(workers)])


def _parser() -> Parser:
    parser = Parser(
        prog="python -m study.parts",
        description="Plan or run the parts of the study, one after another: "
        + ", ".join([RANDMAT, *(p.name for p in PARTS)]),
    )
    parser.add_argument("command", choices=("plan", "run"))
    parser.add_argument(
        "words",
        nargs="*",
        metavar="PART|SETTING",
        help="parts; settings such as scale=workstation, runs_dir=DIR",
    )
    parser.add_argument("--all", action="store_true", help="also the parts that the digits cannot decide")
    parser.add_argument(
        "--workers", type=whole(1), default=os.cpu_count() or 1, help="trials at once, for the estimate"
    )
    return parser


if __name__ == "__main__":
    pipes.run(main)

"""The study of "Understanding Batch Normalization", part by part: `python -m study.parts plan|run [PART …]`.

Each part is a sweep, a search for the highest rates or the random matrices, each resumable by itself, so that
`run` goes on where it was stopped, at any point. `plan` shows runs and cost; so does `run`, before it starts.
Without names, those parts whose claims the laptop scale can decide; --all takes the others too.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from study import max_lr, pipes
from study.arguments import Parser
from study.errors import StudyError, unknown
from study.launch.cost import duration
from study.paths import RANDOM_MATRICES

SWEEPS = Path(__file__).parents[1] / "sweeps"
SEARCH = {"ratio": 2.0, "low": 0.0005, "high": 1.0}
"""Options of the searches. Lower rates are not tried: twelve epochs at 0.0001 hardly leave chance."""
RUNS_A_SEARCH = 8
"""At most: both ends of twelve rates, five between them while none trains, one that halves the bracket."""


@dataclass(frozen=True)
class Part:
    """One part of the study."""

    name: str
    """Of its sweep."""
    what: str
    seconds: float
    """Of one run at scale=laptop on one core of an AMD EPYC, measured (conf/experiment/NAME.yaml)."""
    decides: bool = True
    """Whether its claims can be decided on the digits; where not, larger or more images are needed."""
    search: bool = False

    def plan(self, settings: Sequence[str]) -> Any:
        """Return its study.launch.plan.Plan; of a search, one trial for each configuration and seed."""
        from study.sweep import plan_of, read_sweep

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
    Part("bjorck_init", "networks before training, full size", 100),
    Part("loss_along_gradient", "the loss along the gradient", 31),
    Part("diverging_update", "an update that diverges", 31),
    Part("early_moments", "moments over the first mini-batches", 26),
    Part("gradient_noise", "gradient noise against batch size", 22),
    Part("fig01", "learning curves by rate", 52),
    Part("bn_on_top", "BN on the classifier's input alone", 52),
    Part("max_lr", "highest rate without BN, by depth", 25, search=True),
    Part("max_lr_alternating", "highest rate, alternating statistics", 31, search=True),
    # Its warm start is one epoch: 23 steps here, 391 in the paper.
    Part("max_lr_warm_start", "highest rate, warm start", 38, decides=False, search=True),
    Part("max_lr_table", "highest rates, all depths", 26, decides=False, search=True),
    Part("bn_parts", "BN without its parts", 55, decides=False),
    Part("schemes", "other normalisations by rate", 55, decides=False),
    Part("lsuv", "LSUV in the place of BN", 52, decides=False),
    Part("zero_or_large", "weights that are 0 or large", 52, decides=False),
    Part("batch_rate", "batch size, rate, sharpness", 170, decides=False),
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
    """Of one core, at most."""
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
            found.append(Line(part.name, part.what, total, left, left * part.seconds, shared))
            continue
        costs = dict(zip((t.run_id for t in plan.todo), plan.estimates, strict=True))
        own = [t for t in plan.todo if t.run_id not in seen]
        seen |= set(costs)
        known = [costs[t.run_id] if t.config.epochs > 1 else None for t in own]
        seconds = sum(part.seconds if s is None else s for s in known)
        shared = len(plan.todo) - len(own)
        found.append(Line(part.name, part.what, len(plan.trials), len(own), seconds, shared))
    return found


def table(lines: Sequence[Line], at_once: int) -> str:
    """Return runs, what is left and its cost, part by part, and the sum."""
    rows = [("part", "runs", "left", "cost", "")]
    rows += [(x.name, str(x.total), str(x.left), duration(x.seconds / at_once), _what(x)) for x in lines]
    whole = sum(x.seconds for x in lines) / at_once
    rows.append(("together", "", str(sum(x.left for x in lines)), duration(whole), ""))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        f"{a:{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}  {e}".rstrip()
        for a, b, c, d, e in rows
    )


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
    runs_dir = next((s.partition("=")[2] for s in settings[::-1] if s.startswith("runs_dir=")), "runs")
    folder = Path(runs_dir) / RANDOM_MATRICES
    wanted = names or [RANDMAT, *(p.name for p in PARTS if p.decides or args.all)]
    seen: set[str] = set()
    lines = [randmat_line(folder)] if RANDMAT in wanted else []
    lines += lines_of([by_name[n] for n in wanted if n != RANDMAT], settings, seen)
    print(
        f"at most, {args.workers} at once; a run that diverges costs next to nothing, shared runs count once:"
    )
    print(table(lines, args.workers), flush=True)
    rest = [] if names else [p for p in PARTS if p.name not in wanted]
    if rest:
        print("\nnot decided by the digits, left to --all, to scale=workstation or to scale=paper:")
        print(table(lines_of(rest, settings, seen), args.workers), flush=True)
    if args.command == "plan":
        return 0
    worst = 0
    for name in wanted:
        print(f"\n{name}", flush=True)
        worst = max(worst, _run(name, by_name, folder, settings, args.workers))
    return worst


def _run(name: str, by_name: dict[str, Part], folder: Path, settings: Sequence[str], workers: int) -> int:
    if name != RANDMAT:
        return by_name[name].run(settings)
    from study import randmat

    return randmat.main(["--draws", str(DRAWS), "--out", str(folder), "--workers", str(workers)])


def _parser() -> Parser:
    parser = Parser(
        prog="python -m study.parts", description="Plan or run the parts of the study, one after another."
    )
    parser.add_argument("command", choices=("plan", "run"))
    parser.add_argument(
        "words", nargs="*", metavar="PART|SETTING", help="parts; settings such as runs_dir=DIR"
    )
    parser.add_argument("--all", action="store_true", help="also the parts that the digits cannot decide")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="trials at once, for the estimate"
    )
    return parser


if __name__ == "__main__":
    pipes.run(main)

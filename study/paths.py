"""Every file name of a run, once. Imports neither torch nor the rest of the study."""

import os
from dataclasses import dataclass
from pathlib import Path

CATALOGUE = ".catalogue"
"""Folder inside a runs folder where the analysis keeps its compacted copy; safe to delete."""

SEARCH_SUFFIX = "-max_lr"
"""Of the sweep's name in a search's runs (study/max_lr.py): they are none of the grid of that name."""
RANDOM_MATRICES = "random_matrices"
"""Folder inside a runs folder where `python -m study.randmat` keeps its tables, NAME-….parquet."""

RERUN = ".rerun"
"""Folder inside a runs folder where reruns train, as ID, until they take the place of ID (then ID.old)."""


@dataclass(frozen=True)
class RunPaths:
    """The files of one run directory."""

    root: Path

    @property
    def run_id(self) -> str:
        """The directory's name."""
        return self.root.name

    @property
    def rerun(self) -> "RunPaths":
        """Where this run is repeated until the repetition takes its place."""
        return RunPaths(self.root.parent / RERUN / self.root.name)

    @property
    def config(self) -> Path:
        """The resolved config; what `from=` repeats."""
        return self.root / "config.yaml"

    @property
    def record(self) -> Path:
        """run.json: status, outcome, provenance."""
        return self.root / "run.json"

    @property
    def metrics(self) -> Path:
        """One row per (step, split)."""
        return self.root / "metrics.parquet"

    @property
    def probes(self) -> Path:
        """Folder of the probe tables."""
        return self.root / "probes"

    def probe(self, name: str) -> Path:
        """Table of one probe."""
        return self.probes / f"{name}.parquet"

    def probe_sizes(self) -> dict[str, int]:
        """Bytes of each probe's table, by file name: what changes when one is added to a finished run."""
        return {path.name: path.stat().st_size for path in sorted(self.probes.glob("*.parquet"))}

    @property
    def weights(self) -> Path:
        """Final weights and buffers."""
        return self.root / "weights.pt"

    @property
    def checkpoint(self) -> Path:
        """All that a resume needs; gone once finished."""
        return self.root / "checkpoint.pt"

    @property
    def parts(self) -> Path:
        """Folder of rows not yet joined; gone once finished."""
        return self.root / "parts"

    @property
    def log(self) -> Path:
        """What the run printed, and the traceback of a failure."""
        return self.root / "log.txt"

    @property
    def wandb(self) -> Path:
        """Folder of W&B's own files."""
        return self.root / "wandb"

    @property
    def uploaded(self) -> Path:
        """What a W&B server has of the run, once it has all of it."""
        return self.wandb / "uploaded.json"


def run_dirs(runs_dir: Path) -> list[RunPaths]:
    """All run directories below `runs_dir` (those with a run.json or a config.yaml), sorted by name."""
    if not runs_dir.is_dir():
        return []
    with os.scandir(runs_dir) as entries:  # a tenth of pathlib's time: there may be thousands
        names = sorted(e.name for e in entries if not e.name.startswith(".") and _is_dir(e))
    parent = os.fspath(runs_dir)
    wanted = [n for n in names if any(os.path.exists(os.path.join(parent, n, f)) for f in _MARKS)]
    return [RunPaths(runs_dir / n) for n in wanted]


def _is_dir(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder; what cannot be followed, as a link to itself, is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


_MARKS = (RunPaths(Path()).record.name, RunPaths(Path()).config.name)

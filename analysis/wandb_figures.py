"""`python -m analysis.wandb_figures REPORT ENTITY/PROJECT`: a report's figures as images in W&B.

REPORT is the folder that analysis.report wrote. The images go to one W&B run (job type "report"), named after
the folder; sent again they become its next step.
"""

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import wandb

from analysis.wandb_source import SourceError
from study import pipes


def send(report: Path, project: str, *, patience: float = 120.0) -> int:
    """Upload every PNG of a report; return how many. Raises SourceError in one sentence."""
    images = sorted(report.rglob("*.png"))
    if not images:
        raise SourceError(f"there is no figure (PNG) below '{report}'; analysis.report writes them")
    entity, _, name = project.rpartition("/")
    settings = wandb.Settings(
        mode="online",
        silent=True,
        console="off",
        init_timeout=patience,
        finish_timeout=patience,
        finish_timeout_raises=True,
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,
    )
    key = hashlib.sha256(str(report.resolve()).encode()).hexdigest()[:12]
    try:
        with tempfile.TemporaryDirectory() as folder:  # for the client's own files
            run = wandb.init(
                entity=entity or None,
                project=name,
                id=f"report-{key}",
                name=f"report {report.name}",
                job_type="report",
                dir=folder,
                resume="allow",
                reinit="create_new",
                settings=settings,
            )
            run.log(
                {
                    f"figures/{p.relative_to(report).with_suffix('').as_posix()}": wandb.Image(str(p))
                    for p in images
                }
            )
            run.finish()
    except Exception as error:
        raise SourceError(f"W&B did not take the figures: {' '.join(str(error).split())}") from error
    return len(images)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m analysis.wandb_figures", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("report", type=Path, metavar="REPORT", help="folder that analysis.report wrote")
    parser.add_argument("project", metavar="ENTITY/PROJECT")
    args = parser.parse_args(argv)
    try:
        print(f"{send(args.report, args.project)} figures sent")
    except SourceError as error:
        print(f"analysis.wandb_figures: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    pipes.run(main)

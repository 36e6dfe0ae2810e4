"""`python -m study.dashboard [ENTITY/]PROJECT [--sweep NAME] [--dry-run]`: the W&B workspace of a sweep.

Made anew or brought up to date, under an address that follows from project and sweep. `--dry-run` prints its
specification as JSON and reaches nothing.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

from study import pipes

NORM, RATE = wr.Config("norm.name"), wr.Config("lr")
SPLITS = ("test", "train")


def workspace(entity: str, project: str, sweep: str = "") -> Any:
    """Return the workspace: accuracy, loss, divergence, gradient tails and activations, grouped by norm."""
    sections = [
        ws.Section(name="Accuracy by norm and rate", is_open=True, panels=_curves("accuracy", log=False)),
        ws.Section(name="Loss by norm and rate", is_open=True, panels=_curves("loss", log=True)),
        ws.Section(name="Divergence", is_open=True, panels=_divergence()),
        ws.Section(
            name="Gradient tails by depth",
            panels=[
                _by_depth("gradient_tails/tail_ratio", "tail ratio (1: Gaussian)"),
                _by_depth("gradient_tails/deviation", "deviation of the weight gradient", log=True),
            ],
        ),
        ws.Section(
            name="Activations by depth",
            panels=[
                _by_depth("activation_moments/output_mean", "mean activation"),
                _by_depth("activation_moments/output_variance", "variance of the activations", log=True),
            ],
        ),
    ]
    name = f"Sweep {sweep}" if sweep else "All runs"
    runs = ws.RunsetSettings(
        filters=f"Tags in ['{sweep}']" if sweep else [],
        groupby=[ws.Config("norm.name"), ws.Config("lr")],
        pinned_columns=["summary:outcome", "summary:test/accuracy", "summary:diverged_at_step"],
    )
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis="step", max_runs=100),
        runset_settings=runs,
    )


def specification(made: Any) -> dict[str, Any]:
    """Return what W&B would be sent, as plain values."""
    text = made._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
    spec: dict[str, Any] = json.loads(text)
    return {"entity": made.entity, "project": made.project, "name": made.name, "spec": spec}


def save(made: Any, sweep: str) -> str:
    """Create the workspace or replace the one of before; return its address. Raises what W&B raises."""
    key = hashlib.sha256(f"{made.entity}/{made.project}/{sweep}".encode()).hexdigest()[:11]
    made._internal_name = f"nw-{key}-v"  # the name that an address with ?nw=KEY stands for
    try:
        made._internal_id = ws.Workspace.from_url(str(made.url))._internal_id
    except Exception:  # there is none yet; if W&B cannot be reached, saving says so
        made._internal_id = ""
    made.save()
    return str(made.url)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m study.dashboard", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("project", metavar="[ENTITY/]PROJECT")
    parser.add_argument("--sweep", default="", metavar="NAME", help="show only the runs with this tag")
    parser.add_argument("--dry-run", action="store_true", help="print the specification; reach nothing")
    args = parser.parse_args(argv)
    entity, _, project = args.project.rpartition("/")
    if args.dry_run:
        print(json.dumps(specification(workspace(entity or "ENTITY", project, args.sweep)), indent=1))
        return 0
    try:
        entity = entity or wandb.Api().default_entity
        print(save(workspace(entity, project, args.sweep), args.sweep))
    except Exception as error:
        print(f"study.dashboard: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return 2
    return 0


def _curves(measure: str, *, log: bool) -> list[Any]:
    return [
        wr.LinePlot(
            title=f"{split} {measure} by {what}",
            x="step",
            y=[f"{split}/{measure}"],
            title_x="updates",
            log_y=log,
            groupby=group,
            groupby_aggfunc="mean",
            groupby_rangefunc="minmax",
            max_runs_to_show=100,
        )
        for split in SPLITS
        for what, group in (("norm", NORM), ("rate", RATE))
    ]


def _divergence() -> list[Any]:
    return [
        wr.ScatterPlot(
            title="step of divergence", x=RATE, y=wr.SummaryMetric("diverged_at_step"), log_x=True
        ),
        wr.BarPlot(title="diverged at step, by norm", metrics=["diverged_at_step"], groupby=NORM),
        wr.BarPlot(title="numbers that are not finite", metrics=["n_nonfinite"], groupby=NORM),
    ]


def _by_depth(measure: str, title: str, *, log: bool = False) -> Any:
    return wr.LinePlot(
        title=title,
        x="depth/layer",
        y=[f"depth/first/{measure}", f"depth/last/{measure}"],
        title_x="layer",
        log_y=log,
        groupby=NORM,
        groupby_aggfunc="mean",
        groupby_rangefunc="minmax",
        max_runs_to_show=100,
    )


if __name__ == "__main__":
    pipes.run(main)

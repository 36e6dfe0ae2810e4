"""Hydra accepts sweepers and launchers only from this namespace; what they do is in study/launch."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class GridSweeper(Sweeper):
    """Spans the grid and hands all of it to the launcher at once; writes nothing."""

    def __init__(self, params: Mapping[str, str]) -> None:
        pass  # an experiment's own grid: study.compose.expand reads it, for all commands alike

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from study.compose import expand

        return self.launcher.launch(expand(arguments), initial_job_idx=0)


class LocalLauncher(Launcher):
    """Runs all trials on this machine; leaves the process with the exit code of the launch."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        pass

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from study.compose import compose_all
        from study.launch import local, plan

        options = local.options(**self.options)
        raise SystemExit(local.launch(plan.make_plan(compose_all(job_overrides)), options))


class SlurmLauncher(LocalLauncher):
    """Submits all trials to SLURM."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from study.compose import compose_all
        from study.launch import plan, slurm

        options = slurm.options(**self.options)
        raise SystemExit(slurm.launch(plan.make_plan(compose_all(job_overrides)), options))

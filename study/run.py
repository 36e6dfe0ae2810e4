"""`python -m study.run`: one run, or with -m a grid. Hydra composes, a launcher runs; no logic here.

Heavy imports stay inside the functions: every trial's process imports this module again.
"""

import os
import sys
from typing import Any, NoReturn


def main() -> None:
    """Read the command line and launch; an error of the user's is one sentence and exit code 2."""
    import contextlib
    import signal

    from hydra._internal.utils import get_args_parser
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from study.errors import StudyError

    with contextlib.suppress(ValueError):  # only a main thread may
        signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing
    # argparse takes positional words only in one piece; people put -m anywhere
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: "=" in word and not word.startswith("-"))
    try:
        from study import compose  # reads conf/norm, where a file may be wrong

        parser = get_args_parser()
        parser.error = _mistake  # type: ignore[method-assign]  # argparse would print its usage
        args = parser.parse_args()
        if args.config_path or args.config_name or args.config_dir:
            raise StudyError("settings are read from conf/ only; add a yaml there instead")
        compose.check(args.overrides, multirun=args.multirun or args.help)
        if args.multirun and args.cfg:
            raise StudyError("--cfg shows one run's settings: leave out -m")
        _register_help(args.help)
        _hydra_main()
    except (StudyError, HydraException, OmegaConfBaseException) as error:
        if wanted_traceback:
            raise
        text = str(error) if isinstance(error, StudyError) else compose.explain(error)
        print(f"study.run: {text}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _mistake(message: str) -> NoReturn:
    from study.errors import StudyError

    raise StudyError(f"{message}; settings are written name=value, and --help lists them and the flags")


def _hydra_main() -> None:
    import hydra

    from study.compose import CONF

    hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(_one)()


def _one(_: Any) -> None:
    """Launch a single run the way a grid is launched. Runs inside Hydra, which would print a traceback."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.plugins import Plugins
    from hydra.types import HydraContext

    from study.compose import ignored_grid
    from study.errors import StudyError

    config: Any = HydraConfig.instance().cfg
    context = HydraContext(config_loader=None, callbacks=None)  # type: ignore[arg-type]  # our launchers need none
    try:
        if note := ignored_grid(list(config.hydra.overrides.task)):
            print(f"study.run: {note}", file=sys.stderr)
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=_one, config=config
        )
        launcher.launch([list(config.hydra.overrides.task)], initial_job_idx=0)
    except StudyError as error:
        print(f"study.run: {error}", file=sys.stderr)
        sys.exit(2)


def _register_help(wanted: bool) -> None:
    """Register what conf/hydra/help asks for. Hydra resolves it in every composition, asked for or not."""
    from omegaconf import OmegaConf

    from study.compose import CONF, choices
    from study.describe import help_text, launcher_help

    settings = help_text() if wanted else ""  # before it is registered: it composes
    OmegaConf.register_new_resolver("study_settings", lambda: settings, replace=True)
    folder = CONF / "hydra" / "launcher"
    OmegaConf.register_new_resolver("study_launcher_options", lambda: launcher_help(folder), replace=True)
    OmegaConf.register_new_resolver(
        "study_launchers", lambda: ", ".join(choices("hydra/launcher")), replace=True
    )


if __name__ == "__main__":
    import signal

    from study import pipes

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is worth a word before all is imported
    pipes.run(main)

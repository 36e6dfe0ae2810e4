"""Trials as tasks of SLURM job arrays, submitted through submitit; what is queued already is left alone."""

import contextlib
import io
import os
import re
import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import filelock

from study import provenance
from study.config import to_mapping
from study.errors import ConfigError, StudyError, unknown
from study.identity import scientific
from study.launch import slurm_queue, slurm_watch, validate
from study.launch.local import note_sweeps
from study.launch.plan import Plan, Trial
from study.launch.slurm_queue import Live, Submission
from study.launch.slurm_task import Pack, run_pack
from study.launch.table import Display
from study.status import Status

LOCK_SECONDS = 300.0
"""How long to wait for another launch that is submitting into the same runs folder."""
KEPT = ("SLURM_CONF",)
"""Variables of SLURM's that a job submitted from inside another one needs."""
LEAKING = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "PMI_", "PMIX_", "PMI2_")
"""Starts of names that describe the job a launcher runs in, not the one it submits."""
DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
FLAGS = {
    "partition": "partition", "account": "account", "qos": "qos", "time": "time", "mem": "mem",
    "cpus": "cpus_per_task", "gpus": "gpus_per_node", "gres": "gres", "constraint": "constraint",
}  # fmt: skip
"""Options that are flags of sbatch, under submitit's names."""


ALWAYS_SET = ("JOB_NAME", "TIMELIMIT", "SIGNAL", "REQUEUE", "NO_REQUEUE", "ARRAY_INX", "OUTPUT", "ERROR",
              "OPEN_MODE", "WAIT")  # fmt: skip
"""What the launcher decides itself, as sbatch's variables call it."""


@dataclass(frozen=True)
class Options:
    """Options of hydra/launcher=slurm; conf/hydra/launcher/slurm.yaml says what each is."""

    job_name: str = "study"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: int = 60
    mem: str | None = None
    cpus: int | None = None
    gpus: int | str | None = None
    gres: str | None = None
    constraint: str | None = None
    parallel: int = 0
    setup: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    trials_per_task: int = 1
    concurrent: int = 1
    signal: str = "USR2"
    warn_seconds: int | None = None
    max_timeouts: int = 20
    wait: bool = False
    on_code_change: str = "report"

    def __post_init__(self) -> None:
        for name, least in (("time", 1), ("parallel", 0), ("trials_per_task", 1), ("concurrent", 1),
                            ("max_timeouts", 0), ("cpus", 1), ("warn_seconds", 1)):  # fmt: skip
            value = getattr(self, name)
            optional = name in ("cpus", "warn_seconds") and value is None
            if not optional and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise _wrong(name, value, f"a whole number ≥ {least}")
        for name, choices in (("on_code_change", ("report", "refuse")), ("signal", ("USR1", "USR2"))):
            if getattr(self, name) not in choices:
                raise _wrong(name, getattr(self, name), " or ".join(choices))
        if not isinstance(self.wait, bool):
            raise _wrong("wait", self.wait, "true or false")
        if self.warning >= 60 * self.time:
            raise _wrong("warn_seconds", self.warn_seconds, f"below the time limit of {60 * self.time} s")
        ours = {"job-name", "array", "output", "error", "signal", *FLAGS.values()}
        for name in self.flags:
            if name in {x.replace("_", "-") for x in ours}:
                raise ConfigError(
                    f"hydra.launcher.extra: --{name} is set by an option, or by the launcher itself"
                )

    @property
    def flags(self) -> dict[str, Any]:
        """`extra` as names and values; True stands for a flag without a value."""
        found: dict[str, Any] = {}
        for text in self.extra:
            name, equals, value = text.partition("=")
            if not re.fullmatch(r"--[a-z][a-z-]*", name):
                raise _wrong("extra", text, "a flag of sbatch such as --exclude=node7 or --exclusive")
            found[name[2:]] = value if equals else True
        return found

    @property
    def warning(self) -> int:
        """Seconds before the time limit at which SLURM warns."""
        return self.warn_seconds if self.warn_seconds is not None else min(90, 60 * self.time // 4)


def options(**values: Any) -> Options:
    """Build the options from conf/hydra/launcher/slurm.yaml; raises ConfigError on a wrong value."""
    names = [f.name for f in fields(Options)]
    for name in values:
        if name not in names:
            raise unknown("option of hydra.launcher", name, names)
    lists = {name: tuple(map(str, values.get(name) or ())) for name in ("setup", "extra")}
    texts = {k: str(values[k]) for k in ("mem", "partition", "account", "qos", "gres", "constraint")
             if values.get(k) is not None}  # fmt: skip
    return Options(**values | lists | texts)


def launch(plan: Plan, options: Options | None = None, display: Display | None = None) -> int:
    """Submit all that is left of a plan; return 0, or with `wait` 1 if a trial failed.

    Raises StudyError with sbatch's own words if it refuses, or if SLURM cannot be asked.
    """
    options, display = options or Options(), display or Display()
    if plan.todo:
        slurm_queue.live()  # is there a SLURM? Building networks takes longer
        validate.buildable([t.config for t in plan.todo])
    display.plan(plan, 1)
    note_sweeps(plan.trials, display)
    submitted: list[str] = []
    for runs_dir in dict.fromkeys(t.paths.root.parent for t in plan.todo):
        with _alone(runs_dir):
            mine = [t.look() for t in plan.todo if t.paths.root.parent == runs_dir]
            free = _not_queued(mine, runs_dir, slurm_queue.live(), display)
            submitted += _submit(free, runs_dir, options, display)
    if submitted:
        ids = ",".join(submitted)
        display.say(f"watch: squeue --jobs={ids}   stop: scancel {' '.join(submitted)}")
        display.say("the same command goes on where these jobs will have stopped")
    if not options.wait:
        return 0
    code = slurm_watch.watch(plan, display)
    note_sweeps((t.look() for t in plan.todo), display)  # others may have finished some
    return code


def packs(trials: Sequence[Trial], options: Options, limit: int) -> list[list[list[Trial]]]:
    """Cut trials into arrays of at most `limit` tasks; the trials of an array cost about the same."""
    kinds: dict[tuple[tuple[str, str], ...], list[Trial]] = {}
    for trial in trials:
        fields = scientific(trial.config)
        costly = ("model.", "data.", "batch_size", "precision", "epochs")
        kind = tuple((name, str(value)) for name, value in fields.items() if name.startswith(costly))
        kinds.setdefault(kind, []).append(trial)
    arrays = []
    for alike in kinds.values():
        n = options.trials_per_task
        tasks = [alike[i : i + n] for i in range(0, len(alike), n)]
        arrays += [tasks[i : i + limit] for i in range(0, len(tasks), limit)]
    return arrays


def executor(folder: Path, name: str, options: Options) -> Any:
    """Return submitit's executor with exactly the flags asked for, and those a task cannot do without."""
    import submitit

    flags: dict[str, Any] = {theirs: getattr(options, ours) for ours, theirs in FLAGS.items()}
    made = submitit.SlurmExecutor(folder=folder, max_num_timeout=options.max_timeouts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.update_parameters(
            **{k: v for k, v in flags.items() if v is not None},
            job_name=name,
            wckey=None,
            stderr_to_stdout=True,
            array_parallelism=options.parallel or 1_000_000,
            setup=list(options.setup) or None,
            # SLURM ≥ 22.05 gives a step one core unless it is told again
            srun_args=[f"--cpus-per-task={options.cpus}"] if options.cpus else [],
            additional_parameters={
                "signal": f"{options.signal}@{options.warning}",
                "requeue": True,  # sites may have it off by default
                **options.flags,
            },
        )
    return made


def _submit(trials: Sequence[Trial], runs_dir: Path, options: Options, display: Display) -> list[str]:
    """Submit trials as job arrays; return the ids of the jobs."""
    if not trials:
        return []
    code = provenance.code()
    ids: list[str] = []
    for tasks in packs(trials, options, slurm_queue.max_array_size()):
        sweep = tasks[0][0].config.sweep
        start = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{options.job_name}-{sweep}" if sweep else options.job_name)
        folder = (runs_dir / slurm_queue.FOLDER / f"{start[:100]}-{uuid.uuid4().hex[:8]}").resolve()
        submission = Submission(folder, sweep, tuple(tuple(t.run_id for t in task) for task in tasks), code)
        submission.write()
        work = [_pack(task, folder, i, options, code) for i, task in enumerate(tasks)]
        try:
            job = _sbatch(folder, options, work)
        except StudyError as error:
            before = f" (submitted before: {', '.join(ids)})" if ids else ""
            raise StudyError(f"{error}{before}") from error
        ids.append(job)
        display.say(
            f"submitted job {job}: {sum(map(len, tasks))} trials in {len(tasks)} tasks, logs in "
            f"{os.path.relpath(folder)}"
        )
    return ids


def _pack(task: Sequence[Trial], folder: Path, index: int, options: Options, code: dict[str, Any]) -> Pack:
    return Pack(
        trials=tuple(to_mapping(t.config) for t in task),
        folder=str(folder),
        index=index,
        directory=os.getcwd(),
        concurrent=options.concurrent,
        warn_seconds=options.warning,
        max_timeouts=options.max_timeouts,
        code=code,
        refuse_changes=options.on_code_change == "refuse",
    )


def _sbatch(folder: Path, options: Options, work: Sequence[Pack]) -> str:
    import submitit

    with clean_environment(options), contextlib.redirect_stderr(io.StringIO()):
        try:
            jobs = executor(folder, folder.name, options).map_array(run_pack, work)
        except submitit.core.utils.FailedJobError as error:
            words = " ".join(str(error).split())
            raise StudyError(f"sbatch refused the job: {words}") from error
        except (RuntimeError, FileNotFoundError) as error:
            raise StudyError(f"the job could not be submitted: {error}") from error
    return str(jobs[0].job_id).partition("_")[0]


@contextlib.contextmanager
def clean_environment(options: Options) -> Iterator[None]:
    """Hide what would leak into the jobs: the variables of an allocation we are in, and defaults we override.

    SBATCH_X in the environment would win over the flag in the script.
    """
    given = {
        f"SBATCH_{theirs.upper()}" for ours, theirs in FLAGS.items() if getattr(options, ours) is not None
    }
    given |= {"SBATCH_MEM_PER_NODE"} if options.mem else set()
    given |= {f"SBATCH_{name}" for name in ALWAYS_SET}
    given |= {f"SBATCH_{n.upper().replace('-', '_')}" for n in options.flags}
    inside = "SLURM_JOB_ID" in os.environ
    hidden = {
        name: os.environ[name]
        for name in list(os.environ)
        if (name.startswith(LEAKING) and name not in KEPT) or name in given or (inside and name in DEVICES)
    }
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


@contextlib.contextmanager
def _alone(runs_dir: Path) -> Iterator[None]:
    """Keep two launches from submitting the same trials."""
    folder = runs_dir / slurm_queue.FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / "lock", timeout=LOCK_SECONDS):
            yield
    except filelock.Timeout:
        raise StudyError(f"another launch has been submitting into {runs_dir} for minutes") from None
    except OSError as error:
        raise StudyError(f"cannot write to {error.filename or folder}: {error.strerror}") from error


def _not_queued(trials: Sequence[Trial], runs_dir: Path, live: Live, display: Display) -> list[Trial]:
    """Return the trials that no task in the queue will run and no process works on."""
    queued = slurm_queue.queued([runs_dir], live)
    free, left = [], 0
    for trial in trials:
        found = queued.get(str(trial.paths.root))
        over = trial.status in (Status.FAILED, Status.LOST)  # its task runs on, but has left it behind
        if trial.done or (trial.status is Status.RUNNING and not trial.config.rerun):
            left += not trial.done
        elif found is not None and (found[2].pending or not over):
            left += 1
        else:
            free.append(trial)
    if left:
        display.say(f"{left} trials are queued or running already and are left alone")
    return free


def _wrong(name: str, value: object, valid: str) -> ConfigError:
    return ConfigError(f"hydra.launcher.{name}={value!r} is out of range: it must be {valid}")

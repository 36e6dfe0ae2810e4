"""What a run is: frozen dataclasses with every field's meaning, unit and range. Hydra only composes them.

Fields marked `scientific=False` say where, how fast and how closely watched a run is, never what it
computes; they stay out of its identity (see identity.py). The defaults of scientific fields are frozen: a
new field's default must do nothing, so that old run ids stand.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from study.errors import ConfigError, StudyError
from study.fields import build, check_field, check_fields, convert, hints_of, setting, to_mapping

__all__ = ["check_fields", "to_mapping"]


@dataclass(frozen=True)
class DataConfig:
    """A labelled image set, the size it is brought to, and what is held out."""

    name: str = setting("digits", package="study.data")
    """Data set; one module of study/data."""
    root: str = setting("data", scientific=False)
    """Folder that holds, or receives, downloaded data sets."""
    download: bool = setting(True, scientific=False)
    """Whether a missing data set may be downloaded into `root`."""
    size: int = setting(0, ge=0, le=1024)
    """Side of the square images, pixels; 0 keeps the native size."""
    fit: str = setting("resize", choices=("resize", "pad"))
    """How images come to `size`: bilinear resizing, or (for smaller images) a border of zero pixels."""
    channels: int = setting(0, ge=0, le=16)
    """Image channels; a grey image is replicated to this many; 0 keeps the native number."""
    subset: int = setting(0, ge=0)
    """Number of training images used, drawn class by class; 0 uses all."""
    validation: float = setting(0.0, ge=0, lt=1)
    """Share of the (sub)set of training images held out for validation; they are never trained on."""
    crop_padding: int = setting(0, ge=0, le=64)
    """Zero padding (pixels) before a random crop back to `size`; 0 does not crop."""
    flip: bool = setting(False)
    """Whether training images are mirrored left-right with probability ½."""


@dataclass(frozen=True)
class ModelConfig:
    """A network; each module of study/models says which of these fields it reads and refuses the others."""

    name: str = setting("resnet", package="study.models")
    """Network; one module of study/models."""
    depth: int = setting(110, ge=1, le=2000)
    """Weight layers on the main path (stem and classifier counted, projections not)."""
    widths: tuple[int, ...] = setting((16, 32, 64), ge=1, le=16384)
    """Channels of each stage, or units of the hidden layers."""
    width_multiplier: float = setting(1.0, gt=0, le=64)
    """Factor on every width, rounded to at least 1; how a scale narrows a network without naming it."""
    shortcut: str = setting("projection", choices=("projection", "padding"))
    """Where a residual stage changes shape: 1×1 convolution with norm, or subsampling and zero channels."""
    activation: str = setting("relu", choices=("relu", "sigmoid", "tanh", "gelu", "leaky_relu"))
    """Nonlinearity after each normalised layer."""
    branch_scale: str = setting("none", choices=("none", "skipinit", "depth"))
    """Factor on each residual branch: 1, a learned scalar from 0 (SkipInit), or 1/√(number of blocks)."""
    dropout: float = setting(0.0, ge=0, lt=1)
    """Probability that a unit of the classifier's input is dropped while training."""


SITE_KINDS = ("stem", "inner", "outer", "shortcut", "top")
"""Kinds of place where a norm may stand (study/norms/base.py), as a network meets them."""


@dataclass(frozen=True)
class NormConfig:
    """A normalisation: a family and its switches; each family refuses switches that it does not read."""

    name: str = setting("bn")
    """Name shown in tables; every RunConfig sets it to what follows from the switches (study/naming.py)."""
    family: str = setting("batch", package="study.norms")
    """Kind of normalisation; one module of study/norms."""
    sites: tuple[str, ...] = setting(("stem", "inner", "outer", "shortcut"))
    """Kinds of site that are normalised, of stem, inner, outer, shortcut, top."""
    center: bool = setting(True)
    """Whether the mean is subtracted."""
    scale: bool = setting(True)
    """Whether the deviation is divided by; without centring it is the root mean square about 0."""
    gamma: bool = setting(True)
    """Whether a learned factor γ per channel follows."""
    beta: bool = setting(True)
    """Whether a learned shift β per channel follows."""
    order: float = setting(2.0, ge=1)
    """Order p of the deviation: 1, 2 or inf; scaled so that a Gaussian keeps unit variance."""
    source: str = setting("batch", choices=("batch", "running", "frozen", "periodic", "ghost"))
    """Whose statistics normalise in training: this batch, running averages, a calibration before training,
    every `period`-th batch (the latest in between), or virtual sub-batches of `ghost_size`."""
    period: int = setting(2, ge=2)
    """Batches from one recomputation of the statistics to the next, for source=periodic."""
    ghost_size: int = setting(16, ge=2)
    """Images per virtual batch, for source=ghost."""
    detach: bool = setting(False)
    """Whether the gradient through the statistics is cut."""
    noise: bool = setting(False)
    """Whether the non-stationary noise of Santurkar et al. 2018 (1805.11604, §2.1) follows."""
    groups: int = setting(4, ge=2)
    """Channel groups, for family=group; they must divide the channels of every site, and be fewer."""
    momentum: float = setting(0.1, gt=0, le=1)
    """Weight of the newest batch in the running averages (the framework's convention)."""
    eps: float = setting(1e-5, gt=0, le=1)
    """Added to the variance before the root."""
    gamma_init: tuple[float, ...] = setting((1.0,), ge=0, le=100)
    """γ's initial value: one number, or the two bounds of a uniform distribution."""


@dataclass(frozen=True)
class InitConfig:
    """Initial weights."""

    name: str = setting("xavier_normal", package="study.inits")
    """Distribution of the convolutions' (and hidden linear layers') weights; one module of study/inits."""
    gain: float = setting(1.0, gt=0, le=1e6)
    """Factor on all of these weights after initialisation."""


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over time, as a factor on `lr`."""

    name: str = setting("drops", choices=("drops", "plateau"))
    """`drops` at fixed shares of the epochs, or at each `plateau` of the training loss."""
    milestones: tuple[float, ...] = setting((0.5, 0.75), gt=0, lt=1)
    """Shares of `epochs` after which the rate drops (drops)."""
    factor: float = setting(0.1, gt=0, le=1)
    """What the rate is multiplied by at a drop."""
    patience: int = setting(10, ge=1)
    """Epochs without improvement that make a plateau (plateau; also the recorded `plateau_reached`)."""
    threshold: float = setting(0.01, ge=0, lt=1)
    """Relative decrease of the training loss that counts as improvement."""
    max_drops: int = setting(2, ge=0)
    """Most drops (plateau)."""
    warm_start_epochs: int = setting(0, ge=0)
    """Epochs at `warm_start_lr` before the schedule's own rate; they count among `epochs`."""
    warm_start_lr: float = setting(1e-4, gt=0, le=1e6)
    """Learning rate of the warm start."""


@dataclass(frozen=True)
class ProbesConfig:
    """What is measured while training; never changes a trajectory, so never part of the identity."""

    name: str = setting("none", scientific=False)
    """Name of the choice in conf/probes."""
    measure: tuple[str, ...] = setting((), scientific=False)
    """Probes and when they run, as NAME@SCHEDULE: init, first:7, every:50, epoch_end, divergence, final;
    a NAME alone takes its usual schedule (study/probes/base.py)."""
    moments: int = setting(4, ge=2, le=4, scientific=False)
    """activation_moments: 2 takes mean and variance only, 4 everything."""
    moment_sides: tuple[str, ...] = setting(("input", "output"), scientific=False)
    """activation_moments: sides of each layer, of input, output."""
    noise_images: int = setting(0, ge=0, le=100_000, scientific=False)
    """activation_moments at init and final: noise images measured besides; 0 measures none."""
    agreement_layers: tuple[int, ...] = setting((18, 54, 90), ge=1, le=110, scientific=False)
    """gradient_agreement: layers, by their numbers in the paper's ResNet-110; elsewhere proportionally."""
    pair_layers: tuple[int, ...] = setting((18, 54, 90), ge=1, le=110, scientific=False)
    """channel_pairs: layers, likewise."""
    tail_layers: tuple[int, ...] = setting((55,), ge=1, le=110, scientific=False)
    """gradient_tails: layers with Hill's tail index, likewise."""
    tail_test: bool = setting(False, scientific=False)
    """gradient_tails: whether those layers' tails are also compared by likelihood (seconds a layer)."""
    class_layers: tuple[int, ...] = setting((52,), ge=1, le=110, scientific=False)
    """class_gradients: layers, likewise."""
    class_by: tuple[str, ...] = setting(("logit",), scientific=False)
    """class_gradients: what is masked, of logit (columns) and label (rows, by the image's class)."""
    example_layers: tuple[int, ...] = setting((90,), ge=1, le=110, scientific=False)
    """example_gradients: layers, likewise."""
    example_weights: int = setting(16, ge=1, le=10_000, scientific=False)
    """example_gradients: weights of each layer recorded image by image, evenly spaced in its kernel."""
    unit_channels: int = setting(4, ge=1, le=10_000, scientific=False)
    """activation_histogram: channels of the last hidden layer whose percentiles are recorded."""
    alphas: tuple[float, ...] = setting((1e-6, 10.0), gt=0, lt=1e30, scientific=False)
    """loss_along_gradient: smallest and largest step size."""
    alpha_points: int = setting(29, ge=2, le=10_000, scientific=False)
    """loss_along_gradient: step sizes, evenly spaced in their logarithm; one forward pass each."""
    path_layers: tuple[int, ...] = setting((8, 44, 80), ge=1, le=110, scientific=False)
    """update_path: layers, likewise."""
    path_points: int = setting(11, ge=2, le=1000, scientific=False)
    """update_path: points from 0 to 100% of the update; one forward pass each."""
    path_lr: float = setting(0.0, ge=0, le=1e6, scientific=False)
    """update_path: learning rate of the update; 0 takes the run's present one."""
    noise_subset: int = setting(128, ge=2, le=1_000_000, scientific=False)
    """gradient_noise: training images that stand for the whole set."""
    noise_batches: tuple[int, ...] = setting((1, 4, 16, 64), ge=1, le=1_000_000, scientific=False)
    """gradient_noise: batch sizes, below noise_subset; the smallest gives C."""
    noise_draws: int = setting(16, ge=1, le=100_000, scientific=False)
    """gradient_noise: most batches drawn by each law for each size above the smallest."""
    sharpness_images: int = setting(64, ge=1, le=1_000_000, scientific=False)
    """sharpness: training images whose loss's Hessian is taken, as one batch."""
    sharpness_values: int = setting(1, ge=1, le=100, scientific=False)
    """sharpness: eigenvalues, the largest first."""


@dataclass(frozen=True)
class TrackerConfig:
    """Where metrics are mirrored; the Parquet records stay the truth."""

    name: str = setting("none", choices=("none", "wandb"), scientific=False)
    """Tracker; a choice of conf/tracker."""
    project: str = setting("why-batchnorm", scientific=False)
    """W&B project."""
    entity: str = setting("", scientific=False)
    """W&B team or user; empty is the account's default."""
    patience: float = setting(60.0, gt=0, le=86_400, scientific=False)
    """Longest time W&B may take to start, to finish, and to confirm, seconds each; then it is given up."""


@dataclass(frozen=True)
class RunConfig:
    """One run. Immutable, every field valid and its norm rightly named by construction.

    `from_mapping` is the way in from the outside.
    """

    data: DataConfig = setting(DataConfig)
    """Image set."""
    model: ModelConfig = setting(ModelConfig)
    """Network."""
    norm: NormConfig = setting(NormConfig)
    """Normalisation."""
    init: InitConfig = setting(InitConfig)
    """Initial weights."""
    schedule: ScheduleConfig = setting(ScheduleConfig)
    """Learning rate over time."""
    lr: float = setting(0.1, gt=0, le=1e6)
    """Initial learning rate."""
    seed: int = setting(0, ge=0, lt=2**31)
    """Seed of the initial weights, batch order, augmentation and noise; the data split does not use it."""
    epochs: int = setting(165, ge=0, le=100_000)
    """Passes over the training set; 0 only measures the initial network."""
    batch_size: int = setting(128, ge=1, le=1_000_000)
    """Images per training batch; the incomplete last batch of an epoch is dropped, for every norm."""
    momentum: float = setting(0.9, ge=0, lt=1)
    """Momentum of SGD."""
    weight_decay: float = setting(5e-4, ge=0, le=10)
    """L2 penalty added to the gradient by SGD (coupled)."""
    decay_norm_and_bias: bool = setting(True)
    """Whether γ, β and biases are decayed as well."""
    precision: str = setting("fp32", choices=("fp32", "bf16", "fp16"))
    """fp32, or autocast to bf16 or fp16 (with loss scaling); weights stay fp32."""

    device: str = setting("auto", pattern=r"auto|cpu|cuda(:\d+)?", scientific=False)
    """auto (a GPU if there is one), cpu, cuda or cuda:N."""
    threads: int = setting(1, ge=1, le=1024, scientific=False)
    """CPU threads of a run; recorded, since sums may round differently with another number."""
    compile: bool = setting(False, scientific=False)
    """Whether the network's forward and backward pass go through torch.compile."""
    runs_dir: str = setting("runs", scientific=False)
    """Folder of all runs."""
    rerun: bool = setting(False, scientific=False)
    """Train again beside a finished run and replace it at the end."""
    stop_when_decided: bool = setting(False, scientific=False)
    """End early, resumable, once the network has verifiably left chance (criteria.fate_decided)."""
    keep_weights: bool = setting(True, scientific=False)
    """Whether the final weights are kept (weights.pt)."""
    log_every: int = setting(1, ge=1, scientific=False)
    """Steps from one recorded training-batch row to the next."""
    checkpoint_seconds: float = setting(30.0, ge=0, scientific=False)
    """Least time between two checkpoints, seconds; 0 writes one after every step."""
    experiment: str = setting("", scientific=False)
    """Name of the experiment (conf/experiment), for grouping."""
    scale: str = setting("", scientific=False)
    """Name of the scale (conf/scale), for labelling."""
    sweep: str = setting("", scientific=False)
    """Name of the sweep that asked for this run; run.json collects them all."""
    probes: ProbesConfig = setting(ProbesConfig, scientific=False)
    """Measurements."""
    tracker: TrackerConfig = setting(TrackerConfig, scientific=False)
    """Mirror of the metrics."""

    def __post_init__(self) -> None:
        check_fields(self)
        _complete(self)


def from_mapping(mapping: Mapping[str, Any]) -> RunConfig:
    """Build a RunConfig from nested plain values; raises ConfigError that names field, value and range."""
    return build(RunConfig, mapping)


def stored_config(path: Path) -> RunConfig:
    """Return the config that a run's config.yaml holds; raises StudyError that names the file."""
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise StudyError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(content, Mapping):
        raise StudyError(f"{path} is damaged: it holds no settings")
    try:
        return from_mapping(content)
    except ConfigError as error:
        raise ConfigError(f"{path} does not suit this version of the study: {error}") from error


def check_together(run: RunConfig) -> None:
    """Raise ConfigError for settings that have no effect beside the others, or contradict them.

    What concerns norm and network alone is checked where they are built, as this is (models/base.py).
    """
    default, schedule, norm = ScheduleConfig(), run.schedule, run.norm
    for name, reader in (("milestones", "drops"), ("max_drops", "plateau")):
        if schedule.name != reader and getattr(schedule, name) != getattr(default, name):
            raise ConfigError(f"schedule.{name} has no effect with schedule={schedule.name}; leave it out")
    if list(schedule.milestones) != sorted(set(schedule.milestones)):
        raise ConfigError(f"schedule.milestones={list(schedule.milestones)} must increase")
    warm = schedule.warm_start_epochs
    if warm == 0 and schedule.warm_start_lr != default.warm_start_lr:
        raise ConfigError(
            "schedule.warm_start_lr has no effect with schedule.warm_start_epochs=0; leave it out"
        )
    if warm >= run.epochs > 0:
        raise ConfigError(
            f"schedule.warm_start_epochs={warm} is out of range: it must be below epochs={run.epochs}, "
            "or lr is never used"
        )
    if run.data.fit == "pad" and run.data.size == 0:
        raise ConfigError(
            "data.fit=pad has no effect with data.size=0, which keeps the native size; leave it out"
        )
    if norm.family == "batch" and norm.source == "ghost" and norm.ghost_size >= run.batch_size:
        raise ConfigError(
            f"norm.ghost_size={norm.ghost_size} has no effect with batch_size={run.batch_size}: the whole "
            "batch is one virtual batch, as in norm=bn; make it smaller than the batch"
        )


def norm_from_mapping(mapping: Mapping[str, Any]) -> NormConfig:
    """Build a NormConfig alone, its name as it stands there; raises ConfigError as `from_mapping`."""
    norm = build(NormConfig, mapping, "norm.")
    check_fields(norm, "norm.")
    return norm


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return `config` with some fields (by dotted name) changed; only these are checked, so it is fast.

    Equals building from a mapping with the same values, errors included.
    """
    made = copy.copy(config)
    for name, value in values.items():
        group, _, key = name.rpartition(".")
        owner: Any = made
        if group:
            owner = copy.copy(getattr(made, group))
            object.__setattr__(made, group, owner)
        converted = convert(hints_of(type(owner))[key], value, name)
        check_field(type(owner).__dataclass_fields__[key].metadata, converted, name)
        object.__setattr__(owner, key, converted)
    _complete(made)
    return made


def _complete(run: RunConfig) -> None:
    """Check the probes together, and give the norm the name and the order of sites that follow."""
    from study import naming  # these two read the configs
    from study.probes import _schedule

    _schedule.check(run.probes)
    object.__setattr__(run, "norm", naming.canonical(run.norm))

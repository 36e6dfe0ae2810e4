"""Command line → RunConfig: priorities, plain errors, quoting, the fast path against Hydra itself."""

import random
import re
import shlex
import shutil

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from study import compose as composing
from study import naming
from study.compose import CONF, by_hydra, compose, compose_all, expand, quoted
from study.config import RunConfig, from_mapping, to_mapping
from study.describe import _shown, help_text, settings
from study.errors import ConfigError
from study.identity import run_id


def test_config_yaml_repeats_the_frozen_defaults():
    stated = yaml.safe_load((CONF / "config.yaml").read_text())
    for key in ("lr", "seed", "epochs", "batch_size", "momentum", "runs_dir", "sweep"):
        assert stated[key] == getattr(RunConfig(), key), key
    assert float(stated["weight_decay"]) == RunConfig().weight_decay


def test_scale_beats_config_yaml_and_the_command_line_beats_both():
    assert compose([]).epochs == 12
    assert compose(["scale=paper"]).epochs == 165
    assert compose(["scale=paper", "epochs=3"]).epochs == 3
    assert compose(["epochs=3", "scale=paper"]).epochs == 3


def test_a_scale_chooses_groups_and_the_command_line_may_choose_others():
    assert compose(["scale=paper"]).data.name == "cifar10"
    assert compose(["scale=paper", "data=digits"]).data.name == "digits"
    assert compose(["scale=smoke"]).model.depth == 8
    assert compose(["scale=smoke", "model=resnet"]).model.depth == 110


def test_an_experiment_beats_the_scale(tmp_path, monkeypatch):
    conf = tmp_path / "conf"
    shutil.copytree(CONF, conf)
    (conf / "experiment").mkdir(exist_ok=True)
    text = "# @package _global_\ndefaults:\n  - override /norm: none\nepochs: 7\nlr: 0.5\n"
    (conf / "experiment" / "deep.yaml").write_text(text)
    monkeypatch.setattr(composing, "CONF", conf)
    _forget()
    try:
        run = compose(["experiment=deep", "lr=0.25"])
    finally:
        monkeypatch.undo()
        _forget()
    assert (run.epochs, run.norm.name, run.lr, run.experiment) == (7, "none", 0.25, "deep")
    assert (run.scale, run.data.size) == ("laptop", 16)


def _forget():
    composing.groups.cache_clear()
    composing._loader.cache_clear()
    composing._checked.cache_clear()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("lrr=0.1", ["lrr", "Did you mean 'lr'?", "batch_size"]),
        ("foo=1", ["unknown setting 'foo'. Valid: "]),
        ("data.sise=8", ["data.sise", "Did you mean 'data.size'?"]),
        ("norm=bnn", ["bnn", "'bn'", "none"]),
        ("norm=None", ["norm=None", "norm=none"]),
        ("norm=null", ["norm=null", "norm=none"]),
        ("experiment=nope", ["experiment", "nope"]),
        ("model=null", ["model=null", "resnet"]),
        ("~norm", ["cannot be removed", "norm=none"]),
        ("+lr=0.1", ["write lr=0.1"]),
        ("lr=abc", ["lr='abc'", "a number"]),
        ("lr=true", ["lr=True", "a number"]),
        ("lr=null", ["lr=None", "a number"]),
        ("lr=0", ["lr=0", "> 0"]),
        ("lr=nan", ["lr=nan", "> 0"]),
        ("seed=1.5", ["seed=1.5", "a whole number"]),
        ("seed=-1", ["seed=-1", "≥ 0"]),
        ("model.widths=16", ["model.widths=16", "a list"]),
        ("precision=fp8", ["precision", "fp8", "bf16"]),
        ("norm={name: bn}", ["norm"]),
        ("lr=0.1,0.003", ["'lr=0.1,0.003'", "add -m"]),
        ("norm=bn,none", ["add -m"]),
        ("lr", ["'lr'", "setting=value"]),
        ("lr=[0.1", ["cannot read", "Quote"]),
        ("norm@model=bn", ["cannot be moved"]),
        ("norm.name=foo", ["norm.name=foo", "write norm=NAME"]),
        ("device=tpu", ["device='tpu'", "cuda"]),
        ("device=cuda:x", ["device='cuda:x'"]),
        ("schedule.milestones=[0.75,0.5]", ["[0.75, 0.5] must increase"]),
        ("schedule.milestones=[0.5,0.5]", ["must increase"]),
        ("schedule.max_drops=1", ["schedule.max_drops has no effect"]),
        ("lr=${nope}", ["nope"]),
        ("hydra/launcher=slrum", ["slrum", "'slurm'", "local"]),
        ("from=/no/such/config.yaml", ["/no/such/config.yaml", "no such file"]),
    ],
)
def test_bad_input_is_one_plain_sentence(given, words):
    with pytest.raises(ConfigError) as error:
        compose([given])
    text = str(error.value)
    assert all(word in text for word in words), text
    assert "Traceback" not in text
    assert "\n" not in text


def test_the_groups_are_those_of_the_study():
    groups = {"data", "model", "norm", "init", "schedule", "probes", "tracker", "scale", "experiment"}
    assert set(composing.groups()) == groups
    assert composing.choices("hydra/launcher") == ("local", "slurm")


@pytest.mark.parametrize("group", ["scale", "schedule", "probes", "tracker", "experiment"])
def test_every_choice_composes(group):
    for name in composing.groups()[group]:
        run = compose([f"{group}={name}"])
        chosen = getattr(run, group)
        assert name == (chosen if isinstance(chosen, str) else chosen.name)


def test_a_setting_is_listed_once():
    with pytest.raises(ConfigError) as error:
        compose(["foo=1"])
    listed = str(error.value).partition("Valid: ")[2].rstrip(".").split(", ")
    assert len(listed) == len(set(listed))
    assert {"experiment", "scale", "lr"} <= set(listed)


TEXTS = ["my runs", "a,b", "it's", 'say "x"', "x=y", "a/b:c", "100%", "[x]", "{y}", "\\", "a\\'b", "ends\\",
         "", " ", "null", "1e5", "(a)", "~/runs", "µ", "$HOME", "a: b", "#", "-m", "\\\\'"]  # fmt: skip


def test_any_text_survives_quoting():
    given = [[f"data.root={quoted(text)}"] for text in TEXTS]
    assert [run.data.root for run in compose_all(given)] == TEXTS
    assert [run.data.root for run in compose_all(t for g in given for t in expand(g))] == TEXTS


@pytest.mark.parametrize("text", [TEXTS[2], TEXTS[10], TEXTS[11]])
def test_hydra_reads_quoted_text_the_same(text):
    assert by_hydra([f"data.root={quoted(text)}"])["data"]["root"] == text


def test_what_people_type_without_quotes():
    assert compose(["runs_dir=/data/my-runs"]).runs_dir == "/data/my-runs"
    assert compose(["runs_dir=my runs"]).runs_dir == "my runs"


def test_the_advice_on_quoting_is_right():
    with pytest.raises(ConfigError) as error:
        compose(["data.root=a=b, c"])
    _, advice = str(error.value).rsplit(": ", 1)
    assert compose(shlex.split(advice)).data.root == "a=b, c"


def test_equal_numbers_are_one_run_however_they_are_written():
    ids = {run_id(compose([f"lr={x}"])) for x in ("1e-4", "0.0001", "1.0e-4", ".0001")}
    assert len(ids) == 1
    assert run_id(compose(["seed=3"])) == run_id(compose(["seed=3.0"]))


def test_grid_order_and_size():
    grid = expand(["lr=0.1,0.003", "norm=bn,none", "epochs=2"])
    assert grid[0] == ["lr=0.1", "norm=bn", "epochs=2"]
    assert grid[1] == ["lr=0.1", "norm=none", "epochs=2"]
    assert len(grid) == 4
    assert len(expand(["seed=range(0,5)"])) == 5


def test_an_experiment_brings_its_grid_and_settings_win_over_it():
    parade = expand(["experiment=norm_parade"])
    assert sorted(compose(t).norm.name for t in parade) == list(naming.norms())
    assert expand(["experiment=norm_parade", "norm=bn,gn", "seed=1"]) == [
        ["experiment=norm_parade", "norm=bn", "seed=1"],
        ["experiment=norm_parade", "norm=gn", "seed=1"],
    ]
    assert expand(["experiment=null", "lr=0.1"]) == [["experiment=null", "lr=0.1"]]


def test_several_experiments_each_keep_their_grid():
    both = expand(["experiment=norm_parade,bjorck_init", "lr=0.1,0.2"])
    apart = [expand([f"experiment={name}", "lr=0.1,0.2"]) for name in ("norm_parade", "bjorck_init")]
    assert both == apart[0] + apart[1]
    assert len(both) == 2 * (24 + 6)


def test_a_grid_that_a_single_run_ignores_is_named():
    assert "norm=bn,none seed=0,1,2" in composing.ignored_grid(["experiment=bjorck_init"])
    assert "norm" not in composing.ignored_grid(["experiment=bjorck_init", "norm=bn"]).partition(":")[2]
    assert composing.ignored_grid(["experiment=bjorck_init", "norm=bn", "seed=1"]) == ""
    assert composing.ignored_grid(["lr=0.1"]) == ""
    with pytest.raises(ConfigError, match="give a grid as settings"):
        expand(["hydra.sweeper.params.lr=1"])


@pytest.mark.parametrize(
    "text",
    ["lr=0.1", "lr=1e-05", "lr=-2.50E+3", "seed=12", "seed=-1", "seed=0", "data.size=16", "epochs=1e5"],
)
def test_numbers_are_read_as_hydra_reads_them(text):
    fast, own = composing._number(text), OverridesParser.create().parse_override(text)
    assert (fast.key_or_group, fast.type, fast.value_type) == (own.key_or_group, own.type, own.value_type)
    assert repr(fast.value()) == repr(own.value())
    assert fast.input_line == own.input_line
    assert fast.is_sweep_override() == own.is_sweep_override()


@pytest.mark.parametrize(
    "text", ["seed=007", "lr=.5", "lr=1_000", "lr=inf", "lr=0.1,0.2", "norm=bn", "+lr=1"]
)
def test_what_is_no_plain_number_is_left_to_hydra(text):
    assert composing._number(text) is None


def test_the_fast_path_equals_hydras_own_result():
    draw = random.Random(0)
    options = {
        "lr": ["0.1", "1e-4", "3"],
        "norm": ["bn", "none", "gn"],
        "scale": ["smoke", "laptop", "paper"],
        "model": ["resnet", "resnet8"],
        "schedule": ["drops", "plateau"],
        "probes.pair_layers": ["[3]", "[18,90]"],
        "norm.eps": ["1e-3"],
        "data.size": ["8", "32"],
        "sweep": ["'a, b'", "x"],
        "data.root": [quoted("it's = \\ x")],
        "norm.order": ["inf", "1"],
        "rerun": ["true"],
    }
    trials = []
    for _ in range(12):
        names = draw.sample(list(options), draw.randint(1, 8))
        trials.append([f"{n}={draw.choice(options[n])}" for n in names])
    for overrides, fast in zip(trials, compose_all(trials), strict=True):
        assert fast == composing._finish(by_hydra(overrides)), overrides


def test_an_interpolation_is_resolved_against_the_final_values():
    assert (
        compose(
            ["schedule.warm_start_lr=${lr}", "lr=0.25", "schedule.warm_start_epochs=1"]
        ).schedule.warm_start_lr
        == 0.25
    )


def test_the_norm_is_named_by_its_switches():
    assert compose(["norm=bn", "norm.center=false"]).norm == compose(["norm=bn_no_mean"]).norm


def test_a_stored_run_is_repeated_and_single_values_win(tmp_path):
    run = compose(["scale=smoke", "norm=none", "lr=0.3", "runs_dir=elsewhere", "sweep=s", "rerun=true"])
    stored = tmp_path / "config.yaml"
    stored.write_text(yaml.safe_dump(to_mapping(run)))
    again = compose([f"from={stored}"])
    assert run_id(again) == run_id(run)
    assert (again.runs_dir, again.sweep, again.rerun) == ("runs", "", False)
    assert compose([f"from={tmp_path}", "lr=0.2"]).lr == 0.2
    assert [c.lr for c in compose_all(expand([f"from={stored}", "lr=0.1,0.2"]))] == [0.1, 0.2]
    with pytest.raises(ConfigError, match="norm=bn"):
        compose([f"from={stored}", "norm=bn"])


def test_every_config_survives_its_own_yaml():
    for overrides in (["norm.order=inf"], ["norm=bn_alternating"], ["lr=1e-5", "model=mlp"]):
        run = compose(overrides)
        assert from_mapping(yaml.safe_load(yaml.safe_dump(to_mapping(run)))) == run


def test_help_describes_every_setting():
    text = help_text()
    for setting in settings().values():
        assert f"  {setting.name}=" in text
        assert len(setting.doc) > 10, setting.name


def shown():
    """Return the values that --help shows, as text, and what it says by scale."""
    lines = [*help_text().splitlines(), ""]
    heads = [(i, line.strip()) for i, line in enumerate(lines) if re.match(r"  [a-z_.]+=", line)]
    by_scale = {
        head.partition("=")[0]: lines[i + 2].strip()
        for i, head in heads
        if lines[i + 2].startswith("      By scale: ")
    }
    return {h.partition("=")[0]: h.partition("=")[2].split(" [")[0] for _, h in heads}, by_scale


def test_help_shows_the_values_that_hold_where_nothing_is_said():
    values, by_scale = shown()
    flat = dict(flattened(to_mapping(compose([]))))
    assert {k: _shown(tuple(v) if isinstance(v, list) else v) for k, v in flat.items()} == values
    assert (values["epochs"], values["scale"]) == ("12", "laptop")
    assert by_scale["epochs"] == "By scale: laptop 12, paper 165, smoke 2, workstation 15."
    assert "scale=laptop, the default" in help_text()


@pytest.mark.parametrize("scale", ["laptop", "paper", "smoke", "workstation"])
def test_help_says_what_each_scale_sets(scale):
    _, by_scale = shown()
    own, usual = (dict(flattened(to_mapping(compose(x)))) for x in ([f"scale={scale}"], []))
    for name, value in own.items():
        text = _shown(tuple(value) if isinstance(value, list) else value)
        if name in by_scale:
            assert re.search(rf"[ :]{scale} {re.escape(text)}[,.]", by_scale[name]), name
        else:
            assert value == usual[name], name


def flattened(values, prefix=""):
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value

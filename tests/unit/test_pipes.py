"""`| head` ends a command quietly, and never a trial."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from study import pipes
from study.compose import compose
from study.execute import execute

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(
    path
    for folder in ("study", "analysis")
    for path in (ROOT / folder).rglob("*.py")
    if 'if __name__ == "__main__":' in path.read_text()
)


def unread(*arguments, cwd=ROOT):
    """Run Python with nobody at the other end of its output; return (exit code, errors)."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(writer)
    return done.returncode, done.stderr


def test_every_command_goes_through_the_one_place():
    assert len(COMMANDS) > 10
    others = [p for p in COMMANDS if "pipes.run(main)" not in p.read_text()]
    assert [p.name for p in others] == ["bench_probes.py"], "which `python -m study.bench probes` calls"


@pytest.mark.parametrize("n", [1, 100_000], ids=["at the end", "while it prints"])
def test_a_command_whose_reader_has_left_ends_quietly(n):
    code = f"from study import pipes; pipes.run(lambda: print(*range({n})) or 7)"
    assert unread("-c", code) == (pipes.LEFT, "")


@pytest.mark.parametrize(
    ("ending", "code"), [("7", 7), ("None", 0), ("sys.exit(3)", 3), ("sys.exit()", 0), ("1 / 0", 1)]
)
def test_exit_codes_pass(ending, code):
    text = f"import sys; from study import pipes; pipes.run(lambda: {ending})"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == code


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("study.parts", "plan"),
        ("study.sweep", "plan", "quickstart", "--all"),
        ("study.sweep", "status", "quickstart"),
        ("study.runs", "--help"),
        ("study.run", "--help"),
        ("study.runs", "diff", "a", "b"),
        ("study.bench", "--help"),
        ("study.estimate", "quickstart"),
        ("study.dashboard", "p", "--dry-run"),
        ("analysis.report", "--runs", "runs"),
    ],
    ids=" ".join,
)
def test_commands_end_quietly(tmp_path, words):
    for name, seed in (("a", 0), ("b", 1)):
        run = compose(["scale=smoke", "epochs=0", f"seed={seed}", f"runs_dir={tmp_path / 'runs'}"])
        (tmp_path / name).symlink_to(tmp_path / "runs" / execute(run)["run_id"])
    code, errors = unread("-m", *words, cwd=tmp_path)
    assert errors == ""
    assert code in (0, pipes.LEFT)


@pytest.mark.slow
def test_a_grid_goes_on_when_nobody_reads(tmp_path):
    words = ["-m", "lr=0.1,0.01", "scale=smoke", "epochs=1", f"runs_dir={tmp_path}"]
    code, errors = unread("-m", "study.run", *words)
    assert (code, errors) == (0, "")
    assert len(list(tmp_path.glob("*/weights.pt"))) == 2

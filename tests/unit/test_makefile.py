"""What `make` does around the commands it calls, which are stood in for by a script."""

import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"
PYTHON = """#!/bin/sh
echo "$@" >> calls
[ "$2" != analysis.undecided ] || { cat printed; exit "$(cat code)"; }
[ "$2" != study.parts ] || exit "$(cat parts_code)"
"""
COMMANDS = "python -m study.parts run a 'seed=range(0,7)'\npython -m study.parts run b\n"
UNDECIDED, REPORT = "-m analysis.undecided --runs runs", "-m analysis.report --runs runs --out report"


@pytest.mark.parametrize(
    ("printed", "code", "parts_code", "calls"),
    [
        (COMMANDS, 0, 0, ["-m study.parts run a seed=range(0,7)", "-m study.parts run b", REPORT]),
        (COMMANDS, 0, 1, ["-m study.parts run a seed=range(0,7)"]),
        ("", 0, 0, [REPORT]),
        ("", 1, 0, []),
        (COMMANDS, 1, 0, []),
    ],
)
def test_more_seeds_fails_where_one_of_its_commands_does(tmp_path, printed, code, parts_code, calls):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    texts = {"printed": printed, "code": str(code), "parts_code": str(parts_code)}
    for name, text in (texts | {"pyproject.toml": "", "constraints.txt": "", ".venv/installed": ""}).items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["make", "-f", MAKEFILE, "more-seeds"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (tmp_path / "calls").read_text().splitlines() == [UNDECIDED, *calls]
    assert (done.returncode == 0) is (code == parts_code == 0), done.stderr
    assert ("nothing to add" in done.stdout) is (not printed and not code)

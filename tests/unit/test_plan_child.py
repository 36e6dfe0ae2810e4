"""What a trial's process sends and prints when it fails, run in a process of its own."""

import multiprocessing
import sys
import types

import pytest

from study.config import RunConfig, with_values
from study.errors import ConfigError, OwnedElsewhereError
from study.identity import run_id
from study.launch import child
from study.records import write_json


def _run(error, config, pipe, output, recorded):
    """Stand in for study.execute, which the child imports, with one that raises."""

    def execute(*_, **__):
        if recorded:
            folder = child.Path(config.runs_dir) / run_id(config)
            folder.mkdir(parents=True)
            write_json(folder / "run.json", {"status": "failed", "error": f"ValueError: {error}"})
        raise error

    sys.modules["study.execute"] = types.SimpleNamespace(execute=execute)
    child.run_trial(config, pipe, output, None)


def run(tmp_path, error, recorded=False):
    """Return exit code, message and printed text."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    config = with_values(RunConfig(), {"runs_dir": str(tmp_path / "runs")})
    output = tmp_path / "printed.txt"
    process = context.Process(target=_run, args=(error, config, theirs, str(output), recorded))
    process.start()
    theirs.close()
    message = mine.recv()
    process.join()
    return process.exitcode, message, output.read_text()


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("lr is odd"), child.REFUSED, "lr is odd"),
        (OwnedElsewhereError("owned by process 1"), child.OWNED_ELSEWHERE, "owned by process 1"),
        (ValueError("odd"), 1, "ValueError: odd"),
    ],
)
def test_exit_codes_and_messages(tmp_path, error, code, message):
    found = run(tmp_path, error)
    assert found[:2] == (code, message)
    assert ("Traceback" in found[2]) == (code == 1)


def test_a_traceback_that_the_run_has_logged_is_not_printed_again(tmp_path):
    assert run(tmp_path, ValueError("odd"), recorded=True) == (1, "ValueError: odd", "")

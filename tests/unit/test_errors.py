"""What the disk is to blame for is one plain sentence, in every tool."""

import errno
import os

import pytest

from study import errors, runs, sweep
from study.config import RunConfig
from study.errors import StudyError
from study.execute import execute


@pytest.mark.parametrize("number", sorted(errors.DISK))
def test_disk_errors_become_one_sentence(number, tmp_path):
    with pytest.raises(StudyError) as error, errors.plain_disk_errors(tmp_path):
        raise OSError(number, os.strerror(number), "/there/x")
    assert str(error.value).startswith("cannot ")
    assert str(error.value).endswith(f"/there/x: {os.strerror(number)}")
    with pytest.raises(StudyError, match=str(tmp_path)), errors.plain_disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(OSError, match="down"), errors.plain_disk_errors(tmp_path):
        raise OSError(errno.ENETDOWN, "down")


def loop(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    return tmp_path / "loop"


@pytest.mark.parametrize("where", ["a file", "a loop", "too long"])
def test_no_runs_dir_ever_leads_to_advice_to_delete(tmp_path, where):
    (tmp_path / "passwd").write_text("root")
    folder = {"a file": tmp_path / "passwd", "a loop": loop(tmp_path), "too long": tmp_path / ("x" * 300)}[
        where
    ]
    with pytest.raises(StudyError) as error:
        execute(RunConfig(runs_dir=str(folder)))
    assert "delete" not in str(error.value)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)
    assert (tmp_path / "passwd").read_text() == "root"


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/full/x")


@pytest.mark.parametrize("tool", ["runs", "sweep"])
def test_tools_say_it_and_leave_with_2(tmp_path, tool, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    if tool == "runs":
        monkeypatch.setattr(runs, "find", full)
        code = runs.main(["clean", "--yes", "--runs", str(tmp_path / "runs")])
    else:
        monkeypatch.setattr(sweep, "plan_of", full)
        code = sweep.main(["sync", "quickstart"])
    assert code == 2
    assert capsys.readouterr().err == f"study.{tool}: cannot write to /full/x: {os.strerror(errno.ENOSPC)}\n"

"""The errors a person can cause and mend; entry points print them as one plain sentence and exit non-zero."""

import contextlib
import difflib
import errno
from collections.abc import Iterable, Iterator
from pathlib import Path

UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})
"""Error numbers of a disk that is full or read-only, and of files that are somebody else's."""

DISK = UNWRITABLE | {
    errno.ENOTDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST, errno.EIO, errno.EISDIR
}  # fmt: skip
"""Those of all that the disk, or a path that was given, is to blame for."""


class StudyError(Exception):
    """Something the user can mend: its text is the whole message, no traceback is shown."""


class ConfigError(StudyError):
    """A value of the configuration is unknown, of the wrong type or out of range."""


class OwnedElsewhereError(StudyError):
    """Another live process owns the run directory."""


def unknown(what: str, given: object, valid: Iterable[str]) -> ConfigError:
    """Return the error for an unknown name: what was given, the nearest match, and all valid names."""
    names = sorted(valid)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.6)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return ConfigError(f"unknown {what} '{given}'.{hint} Valid: {', '.join(names) or 'none'}.")


@contextlib.contextmanager
def plain_disk_errors(root: Path) -> Iterator[None]:
    """Turn what the disk is to blame for into one plain sentence (StudyError); `root` if it names no file."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK:
            raise
        cannot = "read or write" if error.errno in (errno.ENOENT, errno.EIO) else "write to"
        raise StudyError(f"cannot {cannot} {error.filename or root}: {error.strerror}") from error

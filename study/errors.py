"""The errors a person can cause and mend; entry points print them as one plain sentence and exit non-zero."""

import difflib
from collections.abc import Iterable


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

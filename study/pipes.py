"""What a command does when the reader of its output leaves, as in `| head`. Imports no torch."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

LEFT = 141
"""Exit code of a command whose reader has left: 128 + SIGPIPE, as the shell's own commands have it."""


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a command and leave with its exit code; without a word if nobody reads what it prints any more."""
    code: object
    try:
        try:
            code = main()
        except SystemExit as end:
            code = end.code
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        silence()
        code = LEFT
    sys.exit(code)


def silence() -> None:
    """Send what is printed from now on nowhere: the interpreter flushes once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""Command-line options whose mistakes are told in one plain sentence, without argparse's usage."""

import argparse
from collections.abc import Callable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser for `python -m study.NAME`; so are those of its subcommands."""

    def error(self, message: str) -> NoReturn:
        """Print the mistake and leave with exit code 2."""
        name = self.prog.removeprefix("python -m ").split()[0]
        self.exit(2, f"{name}: {message}; --help shows what there is\n")


def whole(least: int) -> Callable[[str], int]:
    """Return the type of an option that is a whole number, at least that."""

    def converted(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number ≥ {least}")
        return int(text)

    return converted


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: 1 trial, 2 trials."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"

"""What a run's record says about code, versions and machine."""

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any


@functools.cache
def git() -> dict[str, Any]:
    """Return {commit, dirty} of the code's checkout; None for both outside one."""
    root = Path(__file__).resolve().parent.parent
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if commit is None else bool(changes)}


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of what the numbers depend on."""
    packages = {"torch": "torch", "torchvision": "torchvision", "numpy": "numpy", "study": "why-batchnorm"}
    found = {"python": platform.python_version()}
    for name, package in packages.items():
        try:
            found[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _git(root: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *args], cwd=root, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

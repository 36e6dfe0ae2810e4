"""What a run's record says about code, versions and machine."""

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

READ = (("study", "*.py"), ("conf", "*.yaml"))
"""Folders of the checkout that a run reads, and what of them."""


@functools.cache
def git() -> dict[str, Any]:
    """Return {commit, dirty} of the code's checkout; None for both outside one.

    Dirty is a checkout with uncommitted changes, or with new files among those that a run reads.
    """
    root = Path(__file__).resolve().parent.parent
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    added = _git(root, "ls-files", "--others", "--exclude-standard", "--", *(name for name, _ in READ))
    return {"commit": commit, "dirty": None if commit is None else bool(changes or added)}


CODE_CHANGED = "STUDY_CODE_CHANGED"
"""Environment variable by which a launcher tells its trials that the code was edited since."""


def code() -> dict[str, str | None]:
    """Return {commit, diff, files} of the code as it lies on disk now; no commit outside a checkout.

    `diff` is a hash of what is not committed, `files` one of all that a run reads (study/ and conf/).
    """
    root = Path(__file__).resolve().parent.parent
    found = hashlib.sha256()
    for folder, end in READ:
        for path in sorted((root / folder).rglob(end)):
            found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    diff = _git(root, "diff", "HEAD") or ""
    return {
        "commit": _git(root, "rev-parse", "HEAD"),
        "diff": hashlib.sha256(diff.encode()).hexdigest()[:16] if diff else None,
        "files": found.hexdigest()[:16],
    }


def code_changed() -> dict[str, Any] | None:
    """Return {submitted, started} (see `code`) if the code was edited since a job's submission."""
    changed: dict[str, Any] | None = json.loads(os.environ.get(CODE_CHANGED, "null"))
    return changed


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

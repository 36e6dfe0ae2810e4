"""Registries are folders: `study/models/resnet.py` is the network `resnet`. Adding a file adds a choice."""

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from study.errors import unknown


@cache
def names(package: str) -> tuple[str, ...]:
    """Names a package offers: its modules, less `base`, its HELPERS and those that start with an underscore.

    Imports nothing but the package itself, so that validation needs no torch.
    """
    module = importlib.import_module(package)
    helpers = {"base", *getattr(module, "HELPERS", ())}
    found = (m.name for m in pkgutil.iter_modules(module.__path__))
    return tuple(sorted(n for n in found if n not in helpers and not n.startswith("_")))


def load(package: str, name: str) -> ModuleType:
    """Import the module that implements `name`; raises ConfigError naming the valid choices."""
    if name not in names(package):
        raise unknown(package.removeprefix("study."), name, names(package))
    return importlib.import_module(f"{package}.{name}")

"""One module per figure: TITLE, SECTION, NEEDS (tables without which it cannot be drawn) and draw(frames).

NEEDS lists "metrics" or "probe:NAME". `draw` gets the frames of one setting (comparable by norm and rate) and
returns a style.Drawing; ORDER sorts the figures of a section.
"""

import importlib
import pkgutil
from types import ModuleType

from analysis.load import Frames


def modules() -> dict[str, ModuleType]:
    """Every figure of the folder by name, by section and order."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    found = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return dict(sorted(found.items(), key=lambda item: (item[1].SECTION, item[1].ORDER, item[0])))


def lacking(module: ModuleType, frames: Frames) -> list[str]:
    """Which of the tables that a figure needs are absent or empty."""
    missing = []
    for need in module.NEEDS:
        kind, _, name = need.partition(":")
        table = frames.probes.get(name) if kind == "probe" else frames.metrics
        if table is None or table.empty:
            missing.append(f"probe table '{name}'" if kind == "probe" else "metrics")
    return missing

"""Draw every figure of the registry that the runs of one setting allow, and say why not of the others."""

import base64
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from analysis import figures, style
from analysis.expectations import EXPECTED
from analysis.load import Frames
from analysis.page.values import Picture, Section, Sheet


@dataclass(frozen=True)
class Drawn:
    """The figures of one setting."""

    sections: list[Section]
    not_drawn: list[str]
    """Sentences: which figures are missing, and why."""
    why_not: dict[str, str]
    """Registry name of each figure that is not drawn → why."""


def draw_all(frames: Frames, folder: Path, prefix: str = "", *, apart: bool = False) -> Drawn:
    """Draw the figures of one setting into `folder`, as PREFIXNAME.svg, .png and .csv.

    With `apart` those that show no run, which are drawn once.
    """
    import matplotlib.pyplot as plt

    found: dict[str, list[Picture]] = {}
    why_not: dict[str, str] = {}
    titles: dict[str, list[str]] = {}
    lacking: dict[str, list[str]] = {}
    for name, module in figures.modules(apart=apart).items():
        missing = figures.lacking(module, frames)
        if missing:
            lacking[module.TITLE] = missing
            why_not[name] = f"no complete run here has {', '.join(missing)}"
            continue
        try:
            drawing = figures.draw(module, frames)
        except figures.UndrawableError as error:
            why_not[name] = str(error) or "other figures show all of it"
            titles.setdefault(str(error), []).append(module.TITLE)
            continue
        except (KeyError, TypeError, ValueError) as error:  # a table of another version: the rest is drawn
            plt.close("all")
            why_not[name] = f"its tables are not as expected ({type(error).__name__}: {error})"
            titles.setdefault(why_not[name], []).append(module.TITLE)
            continue
        svg = style.save(drawing, folder, prefix + name)
        plt.close(drawing.figure)
        found.setdefault(module.SECTION, []).append(_picture(module, prefix + name, drawing, svg))
    not_drawn = [f"{'; '.join(named)}. Why: {why}." for why, named in titles.items() if why]
    if lacking:
        tables = ", ".join(dict.fromkeys(what for missing in lacking.values() for what in missing))
        not_drawn.append(f"{'; '.join(lacking)}. Why: no complete run here has what they need: {tables}.")
    return Drawn([Section(title, pictures) for title, pictures in found.items()], not_drawn, why_not)


def _picture(module: ModuleType, name: str, drawing: style.Drawing, svg: str) -> Picture:
    table, expected = drawing.table, EXPECTED[module.EXPECTED]
    return Picture(
        name=name,
        title=module.TITLE,
        caption=drawing.caption,
        source="data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode(),
        alt=" ".join([f"{module.TITLE}. {drawing.caption}", *drawing.seen]),
        measured=module.MEASURED,
        how=module.HOW,
        expected=tuple(e for e in expected if not e.ours),
        earlier=tuple(e for e in expected if e.ours),
        seen=drawing.seen,
        table=None if table is None else Sheet(list(table.columns), table.astype("str").to_numpy().tolist()),
        small=bool(drawing.figure.get_figwidth() < 0.85 * style.WIDTH),
    )

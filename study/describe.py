"""What every setting means, its range and its choices, read from study/config.py itself, for --help."""

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from study import config, registry


@dataclasses.dataclass(frozen=True)
class Setting:
    """One field of RunConfig, nested ones included."""

    name: str
    """Dotted, as typed on the command line."""
    default: Any
    doc: str
    """The docstring under the field, on one line."""
    allowed: str
    """Range or choices, for people; empty where any value of the type will do."""
    scientific: bool


@cache
def settings() -> dict[str, Setting]:
    """All settings by dotted name, in the order of the dataclasses."""
    return {s.name: s for s in _walk(config.RunConfig(), "", True)}


def values(run: config.RunConfig) -> dict[str, Any]:
    """What a run has of each setting, by dotted name."""
    return {s.name: s.default for s in _walk(run, "", True)}


def _walk(instance: Any, prefix: str, scientific: bool) -> Iterator[Setting]:
    docs = _docs()[type(instance).__name__]
    for f in dataclasses.fields(instance):
        value, counts = getattr(instance, f.name), scientific and f.metadata["scientific"]
        if dataclasses.is_dataclass(value):
            yield from _walk(value, f"{prefix}{f.name}.", counts)
        else:
            yield Setting(prefix + f.name, value, docs[f.name], _allowed(f.metadata), counts)


def _allowed(metadata: Any) -> str:
    package, choices = metadata["package"], metadata["choices"]
    if package or choices:
        return ", ".join(registry.names(package) if package else choices)
    return " and ".join(f"{sign} {bound:g}" for sign, bound in metadata["limits"].items())


@cache
def _docs() -> dict[str, dict[str, str]]:
    """Docstrings of attributes (a string right under the field), by class and field."""
    tree = ast.parse(Path(inspect.getfile(config)).read_text(encoding="utf-8"))
    found: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {}
            for field, doc in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(doc, ast.Expr)
                    and isinstance(doc.value, ast.Constant)
                ):
                    found[node.name][field.target.id] = " ".join(str(doc.value.value).split())
    return found


def help_text() -> str:
    """Return the list of settings for `python -m study.run --help`: name, value, meaning, range.

    The value is what holds where nothing is said: that of the default scale.
    """
    from study.compose import CONF, compose  # which imports this module

    shown = values(compose())
    by_scale = {p.stem: values(compose([f"scale={p.stem}"])) for p in sorted((CONF / "scale").glob("*.yaml"))}
    lines = [
        f"Shown are the values that hold where nothing else is said: those of scale={shown['scale']}, the "
        "default.",
        "Where scales differ the setting says so; an experiment may set more; the command line beats all.",
        "",
    ]
    for title, wanted in (
        ("Settings that make a run what it is (they enter its identity)", True),
        ("Settings that say where and how it runs (they change no number)", False),
    ):
        lines += [title, ""]
        for s in settings().values():
            if s.scientific is wanted:
                allowed = f" [{s.allowed}]" if s.allowed else ""
                lines += [f"  {s.name}={_shown(shown[s.name])}{allowed}", f"      {s.doc}"]
                if len({v[s.name] for v in by_scale.values()}) > 1:
                    told = ", ".join(f"{name} {_shown(v[s.name])}" for name, v in by_scale.items())
                    lines.append(f"      By scale: {told}.")
        lines.append("")
    return "\n".join(lines)


def launcher_help(folder: Path) -> str:
    """Return the options of the launchers in conf/hydra/launcher: the comment behind each says what it is."""
    lines = [
        "Where trials run (hydra/launcher=NAME), and the options of each (hydra.launcher.OPTION=value)",
        "",
    ]
    for file in sorted(folder.glob("*.yaml")):
        head, *rest = file.read_text(encoding="utf-8").splitlines()
        lines.append(f"  {file.stem}: {head.lstrip('# ')}")
        for text in rest:
            setting, comment = (part.strip() for part in text.partition("#")[::2])
            if comment:
                name, value = setting.split(": ", 1)
                lines.append(f"    {name}={value}".ljust(26) + f" {comment}")
    return "\n".join([*lines, ""])


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ",".join(map(_shown, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)

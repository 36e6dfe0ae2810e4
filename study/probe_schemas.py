"""The columns of every probe's table, without torch: read from where each probe declares them.

A probe is one file that declares its table beside the code that fills it, and imports torch. Whoever reads
tables needs the declaration alone, so it is taken out of the source: `SCHEMA = pa.schema([...])` of the
probe after `COMMON` of the engine, both plain expressions of pyarrow.
"""

import ast
import functools
from pathlib import Path

import pyarrow as pa

FOLDER = Path(__file__).parent / "probes"


@functools.cache
def schema(name: str) -> pa.Schema | None:
    """Return the schema of a probe's table; None if there is no such probe."""
    file = FOLDER / f"{name}.py"
    if name.startswith("_") or name == "base" or not file.is_file():
        return None
    return pa.schema([*_declared(FOLDER / "base.py", "COMMON"), *_declared(file, "SCHEMA")])


def _declared(file: Path, name: str) -> pa.Schema:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [name]:
            found = eval(compile(ast.Expression(node.value), str(file), "eval"), {"pa": pa})
            assert isinstance(found, pa.Schema)
            return found
    raise AssertionError(f"{file} declares no {name}")

"""Many Parquet files → one frame, by a single DuckDB query."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

CATEGORIES = ("run_id", "norm", "split")
"""Columns held as categoricals: the same few texts on every row."""


def read(files: Mapping[str, Path], schema: pa.Schema | None) -> tuple[pa.Table, dict[str, str]]:
    """Return the rows of all files with their run id in front, and {run id: what is wrong with its file}.

    `files` maps run ids to paths. With a `schema` the columns are exactly its columns, of its types, absent
    ones null; without one they are the union of what the files hold. A file that is missing, truncated or of
    another type is left out and named; the others are not affected.
    """
    bad: dict[str, str] = {}
    try:
        return _query(files, schema), bad
    except (duckdb.Error, pa.ArrowException, OSError):
        bad = {run: fault for run, path in files.items() if (fault := _fault(path, schema))}
    good = {run: path for run, path in files.items() if run not in bad}
    try:
        return _query(good, schema), bad
    except (duckdb.Error, pa.ArrowException) as error:
        # Each file is sound, but their types do not unite.
        bad |= dict.fromkeys(good, f"cannot be joined with the other runs' tables: {_first_line(error)}")
        return _query({}, schema), bad


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Convert an Arrow table, consuming it: columns move one by one, lists stay in Arrow's compact form."""
    lists = {t: pd.ArrowDtype(t) for t in table.schema.types if pa.types.is_list(t)}
    result: pd.DataFrame = table.to_pandas(
        types_mapper=lists.get, split_blocks=True, self_destruct=True, strings_to_categorical=False
    )
    return result


def categorical(table: pa.Table, name: str) -> pa.Table:
    """Dictionary-encode one text column."""
    column = table.column(name)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return table.set_column(table.schema.get_field_index(name), name, column.unify_dictionaries())


def _query(files: Mapping[str, Path], schema: pa.Schema | None) -> pa.Table:
    if not files:
        fields = [] if schema is None else list(schema)
        table = pa.schema([pa.field("run_id", pa.string()), *fields]).empty_table()
    else:
        table = _read(files, schema)
    for name in CATEGORIES:
        if name in table.schema.names:
            table = categorical(table, name)
    return table


def _read(files: Mapping[str, Path], schema: pa.Schema | None) -> pa.Table:
    names = [os.fspath(path) for path in files.values()]
    with duckdb.connect() as db:
        # An enum of the file names turns the constant `filename` of each file into a small dictionary.
        db.execute("CREATE TYPE file AS ENUM (SELECT unnest(?))", [names])
        rows = "SELECT filename::file AS run_id, * EXCLUDE (filename) FROM read_parquet($files, filename=true"
        rows += ", union_by_name=true)"
        if schema is not None:
            db.register("declared", schema.empty_table())
            columns = ", ".join(f'"{f.name}"' for f in schema)
            rows = f"SELECT run_id, {columns} FROM ({rows} UNION ALL BY NAME FROM declared)"
        table = db.sql(rows, params={"files": names}).to_arrow_table()
    run_of = dict(zip(names, files, strict=True))
    runs = table.column("run_id").unify_dictionaries()
    ids = [_renamed(chunk, run_of) for chunk in runs.chunks]
    encoded = pa.chunked_array(ids, type=pa.dictionary(runs.type.index_type, pa.string()))
    table = table.set_column(0, "run_id", encoded)
    if schema is None:
        return table
    return table.cast(pa.schema([table.schema.field(0), *schema]))


def _renamed(chunk: Any, run_of: Mapping[str, str]) -> Any:
    """The same dictionary codes, with run ids in place of file names."""
    return pa.DictionaryArray.from_arrays(
        chunk.indices, pa.array([run_of[name] for name in chunk.dictionary.to_pylist()], pa.string())
    )


def _fault(path: Path, schema: pa.Schema | None) -> str | None:
    """What keeps this one file from being read, or None."""
    if not path.exists():
        return "is missing"
    try:
        if schema is None:
            pq.ParquetFile(path).read()
        else:
            _query({"": path}, schema)
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        return f"cannot be read: {_first_line(error)}"
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

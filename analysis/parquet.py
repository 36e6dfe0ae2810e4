"""Many Parquet files → one frame, by a single DuckDB query."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

CATEGORIES = ("run_id", "norm", "split")
"""Columns held as categoricals: the same few texts on every row."""

ALWAYS_KNOWN = ("step", "epoch")
"""Columns that are never null, held as plain numbers."""

_NULLABLE: dict[Any, Any] = {
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}

BATCH = 100_000
"""Rows taken over from DuckDB at a time."""

FILES = 1000
"""Files in one query at most, where all are known to have the same columns."""


def read(
    files: Mapping[str, Path], schema: pa.Schema | None, *, check: bool = False
) -> tuple[pa.Table, dict[str, str]]:
    """Return the rows of all files with their run id in front, and {run id: what is wrong with its file}.

    `files` maps run ids to paths. With a `schema` the columns are exactly its columns, of its types, absent
    ones null; without one they are the union of what the files hold. A file that is missing, truncated or of
    another type is left out and named; the others are not affected.

    DuckDB converts all files of a query to the types of the first, rounding fractions where that has whole
    numbers. So the first must be as declared; with `check` each is looked at, which opens it twice.
    """
    if schema is not None:
        with contextlib.suppress(duckdb.Error, pa.ArrowException, OSError):
            if not files or (not check and as_declared(pq.read_schema(next(iter(files.values()))), schema)):
                return _query(files, schema), {}
        return _checked(files, schema)
    bad: dict[str, str] = {}
    try:
        return _query(files, None), bad
    except (duckdb.Error, pa.ArrowException, OSError):
        bad = {run: fault for run, path in files.items() if (fault := _fault(path))}
    good = {run: path for run, path in files.items() if run not in bad}
    try:
        return _query(good, None), bad
    except (duckdb.Error, pa.ArrowException) as error:
        # Each file is sound, but their types do not unite.
        bad |= dict.fromkeys(good, f"cannot be joined with the other runs' tables: {_first_line(error)}")
        return _query({}, None), bad


def as_declared(found: pa.Schema, declared: pa.Schema) -> bool:
    """Whether a table has all declared columns, of their types."""
    types = dict(zip(found.names, found.types, strict=True))
    return all(types.get(field.name) == field.type for field in declared)


def typed(table: pa.Table, declared: pa.Schema) -> pa.Table:
    """The run id and the declared columns, of their types; absent ones null.

    Raises an ArrowException if a value would be lost, as a fraction in a column of whole numbers.
    """
    if "run_id" in table.schema.names:
        first, rest = [table.schema.field("run_id")], [table.column("run_id")]
    else:
        first, rest = [], []
    if as_declared(table.schema, declared) and table.schema.names == [
        *(f.name for f in first),
        *declared.names,
    ]:
        return table
    for field in declared:
        absent = field.name not in table.schema.names
        values = pa.nulls(table.num_rows, field.type) if absent else table.column(field.name).cast(field.type)
        rest.append(values)
    return pa.table(rest, schema=pa.schema([*first, *declared]))


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Convert an Arrow table, column by column, so that no more than one column is held twice.

    The types follow from the table's alone: whole numbers and truth values, but for ALWAYS_KNOWN, are of
    pandas' nullable types whether or not one is null. Categories are sorted; rows are brought into their
    order by run (stable) unless they are so already. Lists stay in Arrow's compact form; all other columns
    can be written to. The caller should keep no reference.
    """
    columns: dict[str, Any] = {}
    order = None
    while table.num_columns:
        name, column = table.schema.names[0], table.column(0)
        table = table.remove_column(0)
        if pa.types.is_dictionary(column.type):
            values: Any = _sorted_categorical(column)
            if name == "run_id" and (np.diff(values.codes) < 0).any():
                order = np.argsort(values.codes, kind="stable")
        elif pa.types.is_list(column.type):
            values = pd.array(column, dtype=pd.ArrowDtype(column.type))
        elif name not in ALWAYS_KNOWN and (kind := _NULLABLE.get(column.type)) is not None:
            if column.null_count or kind.kind == "b":
                values = kind.__from_arrow__(column)
            else:  # what that does, without a copy of the mask for every chunk
                plain, mask = column.to_numpy(), np.zeros(len(column), bool)
                values = pd.arrays.IntegerArray(plain if plain.flags.writeable else plain.copy(), mask)
        else:
            values = column.to_pandas().array
            plain = values.to_numpy() if hasattr(values, "to_numpy") else values
            if isinstance(plain, np.ndarray) and not plain.flags.writeable:
                values = values.copy()
        columns[name] = values if order is None else values.take(order)
        del column
        pa.default_memory_pool().release_unused()
    return pd.DataFrame(columns, copy=False)


def unite(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of all tables; a column that one lacks is null there. Types that do not unite raise."""
    if len(tables) == 1:
        return tables[0]
    return _encoded(pa.concat_tables(tables, promote_options="permissive"))


def categorical(table: pa.Table, name: str) -> pa.Table:
    """Dictionary-encode one text column."""
    column = table.column(name)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return table.set_column(table.schema.get_field_index(name), name, column.unify_dictionaries())


def _encoded(table: pa.Table) -> pa.Table:
    for name in CATEGORIES:
        if name in table.schema.names:
            table = categorical(table, name)
    return table


def _query(files: Mapping[str, Path], schema: pa.Schema | None) -> pa.Table:
    """Rows of sound files; with a schema the first of them must be as declared, and all must have it."""
    if not files:
        fields = [] if schema is None else list(schema)
        table = pa.schema([pa.field("run_id", pa.string()), *fields]).empty_table()
    elif schema is None:
        table = _read(files, "*")
    else:
        columns = ", ".join(f'"{f.name}"' for f in schema)
        # By the thousand: DuckDB holds some 10 kB for every file of a query until the query ends.
        table = unite([_read(part, columns, by_name=False) for part in _parts(files)])
        table = table.cast(pa.schema([table.schema.field(0), *schema]))
    return _encoded(table)


def _checked(files: Mapping[str, Path], schema: pa.Schema) -> tuple[pa.Table, dict[str, str]]:
    """As `read`: those as declared in one query, the others one by one."""
    bad: dict[str, str] = {}
    alike: dict[str, Path] = {}
    pieces: list[pa.Table] = []

    def convert(run: str, path: Path) -> None:
        try:
            table = typed(pq.ParquetFile(path).read(), schema)
        except (pa.ArrowException, OSError) as error:
            bad[run] = f"cannot be read: {_first_line(error)}"
            return
        ids = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.uint8()), pa.array([run]))
        pieces.append(_encoded(table.add_column(0, "run_id", ids)))

    for run, path in files.items():
        try:
            found = pq.read_schema(path)
        except FileNotFoundError:
            bad[run] = "is missing"
        except (pa.ArrowException, OSError) as error:
            bad[run] = f"cannot be read: {_first_line(error)}"
        else:
            if as_declared(found, schema):
                alike[run] = path
            else:
                convert(run, path)
    try:
        pieces.append(_query(alike, schema))
    except (duckdb.Error, pa.ArrowException, OSError):  # one is damaged behind its schema
        for run, path in alike.items():
            convert(run, path)
    return unite(pieces or [_query({}, schema)]), bad


def _read(files: Mapping[str, Path], columns: str, *, by_name: bool = True) -> pa.Table:
    """The one query: these columns of all files, run_id in front.

    Not `by_name`, every file must have all the columns; that is quicker, since no file is opened twice.
    """
    names = [os.fspath(path) for path in files.values()]
    # One thread: its batches span many files, while several threads return one batch, with a copy of the
    # dictionary of all file names, for every file.
    with duckdb.connect(config={"threads": 1}) as db:
        # An enum of the file names turns the constant `filename` of each file into a small dictionary.
        db.execute("CREATE TYPE file AS ENUM (SELECT unnest(?))", [names])
        source = f"read_parquet($files, filename=true, union_by_name={str(by_name).lower()})"
        chosen = f"{columns} EXCLUDE (filename)" if columns == "*" else columns
        query = f"SELECT filename::file AS run_id, {chosen} FROM {source}"
        table = _collected(db.sql(query, params={"files": names}).to_arrow_reader(BATCH))
    run_of = dict(zip(names, files, strict=True))
    runs = table.column("run_id").unify_dictionaries()
    ids = [_renamed(chunk, run_of) for chunk in runs.chunks]
    encoded = pa.chunked_array(ids, type=pa.dictionary(runs.type.index_type, pa.string()))
    return table.set_column(0, "run_id", encoded)


def _parts(files: Mapping[str, Path]) -> Iterator[dict[str, Path]]:
    """The files in order, at most FILES at a time."""
    items = list(files.items())
    for start in range(0, len(items), FILES):
        yield dict(items[start : start + FILES])


def _collected(reader: pa.RecordBatchReader) -> pa.Table:
    """All batches as one table that owns its columns one by one.

    The columns of a batch that DuckDB hands over share one owner, so that none is freed before the last: a
    table of such batches would be held in full beside the frame that is made from it. Dictionaries are the
    same in all batches, and kept once.
    """
    pieces: list[list[Any]] = [[] for _ in reader.schema]
    dictionaries: dict[int, Any] = {}
    for batch in reader:
        for i, column in enumerate(batch.columns):
            if pa.types.is_dictionary(column.type):
                dictionaries.setdefault(i, _owned(column.dictionary))
                column = pa.DictionaryArray.from_arrays(_owned(column.indices), dictionaries[i])
            else:
                column = _owned(column)
            pieces[i].append(column)
    columns = [pa.chunked_array(p, field.type) for p, field in zip(pieces, reader.schema, strict=True)]
    return pa.table(columns, schema=reader.schema)


def _owned(array: Any) -> Any:
    """A copy in memory of its own: joining two arrays copies, even when one is empty."""
    return pa.concat_arrays([array, array.slice(0, 0)])


def _renamed(chunk: Any, run_of: Mapping[str, str]) -> Any:
    """The same dictionary codes, with run ids in place of file names."""
    return pa.DictionaryArray.from_arrays(
        chunk.indices, pa.array([run_of[name] for name in chunk.dictionary.to_pylist()], pa.string())
    )


def _fault(path: Path) -> str | None:
    """What keeps this one file from being read, or None."""
    if not path.exists():
        return "is missing"
    try:
        pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        return f"cannot be read: {_first_line(error)}"
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _sorted_categorical(column: Any) -> pd.Categorical:
    """A dictionary column as a categorical, with the categories that occur, sorted."""
    if column.num_chunks == 0:
        return pd.Categorical([], categories=pd.Index([], dtype="str"))
    column = column.unify_dictionaries()
    names = pd.Index(column.chunk(0).dictionary.to_pylist(), dtype="str")
    missing = len(names)
    indices = [c.indices.cast(pa.int32()).fill_null(missing).to_numpy() for c in column.chunks]
    used = np.zeros(missing + 1, bool)
    for chunk in indices:
        used[chunk] = True
    order = np.argsort(names.to_numpy(object), kind="stable")
    order = order[used[order]]
    place = np.full(len(names) + 1, -1, np.int16 if len(names) < 2**15 else np.int32)
    place[order] = np.arange(len(order))
    return pd.Categorical.from_codes(np.concatenate([place[i] for i in indices]), names[order])

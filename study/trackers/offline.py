"""Whether W&B's own file of an offline run holds all of it: the client does not say when a disk was full.

The file is a log in LevelDB's format: blocks of 32 KiB; in them chunks of a header (checksum, 4 bytes;
length, 2; kind, 1) and data; a record is one chunk, or a first, middle ones and a last.
"""

from collections.abc import Iterator
from pathlib import Path

FILE_HEADER, CHUNK_HEADER, BLOCK = 7, 7, 1 << 15
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def lacking(folder: Path, rows: int) -> str:
    """Return what W&B's folder of a run that was closed lacks of so many rows; empty if nothing."""
    from wandb.proto.wandb_internal_pb2 import Record

    found, closed = 0, False
    for file in folder.glob("*.wandb"):
        for data in _records(file.read_bytes()):
            kind = Record.FromString(data).WhichOneof("record_type")
            found += kind == "history"
            closed = closed or kind == "exit"
    if found == rows and closed:
        return ""
    return f"{folder} holds {found} of {rows} rows only (a full disk?)"


def _records(data: bytes) -> Iterator[bytes]:
    position, record = FILE_HEADER, b""
    while position + CHUNK_HEADER <= len(data):
        left = BLOCK - position % BLOCK
        kind = data[position + 6] if left >= CHUNK_HEADER else 0
        if kind == 0:  # the rest of a block is padding
            position += left
            continue
        end = position + CHUNK_HEADER + int.from_bytes(data[position + 4 : position + 6], "little")
        chunk, position = data[position + CHUNK_HEADER : end], end
        if end > len(data):
            return  # cut off
        record = chunk if kind in (FULL, FIRST) else record + chunk
        if kind in (FULL, LAST):
            yield record

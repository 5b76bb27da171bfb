"""Functions and classes that unpack batches, with the default limit: for tests whose batches are small."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tidemill.client import completed_fetch
from tidemill.log_tools import dump, findings, verify
from tidemill.model.system_interfaces import Files
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records import batch_validation, columns, format_conversion, record_cursor, record_reader

LIMIT = {"unpacked_bytes_max": UNPACKED_BYTES_MAX}

BatchCursor = partial(record_cursor.BatchCursor, unpacked=None, **LIMIT)
EntryCursor = partial(record_cursor.EntryCursor, **LIMIT)
open_cursor = partial(record_cursor.open_cursor, check_crcs=True, **LIMIT)
read_stored = partial(record_reader.read_stored, check_crcs=True, **LIMIT)
read_records = partial(record_reader.read_records, **LIMIT)
decode_columns = partial(columns.decode_columns, **LIMIT)
down = partial(format_conversion.down, **LIMIT)
RecordLimits = partial(batch_validation.RecordLimits, **LIMIT)
Check = partial(findings.Check, **LIMIT)
DirectoryCheck = partial(verify.DirectoryCheck, **LIMIT)
DumpOptions = partial(dump.DumpOptions, decode_control=lambda control_type, value: None, **LIMIT)
dump_entries = partial(dump.entries, **LIMIT)
CompletedFetch = partial(completed_fetch.CompletedFetch, **LIMIT)


def dump_lines(files: Files, path: str, options: dump.DumpOptions) -> list[str]:
    """The lines of a file, followed by the findings on it."""
    problems: list[str] = []
    shown = list(dump.lines(files, path, options, problems, []))
    return shown + problems


def iter_records(
    data: bytes, start_offset: int = 0, check_crcs: bool = True
) -> Iterator[record_reader.Record]:
    """Yields the records in ``data`` from ``start_offset`` on."""
    return record_reader.iter_records(data, UNPACKED_BYTES_MAX, start_offset, check_crcs)

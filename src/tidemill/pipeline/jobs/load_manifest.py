"""The manifest of a loaded table: which files the last micro-batch has, and where they were staged.

::

    OUTPUT/_tidemill/lock            held while a load runs
    OUTPUT/_tidemill/owner           the process that holds it, for messages
    OUTPUT/_tidemill/manifest.json   the last micro-batch whose files are durable
    OUTPUT/event_date=D/batch-B-Q-N….parquet       B the micro-batch, Q the query, N a number
    CHECKPOINT/tidemill/S/event_date=D/….parquet   what the micro-batch S has staged

==============  ============================================================================
field           meaning
==============  ============================================================================
``version``     1
``query``       the id in CHECKPOINT/metadata: whose load the table is
``batch``       the number of the micro-batch; null before the first
``offsets``     SHA-256 of CHECKPOINT/offsets/BATCH; null for the batch of a migrated table
``staging``     the name of the staging folder; null when nothing was staged
``rows``        rows of the micro-batch
``raw``         rows that keep their raw value, by reason
``files``       ``name`` below OUTPUT, ``staged`` below the staging folder, ``bytes``, ``rows``
==============  ============================================================================

The manifest is one small file that is replaced whole, because readers must not depend on it: the names of the
files are final, so that every file with a final name counts. It decides one thing only: whether a micro-batch
that Spark runs again is there already. While the staging folder is there, moves may be left to do.

It does not list the table: a file of an earlier micro-batch may be removed or rewritten by whoever owns the
table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.model.errors import TidemillError
from tidemill.model.faults import fault_of

FOLDER = "_tidemill"
"""Spark and Arrow pass over names that begin with an underscore; no name in it ends with .parquet."""
MANIFEST = "manifest.json"
LOCK = "lock"
OWNER = "owner"
STAGING = "tidemill"
"""In the checkpoint, because DuckDB finds files in every folder below a table, also in hidden ones."""

VERSION = 1


class ManifestDamaged(TidemillError):
    """The manifest of a table cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """One file of a micro-batch; ``size_bytes`` and ``rows`` as they were staged."""

    name: str
    staged: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The last micro-batch of a table."""

    query: str
    batch: int | None
    offsets: str | None = None
    staging: str | None = None
    rows: int = 0
    raw: Mapping[str, int] = field(default_factory=dict)
    files: tuple[LoadedFile, ...] = ()


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON, ended by a newline."""
    fields = {
        "version": VERSION,
        "query": manifest.query,
        "batch": manifest.batch,
        "offsets": manifest.offsets,
        "staging": manifest.staging,
        "rows": manifest.rows,
        "raw": dict(manifest.raw),
        "files": [
            {"name": one.name, "staged": one.staged, "bytes": one.size_bytes, "rows": one.rows}
            for one in manifest.files
        ],
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def decode_manifest(data: bytes, path: str) -> Manifest:
    """The manifest in ``data``. Raises ManifestDamaged, which names ``path`` and the fault."""
    try:
        fields: dict[str, Any] = json.loads(data)
        if fields["version"] != VERSION:
            raise ManifestDamaged(
                f"{path} has version {fields['version']}, and this release of tidemill knows {VERSION}: load "
                "with the release that wrote it, or a later one"
            )
        return Manifest(
            query=str(fields["query"]),
            batch=None if fields["batch"] is None else int(fields["batch"]),
            offsets=fields["offsets"],
            staging=fields["staging"],
            rows=int(fields["rows"]),
            raw={str(code): int(count) for code, count in fields["raw"].items()},
            files=tuple(
                LoadedFile(
                    name=one["name"],
                    staged=one["staged"],
                    size_bytes=int(one["bytes"]),
                    rows=int(one["rows"]),
                )
                for one in fields["files"]
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ManifestDamaged(
            f"{path} is damaged ({fault_of(problem)}): bring it back from a backup, or load into a new "
            "output with a new checkpoint"
        ) from None

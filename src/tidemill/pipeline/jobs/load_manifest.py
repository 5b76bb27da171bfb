"""The manifest of a loaded table: the files of the last micro-batch, and their staging folder.

::

    OUTPUT/_tidemill/lock            locked while a load runs
    OUTPUT/_tidemill/owner           the process that holds the lock, for messages
    OUTPUT/_tidemill/manifest.json   the last micro-batch whose files are durable
    OUTPUT/event_date=D/batch-B-Q-N….parquet       B the micro-batch, Q the query, N a number
    CHECKPOINT/tidemill/S/event_date=D/….parquet   files that the micro-batch S has staged

==============  ============================================================================
field           meaning
==============  ============================================================================
``version``     1
``query``       the id in CHECKPOINT/metadata: the query that loads the table
``batch``       the number of the micro-batch; null before the first
``offsets``     SHA-256 of CHECKPOINT/offsets/BATCH; null for the batch of a migrated table
``staging``     the name of the staging folder; null if nothing was staged
``rows``        rows of the micro-batch
``raw``         rows that keep their raw value, by reason
``files``       ``name`` below OUTPUT, ``staged`` below the staging folder, ``bytes``, ``rows``
==============  ============================================================================

The manifest is one small file that is replaced as a whole. Readers must not depend on it: every file with a
final name is valid. The manifest decides one thing only: whether the output already has a micro-batch that
Spark runs again. While the staging folder exists, moves may be pending.

The manifest does not list the table: the table's owner may remove or rewrite files of earlier micro-batches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.model.errors import TidemillError
from tidemill.model.os_error_texts import fault_of

FOLDER = "_tidemill"
"""Spark and Arrow ignore names that begin with an underscore; no name in it ends with .parquet."""
MANIFEST = "manifest.json"
LOCK = "lock"
OWNER = "owner"
STAGING = "tidemill"
"""In the checkpoint, because DuckDB reads files in every folder below a table, including hidden ones."""

VERSION = 1


class ManifestDamaged(TidemillError):
    """The manifest of a table is damaged or of an unknown version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """A file of a micro-batch; ``size_bytes`` and ``rows`` as staged."""

    name: str
    staged: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The manifest: the last micro-batch of a table."""

    query: str
    batch: int | None
    offsets: str | None = None
    staging: str | None = None
    rows: int = 0
    raw: Mapping[str, int] = field(default_factory=dict)
    files: tuple[LoadedFile, ...] = ()


def encode_manifest(manifest: Manifest) -> bytes:
    """Encodes the manifest as JSON with a final newline."""
    fields = {
        "version": VERSION,
        "query": manifest.query,
        "batch": manifest.batch,
        "offsets": manifest.offsets,
        "staging": manifest.staging,
        "rows": manifest.rows,
        "raw": dict(manifest.raw),
        "files": [
            {"name": file.name, "staged": file.staged, "bytes": file.size_bytes, "rows": file.rows}
            for file in manifest.files
        ],
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Decodes the manifest in ``data``. Raises ManifestDamaged, with ``path`` and the error."""
    try:
        fields: dict[str, Any] = json.loads(data)
        if fields["version"] != VERSION:
            raise ManifestDamaged(
                f"{path} has version {fields['version']}, and this release of tidemill supports {VERSION}: "
                "load with the release that wrote it, or a later one"
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
                    name=field["name"],
                    staged=field["staged"],
                    size_bytes=int(field["bytes"]),
                    rows=int(field["rows"]),
                )
                for field in fields["files"]
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ManifestDamaged(
            f"{path} is damaged ({fault_of(problem)}): restore it from a backup, or load into a new "
            "output with a new checkpoint"
        ) from None

"""``tidemill log``: look into the files of a data directory."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from tidemill.cli.log_verify import recover, verify
from tidemill.cli.output import on_terminal
from tidemill.cli.records import as_text, for_terminal

FAILED = 1
DAMAGE_SHOWN = 10


@click.group("log")
def command() -> None:
    """Look into the files of a data directory, check them, recover them."""


command.add_command(verify)
command.add_command(recover)


@command.command(
    "dump",
    epilog="""\b
Examples:
  tidemill log dump tidemill-data/hello-0/00000000000000000000.log
  tidemill log dump tidemill-data/hello-0 --payload          every file of a partition
  tidemill log dump tidemill-data/__consumer_offsets-7 --json --records

The lines are those of kafka-dump-log. Exit code 1 when a file is damaged, or an index does not fit
its log. The broker may be running: nothing is written.""",
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("-r", "--records", is_flag=True, help="Every record, not only the batches.")
@click.option("-p", "--payload", is_flag=True, help="Records with keys and values.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each entry.")
def dump(paths: tuple[str, ...], records: bool, payload: bool, as_json: bool) -> int:
    """Show batches, records and index entries of segment files.

    PATHS are files (.log, .index, .timeindex, .snapshot, leader-epoch-checkpoint) or the directory of a
    partition.
    """
    from tidemill.log.dump import entries, lines
    from tidemill.log.files import SystemFiles

    files = SystemFiles()
    damage = []
    clean = for_terminal if on_terminal() else str
    for path in _files_of(paths):
        if not as_json:
            for line in lines(files, path, records=records, payload=payload):
                sys.stdout.write(f"{clean(line)}\n")
        for entry in entries(files, path, records=as_json and (records or payload)):
            if as_json:
                sys.stdout.write(json.dumps({"file": path, **_plain(entry)}, ensure_ascii=False) + "\n")
            found = _damage(path, entry)
            if found is not None:
                damage.append(found)
    for text in damage[:DAMAGE_SHOWN]:
        click.echo(f"tidemill: {text}", err=True)
    if len(damage) > DAMAGE_SHOWN:
        click.echo(f"tidemill: and {len(damage) - DAMAGE_SHOWN} more like these", err=True)
    return FAILED if damage else 0


def _files_of(paths: tuple[str, ...]) -> Iterator[str]:
    from tidemill.log.names import (
        INDEX,
        LEADER_EPOCHS,
        LOG,
        PARTITION_METADATA,
        SNAPSHOT,
        TIME_INDEX,
        offset_of,
    )

    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        known = [
            name
            for name in sorted(os.listdir(path))
            if name in (LEADER_EPOCHS, PARTITION_METADATA)
            or any(offset_of(name, ending) >= 0 for ending in (LOG, INDEX, TIME_INDEX, SNAPSHOT))
        ]
        if not known:
            raise click.ClickException(
                f"{path} holds no files of a log: give the directory of one partition, as {path}/TOPIC-0"
            )
        yield from (os.path.join(path, name) for name in known)


def _damage(path: str, entry: dict[str, Any]) -> str | None:
    kind = entry["kind"]
    if kind == "invalid_bytes":
        where = f"{entry['count']} bytes from position {entry['position']} on"
        return f"{path}: {where} are no batch: {entry['fault']}"
    if kind == "mismatch":
        return f"{path}: entry for offset {entry['index_offset']} leads to {entry['log_offset']}"
    if kind == "batch" and entry.get("valid") is False:
        return f"{path}: the checksum of the batch at position {entry['position']} is wrong"
    return None


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    """``entry`` as JSON can hold it: bytes as text, or as base64 under another name."""
    shown: dict[str, Any] = {}
    for name, value in entry.items():
        if name == "headers":
            shown[name] = [_plain({"key": key, "value": data}) for key, data in value]
        elif isinstance(value, bytes):
            text, encoded = as_text(value)
            shown[name if encoded is None else f"{name}_base64"] = text if encoded is None else encoded
        else:
            shown[name] = value
    return shown

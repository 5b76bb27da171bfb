"""``tidemill log verify`` and ``recover``: check a data directory, and do the recovery of a start."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.options import Existing, config_file_option, pairs
from tidemill.cli.output import (
    FAILED,
    bytes_bar,
    bytes_text,
    count_text,
    counted,
    json_option,
    on_terminal,
    print_json,
)
from tidemill.cli.record_text import for_terminal
from tidemill.cli.setting_options import broker_settings_option
from tidemill.log.file_names import CUT
from tidemill.log.system_files import SystemFiles

if TYPE_CHECKING:
    from tidemill.log_tools.findings import Check, Finding
    from tidemill.log_tools.verify import DirectoryCheck

BAR_FROM_BYTES = 200_000_000
"""Smaller logs are checked faster than a progress bar can be read."""


def unpacked_bytes_max(config_file: str | None, sets: tuple[str, ...]) -> int:
    """Returns the limit on the unpacked size of a batch, from the configuration of the files' broker."""
    from tidemill.model.configs import BrokerConfig
    from tidemill.model.unpacked_limit import UNPACKED_KEY

    pairs("--set", sets)
    return BrokerConfig.from_sources(config_file, list(sets), os.environ).int(UNPACKED_KEY)


DIRECTORY = Existing("a data directory of a broker (its log.dirs), or one of its partitions", directory=True)


@contextmanager
def progress(total: int, description: str) -> Iterator[Callable[[int], None]]:
    """Yields a function that advances a bar on stderr, on a terminal and for many bytes."""
    if total < BAR_FROM_BYTES or not on_terminal():
        yield lambda count: None
        return
    with bytes_bar(description) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)


@click.command(
    "verify",
    epilog="""\b
Examples:
  tidemill log verify tidemill-data              all partitions, the checkpoints, meta.properties
  tidemill log verify tidemill-data/orders-0     one partition
  tidemill log verify tidemill-data --json | jq '.partitions[] | select(.damage > 0)'

Nothing is written, and a broker may be running. Exit code 0 when all files are sound, 1 when one is damaged.
tidemill log recover --dry-run shows what a start would repair. One key of the broker's configuration counts:
tidemill.unpacked.batch.bytes.max; records in batches that unpack to more are not checked.""",
)
@click.argument("path", metavar="DIR", type=DIRECTORY)
@config_file_option
@broker_settings_option
@json_option
def verify(path: str, config_file: str | None, sets: tuple[str, ...], as_json: bool) -> int:
    """Check every byte of a data directory, or of one partition.

    Checks framing, checksums, the order of offsets, each record, indexes against the log, aborted
    transactions, producer snapshots, leader epochs, checkpoints, and files left over by a crash.
    """
    from tidemill.log_tools.findings import Check
    from tidemill.log_tools.verify import (
        DirectoryCheck,
        check_partition,
        is_data_directory,
        is_in_use,
        is_partition_directory,
        log_bytes,
    )

    bytes_max = unpacked_bytes_max(config_file, sets)
    files, path = SystemFiles(), os.path.abspath(path)
    if is_partition_directory(files, path):
        running = is_in_use(os.path.dirname(path))
        with progress(log_bytes(files, [path]), "checking") as advance:
            check = Check(files, path, running=running, on_bytes=advance, unpacked_bytes_max=bytes_max)
            check_partition(check)
        return _report([check], None, as_json)
    if not is_data_directory(files, path):
        raise click.UsageError(
            f"{path} is neither a data directory nor the directory of a partition: name one of the broker's "
            "log.dirs"
        )
    directory = DirectoryCheck(files, path, unpacked_bytes_max=bytes_max)
    with progress(log_bytes(files, directory.partitions.values()), "checking") as advance:
        directory.on_bytes = advance
        checks = list(directory.run())
    return _report(checks, directory, as_json)


def _report(checks: list[Check], directory: DirectoryCheck | None, as_json: bool) -> int:
    every = checks if directory is None else [*checks, directory.top]
    damages = sum(check.damages for check in every)
    if as_json:
        print_json(_document(checks, directory, damages))
    else:
        for check in every:
            for finding in check.findings:
                _print_finding(finding)
            if check.left_out:
                click.echo(f"       {check.directory}: and {check.left_out} more")
        _print_summary(checks, every, damages)
    return FAILED if damages else 0


def _print_finding(finding: Finding) -> None:
    text = for_terminal(str(finding)) if on_terminal() else str(finding)
    if finding.damage:
        click.echo(f"{click.style('damage', fg='red') if on_terminal() else 'damage'} {text}")
    else:
        click.echo(f"note   {text}")


def _print_summary(checks: list[Check], every: list[Check], damages: int) -> None:
    parts = [
        counted(len(checks), "partition"),
        counted(sum(check.segments for check in checks), "segment"),
        counted(sum(check.batches for check in checks), "batch", "batches"),
        counted(sum(check.records for check in checks), "record"),
        bytes_text(sum(check.bytes for check in checks)),
    ]
    checked = ", ".join(parts)
    running = (
        " (a broker is running: its latest writes are not included)" if every and every[0].running else ""
    )
    if damages:
        click.echo(f"{checked}: damage in {count_text(damages)} places{running}")
    else:
        click.secho(f"{checked}: sound{running}", fg="green" if on_terminal() else None)


def _document(checks: list[Check], directory: DirectoryCheck | None, damages: int) -> dict[str, Any]:
    document: dict[str, Any] = {"sound": damages == 0, "damage": damages}
    if directory is not None:
        meta = directory.meta
        document |= {
            "directory": directory.path,
            "broker_running": directory.running,
            "clean_shutdown": directory.clean_shutdown,
            "cluster_id": None if meta is None else meta.cluster_id,
            "node_id": None if meta is None else meta.node_id,
            "findings": [_plain(finding) for finding in directory.top.findings],
        }
    document["partitions"] = [
        {
            "directory": check.directory,
            "segments": check.segments,
            "bytes": check.bytes,
            "batches": check.batches,
            "records": check.records,
            "start_offset": check.start_offset,
            "end_offset": check.end_offset,
            "damage": check.damages,
            "notes": check.notes,
            "findings": [_plain(finding) for finding in check.findings],
        }
        for check in checks
    ]
    return document


def _plain(finding: Finding) -> dict[str, Any]:
    kind = "damage" if finding.damage else "note"
    position = finding.position if finding.position >= 0 else None
    return {"kind": kind, "path": finding.path, "position": position, "text": finding.text}


@click.command(
    "recover",
    epilog="""\b
Examples:
  tidemill log recover --dry-run /var/lib/tidemill
  tidemill log recover /var/lib/tidemill

A start of the broker does the same. --dry-run works on copies, and changes nothing; without it the lock of
the directory is taken, so that no broker may be running.""",
)
@click.argument("path", metavar="DIR", type=DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Show what would be done, but do nothing.")
@config_file_option
@broker_settings_option
@json_option
def recover(path: str, dry_run: bool, config_file: str | None, sets: tuple[str, ...], as_json: bool) -> int:
    """Recover the logs of a data directory as a start does.

    After an unclean shutdown each log is checked from its recovery point, and truncated at the first byte
    that is not part of a valid batch; indexes, leader epochs and producer state are rebuilt where they are
    not sound.
    """
    from tidemill.log_tools.dry_run import ScratchFiles
    from tidemill.log_tools.verify import is_data_directory, is_in_use, is_partition_directory

    bytes_max = unpacked_bytes_max(config_file, sets)
    path = os.path.abspath(path)
    if is_partition_directory(SystemFiles(), path):
        raise click.UsageError(
            f"{path} is the directory of a partition: name the data directory, {os.path.dirname(path)}"
        )
    if not is_data_directory(SystemFiles(), path):
        raise click.UsageError(f"{path} is not a data directory of a broker: name one of its log.dirs")
    if not dry_run:
        return _recover(SystemFiles(), path, as_json, bytes_max)
    if is_in_use(path):
        raise click.ClickException(f"a broker is running on {path}: stop it before you try a recovery")
    scratch = ScratchFiles()
    try:
        return _recover(scratch, path, as_json, bytes_max, scratch)
    finally:
        scratch.close()


def _recover(files: Any, path: str, as_json: bool, bytes_max: int, rehearsal: Any = None) -> int:
    from tidemill.log.log_config import LogConfig
    from tidemill.log.log_manager import LogManager

    began, now_ms = time.monotonic(), int(time.time() * 1000)
    manager = LogManager(files, [path])
    manager.dirs.lock()
    try:
        manager.dirs.stored_cluster_id()
        manager.load(now_ms, lambda topic: LogConfig(unpacked_bytes_max=bytes_max))
    except BaseException:
        manager.dirs.unlock()
        raise
    clean = manager.dirs.all[0].clean
    warnings = list(manager.dirs.warnings)
    removed, cut, written = rehearsal.changes() if rehearsal is not None else ([], [], [])
    if rehearsal is None:
        problems = manager.close(now_ms, {})
        if problems:
            raise click.ClickException(problems[0])
    document = {
        "directory": path,
        "dry_run": rehearsal is not None,
        "clean_shutdown": clean,
        "partitions": len(manager.logs),
        "checked_bytes": manager.recovered_bytes,
        "messages": warnings,
        "removed": removed,
        "cut": [{"path": file, "size": size, "lost": os.stat(file).st_size - size} for file, size in cut],
        "written": written,
    }
    if as_json:
        print_json(document)
    else:
        _print_report(document, time.monotonic() - began)
    return 0


def _print_report(document: dict[str, Any], seconds: float) -> None:
    show = for_terminal if on_terminal() else str
    stop = "was shut down cleanly" if document["clean_shutdown"] else "was not shut down cleanly"
    click.echo(f"{document['directory']}: {document['partitions']} partitions; it {stop}")
    for text in document["messages"]:
        click.echo(f"  {show(text)}")
    for truncation in document["cut"]:
        click.echo(
            f"  would truncate {show(truncation['path'])} to {truncation['size']} bytes "
            f"({truncation['lost']} are lost)"
        )
    for path in document["removed"]:
        click.echo(f"  would remove {show(path)}")
    kept = [path for path in document["written"] if path.endswith(CUT)]
    for path in kept:
        click.echo(f"  would keep the truncated bytes in {show(path)}")
    others = len(document["written"]) - len(kept)
    if others:
        click.echo(f"  would write {others} files (indexes, epochs, producer snapshots)")
    checked = f"{bytes_text(document['checked_bytes'])} of logs checked in {seconds:.1f} s"
    click.echo(
        f"{checked}; nothing was changed"
        if document["dry_run"]
        else f"{checked}; the next start needs no recovery"
    )

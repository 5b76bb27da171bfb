"""``tidemill log verify`` and ``recover``: is a data directory sound, and what does a start do to it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.options import Existing, broker_settings_option, config_file_option, pairs
from tidemill.cli.output import (
    bytes_bar,
    bytes_text,
    count_text,
    counted,
    json_option,
    on_terminal,
    print_json,
)
from tidemill.cli.records import for_terminal

if TYPE_CHECKING:
    from tidemill.log.findings import Check, Finding
    from tidemill.log.verify import DirectoryCheck

FAILED = 1
BAR_FROM_BYTES = 200_000_000
"""Less than this takes no longer than a bar needs to be read."""


def unpacked_bytes_max(config_file: str | None, sets: tuple[str, ...]) -> int:
    """What the records of a batch may unpack to, by the configuration of the broker whose files these are."""
    from tidemill.model.configs import BrokerConfig
    from tidemill.model.unpacked_limit import UNPACKED_KEY

    pairs("--set", sets)
    return BrokerConfig.from_sources(config_file, list(sets), os.environ).int(UNPACKED_KEY)


DIRECTORY = Existing("a data directory of a broker (its log.dirs), or one of its partitions", directory=True)


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, where a person looks on and there is much to do; gives what it is to be told."""
    if total < BAR_FROM_BYTES or not on_terminal():
        yield lambda count: None
        return
    with bytes_bar(what) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


@click.command(
    "verify",
    epilog="""\b
Examples:
  tidemill log verify tidemill-data              every partition, the checkpoints, meta.properties
  tidemill log verify tidemill-data/orders-0     one partition
  tidemill log verify tidemill-data --json | jq '.partitions[] | select(.damage > 0)'

Nothing is written, and a broker may be running. Exit code 0 when all is sound, 1 when damage was found. What
a start would do about it: tidemill log recover --dry-run. Of the broker's configuration one key counts:
tidemill.unpacked.batch.bytes.max; batches that unpack to more are not looked into.""",
)
@click.argument("path", metavar="DIR", type=DIRECTORY)
@config_file_option
@broker_settings_option
@json_option
def verify(path: str, config_file: str | None, sets: tuple[str, ...], as_json: bool) -> int:
    """Check every byte of a data directory, or of one partition.

    Framing, checksums, the order of offsets, each record, indexes against the log, aborted transactions,
    producer snapshots, leader epochs, checkpoints, and what a crash left lying about.
    """
    from tidemill.log.files import SystemFiles
    from tidemill.log.findings import Check
    from tidemill.log.verify import (
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
            f"{path} is neither a data directory nor a partition's: name the log.dirs of a broker"
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
                _say(finding)
            if check.left_out:
                click.echo(f"       {check.directory}: and {check.left_out} more")
        _sum_up(checks, every, damages)
    return FAILED if damages else 0


def _say(finding: Finding) -> None:
    text = for_terminal(str(finding)) if on_terminal() else str(finding)
    if finding.damage:
        click.echo(f"{click.style('damage', fg='red') if on_terminal() else 'damage'} {text}")
    else:
        click.echo(f"note   {text}")


def _sum_up(checks: list[Check], every: list[Check], damages: int) -> None:
    parts = [
        counted(len(checks), "partition"),
        counted(sum(check.segments for check in checks), "segment"),
        counted(sum(check.batches for check in checks), "batch", "batches"),
        counted(sum(check.records for check in checks), "record"),
        bytes_text(sum(check.bytes for check in checks)),
    ]
    gone_through = ", ".join(parts)
    running = " (a broker is running: what it writes now is not in it)" if every and every[0].running else ""
    if damages:
        click.echo(f"{gone_through}: {count_text(damages)} times damage{running}")
    else:
        click.secho(f"{gone_through}: sound{running}", fg="green" if on_terminal() else None)


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

A start of the broker does the same by itself. --dry-run goes through it over copies, and changes nothing;
without it the directory's lock is taken, so that no broker may be running.""",
)
@click.argument("path", metavar="DIR", type=DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@config_file_option
@broker_settings_option
@json_option
def recover(path: str, dry_run: bool, config_file: str | None, sets: tuple[str, ...], as_json: bool) -> int:
    """Do what a start does with the logs of a data directory, or say what that would be.

    After an unclean stop each log is checked from its recovery point on and cut at the first byte that is
    not part of a good batch; indexes, leader epochs and producer state are made anew where they are not
    sound.
    """
    from tidemill.log.dry_run import ScratchFiles
    from tidemill.log.files import SystemFiles
    from tidemill.log.verify import is_data_directory, is_in_use, is_partition_directory

    bytes_max = unpacked_bytes_max(config_file, sets)
    path = os.path.abspath(path)
    if is_partition_directory(SystemFiles(), path):
        raise click.UsageError(
            f"{path} is the directory of a partition: give the data directory, {os.path.dirname(path)}"
        )
    if not is_data_directory(SystemFiles(), path):
        raise click.UsageError(f"{path} is no data directory of a broker: name one of its log.dirs")
    if not dry_run:
        return _recover(SystemFiles(), path, as_json, bytes_max)
    if is_in_use(path):
        raise click.ClickException(f"a broker is running on {path}: stop it, then ask what a start would do")
    scratch = ScratchFiles()
    try:
        return _recover(scratch, path, as_json, bytes_max, scratch)
    finally:
        scratch.close()


def _recover(files: Any, path: str, as_json: bool, bytes_max: int, rehearsal: Any = None) -> int:
    from tidemill.log.config import LogConfig
    from tidemill.log.manager import LogManager

    began, now_ms = time.monotonic(), int(time.time() * 1000)
    manager = LogManager(files, [path])
    manager.lock()
    try:
        manager.stored_cluster_id()
        manager.load(now_ms, lambda topic: LogConfig(unpacked_bytes_max=bytes_max))
    except BaseException:
        manager.unlock()
        raise
    clean = manager.directories[0].clean
    warnings = list(manager.warnings)
    changes = rehearsal.changes() if rehearsal is not None else ([], [], [])
    if rehearsal is None:
        problems = manager.close(now_ms, {})
        if problems:
            raise click.ClickException(problems[0])
    removed, cut, written = changes
    document = {
        "directory": path,
        "dry_run": rehearsal is not None,
        "clean_shutdown": clean,
        "partitions": len(manager.logs),
        "checked_bytes": manager.recovered_bytes,
        "messages": warnings,
        "removed": removed,
        "cut": [{"path": one, "size": size, "lost": os.stat(one).st_size - size} for one, size in cut],
        "written": written,
    }
    if as_json:
        print_json(document)
        return 0
    _tell(document, time.monotonic() - began)
    return 0


def _tell(document: dict[str, Any], seconds: float) -> None:
    from tidemill.log.names import CUT

    show = for_terminal if on_terminal() else str
    stop = "was stopped in order" if document["clean_shutdown"] else "was not stopped in order"
    click.echo(f"{document['directory']}: {document['partitions']} partitions; it {stop}")
    for text in document["messages"]:
        click.echo(f"  {show(text)}")
    for one in document["cut"]:
        click.echo(f"  would cut {show(one['path'])} to {one['size']} bytes ({one['lost']} are lost)")
    for one in document["removed"]:
        click.echo(f"  would remove {show(one)}")
    kept = [one for one in document["written"] if one.endswith(CUT)]
    for one in kept:
        click.echo(f"  would keep what is cut in {show(one)}")
    others = len(document["written"]) - len(kept)
    if others:
        click.echo(f"  would write {others} files (indexes, epochs, producer snapshots)")
    checked = f"{bytes_text(document['checked_bytes'])} of logs checked in {seconds:.1f} s"
    click.echo(
        f"{checked}; nothing was changed" if document["dry_run"] else f"{checked}; a start is clean now"
    )

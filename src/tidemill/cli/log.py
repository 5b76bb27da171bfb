"""``tidemill log``: inspects the files of a data directory."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.log_export import export
from tidemill.cli.log_import import import_
from tidemill.cli.log_verify import recover, unpacked_bytes_max, verify
from tidemill.cli.options import Existing, config_file_option
from tidemill.cli.output import FAILED, on_terminal
from tidemill.cli.record_text import for_terminal
from tidemill.cli.setting_options import broker_settings_option
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import ConfigError, KafkaError, UnpackedTooLarge

if TYPE_CHECKING:
    from tidemill.log_tools.dump import DumpOptions
    from tidemill.model.system_interfaces import Files

FILES = Existing("files of a log, or the directory of one partition, as DATA/TOPIC-0")
DAMAGE_SHOWN = 10
MISFITS = ("Mismatches", "Found", "The following")
"""Start of the headings that report an index that does not match its log; offset gaps are not damage."""


@click.group("log")
def command() -> None:
    """Inspect, check and recover the files of a data directory, and exchange them with Kafka."""


for _one in (verify, recover, import_, export):
    command.add_command(_one)


DECODERS = {
    "offsets": ("--offsets-decoder", "__consumer_offsets: groups and their offsets."),
    "transactions": ("--transaction-log-decoder", "__transaction_state: transactional ids."),
    "metadata": ("--cluster-metadata-decoder", "__cluster_metadata: topics and brokers of KRaft."),
}


def decoder_options(function: Any) -> Any:
    """Adds the options that select a decoder."""
    for name, (option, text) in reversed(DECODERS.items()):
        function = click.option(option, "decoder", flag_value=name, help=text)(function)
    for what in ("value", "key"):
        option = f"--{what}-decoder-class"
        text = f"Decoder of {what}s: StringDecoder, IntegerDecoder, LongDecoder, DefaultDecoder (hex)."
        function = click.option(option, metavar="CLASS", help=text)(function)
    return function


@command.command(
    "dump",
    epilog="""\b
Examples:
  tidemill log dump tidemill-data/hello-0/00000000000000000000.log
  tidemill log dump tidemill-data/hello-0 --payload          all files of a partition
  tidemill log dump tidemill-data/__consumer_offsets-7 --offsets-decoder
  tidemill log dump tidemill-data/hello-0 --json --records | jq 'select(.kind == "record").offset'

Options and output lines are those of kafka-dump-log. Exit code 1 when a file is damaged, or an index does not
match its log. A broker may be running: nothing is written.""",
)
@click.argument("paths", nargs=-1, type=FILES)
@click.option(
    "--files", "named", metavar="FILE,...", help="Files separated by commas, as kafka-dump-log takes them."
)
@click.option("-r", "--records", "--deep-iteration", is_flag=True, help="Print records, not only batches.")
@click.option("-p", "--payload", "--print-data-log", is_flag=True, help="Print records with keys and values.")
@click.option("--skip-record-metadata", is_flag=True, help="Print only keys and values of records.")
@decoder_options
@click.option("--index-sanity-check", is_flag=True, help="Only check whether a start would keep the indexes.")
@click.option("--verify-index-only", is_flag=True, help="Compare indexes with their logs; print no entries.")
@click.option("--max-bytes", type=click.IntRange(0), help="Stop after this many bytes of each log.")
@click.option("--max-message-size", type=int, hidden=True, help="Accepted; a batch may have any size here.")
@config_file_option
@broker_settings_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line for each entry.")
def dump(paths: tuple[str, ...], named: str | None, as_json: bool, **flags: Any) -> int:
    """Print batches, records and index entries of segment files.

    PATHS are files (.log, .index, .timeindex, .txnindex, .snapshot, .checkpoint, leader-epoch-checkpoint)
    or the directory of a partition.
    """
    try:
        paths += tuple(FILES.convert(path, None, None) for path in (named or "").split(",") if path)
    except click.BadParameter as problem:
        raise click.UsageError(f"--files: {problem.message}") from None
    if not paths:
        raise click.UsageError("name files or the directory of a partition")
    files, options = SystemFiles(), _options(flags)
    damage: list[str] = []
    problems: list[str] = []
    for path in _files_of(paths):
        try:
            if as_json:
                _print_json(files, path, options, damage)
            else:
                _print_lines(files, path, options, damage, problems)
        except UnpackedTooLarge as problem:
            problems.append(f"{path} is not printed to its end: {problem}")
        except KafkaError as problem:
            # The other files may be intact.
            damage.append(str(problem) if path in str(problem) else f"{path}: {problem}")
        except FileNotFoundError:
            if path in paths:
                raise
            # A running broker deleted the file after the directory was listed.
            click.echo(f"{path} was deleted after its directory was listed", err=True)
    for text in problems:
        click.echo(text, err=True)
    for text in damage[:DAMAGE_SHOWN]:
        click.echo(f"tidemill: {text}", err=True)
    if len(damage) > DAMAGE_SHOWN:
        click.echo(f"tidemill: and {len(damage) - DAMAGE_SHOWN} more like these", err=True)
    misfit = any(text.startswith(MISFITS) for text in problems)
    return FAILED if damage or misfit else 0


def _options(flags: dict[str, Any]) -> DumpOptions:
    from tidemill.interchange import decoders
    from tidemill.log_tools.dump import DumpOptions

    named, key_class, value_class = flags["decoder"], flags["key_decoder_class"], flags["value_decoder_class"]
    try:
        decode = decoders.by_class(key_class, value_class)
    except ConfigError as problem:
        raise click.UsageError(str(problem)) from None
    if named:
        decode = getattr(decoders, named)
    contents = bool(flags["payload"] or named or key_class or value_class)
    return DumpOptions(
        deep=flags["records"] or contents,
        contents=contents,
        skip_metadata=flags["skip_record_metadata"],
        bytes_max=-1 if flags["max_bytes"] is None else flags["max_bytes"],
        unpacked_bytes_max=unpacked_bytes_max(flags["config_file"], flags["sets"]),
        verify_only=flags["verify_index_only"],
        sanity_only=flags["index_sanity_check"],
        decode=decode,
        decode_control=decoders.control_text,
    )


def _print_json(files: Files, path: str, options: DumpOptions, damage: list[str]) -> None:
    from tidemill.cli.dump_json import as_object
    from tidemill.log_tools.dump import entries, note_damage

    for entry in entries(
        files,
        path,
        records=options.deep,
        bytes_max=options.bytes_max,
        unpacked_bytes_max=options.unpacked_bytes_max,
    ):
        shown = {"file": path, **as_object(entry, options.decode)}
        sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")
        note_damage(path, entry, damage)


def _print_lines(
    files: Files, path: str, options: DumpOptions, damage: list[str], problems: list[str]
) -> None:
    from tidemill.log_tools.dump import lines

    clean = for_terminal if on_terminal() else str
    for line in lines(files, path, options, problems, damage):
        sys.stdout.write(f"{clean(line)}\n")


def _files_of(paths: tuple[str, ...]) -> Iterator[str]:
    from tidemill.log.file_names import (
        INDEX,
        LEADER_EPOCHS,
        LOG,
        METADATA_SNAPSHOT,
        PARTITION_METADATA,
        SNAPSHOT,
        TIME_INDEX,
        TRANSACTION_INDEX,
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
            or name.endswith(METADATA_SNAPSHOT)
            or any(
                offset_of(name, ending) >= 0
                for ending in (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT)
            )
        ]
        if not known:
            raise click.ClickException(
                f"{path} contains no log files: give the directory of one partition, as {path}/TOPIC-0"
            )
        yield from (os.path.join(path, name) for name in known)

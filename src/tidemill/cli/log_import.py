"""``tidemill log import``: takes over the data directories of a broker of Apache Kafka."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.log_verify import unpacked_bytes_max
from tidemill.cli.options import Existing, config_file_option
from tidemill.cli.output import FAILED, bytes_text, count_text, done, json_option, on_terminal, print_json
from tidemill.cli.record_text import for_terminal
from tidemill.cli.setting_options import broker_settings_option
from tidemill.log.file_names import LOCK, METADATA_DIRECTORY
from tidemill.log.system_files import SystemFiles

if TYPE_CHECKING:
    from tidemill.interchange.cluster import ClusterMetadata
    from tidemill.interchange.directories import BrokerDirectories
    from tidemill.interchange.kafka_import import Import

DIRECTORY = Existing("a data directory of a broker, as log.dirs has it", directory=True)


@contextmanager
def locked(paths: tuple[str, ...], *, acquire: bool) -> Iterator[None]:
    """Holds the locks of data directories; without ``acquire`` only checks that no broker holds them."""
    from tidemill.log_tools.verify import is_in_use

    with ExitStack() as locks:
        for path in paths:
            try:
                if acquire:
                    locks.enter_context(closing(SystemFiles().lock(f"{path}/{LOCK}")))
                elif is_in_use(path):
                    raise BlockingIOError
            except BlockingIOError:
                raise click.ClickException(
                    f"{path} is in use by a broker (it holds {LOCK}): stop it first"
                ) from None
        yield


def distinct_paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the absolute paths of the directories. Raises UsageError for one that is given twice."""
    seen: dict[str, str] = {}
    for path in paths:
        place = os.path.realpath(path)
        if place in seen:
            also = "" if seen[place] == path else f", as {seen[place]} and as {path}"
            raise click.UsageError(f"{place} is given twice{also}: name each data directory once")
        seen[place] = path
    return tuple(os.path.abspath(path) for path in paths)


@click.command(
    "import",
    epilog="""\b
Examples:
  tidemill log import /var/lib/kafka --dry-run
  tidemill log import /var/lib/kafka                           a Kafka broker on KRaft
  tidemill log import /disk1/kafka /disk2/kafka --metadata /disk3/kafka
  tidemill log import /var/lib/kafka --zookeeper zk1:2181,zk2:2181/kafka
  tidemill serve --data /var/lib/kafka

Give every directory of the broker's log.dirs, in the order that the broker is to use. The Kafka broker must
be stopped; after a kill, the first start checks its logs. Nothing in the directories of partitions is
changed. Open transactions continue. Exit code 1, and nothing is written, when data would be lost.
One key of Tidemill's configuration counts: tidemill.unpacked.batch.bytes.max.""",
)
@click.argument("paths", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY)
@click.option(
    "--zookeeper", metavar="HOST:PORT[/CHROOT]", help="Read topics and settings from Kafka's ZooKeeper."
)
@click.option(
    "--nodes",
    metavar="FILE",
    type=Existing("a JSON file of node paths and their data", directory=False),
    help="Read topics and settings from a JSON object of node paths and data.",
)
@click.option(
    "--metadata", metavar="DIR", type=DIRECTORY, help="Kafka's metadata.log.dir, when it is not one of DIR."
)
@click.option(
    "--without-settings",
    is_flag=True,
    help="Take topics from the directories alone, with unlimited retention.",
)
@click.option("--missing-as-empty", is_flag=True, help="Create partitions without a directory as empty.")
@click.option("--only-whole", is_flag=True, help="Skip topics with partitions on other brokers.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, but do nothing.")
@config_file_option
@broker_settings_option
@json_option
def import_(
    paths: tuple[str, ...],
    dry_run: bool,
    config_file: str | None,
    sets: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> int:
    """Import the data directories of a broker of Apache Kafka.

    Topics, ids and settings come from the KRaft metadata in the directories, or from ZooKeeper. Committed
    offsets are in the topic __consumer_offsets and are kept; offsets that groups store in ZooKeeper are, too.
    """
    from tidemill.interchange.directories import read_directories
    from tidemill.interchange.kafka_import import Choices, plan, write_store

    bytes_max = unpacked_bytes_max(config_file, sets)
    paths = distinct_paths(paths)
    with locked(paths, acquire=not dry_run):
        found = read_directories(SystemFiles(), paths)
        planned = plan(
            _metadata(found, bytes_max, **_sources(options)),
            found,
            Choices(options["missing_as_empty"], options["only_whole"]),
        )
        if not planned.problems and not dry_run:
            asyncio.run(write_store(SystemFiles(), paths[0], planned.metadata))
    if as_json:
        print_json(_document(planned, found, dry_run))
    else:
        _print_report(planned, found, dry_run)
    return FAILED if planned.problems else 0


def _sources(options: dict[str, Any]) -> dict[str, Any]:
    names = ("zookeeper", "nodes", "metadata", "without_settings")
    given = [f"--{name.replace('_', '-')}" for name in names if options[name]]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} cannot be combined: topics come from one source")
    return {name: options[name] for name in names}


def _metadata(
    found: BrokerDirectories,
    bytes_max: int,
    zookeeper: str | None,
    nodes: str | None,
    metadata: str | None,
    without_settings: bool,
) -> ClusterMetadata:
    """Returns the cluster's metadata from the source of the options, or from the directories."""
    from tidemill.interchange import zookeeper_nodes
    from tidemill.interchange.kafka_import import metadata_of_directories
    from tidemill.interchange.kraft_metadata_reader import read_kraft
    from tidemill.interchange.transactional_producer_ids import next_producer_id

    if zookeeper:
        return zookeeper_nodes.from_nodes(
            zookeeper_nodes.read_zookeeper(zookeeper), f"ZooKeeper at {zookeeper}"
        )
    if nodes:
        return zookeeper_nodes.from_nodes(zookeeper_nodes.read_file(nodes), nodes, is_file=True)
    if without_settings:
        taken = metadata_of_directories(found)
        taken.next_producer_id = next_producer_id(SystemFiles(), found, unpacked_bytes_max=bytes_max)
        return taken
    places = [directory.metadata for directory in found.directories if directory.metadata]
    if metadata:
        metadata = os.path.abspath(metadata)
        below = f"{metadata}/{METADATA_DIRECTORY}"
        places = [below if os.path.isdir(below) else metadata]
    if not places and any(directory.has_store for directory in found.directories):
        # The plan reports that a directory already belongs to Tidemill.
        return metadata_of_directories(found)
    if not places:
        raise click.UsageError(
            f"{found.paths[0]} does not contain the settings of its topics: Kafka keeps them in ZooKeeper "
            f"(--zookeeper HOST:PORT/CHROOT) or in {METADATA_DIRECTORY} of its metadata.log.dir (--metadata "
            "DIR). To import topics with unlimited retention until their settings are made: "
            "--without-settings."
        )
    return read_kraft(SystemFiles(), places[0], unpacked_bytes_max=bytes_max)


def _document(planned: Import, found: BrokerDirectories, dry_run: bool) -> dict[str, Any]:
    from tidemill.model.ids import encode_id

    metadata = planned.metadata
    return {
        "imported": not planned.problems and not dry_run,
        "dry_run": dry_run,
        "source": metadata.source,
        "cluster_id": metadata.cluster_id,
        "node_id": planned.node_id,
        "directories": found.paths,
        "clean_shutdown": all(directory.clean for directory in found.directories),
        "topics": {
            name: {
                "topic_id": encode_id(topic.topic_id),
                "partitions": len(topic.partitions),
                "config": topic.config,
            }
            for name, topic in sorted(metadata.topics.items())
        },
        "broker_configs": metadata.broker_configs,
        "group_configs": metadata.group_configs,
        "group_offsets": len(metadata.group_offsets),
        "bytes": sum(partition.size for partition in found.partitions.values()),
        "problems": planned.problems,
        "notes": planned.notes,
        "left_alone": planned.not_imported,
    }


def _print_report(planned: Import, found: BrokerDirectories, dry_run: bool) -> None:
    show = for_terminal if on_terminal() else str
    metadata = planned.metadata
    for text in planned.problems:
        click.echo(f"problem {show(text)}", err=True)
    for text in planned.notes:
        click.echo(f"note    {show(text)}")
    for path in planned.not_imported:
        click.echo(
            f"note    {show(path)} belongs to no imported topic and is left unchanged; move it away "
            "before a topic of that name is created"
        )
    if planned.problems:
        raise click.ClickException("nothing was imported")
    partitions = sum(len(topic.partitions) for topic in metadata.topics.values())
    counts = f"{count_text(len(metadata.topics))} topics, {count_text(partitions)} partitions"
    size = bytes_text(sum(partition.size for partition in found.partitions.values()))
    whose = f"broker {planned.node_id} of cluster {metadata.cluster_id}"
    click.echo(f"{whose}, from {show(metadata.source)}: {counts}, {size}")
    if not all(directory.clean for directory in found.directories):
        click.echo("its broker did not shut down cleanly: the first start checks the ends of the logs")
    if dry_run:
        click.echo("nothing was written (--dry-run)")
        return
    where = f"--data {found.paths[0]}" if len(found.paths) == 1 else f"--set log.dirs={','.join(found.paths)}"
    done(f"imported; now: tidemill serve {where}")

"""``tidemill log import``: a data directory of Apache Kafka, served by Tidemill from then on."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.options import Existing
from tidemill.cli.output import bytes_text, count_text, done, json_option, on_terminal, print_json
from tidemill.cli.records import for_terminal

if TYPE_CHECKING:
    from tidemill.interchange.cluster import ClusterMetadata
    from tidemill.interchange.directories import Found
    from tidemill.interchange.importing import Import

FAILED = 1
DIRECTORY = Existing("a data directory of a broker, as log.dirs has it", directory=True)


@contextmanager
def locked(paths: tuple[str, ...], *, take: bool) -> Iterator[None]:
    """Holds the locks of data directories, or (without ``take``) only sees that nobody holds them."""
    from tidemill.log.files import SystemFiles
    from tidemill.log.names import LOCK
    from tidemill.log.verify import is_in_use

    locks: list[Any] = []
    try:
        for path in paths:
            try:
                if not take and is_in_use(path):
                    raise BlockingIOError
                if take:
                    locks.append(SystemFiles().lock(f"{path}/{LOCK}"))
            except BlockingIOError:
                raise click.ClickException(
                    f"{path} is in use by a broker (it holds {LOCK}): stop that one first"
                ) from None
        yield
    finally:
        for lock in locks:
            lock.close()


def each_once(paths: tuple[str, ...]) -> tuple[str, ...]:
    """The directories by their whole paths; a usage error for one that is given twice."""
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
  tidemill log import /var/lib/kafka                           a broker of Kafka on KRaft
  tidemill log import /disk1/kafka /disk2/kafka --metadata /disk3/kafka
  tidemill log import /var/lib/kafka --zookeeper zk1:2181,zk2:2181/kafka
  tidemill serve --data /var/lib/kafka

Give every directory of the broker's log.dirs, in the order in which the broker is to have them. The broker
of Kafka has to be stopped; a killed one's logs are checked by the first start. Nothing in the partitions'
directories is changed. Exit code 1, and nothing is written, when something would be lost.""",
)
@click.argument("paths", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY)
@click.option(
    "--zookeeper", metavar="HOST:PORT[/CHROOT]", help="Take topics and settings from Kafka's ZooKeeper."
)
@click.option(
    "--nodes",
    metavar="FILE",
    type=Existing("a JSON file of node paths and their data", directory=False),
    help="Take them from a file: a JSON object of node paths and data.",
)
@click.option(
    "--metadata", metavar="DIR", type=DIRECTORY, help="Kafka's metadata.log.dir, when it is none of DIR."
)
@click.option(
    "--without-settings", is_flag=True, help="Take topics as their directories tell, kept for ever."
)
@click.option("--missing-as-empty", is_flag=True, help="Partitions without a directory begin empty.")
@click.option("--only-whole", is_flag=True, help="Leave out topics with partitions on other brokers.")
@click.option(
    "--open-as-committed",
    is_flag=True,
    help="End transactions that nobody ended: commit them, or abort what was about to be.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@json_option
def import_(paths: tuple[str, ...], dry_run: bool, as_json: bool, **options: Any) -> int:
    """Take over the data directories of a broker of Apache Kafka.

    Topics, ids and settings come from the metadata of KRaft in the directories, or from ZooKeeper. Committed
    offsets are in the topic __consumer_offsets, and come with it; so do those that groups keep in ZooKeeper.
    """
    from tidemill.interchange.directories import find
    from tidemill.interchange.ending import commit_open
    from tidemill.interchange.importing import Choices, plan, write_store
    from tidemill.interchange.transactions import open_transactions
    from tidemill.log.files import SystemFiles

    paths = each_once(paths)
    with locked(paths, take=not dry_run):
        found = find(SystemFiles(), paths)
        damage: list[str] = []
        transactions = open_transactions(SystemFiles(), found, damage)
        planned = plan(
            _metadata(found, **_sources(options)),
            found,
            Choices(options["missing_as_empty"], options["only_whole"], options["open_as_committed"]),
            transactions,
        )
        planned.notes.extend(damage)
        if not planned.problems and not dry_run:
            topics = planned.metadata.topics
            now_ms = int(time.time() * 1000)
            planned.notes.extend(commit_open(SystemFiles(), found, topics, transactions, now_ms))
            asyncio.run(write_store(SystemFiles(), paths[0], planned.metadata))
    if as_json:
        print_json(_document(planned, found, dry_run))
    else:
        _tell(planned, found, dry_run)
    return FAILED if planned.problems else 0


def _sources(options: dict[str, Any]) -> dict[str, Any]:
    names = ("zookeeper", "nodes", "metadata", "without_settings")
    given = [f"--{name.replace('_', '-')}" for name in names if options[name]]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} do not go together: topics come from one place")
    return {name: options[name] for name in names}


def _metadata(
    found: Found, zookeeper: str | None, nodes: str | None, metadata: str | None, without_settings: bool
) -> ClusterMetadata:
    """The cluster's metadata from where it was asked for, or from where it is."""
    from tidemill.interchange import zookeeper_nodes
    from tidemill.interchange.importing import adopted
    from tidemill.interchange.kraft_reading import read_kraft
    from tidemill.log.files import SystemFiles
    from tidemill.log.names import METADATA_DIRECTORY

    if zookeeper:
        return zookeeper_nodes.from_nodes(
            zookeeper_nodes.read_zookeeper(zookeeper), f"ZooKeeper at {zookeeper}"
        )
    if nodes:
        return zookeeper_nodes.from_nodes(zookeeper_nodes.read_file(nodes), nodes, is_file=True)
    if without_settings:
        return adopted(found)
    places = [one.metadata for one in found.directories if one.metadata]
    if metadata:
        metadata = os.path.abspath(metadata)
        below = f"{metadata}/{METADATA_DIRECTORY}"
        places = [below if os.path.isdir(below) else metadata]
    if not places:
        raise click.UsageError(
            f"{found.paths[0]} does not tell the settings of its topics: Kafka keeps them in ZooKeeper "
            f"(--zookeeper HOST:PORT/CHROOT) or in {METADATA_DIRECTORY} of its metadata.log.dir (--metadata "
            "DIR). Without them every topic is kept for ever until its settings are made: --without-settings."
        )
    return read_kraft(SystemFiles(), places[0])


def _document(planned: Import, found: Found, dry_run: bool) -> dict[str, Any]:
    from tidemill.log.checkpoints import encode_id

    metadata = planned.metadata
    return {
        "imported": not planned.problems and not dry_run,
        "dry_run": dry_run,
        "source": metadata.source,
        "cluster_id": metadata.cluster_id,
        "node_id": planned.node_id,
        "directories": found.paths,
        "clean_shutdown": all(one.clean for one in found.directories),
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
        "bytes": sum(one.size for one in found.partitions.values()),
        "problems": planned.problems,
        "notes": planned.notes,
        "left_alone": planned.left_alone,
    }


def _tell(planned: Import, found: Found, dry_run: bool) -> None:
    show = for_terminal if on_terminal() else str
    metadata = planned.metadata
    for text in planned.problems:
        click.echo(f"problem {show(text)}", err=True)
    for text in planned.notes:
        click.echo(f"note    {show(text)}")
    for path in planned.left_alone:
        click.echo(
            f"note    {show(path)} belongs to no topic that is taken over: it is left alone; move it away "
            "before a topic of that name is made"
        )
    if planned.problems:
        raise click.ClickException("nothing was imported")
    partitions = sum(len(topic.partitions) for topic in metadata.topics.values())
    counts = f"{count_text(len(metadata.topics))} topics, {count_text(partitions)} partitions"
    size = bytes_text(sum(one.size for one in found.partitions.values()))
    whose = f"broker {planned.node_id} of cluster {metadata.cluster_id}"
    click.echo(f"{whose}, by {show(metadata.source)}: {counts}, {size}")
    if not all(one.clean for one in found.directories):
        click.echo("its broker was not stopped in order: the first start checks the ends of the logs")
    if dry_run:
        click.echo("nothing was written (--dry-run)")
        return
    where = f"--data {found.paths[0]}" if len(found.paths) == 1 else f"--set log.dirs={','.join(found.paths)}"
    done(f"imported; now: tidemill serve {where}")

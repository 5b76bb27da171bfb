"""``tidemill log export``: exports the data of a broker to Apache Kafka."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.log_import import DIRECTORY, distinct_paths, locked
from tidemill.cli.log_verify import progress
from tidemill.cli.options import StateFile
from tidemill.cli.output import FAILED, bytes_text, count_text, done, json_option, on_terminal, print_json
from tidemill.cli.record_text import for_terminal
from tidemill.log.system_files import SystemFiles

if TYPE_CHECKING:
    from tidemill.interchange.directories import BrokerDirectories
    from tidemill.interchange.kafka_export import Export

TO_BE_NAMED = "HOST:PORT"


@click.command(
    "export",
    epilog="""\b
Examples:
  tidemill log export /var/lib/tidemill --to /var/lib/kafka --zookeeper 127.0.0.1:2181/kafka
  tidemill log export /var/lib/tidemill --in-place --script nodes.txt
  zookeeper-shell.sh 127.0.0.1:2181/kafka < nodes.txt

Give every directory of the broker's log.dirs, the first one first. The broker must be stopped. The output
ends with the lines for Kafka's server.properties. Apache Kafka 3.9 is the last version that runs on
ZooKeeper; it can be migrated to KRaft afterwards. tidemill log import is the reverse.""",
)
@click.argument("paths", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY)
@click.option("--to", "target", metavar="NEW", type=click.Path(), help="Copy the data to a new directory.")
@click.option("--in-place", is_flag=True, help="Convert the directories in place, without a copy.")
@click.option(
    "--zookeeper", metavar="HOST:PORT[/CHROOT]", help="Create the nodes, and the chroot, in this ZooKeeper."
)
@click.option(
    "--script", metavar="FILE", type=StateFile(), help="Write the nodes as zookeeper-shell commands."
)
@click.option("--nodes", metavar="FILE", type=StateFile(), help="Write the nodes as a JSON object.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, but do nothing.")
@json_option
def export(
    paths: tuple[str, ...], target: str | None, in_place: bool, dry_run: bool, as_json: bool, **to: str | None
) -> int:
    """Export the data of a broker to Apache Kafka 3.9 on ZooKeeper.

    Partitions already have Kafka's file formats. The metadata that Kafka keeps in ZooKeeper is written there:
    topics with ids and settings, and broker settings. Committed offsets are in the topic __consumer_offsets.
    """
    from tidemill.interchange.directories import read_directories
    from tidemill.interchange.kafka_export import plan, read_store

    if (target is None) == (not in_place):
        raise click.UsageError("give either --to NEW for a copy, or --in-place")
    if not any(to.values()):
        raise click.UsageError(
            "give a target for the nodes: --zookeeper HOST:PORT/CHROOT, --script or --nodes FILE"
        )
    paths = distinct_paths(paths)
    if to["script"] and to["nodes"] and os.path.realpath(to["script"]) == os.path.realpath(to["nodes"]):
        raise click.UsageError(f"--script and --nodes both name {to['script']}: name two files")
    if target is not None:
        target = os.path.abspath(target)
        _check_target(paths, target)
    with locked(paths, acquire=not dry_run):
        found = read_directories(SystemFiles(), paths)
        planned = plan(asyncio.run(read_store(found)), found)
        if not planned.problems and not dry_run:
            _export(planned, found, target, **to)
    if as_json:
        print_json(_document(planned, found, target, to["zookeeper"], dry_run))
    else:
        _print_report(planned, found, target, to, dry_run)
    return FAILED if planned.problems else 0


def _check_target(paths: tuple[str, ...], target: str) -> None:
    """Raises UsageError when no copy can be created at ``target``."""
    place = os.path.realpath(target)
    for path in paths:
        if place == os.path.realpath(path):
            raise click.UsageError(
                f"--to {target} is the exported directory itself: name a new one, or give --in-place to "
                "convert it without a copy"
            )
        if place.startswith(os.path.realpath(path) + os.sep):
            raise click.UsageError(
                f"--to {target} is inside {path}, which is exported: name a new directory outside of it"
            )
    if os.path.lexists(target):
        raise click.UsageError(f"{target} exists already: --to must name a new directory")
    folder = os.path.dirname(place)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise click.UsageError(f"--to {target}: {folder} is not a directory; name another path")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.UsageError(
            f"--to {target}: cannot write to {folder}; change its permissions, or name another path"
        )


def _export(
    planned: Export,
    found: BrokerDirectories,
    target: str | None,
    zookeeper: str | None,
    script: str | None,
    nodes: str | None,
) -> None:
    """Copies the data first, then writes the nodes. Directories are converted in place after all else."""
    from tidemill.interchange import kafka_export, zookeeper_nodes

    files = SystemFiles()
    node_data = zookeeper_nodes.to_nodes(planned.metadata)
    if zookeeper:
        zookeeper_nodes.check_empty(zookeeper)
    if target is not None:
        with progress(sum(partition.size for partition in found.partitions.values()), "copying") as advance:
            try:
                kafka_export.copy_converted(files, found, target, planned, advance)
            except OSError as problem:
                raise click.ClickException(
                    f"the copy to {target} was not finished ({problem.strerror}): remove it before you "
                    "try again"
                ) from None
            except KeyboardInterrupt:
                click.echo(
                    f"tidemill: the copy to {target} was not finished: remove it before you try again",
                    err=True,
                )
                raise
    if script:
        with open(script, "w", encoding="utf-8") as file:
            file.write(kafka_export.shell_script(node_data))
    if nodes:
        zookeeper_nodes.write_file(nodes, node_data)
    if zookeeper:
        zookeeper_nodes.write_zookeeper(zookeeper, node_data)
    if target is None:
        kafka_export.convert_in_place(files, found, planned)


def _document(
    planned: Export, found: BrokerDirectories, target: str | None, zookeeper: str | None, dry_run: bool
) -> dict[str, Any]:
    from tidemill.interchange.kafka_export import EXPORTED, server_properties
    from tidemill.model.ids import encode_id

    directories = found.paths if target is None else [target]
    return {
        "exported": not planned.problems and not dry_run,
        "dry_run": dry_run,
        "cluster_id": planned.metadata.cluster_id,
        "node_id": planned.node_id,
        "directories": directories,
        "store_kept_as": f"{found.paths[0]}/{EXPORTED}" if target is None else None,
        "topics": {
            name: {
                "topic_id": encode_id(topic.topic_id),
                "partitions": len(topic.partitions),
                "config": topic.config,
            }
            for name, topic in sorted(planned.metadata.topics.items())
        },
        "bytes": sum(partition.size for partition in found.partitions.values()),
        "server_properties": server_properties(planned, directories, zookeeper or TO_BE_NAMED),
        "problems": planned.problems,
        "notes": planned.notes,
    }


def _print_report(
    planned: Export, found: BrokerDirectories, target: str | None, to: dict[str, str | None], dry_run: bool
) -> None:
    from tidemill.coordination.embedded_store import FILE_NAME as STORE_FILE
    from tidemill.interchange.kafka_export import EXPORTED, server_properties

    show = for_terminal if on_terminal() else str
    for text in planned.problems:
        click.echo(f"problem {show(text)}", err=True)
    for text in planned.notes:
        click.echo(f"note    {show(text)}")
    if planned.problems:
        raise click.ClickException("nothing was exported")
    metadata = planned.metadata
    partitions = sum(len(topic.partitions) for topic in metadata.topics.values())
    size = bytes_text(sum(partition.size for partition in found.partitions.values()))
    counts = f"{count_text(len(metadata.topics))} topics, {count_text(partitions)} partitions, {size}"
    click.echo(f"broker {planned.node_id} of cluster {metadata.cluster_id}: {counts}")
    if dry_run:
        click.echo("nothing was written (--dry-run)")
        return
    directories = found.paths if target is None else [target]
    done(f"exported: {', '.join(directories)}")
    if target is None:
        store = f"{found.paths[0]}/{EXPORTED}"
        click.echo(
            f"the metadata of Tidemill is kept in {show(store)}; to go back before Kafka was started, "
            f"rename it to {STORE_FILE}"
        )
    zookeeper = to["zookeeper"] or TO_BE_NAMED
    if to["script"] and not to["zookeeper"]:
        click.echo(f"first create the nodes: zookeeper-shell.sh {zookeeper} < {to['script']}")
    click.echo("then start Apache Kafka 3.9 with these lines in its server.properties:")
    for key, value in server_properties(planned, directories, zookeeper).items():
        click.echo(f"  {key}={value}")

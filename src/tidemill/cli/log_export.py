"""``tidemill log export``: the data of a broker, served by Apache Kafka from then on."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.log_import import DIRECTORY, FAILED, each_once, locked
from tidemill.cli.log_verify import progress
from tidemill.cli.options import StateFile
from tidemill.cli.output import bytes_text, count_text, done, json_option, on_terminal, print_json
from tidemill.cli.records import for_terminal

if TYPE_CHECKING:
    from tidemill.interchange.directories import Found
    from tidemill.interchange.exporting import Export

TO_BE_NAMED = "HOST:PORT"


@click.command(
    "export",
    epilog="""\b
Examples:
  tidemill log export /var/lib/tidemill --to /var/lib/kafka --zookeeper 127.0.0.1:2181/kafka
  tidemill log export /var/lib/tidemill --in-place --script nodes.txt
  zookeeper-shell.sh 127.0.0.1:2181/kafka < nodes.txt

Give every directory of the broker's log.dirs, the first one first. The broker has to be stopped. What is
printed last are the lines that Kafka's server.properties needs. Apache Kafka 3.9 is the last that runs on
ZooKeeper; from there it can be migrated to KRaft. The way back is tidemill log import.""",
)
@click.argument("paths", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY)
@click.option("--to", "target", metavar="NEW", type=click.Path(), help="Copy the data into a new directory.")
@click.option("--in-place", is_flag=True, help="Make the directories Kafka's as they are, without a copy.")
@click.option(
    "--zookeeper", metavar="HOST:PORT[/CHROOT]", help="Make the nodes there; the chroot is made, too."
)
@click.option("--script", metavar="FILE", type=StateFile(), help="Write them as zookeeper-shell's commands.")
@click.option("--nodes", metavar="FILE", type=StateFile(), help="Write them as a JSON object.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@json_option
def export(
    paths: tuple[str, ...], target: str | None, in_place: bool, dry_run: bool, as_json: bool, **to: str | None
) -> int:
    """Hand the data of a broker over to Apache Kafka 3.9 on ZooKeeper.

    Partitions are in Kafka's files already; what Kafka keeps in ZooKeeper is written there: topics with ids
    and settings, settings of brokers. Committed offsets are in the topic __consumer_offsets.
    """
    from tidemill.interchange.directories import find
    from tidemill.interchange.exporting import plan, read_store
    from tidemill.log.files import SystemFiles

    if (target is None) == (not in_place):
        raise click.UsageError("say --to NEW for a copy, or --in-place: one of them")
    if not any(to.values()):
        raise click.UsageError(
            "say where the nodes go: --zookeeper HOST:PORT/CHROOT, --script or --nodes FILE"
        )
    paths = each_once(paths)
    if to["script"] and to["nodes"] and os.path.realpath(to["script"]) == os.path.realpath(to["nodes"]):
        raise click.UsageError(f"--script and --nodes both name {to['script']}: name two files")
    if target is not None:
        target = os.path.abspath(target)
        _check_target(paths, target)
    with locked(paths, take=not dry_run):
        found = find(SystemFiles(), paths)
        planned = plan(asyncio.run(read_store(found)), found)
        if not planned.problems and not dry_run:
            _carry_out(planned, found, target, **to)
    if as_json:
        print_json(_document(planned, found, target, to["zookeeper"], dry_run))
    else:
        _tell(planned, found, target, to, dry_run)
    return FAILED if planned.problems else 0


def _check_target(paths: tuple[str, ...], target: str) -> None:
    """A usage error when no copy can be made at ``target``."""
    place = os.path.realpath(target)
    for path in paths:
        if place == os.path.realpath(path):
            raise click.UsageError(
                f"--to {target} is the directory that is exported: name a new one, or say --in-place to make "
                "it Kafka's where it is"
            )
        if place.startswith(os.path.realpath(path) + os.sep):
            raise click.UsageError(
                f"--to {target} is inside {path}, which is exported: name a new directory outside of it"
            )
    if os.path.lexists(target):
        raise click.UsageError(f"{target} is there already: --to names a new directory")
    folder = os.path.dirname(place)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise click.UsageError(f"--to {target}: {folder} is no directory; name another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.UsageError(
            f"--to {target}: nothing can be made in {folder}; change its rights, or name another place"
        )


def _carry_out(
    planned: Export,
    found: Found,
    target: str | None,
    zookeeper: str | None,
    script: str | None,
    nodes: str | None,
) -> None:
    """The copy first, then the nodes; the directories are given away once all else is done."""
    from tidemill.interchange import exporting, zookeeper_nodes
    from tidemill.log.files import SystemFiles

    files = SystemFiles()
    made = zookeeper_nodes.to_nodes(planned.metadata)
    if zookeeper:
        zookeeper_nodes.check_empty(zookeeper)
    if target is not None:
        with progress(sum(one.size for one in found.partitions.values()), "copying") as advance:
            try:
                exporting.copy_away(files, found, target, planned, advance)
            except OSError as problem:
                raise click.ClickException(
                    f"the copy to {target} was not finished ({problem.strerror}): remove it before the "
                    "next try"
                ) from None
            except KeyboardInterrupt:
                click.echo(
                    f"tidemill: the copy to {target} was not finished: remove it before the next try",
                    err=True,
                )
                raise
    if script:
        with open(script, "w", encoding="utf-8") as file:
            file.write(exporting.shell_script(made))
    if nodes:
        zookeeper_nodes.write_file(nodes, made)
    if zookeeper:
        zookeeper_nodes.write_zookeeper(zookeeper, made)
    if target is None:
        exporting.give_away(files, found, planned)


def _document(
    planned: Export, found: Found, target: str | None, zookeeper: str | None, dry_run: bool
) -> dict[str, Any]:
    from tidemill.interchange.exporting import EXPORTED, server_properties
    from tidemill.log.checkpoints import encode_id

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
        "bytes": sum(one.size for one in found.partitions.values()),
        "server_properties": server_properties(planned, directories, zookeeper or TO_BE_NAMED),
        "problems": planned.problems,
        "notes": planned.notes,
    }


def _tell(
    planned: Export, found: Found, target: str | None, to: dict[str, str | None], dry_run: bool
) -> None:
    from tidemill.coordination.embedded import FILE_NAME as STORE_FILE
    from tidemill.interchange.exporting import EXPORTED, server_properties

    show = for_terminal if on_terminal() else str
    for text in planned.problems:
        click.echo(f"problem {show(text)}", err=True)
    for text in planned.notes:
        click.echo(f"note    {show(text)}")
    if planned.problems:
        raise click.ClickException("nothing was exported")
    metadata = planned.metadata
    partitions = sum(len(topic.partitions) for topic in metadata.topics.values())
    size = bytes_text(sum(one.size for one in found.partitions.values()))
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
            f"the state that Tidemill had is kept as {show(store)}; to go back before Kafka was started, "
            f"give it its old name, {STORE_FILE}"
        )
    zookeeper = to["zookeeper"] or TO_BE_NAMED
    if to["script"] and not to["zookeeper"]:
        click.echo(f"first make the nodes: zookeeper-shell.sh {zookeeper} < {to['script']}")
    click.echo("then start Apache Kafka 3.9 with these lines in its server.properties:")
    for key, value in server_properties(planned, directories, zookeeper).items():
        click.echo(f"  {key}={value}")

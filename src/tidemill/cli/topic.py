"""``tidemill topic``: creates, lists, describes, alters and deletes topics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli import name_completion
from tidemill.cli.leader_elections import elect, election_options
from tidemill.cli.options import (
    INT_MAX,
    SHORT_MAX,
    Target,
    WholeNumber,
    pairs,
    parse_duration,
    target_options,
)
from tidemill.cli.output import (
    FAILED,
    bytes_text,
    count_text,
    counted,
    done,
    json_option,
    on_terminal,
    print_json,
    print_table,
    report_failures,
    require_yes,
    yes_option,
)
from tidemill.cli.reassignment_options import ReassignmentOptions, add_move_options
from tidemill.cli.setting_options import changes_of, topic_settings_option, unset_option
from tidemill.client.errors import ClientError, topic_exists
from tidemill.model.errors import ErrorCode
from tidemill.model.ids import topic_id_text
from tidemill.model.similar_names import did_you_mean
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import PartitionDescription


ENDS_TIMEOUT_S = 3.0
"""How long to wait for the offsets of a partition before it is shown without them."""

HELD_BY_INTERNAL = {
    "__consumer_offsets": "the committed offsets of every group: without them consumers lose their positions",
    "__transaction_state": "the state of every transaction: without it open transactions stay open",
}
"""Contents of internal topics, which a deletion would lose."""


@click.group("topic")
def command() -> None:
    """Create, list, describe, alter and delete topics."""


@command.command(
    "create",
    epilog="""\b
Examples:
  tidemill topic create hello
  tidemill topic create orders -p 6 --set retention.ms=-1 --set compression.type=zstd""",
)
@click.argument("names", nargs=-1, required=True)
@click.option(
    "-p",
    "--partitions",
    type=WholeNumber(1, INT_MAX),
    help="Number of partitions.  [the broker's num.partitions]",
)
@click.option(
    "-r",
    "--replication-factor",
    type=WholeNumber(1, SHORT_MAX),
    help="Replicas per partition.  [the broker's default]",
)
@topic_settings_option
@click.option("--if-not-exists", is_flag=True, help="Do not fail when a topic exists already.")
@click.option("--dry-run", is_flag=True, help="Validate the request, but create nothing.")
@json_option
@target_options
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    settings: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    as_json: bool,
    target: Target,
) -> int:
    """Create topics."""
    from tidemill.client import NewTopic

    configs = pairs("--set", settings)
    wanted = [NewTopic(name, partitions or -1, replication_factor or -1, configs) for name in names]
    with target.admin() as admin:
        outcomes = admin.create_topics(wanted, validate_only=dry_run)
    failures = 0
    rows: list[dict[str, Any]] = []
    for name, outcome in outcomes.items():
        if isinstance(outcome, ClientError):
            if if_not_exists and topic_exists(outcome):
                rows.append({"name": name, "created": False})
                continue
            failures += 1
            click.echo(f"tidemill: {outcome}", err=True)
            continue
        rows.append(
            {
                "name": name,
                "created": not dry_run,
                "partitions": outcome.partitions,
                "replication_factor": outcome.replication_factor,
                "topic_id": topic_id_text(outcome.topic_id),
            }
        )
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            if not row["created"]:
                done(f"{row['name']}: could be created" if dry_run else f"{row['name']} exists already")
            else:
                parts = f" with {counted(row['partitions'], 'partition')}" if row["partitions"] > 0 else ""
                done(f"created {row['name']}{parts}")
    return FAILED if failures else 0


@command.command(
    "list",
    epilog="""\b
Examples:
  tidemill topic list
  tidemill topic list --counts
  tidemill topic list --json | jq -r '.[].name'""",
)
@click.option("-a", "--all", "include_internal", is_flag=True, help="Also list internal topics.")
@click.option(
    "--counts", is_flag=True, help="Also show the offset range of each: an upper bound of its messages."
)
@json_option
@target_options
def list_(include_internal: bool, counts: bool, as_json: bool, target: Target) -> int:
    """List topics. Exit code 1 when --counts could not count one of them."""
    with target.admin() as admin:
        topics = admin.list_topics(include_internal=include_internal)
        held: dict[str, int | None] = {}
        failures: dict[TopicPartition, ClientError] = {}
        if counts:
            items = [TopicPartition(topic.name, p) for topic in topics for p in range(topic.partitions)]
            starts, ends, failures = _ends(admin, items)
            held = {topic.name: 0 for topic in topics}
            for item in items:
                so_far = held[item.topic]
                known = so_far is not None and item not in failures
                held[item.topic] = (
                    so_far + ends[item] - starts[item] if so_far is not None and known else None
                )
    if as_json:
        print_json(
            [
                {
                    "name": topic.name,
                    "topic_id": topic_id_text(topic.topic_id),
                    "partitions": topic.partitions,
                    "replication_factor": topic.replication_factor,
                    "internal": topic.internal,
                    **({"offsets": held[topic.name]} if counts else {}),
                }
                for topic in topics
            ]
        )
        return _print_failures(failures)
    columns = ["topic", "partitions", "replicas", *(["offsets"] if counts else [])]
    rows = [
        [
            topic.name,
            topic.partitions,
            topic.replication_factor,
            *([_counted(held[topic.name])] if counts else []),
        ]
        for topic in topics
    ]
    print_table(columns, rows, right=columns[1:], empty="no topics; 'tidemill topic create NAME' creates one")
    return _print_failures(failures)


def _counted(number: int | None) -> str:
    if number is None:
        return "?"
    return count_text(number) if on_terminal() else str(number)


def _print_failures(failures: Mapping[TopicPartition, ClientError]) -> int:
    """Prints the partitions whose offsets could not be read. Returns the exit code."""
    if failures:
        first = next(iter(failures.values()))
        more = f" (and {len(failures) - 1} other partitions)" if len(failures) > 1 else ""
        click.echo(f"tidemill: {first}{more}", err=True)
    return FAILED if failures else 0


@command.command(
    "describe",
    epilog="\b\nExamples:\n  tidemill topic describe orders\n  tidemill topic describe orders --json",
)
@click.argument("names", nargs=-1, required=True, shell_complete=name_completion.topics)
@click.option(
    "--configs", "all_configs", is_flag=True, help="Show every topic key, including those at their defaults."
)
@json_option
@target_options
def describe(names: tuple[str, ...], all_configs: bool, as_json: bool, target: Target) -> int:
    """Show partitions, offsets, sizes and settings of topics. Exit code 1 when a topic cannot be described.

    "offsets" is log end offset minus log start offset: an upper bound of the number of messages, since
    compaction, transactions and deletions leave gaps.
    """
    found = []
    missing: list[str] = []
    failures: dict[TopicPartition, ClientError] = {}
    with target.admin() as admin:
        sizes = _sizes(admin, names)
        for name in names:
            try:
                description, failed = _described(admin, name, all_configs, sizes)
                found.append(description)
                failures |= failed
            except ClientError as problem:
                missing.append(f"{problem}{_similar_topic(admin, name, problem)}")
    if as_json:
        print_json(found)
    else:
        for topic in found:
            _print_topic(topic)
    code = report_failures(missing)
    return _print_failures(failures) or code


def _similar_topic(admin: Admin, name: str, problem: ClientError) -> str:
    """Returns the topic with the most similar name as a hint; empty for other errors, or without response."""
    if problem.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return ""
    try:
        return did_you_mean(name, [topic.name for topic in admin.list_topics()])
    except ClientError:
        return ""  # The topic's own error is printed.


def _described(
    admin: Admin,
    name: str,
    all_configs: bool,
    sizes: dict[TopicPartition, int],
) -> tuple[dict[str, Any], dict[TopicPartition, ClientError]]:
    """Returns the description of a topic, and the errors of partitions without offsets."""
    topic = admin.describe_topic(name)
    led = [TopicPartition(name, p.partition) for p in topic.partitions if p.leader >= 0]
    starts, ends, failed = _ends(admin, led)
    configs = admin.topic_configs(name, documentation=True)
    description = {
        "name": name,
        "topic_id": topic_id_text(topic.topic_id),
        "internal": topic.internal,
        "partitions": [
            {
                "partition": p.partition,
                "leader": p.leader,
                "leader_epoch": p.leader_epoch,
                "replicas": p.replicas,
                "isr": p.isr,
                "start_offset": starts.get(TopicPartition(name, p.partition)),
                "end_offset": ends.get(TopicPartition(name, p.partition)),
                "size_bytes": sizes.get(TopicPartition(name, p.partition)),
                "state": _state(p, failed.get(TopicPartition(name, p.partition))),
            }
            for p in topic.partitions
        ],
        "configs": {
            key: {"value": entry.value, "source": entry.source, "set_by": entry.set_by}
            for key, entry in sorted(configs.items())
            if all_configs or not entry.is_default
        },
    }
    return description, failed


def _state(partition: PartitionDescription, problem: ClientError | None) -> str:
    if partition.leader < 0:
        return "offline"
    if problem is not None:
        return problem.code.name.lower().replace("_", " ")
    return "under-replicated" if partition.under_replicated else "ok"


def _sizes(admin: Admin, names: Collection[str]) -> dict[TopicPartition, int]:
    """Returns the bytes of partitions on their largest replicas; empty where the cluster has no sizes."""
    sizes: dict[TopicPartition, int] = {}
    try:
        directories = admin.describe_log_dirs()
    except ClientError:
        return sizes
    for listed in directories.values():
        for directory in listed:
            for replica in directory.replicas:
                if replica.topic in names and not replica.future:
                    item = TopicPartition(replica.topic, replica.partition)
                    sizes[item] = max(sizes.get(item, 0), replica.size_bytes)
    return sizes


def _ends(
    admin: Admin, items: list[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], dict[TopicPartition, ClientError]]:
    """Returns log start offsets, log end offsets, and the errors of partitions without them."""
    patience_s = min(ENDS_TIMEOUT_S, admin.config.seconds("default.api.timeout.ms"))
    starts = admin.list_offsets_or_failures(dict.fromkeys(items, "earliest"), timeout=patience_s)
    ends = admin.list_offsets_or_failures(dict.fromkeys(starts.offsets, "latest"), timeout=patience_s)
    return (
        {item: at.offset for item, at in starts.offsets.items()},
        {item: at.offset for item, at in ends.offsets.items()},
        starts.failures | ends.failures,
    )


def _print_topic(topic: dict[str, Any]) -> None:
    """Prints the partitions and the settings of a topic, as tables or (with tabs) for programs."""
    terminal = on_terminal()
    partitions = topic["partitions"]
    offsets = sum((p["end_offset"] or 0) - (p["start_offset"] or 0) for p in partitions)
    size = sum(p["size_bytes"] or 0 for p in partitions)
    if terminal:
        noun = "partition" if len(partitions) == 1 else "partitions"
        click.echo(
            f"{click.style(topic['name'], bold=True)}  {len(partitions)} {noun}, "
            f"{count_text(offsets)} offsets, {bytes_text(size)}  {click.style(topic['topic_id'], dim=True)}"
        )
    columns = ["partition", "leader", "replicas", "in sync", "start", "end", "offsets", "size", "state"]
    if not terminal:
        columns.insert(0, "topic")
    rows = []
    for p in partitions:
        held = (p["end_offset"] or 0) - (p["start_offset"] or 0)
        size_bytes = p["size_bytes"]
        shown = "" if size_bytes is None else bytes_text(size_bytes) if terminal else size_bytes
        row = [
            p["partition"],
            p["leader"] if p["leader"] >= 0 else "none",
            ",".join(map(str, p["replicas"])),
            ",".join(map(str, p["isr"])),
            p["start_offset"],
            p["end_offset"],
            count_text(held) if terminal else held,
            shown,
            p["state"],
        ]
        rows.append(row if terminal else [topic["name"], *row])
    right = ("partition", "leader", "start", "end", "offsets", "size")
    print_table(columns, rows, right=right, spare=("offsets",))
    settings = [[key, entry["value"], entry["set_by"]] for key, entry in topic["configs"].items()]
    if settings and terminal:
        print_table(["setting", "value", "set by"], settings, settings=True)
    elif settings:
        click.echo()
        print_table(["topic", "setting", "value", "set by"], [[topic["name"], *row] for row in settings])


@command.command(
    "alter",
    epilog="""\b
Examples:
  tidemill topic alter orders --set retention.ms=86400000 --unset compression.type
  tidemill topic alter orders --partitions 12
  tidemill topic alter orders --replication-factor 3 --throttle 50000000""",
)
@click.argument("name", shell_complete=name_completion.topics)
@click.option(
    "-p",
    "--partitions",
    type=WholeNumber(1, INT_MAX),
    help="Increase the number of partitions; it cannot decrease.",
)
@click.option(
    "-r",
    "--replication-factor",
    "factor",
    type=WholeNumber(1, SHORT_MAX),
    help="Change the number of replicas of each partition.",
)
@topic_settings_option
@unset_option("the broker's value", name_completion.topic_keys)
@click.option("--dry-run", is_flag=True, help="Validate the change, but do not apply it.")
@add_move_options()
@target_options
def alter(
    name: str,
    partitions: int | None,
    factor: int | None,
    settings: tuple[str, ...],
    removed: tuple[str, ...],
    dry_run: bool,
    move_options: ReassignmentOptions,
    target: Target,
) -> int:
    """Change the settings, partitions or replicas of a topic."""
    from tidemill.client import ConfigResource, ResourceType

    changes = changes_of(settings, removed)
    if not (partitions or factor or any(changes)):
        raise click.UsageError("nothing to change: give --partitions, --replication-factor, --set or --unset")
    changed = []
    with target.admin() as admin:
        if any(changes):
            known = admin.topic_configs(name) if removed else {}
            for key in removed:
                if key not in known:
                    raise click.ClickException(
                        f"--unset {key}: a topic has no such key{did_you_mean(key, known)}"
                    )
            resource = ConfigResource(ResourceType.TOPIC, name)
            admin.alter_configs(resource, changes.wanted, remove=removed, validate_only=dry_run)
            changed += changes.descriptions
        if partitions:
            admin.create_partitions(name, partitions, validate_only=dry_run)
            changed.append(f"{partitions} partitions")
        if changed:
            done(f"{name}: {'would have ' if dry_run else ''}{', '.join(changed)}")
        if not factor:
            return 0
        from tidemill.cli.reassignment_progress import change_factor

        return change_factor(admin, name, factor, move_options, dry_run=dry_run)


@command.command(
    "delete", epilog="\b\nExamples:\n  tidemill topic delete hello\n  tidemill topic delete --yes a b c"
)
@click.argument("names", nargs=-1, required=True, shell_complete=name_completion.topics)
@yes_option
@click.option("--if-exists", is_flag=True, help="Do not fail when a topic does not exist.")
@click.option(
    "--force", is_flag=True, help="Also delete internal topics, which contain state of the cluster."
)
@target_options
def delete(names: tuple[str, ...], yes: bool, if_exists: bool, force: bool, target: Target) -> int:
    """Delete topics and all their messages. Asks for confirmation on a terminal."""
    for name in names:
        if name in HELD_BY_INTERNAL and not force:
            raise click.ClickException(
                f"{name} holds {HELD_BY_INTERNAL[name]}. Nothing was deleted. Use --force to delete the "
                "topic."
            )
    require_yes(f"Delete {', '.join(names)} and all messages?", yes)
    failures = []
    with target.admin() as admin:
        for name, problem in admin.delete_topics(names).items():
            if problem is None:
                done(f"deleted {name}")
            elif if_exists and problem.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                done(f"{name} does not exist")
            else:
                failures.append(problem)
    return report_failures(failures)


@command.command(
    "elect",
    epilog="\b\nExamples:\n  tidemill topic elect orders\n  tidemill topic elect orders -p 0 --unclean",
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=name_completion.topics)
@election_options
@target_options
def elect_(
    names: tuple[str, ...], numbers: tuple[int, ...], unclean: bool, yes: bool, as_json: bool, target: Target
) -> int:
    """Elect the preferred leaders of TOPICs."""
    return elect(target, names, numbers, None, unclean, yes, as_json)


@command.command(
    "promote",
    epilog="\b\nExamples:\n  tidemill topic promote orders\n  tidemill topic promote a b --timeout 5m",
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=name_completion.topics)
@click.option(
    "--timeout",
    default="60s",
    show_default=True,
    metavar="TIME",
    help="How long to wait for each topic, as 30s or 5m.",
)
@yes_option
@target_options
def promote_(names: tuple[str, ...], timeout: str, yes: bool, target: Target) -> int:
    """Promote mirrors to ordinary topics, which accept messages. Asks for confirmation on a terminal.

    Stop the mirror first ('tidemill pipeline mirror'). Transactions that are open in the source are aborted
    here. A promotion cannot be undone: nothing changes unless every TOPIC is a mirror, or was promoted
    already. The command can be repeated until promoted topics have further messages.
    """
    from tidemill.cli.mirror_promotion import is_left_to_promote, promote
    from tidemill.client.range_reader import RangeReader

    timeout_s = parse_duration(timeout)
    with target.admin() as admin, RangeReader(target.bootstrap, target.config()) as reader:
        names = tuple(dict.fromkeys(names))
        mirrors = [name for name in names if is_left_to_promote(admin, reader, name)]
        if mirrors:
            require_yes(f"Promote {', '.join(mirrors)}? A promotion cannot be undone.", yes)
        for name in names:
            if name not in mirrors:
                done(f"{name} is promoted already")
                continue
            promote(admin, reader, name, timeout_s)
            done(f"promoted {name}")
    return 0

"""Reads, writes and prints plans of moves, in the format of Kafka's reassignment files.

    {"version": 1, "partitions": [
        {"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}]}

``log_dirs`` may be left out, or name a directory for each replica. :mod:`tidemill.cli.reassignment_progress`
executes plans.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.options import INT_MAX
from tidemill.cli.output import bytes_text, counted, is_interactive, on_terminal, print_table, require_yes
from tidemill.client.errors import ClientError
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin

Plan = dict[TopicPartition, list[int]]
"""The target brokers of partitions, the preferred leader first."""

TargetDirectories = dict[int, dict[TopicPartition, str]]
"""The target directories of replicas, by broker."""

Sizes = Mapping[TopicPartition, Mapping[int, int]]
"""Bytes of each partition, by the brokers that have a replica."""

SIZES_S = 3.0
"""How long a broker may take to report its sizes; after that the figures leave it out."""

AGREE_PAUSE_S = 0.25
"""Pause between two readings of the replicas."""
AGREE_MAX_S = 5.0
"""After this time the last reading is used, even if it differs from the one before."""

ANY = "any"
"""Lets the broker choose the directory."""

PLAN_BYTES_MAX = 100_000_000
SHOWN_MAX = 20
"""Largest number of partitions of a plan named on a terminal."""


# State of the cluster


def assignment(admin: Admin, topics: Iterable[str] | None = None) -> Plan:
    """Returns the replicas of topics (all by default), at the end of the moves in progress.

    Replicas are read until two readings agree. The controller lists the moves, any broker names the replicas:
    a broker that has not learnt yet that a move has ended also names the replicas that the move removed.
    """
    deadline = time.monotonic() + AGREE_MAX_S
    current = _reading(admin, topics)
    while True:
        time.sleep(AGREE_PAUSE_S)
        before, current = current, _reading(admin, topics)
        if current == before or time.monotonic() > deadline:
            return current


def _reading(admin: Admin, topics: Iterable[str] | None) -> Plan:
    names = (
        [topic.name for topic in admin.list_topics(include_internal=True)] if topics is None else list(topics)
    )
    before = admin.list_reassignments()
    found = admin.describe_topics(names)
    moving = {**before, **admin.list_reassignments()}
    items = [
        (TopicPartition(name, partition.partition), partition)
        for name, topic in found.items()
        for partition in topic.partitions
    ]
    return {
        item: moving[item].target if item in moving else list(partition.replicas) for item, partition in items
    }


def racks_of(admin: Admin) -> dict[int, str | None]:
    """Returns the live brokers, with their racks."""
    return {broker.broker_id: broker.rack for broker in admin.describe_cluster().brokers}


def replica_sizes(admin: Admin) -> Sizes:
    """Returns the bytes of each partition by broker, without brokers that do not respond."""
    sizes: dict[TopicPartition, dict[int, int]] = {}
    for broker in admin.describe_cluster().brokers:
        try:
            directories = admin.describe_log_dirs([broker.broker_id], SIZES_S)[broker.broker_id]
        except ClientError:
            continue
        for directory in directories:
            for replica in directory.replicas:
                if not replica.future:
                    item = TopicPartition(replica.topic, replica.partition)
                    sizes.setdefault(item, {})[broker.broker_id] = replica.size_bytes
    return sizes


# Plans


def read_plan(path: str) -> tuple[Plan, TargetDirectories]:
    """Returns the plan in a file, or on standard input for ``-``, and the directories that it names."""
    plan: Plan = {}
    places: TargetDirectories = {}
    for what, entry in _entries(path, "partitions"):
        item = partition_of(entry, what)
        replicas = entry.get("replicas")
        if not (isinstance(replicas, list) and replicas and all(map(_is_number, replicas))):
            raise click.ClickException(f'{what}: "replicas" must be a list of broker ids, as [1, 2]')
        if len(set(replicas)) < len(replicas):
            raise click.ClickException(f"{what}: {_listed(replicas)} names a broker twice")
        if item in plan:
            raise click.ClickException(f"{what}: {item} is listed twice: remove one of them")
        for broker, directory in zip(replicas, _directories(entry, len(replicas), what), strict=True):
            if directory != ANY:
                places.setdefault(broker, {})[item] = directory
        plan[item] = replicas
    if not plan:
        raise click.ClickException(f"{_source(path)} names no partitions: there is nothing to do")
    return plan, places


def _directories(entry: Mapping[str, Any], count: int, entry_name: str) -> list[str]:
    found = entry.get("log_dirs", [ANY] * count)
    if not isinstance(found, list) or len(found) != count:
        raise click.ClickException(
            f'{entry_name}: "log_dirs" must name a directory, or "any", for each replica'
        )
    for directory in found:
        if not isinstance(directory, str) or not (directory == ANY or directory.startswith("/")):
            raise click.ClickException(
                f'{entry_name}: {directory!r} in "log_dirs" is neither "any" nor the absolute path of a '
                "directory"
            )
    return found


def read_partitions(path: str) -> list[TopicPartition]:
    """Returns the partitions in a file of Kafka's election tool: a plan without replicas."""
    return [partition_of(entry, what) for what, entry in _entries(path, "partitions")]


def read_topics(path: str) -> list[str]:
    """Returns the topics in a file of Kafka's tool: ``{"version": 1, "topics": [{"topic": "t"}]}``."""
    names = []
    for what, entry in _entries(path, "topics"):
        name = entry.get("topic")
        if not isinstance(name, str) or not name:
            raise click.ClickException(f'{what}: "topic" must be a topic name')
        names.append(name)
    return names


def partition_of(entry: Mapping[str, Any], entry_name: str) -> TopicPartition:
    """Returns the partition that an entry names."""
    topic, number = entry.get("topic"), entry.get("partition", -1)
    if not isinstance(topic, str) or not topic:
        raise click.ClickException(f'{entry_name}: "topic" must be a topic name')
    if not _is_number(number):
        raise click.ClickException(f'{entry_name}: "partition" must be a non-negative integer')
    return TopicPartition(topic, number)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT_MAX


def _source(path: str) -> str:
    return "standard input" if path == "-" else path


def _entries(path: str, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the entries of the list ``name`` in a JSON file, each with its description for messages."""
    where = _source(path)
    with click.open_file(path, "rb") as file:
        content = file.read(PLAN_BYTES_MAX + 1)
    if len(content) > PLAN_BYTES_MAX:
        raise click.ClickException(
            f"{where} is larger than {bytes_text(PLAN_BYTES_MAX)}: split it into several plans"
        )
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise click.ClickException(f"{where} is not JSON: {problem}") from None
    if not isinstance(found, dict) or found.get("version", 1) != 1 or not isinstance(found.get(name), list):
        raise click.ClickException(
            f'{where} has the wrong format: it must be {{"version": 1, "{name}": [...]}}'
        )
    entries = [(f"{where}: {name}[{place}]", entry) for place, entry in enumerate(found[name])]
    for what, entry in entries:
        if not isinstance(entry, dict):
            raise click.ClickException(f"{what} must be an object")
    return entries


def text(plan: Plan) -> str:
    """Returns a plan as JSON, with one partition per line."""
    entries = [
        {"topic": topic, "partition": number, "replicas": replicas, "log_dirs": [ANY] * len(replicas)}
        for (topic, number), replicas in sorted(plan.items())
    ]
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
    return f'{{"version": 1, "partitions": [\n{lines}\n]}}'


def copied_bytes(plan: Plan, current: Plan, sizes: Sizes) -> Counter[int]:
    """Returns the bytes that each broker receives."""
    coming: Counter[int] = Counter()
    for item, replicas in plan.items():
        size = max(sizes.get(item, {}).values(), default=0)
        for broker in replicas:
            if broker not in current.get(item, ()):
                coming[broker] += size
    return coming


def print_plan(admin: Admin, plan: Plan, current: Plan) -> None:
    """Prints what a plan changes: replicas, preferred leaders and copied bytes by broker; partitions."""
    after = {**current, **plan}
    coming = copied_bytes(plan, current, replica_sizes(admin))
    living = racks_of(admin)
    held, leads = zip(*(_counts(placed) for placed in (current, after)), strict=True)
    rows = [
        [
            broker,
            "living" if broker in living else "down",
            *(counts[broker] for counts in (*held, *leads)),
            bytes_text(coming[broker]) if on_terminal() else coming[broker],
        ]
        for broker in sorted({*living, *held[0], *held[1]})
    ]
    columns = ["broker", "state", "replicas", "replicas then", "preferred", "preferred then", "gets"]
    print_table(columns, rows, right=[name for name in columns if name != "state"])
    click.echo()
    for item, replicas in sorted(plan.items())[:SHOWN_MAX]:
        click.echo(f"  {item}: {_listed(current.get(item, []))} → {_listed(replicas)}")
    if len(plan) > SHOWN_MAX:
        click.echo(f"  and {len(plan) - SHOWN_MAX} more")
    click.echo(
        f"{counted(len(plan), 'partition')} of {len(current)} would change, "
        f"{bytes_text(coming.total())} would be copied"
    )


def _counts(placed: Plan) -> tuple[Counter[int], Counter[int]]:
    """Returns how many replicas each broker has, and for how many it is the preferred leader."""
    held = Counter(broker for replicas in placed.values() for broker in replicas)
    return held, Counter(replicas[0] for replicas in placed.values() if replicas)


def _listed(replicas: Iterable[int]) -> str:
    return ",".join(map(str, replicas))


def require_confirmation(question: str, yes: bool) -> None:
    """Asks for confirmation as :func:`require_yes`. Raises ClickException also where there is no terminal."""
    if not yes and not is_interactive():
        raise click.ClickException("nothing was done; --yes executes this")
    require_yes(question, yes)

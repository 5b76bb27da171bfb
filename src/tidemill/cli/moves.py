"""Plans of moves, as commands read, write and show them: in the shape of Kafka's reassignment files.

    {"version": 1, "partitions": [
        {"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}]}

``log_dirs`` may be left out, or name a directory for each replica. What is done with a plan:
:mod:`tidemill.cli.moving`.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.options import INT_MAX
from tidemill.cli.output import bytes_text, counted, on_terminal, print_table, require_yes
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin

Plan = dict[TopicPartition, list[int]]
"""The brokers that partitions are to have, the preferred leader first."""

Places = dict[int, dict[TopicPartition, str]]
"""The directories in which brokers are to have replicas."""

Sizes = Mapping[TopicPartition, Mapping[int, int]]
"""Bytes of each partition on the brokers that have it."""

SIZES_S = 3.0
"""How long a broker may take to say what it holds; the figures do without it then."""

AGREE_PAUSE_S = 0.25
"""Between two readings of the replicas."""
AGREE_MAX_S = 5.0
"""After this time the last reading counts, also where it differs from the one before."""

ANY = "any"
"""Whichever directory the broker chooses."""

PLAN_BYTES_MAX = 100_000_000
SHOWN_MAX = 20
"""Partitions that a plan names on a terminal."""


# How the cluster is


def assignment(admin: Admin, topics: Iterable[str] | None = None) -> Plan:
    """Where the partitions of topics (all, unless told) are, or will be when the moves under way end.

    Replicas are read until two readings agree. The controller lists the moves, any broker names the replicas:
    a broker that does not know yet that a move has ended also names the replicas that the move has removed.
    """
    deadline = time.monotonic() + AGREE_MAX_S
    current = _reading(admin, topics)
    while True:
        time.sleep(AGREE_PAUSE_S)
        before, current = current, _reading(admin, topics)
        if current == before or time.monotonic() > deadline:
            return current


def _reading(admin: Admin, topics: Iterable[str] | None) -> Plan:
    names = [one.name for one in admin.list_topics(include_internal=True)] if topics is None else list(topics)
    before = admin.list_reassignments()
    found = admin.describe_topics(names)
    moving = {**before, **admin.list_reassignments()}
    items = [
        (TopicPartition(name, one.partition), one)
        for name, topic in found.items()
        for one in topic.partitions
    ]
    return {item: moving[item].target if item in moving else list(one.replicas) for item, one in items}


def racks_of(admin: Admin) -> dict[int, str | None]:
    """The brokers that live, with their racks."""
    return {one.broker_id: one.rack for one in admin.describe_cluster().brokers}


def replica_sizes(admin: Admin) -> Sizes:
    """The bytes of each partition by the brokers that have it; without those that do not answer."""
    from tidemill.client import ClientError

    sizes: dict[TopicPartition, dict[int, int]] = {}
    for one in admin.describe_cluster().brokers:
        try:
            directories = admin.describe_log_dirs([one.broker_id], SIZES_S)[one.broker_id]
        except ClientError:
            continue
        for directory in directories:
            for replica in directory.replicas:
                if not replica.future:
                    item = TopicPartition(replica.topic, replica.partition)
                    sizes.setdefault(item, {})[one.broker_id] = replica.size_bytes
    return sizes


# Plans


def document(plan: Plan) -> dict[str, Any]:
    """A plan in the shape of Kafka's files."""
    partitions = [
        {
            "topic": topic,
            "partition": number,
            "replicas": list(replicas),
            "log_dirs": [ANY] * len(replicas),
        }
        for (topic, number), replicas in sorted(plan.items())
    ]
    return {"version": 1, "partitions": partitions}


def read_document(path: str) -> Any:
    """The JSON of a file, or of standard input for ``-``."""
    where = "standard input" if path == "-" else path
    with click.open_file(path, "rb") as file:
        text = file.read(PLAN_BYTES_MAX + 1)
    if len(text) > PLAN_BYTES_MAX:
        raise click.ClickException(
            f"{where} is larger than {bytes_text(PLAN_BYTES_MAX)}: move in several plans"
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise click.ClickException(f"{where} is no JSON: {problem}") from None


def read_plan(path: str) -> Plan:
    """The plan in a file, or on standard input for ``-``."""
    return read_placed(path)[0]


def read_placed(path: str) -> tuple[Plan, Places]:
    """The same, with the directories that it names."""
    where = "standard input" if path == "-" else path
    plan: Plan = {}
    places: Places = {}
    for place, entry in enumerate(_entries(read_document(path), where, "partitions")):
        what = f"{where}: partitions[{place}]"
        item = partition_of(entry, what)
        replicas = entry.get("replicas")
        if not (isinstance(replicas, list) and replicas and all(map(_is_number, replicas))):
            raise click.ClickException(f'{what}: "replicas" must be a list of broker ids, as [1, 2]')
        if len(set(replicas)) < len(replicas):
            raise click.ClickException(f"{what}: {_listed(replicas)} names a broker twice")
        if item in plan:
            raise click.ClickException(f"{what}: {item} comes twice: leave one of them out")
        for broker, directory in zip(replicas, _directories(entry, len(replicas), what), strict=True):
            if directory != ANY:
                places.setdefault(broker, {})[item] = directory
        plan[item] = replicas
    if not plan:
        raise click.ClickException(f"{where} names no partitions: there is nothing to do")
    return plan, places


def _directories(entry: Mapping[str, Any], count: int, what: str) -> list[str]:
    found = entry.get("log_dirs", [ANY] * count)
    if not isinstance(found, list) or len(found) != count:
        raise click.ClickException(f'{what}: "log_dirs" must name a directory, or "any", for each replica')
    for directory in found:
        if not isinstance(directory, str) or not (directory == ANY or directory.startswith("/")):
            raise click.ClickException(
                f'{what}: {directory!r} in "log_dirs" is neither "any" nor the absolute path of a directory'
            )
    return found


def read_partitions(path: str) -> list[TopicPartition]:
    """The partitions in a file of Kafka's election tool: as a plan's, without replicas."""
    where = "standard input" if path == "-" else path
    entries = _entries(read_document(path), where, "partitions")
    return [partition_of(entry, f"{where}: partitions[{place}]") for place, entry in enumerate(entries)]


def read_topics(path: str) -> list[str]:
    """The topics in a file of Kafka's reassignment tool: ``{"version": 1, "topics": [{"topic": "t"}]}``."""
    where = "standard input" if path == "-" else path
    names = []
    for place, entry in enumerate(_entries(read_document(path), where, "topics")):
        name = entry.get("topic")
        if not isinstance(name, str) or not name:
            raise click.ClickException(f'{where}: topics[{place}]: "topic" must be the name of one')
        names.append(name)
    return names


def partition_of(entry: Mapping[str, Any], what: str) -> TopicPartition:
    """The partition that an entry names."""
    topic, number = entry.get("topic"), entry.get("partition", -1)
    if not isinstance(topic, str) or not topic:
        raise click.ClickException(f'{what}: "topic" must be the name of one')
    if not _is_number(number):
        raise click.ClickException(f'{what}: "partition" must be a number from 0 on')
    return TopicPartition(topic, number)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT_MAX


def _entries(found: Any, where: str, name: str) -> list[dict[str, Any]]:
    if not isinstance(found, dict) or found.get("version", 1) != 1 or not isinstance(found.get(name), list):
        raise click.ClickException(
            f'{where} is not what this command reads: it must be {{"version": 1, "{name}": [...]}}'
        )
    for place, entry in enumerate(found[name]):
        if not isinstance(entry, dict):
            raise click.ClickException(f"{where}: {name}[{place}] must be an object")
    return list(found[name])


def text(plan: Plan) -> str:
    """A plan as JSON, a partition a line."""
    found = document(plan)
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in found["partitions"])
    return f'{{"version": {found["version"]}, "partitions": [\n{lines}\n]}}'


def copied_bytes(plan: Plan, current: Plan, sizes: Sizes) -> Counter[int]:
    """Bytes that each broker is to get."""
    coming: Counter[int] = Counter()
    for item, replicas in plan.items():
        size = max(sizes.get(item, {}).values(), default=0)
        for broker in replicas:
            if broker not in current.get(item, ()):
                coming[broker] += size
    return coming


def print_plan(admin: Admin, plan: Plan, current: Plan) -> None:
    """What a plan changes: what each broker holds, is preferred leader of, and gets; then the partitions."""
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
    if on_terminal():
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
    """How many replicas each broker has, and of how many it is the preferred leader."""
    held = Counter(broker for replicas in placed.values() for broker in replicas)
    return held, Counter(replicas[0] for replicas in placed.values() if replicas)


def _listed(replicas: Iterable[int]) -> str:
    return ",".join(map(str, replicas))


def is_agreed(question: str, yes: bool) -> bool:
    """Whether to go on: ``--yes`` was given, or a person at a terminal says so."""
    if yes:
        return True
    if sys.stdin.isatty() and sys.stdout.isatty():
        require_yes(question)
        return True
    click.echo("tidemill: nothing was done; --yes carries this out", err=True)
    return False

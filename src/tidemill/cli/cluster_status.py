"""``tidemill cluster status``: who lives, leads and is in sync."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.cluster_options import local_cluster_options
from tidemill.cli.local import ZOOKEEPER
from tidemill.cli.options import Target
from tidemill.cli.output import counted, done, json_option, on_terminal, print_json, print_table

if TYPE_CHECKING:
    from tidemill.cli.local import LocalCluster
    from tidemill.client import Admin
    from tidemill.client.admin_types import ClusterDescription, PartitionDescription

FAILED = 1
CONTROLLER_S = 3.0
STORES_S = 5.0
"""How long all brokers together may take to say whether their store answers."""
NOTICED_S = 3.0
"""How long a cluster may take to notice that a process has ended, before it is shown as it says."""

SILENT_MS = 3000
"""A broker that says nothing for so long is left alone: another one is asked."""

NAMED_MAX = 5
"""Partitions that are named, of those that are not well."""


@click.command(
    "status",
    epilog="""\b
Examples:
  tidemill cluster status                     the cluster of ./tidemill-cluster, if there is one
  tidemill cluster status -b broker:9092      any other
  tidemill cluster status --json | jq '.under_replicated[].topic'
  tidemill cluster status --check             for scripts and monitors""",
)
@click.option(
    "--check",
    is_flag=True,
    help="Exit code 1 unless every replica of every partition is in sync, and brokers reach their store.",
)
@json_option
@local_cluster_options
def status(check: bool, as_json: bool, target: Target, local: LocalCluster | None) -> int:
    """Show who lives, leads and is in sync.

    "preferred" counts the partitions that a broker is to lead; 'tidemill cluster elect' sees to it.
    """
    from tidemill.client import Admin

    with Admin(target.bootstrap, target.config(request_timeout_ms=SILENT_MS)) as admin:
        found = _found(admin, local)
    if as_json:
        print_json(found)
    else:
        _print(found)
    return FAILED if check and not _is_well(found) else 0


def _is_well(found: Mapping[str, Any]) -> bool:
    troubles = ("under_replicated", "offline", "unnoticed", "without_store")
    return not any(found.get(one) for one in troubles) and not _is_zookeeper_down(found)


def _is_zookeeper_down(found: Mapping[str, Any]) -> bool:
    """Whether the ZooKeeper that belongs to the cluster of this machine has ended."""
    zookeeper = found.get("zookeeper")
    return zookeeper is not None and zookeeper.get("pid", 0) is None


def _found(admin: Admin, local: LocalCluster | None) -> dict[str, Any]:
    cluster = _noticed(admin, local)
    topics = admin.describe_topics([topic.name for topic in admin.list_topics(include_internal=True)])
    partitions = [(name, one) for name, topic in topics.items() for one in topic.partitions]
    counts: dict[str, Counter[int]] = {
        "leads": Counter(one.leader for _, one in partitions if one.leader >= 0),
        "preferred": Counter(one.replicas[0] for _, one in partitions if one.replicas),
        "replicas": Counter(broker for _, one in partitions for broker in one.replicas),
        "in_sync": Counter(broker for _, one in partitions for broker in one.isr),
    }
    named = {one.broker_id: one for one in cluster.brokers}
    ports = local.ports if local is not None else {}
    running = local.running() if local is not None else {}
    unnoticed = sorted(number for number in ports.keys() & named.keys() if str(number) not in running)
    rows = []
    for number in sorted(named.keys() | ports.keys() | counts["replicas"].keys()):
        one = named.get(number)
        rows.append(
            {
                "id": number,
                "host": one.host if one is not None else "127.0.0.1" if number in ports else None,
                "port": one.port if one is not None else ports.get(number),
                "rack": one.rack if one is not None else None,
                "living": one is not None and number not in unnoticed,
                "controller": number == cluster.controller_id,
                **{what: count[number] for what, count in counts.items()},
                **({"pid": running.get(str(number))} if local is not None else {}),
            }
        )
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id if cluster.controller_id >= 0 else None,
        "brokers": rows,
        "topics": len(topics),
        "partitions": len(partitions),
        "under_replicated": [_named(name, one) for name, one in partitions if one.under_replicated],
        "offline": [_named(name, one) for name, one in partitions if one.leader < 0],
        "without_store": [
            {"broker": number, "seconds": round(seconds, 3)}
            for number, seconds in admin.silent_stores(timeout=STORES_S).items()
        ],
        "moving": None if cluster.controller_id in unnoticed else _moving(admin),
        **({"unnoticed": unnoticed, "zookeeper": _zookeeper(local, running)} if local is not None else {}),
    }


def _noticed(admin: Admin, local: LocalCluster | None) -> ClusterDescription:
    """The cluster, once it has noticed which processes of this machine have ended, or a while has passed."""
    deadline = time.monotonic() + NOTICED_S
    while True:
        found = admin.describe_cluster()
        if local is None:
            return found
        running = local.running()
        ended = {number for number in local.ports if str(number) not in running}
        # Without ZooKeeper nobody can be elected in their place, and waiting is in vain.
        is_blind = local.own_port is not None and ZOOKEEPER not in running
        named = {one.broker_id for one in found.brokers}
        if is_blind or not ended & named or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _moving(admin: Admin) -> int | None:
    """How many partitions move; None while no controller says it."""
    from tidemill.client import ClientError

    try:
        return len(admin.list_reassignments(timeout=CONTROLLER_S))
    except ClientError:
        return None


def _zookeeper(local: LocalCluster, running: Mapping[str, int]) -> dict[str, Any]:
    own = {"pid": running.get(ZOOKEEPER)} if local.own_port is not None else {}
    return {"connect": local.zookeeper_connect, **own}


def _named(topic: str, one: PartitionDescription) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": one.partition,
        "leader": one.leader,
        "replicas": one.replicas,
        "isr": one.isr,
    }


def _table(brokers: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """All that is known of each, for programs."""
    columns = ["broker", "address", "rack", "state", "controller"]
    rows = [
        [
            one["id"],
            _address(one),
            one["rack"],
            "living" if one["living"] else "down",
            "yes" if one["controller"] else "",
            *(one[what] for what in ("leads", "preferred", "replicas", "in_sync")),
            *([one["pid"] or ""] if "pid" in one else []),
        ]
        for one in brokers
    ]
    return [*columns, "leads", "preferred", "replicas", "in sync", *_process(brokers)], rows


def _narrow_table(brokers: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """The same in the 80 columns of a terminal."""
    racks = any(one["rack"] for one in brokers)
    rows = [
        [
            one["id"],
            _address(one),
            *([one["rack"]] if racks else []),
            "down" if not one["living"] else "controller" if one["controller"] else "living",
            f"{one['leads']}/{one['preferred']}",
            f"{one['in_sync']}/{one['replicas']}",
            *([one["pid"] or ""] if "pid" in one else []),
        ]
        for one in brokers
    ]
    columns = ["broker", "address", *(["rack"] if racks else []), "state"]
    return [*columns, "leads /\npreferred", "in sync /\nreplicas", *_process(brokers)], rows


def _address(one: dict[str, Any]) -> str:
    return f"{one['host']}:{one['port']}" if one["host"] else ""


def _process(brokers: list[dict[str, Any]]) -> list[str]:
    return ["process"] if brokers and "pid" in brokers[0] else []


def _print(found: dict[str, Any]) -> None:
    columns, rows = (_narrow_table if on_terminal() else _table)(found["brokers"])
    text = {"address", "rack", "state", "controller"}
    print_table(columns, rows, right=[one for one in columns if one not in text], empty="no brokers")
    if not on_terminal():
        _print_store(found, to_stderr=True)  # The table is for programs.
        return
    click.echo()
    _print_store(found)
    for one in found["brokers"]:
        if one.get("pid") is not None and not one["living"]:
            click.secho(
                f"broker {one['id']} is no part of the cluster, though process {one['pid']} runs: it starts, "
                "or stands still; its log tells",
                fg="red",
            )
    for number in found.get("unnoticed", ()):
        click.secho(
            f"broker {number} has ended, and the cluster has not noticed: what it leads can be neither read "
            f"nor written until it does, or 'tidemill cluster start {number}' brings it back",
            fg="red",
        )
    if found["moving"] is None:
        click.secho("no controller answers: topics cannot be changed, and nobody is elected", fg="red")
    total = f"{counted(found['partitions'], 'partition')} of {counted(found['topics'], 'topic')}"
    if not _is_well(found):
        click.echo(total)
        _print_partitions("offline", found["offline"], "red")
        _print_partitions("under-replicated", found["under_replicated"], "yellow")
    else:
        done(f"{total}, every replica in sync")
    if found["moving"]:
        click.echo(
            f"on the move: {counted(found['moving'], 'partition')}; 'tidemill reassign list' shows more"
        )


def _print_store(found: Mapping[str, Any], *, to_stderr: bool = False) -> None:
    """Says so when ZooKeeper is gone, or brokers do not reach it."""
    if _is_zookeeper_down(found):
        click.secho(
            "ZooKeeper is down: 'tidemill cluster start zookeeper' starts it", fg="red", err=to_stderr
        )
    without = found.get("without_store")
    if not without:
        return
    named = ", ".join(str(one["broker"]) for one in without[:NAMED_MAX])
    more = f" and {len(without) - NAMED_MAX} more" if len(without) > NAMED_MAX else ""
    longest = max(one["seconds"] for one in without)
    click.secho(
        f"{'broker' if len(without) == 1 else 'brokers'} {named}{more} without the coordination store for "
        f"{longest:.1f} s: nobody is elected, and topics and settings cannot be changed until it answers; "
        "start ZooKeeper, or mend the network",
        fg="red",
        err=to_stderr,
    )


def _print_partitions(what: str, partitions: list[dict[str, Any]], colour: str) -> None:
    if partitions:
        named = ", ".join(f"{one['topic']}-{one['partition']}" for one in partitions[:NAMED_MAX])
        more = f" and {len(partitions) - NAMED_MAX} more" if len(partitions) > NAMED_MAX else ""
        click.secho(f"{len(partitions)} {what}: {named}{more}", fg=colour)

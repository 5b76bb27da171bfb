"""``tidemill cluster status``: shows live brokers, leaders and in-sync replicas."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.cluster_options import local_cluster_options
from tidemill.cli.local_cluster import ZOOKEEPER
from tidemill.cli.options import Target
from tidemill.cli.output import (
    FAILED,
    counted,
    done,
    first_of,
    json_option,
    on_terminal,
    print_json,
    print_table,
)
from tidemill.client.errors import ClientError

if TYPE_CHECKING:
    from tidemill.cli.local_cluster import LocalCluster
    from tidemill.client import Admin
    from tidemill.client.admin_types import ClusterDescription, PartitionDescription

CONTROLLER_S = 3.0
STORES_S = 5.0
"""Time in which all brokers together report whether they reach their store."""
DETECTION_S = 3.0
"""How long to wait until the cluster has detected ended processes, before its state is shown."""

REQUEST_TIMEOUT_MS = 3000
"""Request timeout, in milliseconds. After it another broker is asked."""

NAMED_MAX = 5
"""Largest number of partitions named of those that are offline or under-replicated."""


@click.command(
    "status",
    epilog="""\b
Examples:
  tidemill cluster status                     the cluster in ./tidemill-cluster, if there is one
  tidemill cluster status -b broker:9092      any other cluster
  tidemill cluster status --json | jq '.under_replicated[].topic'
  tidemill cluster status --check             for scripts and monitors""",
)
@click.option(
    "--check",
    is_flag=True,
    help="Exit code 1 unless every replica of every partition is in sync, and all brokers reach their store.",
)
@json_option
@local_cluster_options
def status(check: bool, as_json: bool, target: Target, local: LocalCluster | None) -> int:
    """Show live brokers, leaders and in-sync replicas.

    "preferred" counts the partitions whose preferred leader is the broker; 'tidemill cluster elect' elects
    it.
    """
    with target.admin(request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
        found = _cluster_state(admin, local)
    if as_json:
        print_json(found)
    else:
        _print(found)
    return FAILED if check and not _is_healthy(found) else 0


def _is_healthy(found: Mapping[str, Any]) -> bool:
    troubles = ("under_replicated", "offline", "unnoticed", "without_store")
    return not any(found.get(trouble) for trouble in troubles) and not _is_zookeeper_down(found)


def _is_zookeeper_down(found: Mapping[str, Any]) -> bool:
    """Returns whether the ZooKeeper of the cluster of this machine has ended."""
    zookeeper = found.get("zookeeper")
    return zookeeper is not None and zookeeper.get("pid", 0) is None


def _cluster_state(admin: Admin, local: LocalCluster | None) -> dict[str, Any]:
    cluster = _describe_cluster(admin, local)
    topics = admin.describe_topics([topic.name for topic in admin.list_topics(include_internal=True)])
    partitions = [(name, partition) for name, topic in topics.items() for partition in topic.partitions]
    counts: dict[str, Counter[int]] = {
        "leads": Counter(partition.leader for _, partition in partitions if partition.leader >= 0),
        "preferred": Counter(partition.replicas[0] for _, partition in partitions if partition.replicas),
        "replicas": Counter(broker for _, partition in partitions for broker in partition.replicas),
        "in_sync": Counter(broker for _, partition in partitions for broker in partition.isr),
    }
    named = {broker.broker_id: broker for broker in cluster.brokers}
    ports = local.ports if local is not None else {}
    running = local.running() if local is not None else {}
    unnoticed = sorted(number for number in ports.keys() & named.keys() if str(number) not in running)
    rows = []
    for number in sorted(named.keys() | ports.keys() | counts["replicas"].keys()):
        described = named.get(number)
        rows.append(
            {
                "id": number,
                "host": described.host if described is not None else "127.0.0.1" if number in ports else None,
                "port": described.port if described is not None else ports.get(number),
                "rack": described.rack if described is not None else None,
                "living": described is not None and number not in unnoticed,
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
        "under_replicated": [
            _partition_object(name, partition) for name, partition in partitions if partition.under_replicated
        ],
        "offline": [
            _partition_object(name, partition) for name, partition in partitions if partition.leader < 0
        ],
        "without_store": [
            {"broker": number, "seconds": round(seconds, 3)}
            for number, seconds in admin.brokers_without_store(timeout=STORES_S).items()
        ],
        "moving": None if cluster.controller_id in unnoticed else _moving(admin),
        **({"unnoticed": unnoticed, "zookeeper": _zookeeper(local, running)} if local is not None else {}),
    }


def _describe_cluster(admin: Admin, local: LocalCluster | None) -> ClusterDescription:
    """Returns the cluster once it has detected the ended processes of this machine, or after NOTICED_S."""
    deadline = time.monotonic() + DETECTION_S
    while True:
        found = admin.describe_cluster()
        if local is None:
            return found
        running = local.running()
        ended = {number for number in local.ports if str(number) not in running}
        # Without ZooKeeper no other broker can be elected, and waiting is useless.
        cannot_detect = local.own_port is not None and ZOOKEEPER not in running
        named = {broker.broker_id for broker in found.brokers}
        if cannot_detect or not ended & named or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _moving(admin: Admin) -> int | None:
    """Returns the number of moving partitions; None when no controller responds."""
    try:
        return len(admin.list_reassignments(timeout=CONTROLLER_S))
    except ClientError:
        return None


def _zookeeper(local: LocalCluster, running: Mapping[str, int]) -> dict[str, Any]:
    own = {"pid": running.get(ZOOKEEPER)} if local.own_port is not None else {}
    return {"connect": local.zookeeper_connect, **own}


def _partition_object(topic: str, partition: PartitionDescription) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition.partition,
        "leader": partition.leader,
        "replicas": partition.replicas,
        "isr": partition.isr,
    }


def _table(brokers: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns columns and rows with all facts of each broker, for programs."""
    columns = ["broker", "address", "rack", "state", "controller"]
    rows = [
        [
            broker["id"],
            _address(broker),
            broker["rack"],
            "living" if broker["living"] else "down",
            "yes" if broker["controller"] else "",
            *(broker[what] for what in ("leads", "preferred", "replicas", "in_sync")),
            *([broker["pid"] or ""] if "pid" in broker else []),
        ]
        for broker in brokers
    ]
    return [*columns, "leads", "preferred", "replicas", "in sync", *_process(brokers)], rows


def _narrow_table(brokers: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns the same facts in the 80 columns of a terminal."""
    racks = any(broker["rack"] for broker in brokers)
    rows = [
        [
            broker["id"],
            _address(broker),
            *([broker["rack"]] if racks else []),
            "down" if not broker["living"] else "controller" if broker["controller"] else "living",
            f"{broker['leads']}/{broker['preferred']}",
            f"{broker['in_sync']}/{broker['replicas']}",
            *([broker["pid"] or ""] if "pid" in broker else []),
        ]
        for broker in brokers
    ]
    columns = ["broker", "address", *(["rack"] if racks else []), "state"]
    return [*columns, "leads /\npreferred", "in sync /\nreplicas", *_process(brokers)], rows


def _address(broker: dict[str, Any]) -> str:
    return f"{broker['host']}:{broker['port']}" if broker["host"] else ""


def _process(brokers: list[dict[str, Any]]) -> list[str]:
    return ["process"] if brokers and "pid" in brokers[0] else []


def _print(found: dict[str, Any]) -> None:
    columns, rows = (_narrow_table if on_terminal() else _table)(found["brokers"])
    text = {"address", "rack", "state", "controller"}
    print_table(columns, rows, right=[column for column in columns if column not in text], empty="no brokers")
    if not on_terminal():
        _print_store(found, to_stderr=True)  # The table is for programs.
        return
    click.echo()
    _print_store(found)
    for broker in found["brokers"]:
        if broker.get("pid") is not None and not broker["living"]:
            click.secho(
                f"broker {broker['id']} is not part of the cluster, though process {broker['pid']} runs: it "
                "is starting, or hangs; see its log",
                fg="red",
            )
    for number in found.get("unnoticed", ()):
        click.secho(
            f"broker {number} has ended, and the cluster has not detected it: its partitions can be neither "
            f"read nor written until it does, or until 'tidemill cluster start {number}' starts the broker "
            "again",
            fg="red",
        )
    if found["moving"] is None:
        click.secho("no controller responds: topics cannot be changed, and no leaders are elected", fg="red")
    total = f"{counted(found['partitions'], 'partition')} of {counted(found['topics'], 'topic')}"
    if not _is_healthy(found):
        click.echo(total)
        _print_partitions("offline", found["offline"], "red")
        _print_partitions("under-replicated", found["under_replicated"], "yellow")
    else:
        done(f"{total}, every replica in sync")
    if found["moving"]:
        click.echo(
            f"moving: {counted(found['moving'], 'partition')}; 'tidemill reassign list' shows the progress"
        )


def _print_store(found: Mapping[str, Any], *, to_stderr: bool = False) -> None:
    """Prints a warning when ZooKeeper is down, or brokers do not reach it."""
    if _is_zookeeper_down(found):
        click.secho(
            "ZooKeeper is down: 'tidemill cluster start zookeeper' starts it", fg="red", err=to_stderr
        )
    without = found.get("without_store")
    if not without:
        return
    named = first_of([broker["broker"] for broker in without], NAMED_MAX)
    longest = max(broker["seconds"] for broker in without)
    click.secho(
        f"{'broker' if len(without) == 1 else 'brokers'} {named} without the coordination store for "
        f"{longest:.1f} s: no leaders are elected, and topics and settings cannot be changed until it "
        "responds; start ZooKeeper, or repair the network",
        fg="red",
        err=to_stderr,
    )


def _print_partitions(problem: str, partitions: list[dict[str, Any]], colour: str) -> None:
    if partitions:
        named = [f"{partition['topic']}-{partition['partition']}" for partition in partitions]
        click.secho(f"{len(partitions)} {problem}: {first_of(named, NAMED_MAX)}", fg=colour)

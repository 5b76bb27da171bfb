"""``tidemill pipeline mirror``: copies topics of other clusters. It has the flags of Kafka's MirrorMaker."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.options import Target, WholeNumber, client_settings
from tidemill.cli.output import console, counted
from tidemill.cli.spark_session import print_result, session_options, with_spark, wrong_usage
from tidemill.model.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.pipeline.mirror.mirror_job import SourceProgress
    from tidemill.pipeline.mirror.mirror_settings import MirrorSource

ALIAS = re.compile(r"[A-Za-z0-9_-]+")
WITHOUT_EFFECT = ("num_producers", "queue_size", "abort_on_send_failure", "offset_commit_interval_ms")
"""Flags of MirrorMaker that are accepted: tasks take the place of its threads, and there is no queue."""


@click.command()
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="[ALIAS=]HOST:PORT",
    help="Brokers of a source cluster, separated by commas; can be repeated.",
)
@click.option(
    "--source-config",
    "--consumer.config",
    "source_files",
    multiple=True,
    metavar="[ALIAS=]FILE",
    help="Properties file of a source's client keys, with bootstrap.servers or zookeeper.connect; can be "
    "repeated.",
)
@click.option(
    "--target",
    metavar="[ALIAS=]HOST:PORT",
    help="Brokers of the target cluster. The same offsets need its inter-broker listener.",
)
@click.option(
    "--target-config",
    "--producer.config",
    "target_file",
    metavar="[ALIAS=]FILE",
    help="Properties file of the target's client keys.",
)
@click.option(
    "--allow",
    "--whitelist",
    "--include",
    default="*",
    show_default=True,
    metavar="LIST",
    help="Topics to mirror: names or regular expressions, separated by commas or |.",
)
@click.option(
    "--deny",
    "--blacklist",
    "--exclude",
    default="__.*,_tidemill_.*",
    show_default=True,
    metavar="LIST",
    help="Topics to leave out, likewise; internal ones are left out always.",
)
@click.option("--prefixed", is_flag=True, help="Name topics ALIAS.topic, with the alias of their source.")
@click.option(
    "--offsets",
    type=click.Choice(["same", "new"]),
    default="same",
    show_default=True,
    help="same: mirrors with the offsets of the source, in a Tidemill cluster; new: ordinary messages, in "
    "any cluster.",
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="With new offsets, continue after messages that the source has deleted before they were copied.",
)
@click.option(
    "--checkpoint", required=True, metavar="DIR", help="Directory of Spark's checkpoints, one per source."
)
@click.option(
    "--trigger",
    default="1 second",
    show_default=True,
    help="Interval of the micro-batches; available-now copies existing messages and ends.",
)
@click.option(
    "--groups", default="*", show_default=True, metavar="LIST", help="Groups whose positions are copied."
)
@click.option(
    "--deny-groups",
    default="console-consumer-.*,connect-.*",
    show_default=True,
    metavar="LIST",
    help="Groups to leave out.",
)
@click.option("--no-groups", is_flag=True, help="Copy no positions of groups.")
@click.option(
    "--replication-factor",
    type=WholeNumber(1),
    help="Replicas of new topics.  [default: as at the source, at most one per broker]",
)
@click.option(
    "--tasks",
    "--num.streams",
    type=WholeNumber(1),
    help="With the same offsets, partitions that are copied at the same time.  [default: one per core]",
)
@click.option("--metrics-port", type=WholeNumber(0, 65535), help="Port of Prometheus metrics, on 127.0.0.1.")
@click.option("--num.producers", "num_producers", hidden=True)
@click.option("--queue.size", "queue_size", hidden=True)
@click.option("--abort.on.send.failure", "abort_on_send_failure", hidden=True)
@click.option("--offset.commit.interval.ms", "offset_commit_interval_ms", hidden=True)
@session_options
def mirror(**given: Any) -> None:
    """Mirror topics of other clusters.

    A mirror with the same offsets has the batches of its source, transactions and gaps included, and accepts
    no other messages until it is promoted ('tidemill topic promote'). With new offsets, committed messages
    are written once, to any cluster. Topics are created, grown and configured as at the source, and the
    positions of groups are copied. It runs until ctrl-C, and continues where it ended, also after a crash or
    a cut link.

    \b
    tidemill pipeline mirror --source east=east1:9092 --target west1:9092 --allow 'orders,payments-.*' \\
        --checkpoint mirror.checkpoint
    """
    from tidemill.pipeline.jobs.preflight_checks import check_master, check_trigger
    from tidemill.pipeline.mirror.mirror_job import run_mirror
    from tidemill.pipeline.mirror.mirror_lag import MirrorMetrics
    from tidemill.pipeline.mirror.mirror_settings import MirrorJob
    from tidemill.pipeline.mirror.preflight_checks import check_mirror, checked_clusters
    from tidemill.pipeline.mirror.topic_filter import TopicFilter

    with wrong_usage():
        job = MirrorJob(
            sources=_sources(given["sources"], given["source_files"]),
            target=_target(given["target"], given["target_file"]),
            checkpoint=given["checkpoint"],
            topics=TopicFilter(given["allow"], given["deny"]),
            groups=None if given["no_groups"] else TopicFilter(given["groups"], given["deny_groups"]),
            prefixed=given["prefixed"],
            trigger=given["trigger"],
            replication_factor=given["replication_factor"] or -1,
            tasks=given["tasks"],
            same_offsets=given["offsets"] == "same",
            fail_on_data_loss=not given["skip_lost"],
        )
        check_trigger(job.trigger)
        check_master(given["master"])
        check_mirror(job)
    for name in WITHOUT_EFFECT:
        if given[name] is not None:
            click.echo(f"tidemill: --{name.replace('_', '.')} has no effect here", err=True)
    for source in job.sources:
        _check_reachable("--source", source)
    _check_reachable("--target", job.target)
    metrics = None
    if given["metrics_port"] is not None:
        metrics = MirrorMetrics()
        try:
            metrics.serve(given["metrics_port"])
        except OSError as problem:
            raise click.ClickException(
                f"--metrics-port {given['metrics_port']}: {problem.strerror}: choose another port"
            ) from None
    stopping = threading.Event()
    with checked_clusters(job):
        result = with_spark(
            given,
            lambda spark: _shown(
                given["as_json"], lambda tell: run_mirror(spark, job, tell, metrics, stopping)
            ),
            stopping.set,
        )
    print_result(given["as_json"], {"sources": [_table(one) for one in result]}, _summary(result))


def _check_reachable(option: str, cluster: MirrorSource) -> None:
    """Raises ClickException, which names the option, if no broker of a cluster accepts connections."""
    try:
        Target(cluster.client["bootstrap.servers"], {}).check_reachable()
    except click.ClickException as problem:
        text = problem.message.replace("-b HOST:PORT", f"{option} HOST:PORT")
        text = text.replace("--bootstrap-server", option)
        raise type(problem)(f"the cluster {cluster.alias}: {text}") from None


def _sources(addresses: Sequence[str], files: Sequence[str]) -> list[MirrorSource]:
    if not addresses and not files:
        raise ConfigError("no source is given: set --source HOST:PORT, or --source-config FILE")
    found = [_cluster("--source", text, f"source{n}") for n, text in enumerate(addresses, 1)]
    found += [
        _cluster_of_file("--source-config", text, f"source{n}")
        for n, text in enumerate(files, len(addresses) + 1)
    ]
    return found


def _target(address: str | None, file: str | None) -> MirrorSource:
    if file is None:
        if address is None:
            raise ConfigError("no target is given: set --target HOST:PORT, or --target-config FILE")
        return _cluster("--target", address, "target")
    return _cluster_of_file("--target-config", file, "target", address)


def _aliased(option: str, text: str, default: str) -> tuple[str, str]:
    """Splits ``ALIAS=rest``."""
    alias, equals, rest = text.partition("=")
    if not equals:
        return default, text
    if ALIAS.fullmatch(alias) is None:
        raise ConfigError(f"{option} {text}: the alias {alias!r} must be of letters, digits, _ and -")
    return alias, rest


def _cluster(option: str, text: str, default: str) -> MirrorSource:
    from tidemill.pipeline.mirror.mirror_settings import MirrorSource

    alias, address = _aliased(option, text, default)
    if not address.strip():
        raise ConfigError(f"{option} {text}: the address is missing: HOST:PORT")
    return MirrorSource(alias, {"bootstrap.servers": address})


def _cluster_of_file(option: str, text: str, default: str, address: str | None = None) -> MirrorSource:
    from tidemill.pipeline.mirror.mirror_settings import MirrorSource

    alias, path = _aliased(option, text, default)
    settings = _settings_of(path)
    if address is not None:
        alias, settings["bootstrap.servers"] = _aliased("--target", address, alias)
    if not settings.get("bootstrap.servers"):
        raise ConfigError(f"{option} {path} has neither bootstrap.servers nor zookeeper.connect: add one")
    return MirrorSource(alias, settings)


def _settings_of(path: str) -> dict[str, str]:
    """Returns the client keys of a file of MirrorMaker, which may be one of Kafka 0.8."""
    from tidemill.client.config_keys import ALIASES, GONE
    from tidemill.model.configs.properties import read_properties

    lines = {line.key: line.value for line in read_properties(path)}
    connect = lines.pop("zookeeper.connect", None)
    left_out = tuple(key for key in lines if key in GONE)
    settings = client_settings(path, (), left_out=(*left_out, "zookeeper.connect"))
    found = {ALIASES.get(key, key): value for key, value in settings.items()}
    if connect is not None and not found.get("bootstrap.servers"):
        from tidemill.cli.zookeeper_brokers import brokers_in_zookeeper

        protocol = str(found.get("security.protocol", "PLAINTEXT")).upper()
        found["bootstrap.servers"] = brokers_in_zookeeper(connect, protocol)
    return found


def _shown(as_json: bool, work: Any) -> Any:
    """Runs ``work`` with a line of progress on a terminal, and a line for each topic that is not mirrored."""
    reported: set[str] = set()

    def report(sources: Sequence[SourceProgress]) -> None:
        for one in sources:
            for topic, reason in one.refused.items():
                text = f"tidemill: {one.alias}: topic {topic} is not mirrored: {reason}"
                if text not in reported:
                    reported.add(text)
                    click.echo(text, err=True)

    if as_json or not sys.stderr.isatty():
        return work(report)
    with console(error=True).status("starting") as status:

        def show(sources: Sequence[SourceProgress]) -> None:
            report(sources)
            status.update("; ".join(map(_line, sources)))

        return work(show)


def _line(one: SourceProgress) -> str:
    """Returns the state of a source in one line."""
    if one.waiting:
        return f"{one.alias}: waiting ({one.waiting})"
    if one.lag is None:
        return f"{one.alias}: starting"
    lag = f"{one.lag.total:,} messages, {one.lag.seconds_max:.0f} s behind" if one.lag.total else "up to date"
    held = f", {counted(len(one.lag.held_back), 'partition')} held back" if one.lag.held_back else ""
    return f"{one.alias}: {one.topics} topics, {one.records:,} messages copied, {lag}{held}"


def _table(one: SourceProgress) -> Mapping[str, Any]:
    return {
        "source": one.alias,
        "topics": one.topics,
        "records": one.records,
        "bytes": one.bytes,
        "group_positions": one.positions,
        "lag_messages": None if one.lag is None else one.lag.total,
        "lag_seconds": None if one.lag is None else round(one.lag.seconds_max, 3),
        "held_back": {} if one.lag is None else {str(item): why for item, why in one.lag.held_back.items()},
        "refused": dict(one.refused),
        "waiting": one.waiting,
        "unmatched": one.unmatched,
    }


def _summary(sources: Sequence[SourceProgress]) -> str:
    return "\n".join(
        f"{one.alias}: copied {counted(one.records, 'message')} of {counted(one.topics, 'topic')} and "
        f"{counted(one.positions, 'group position')}"
        + ("" if one.lag is None else f"; {one.lag.total:,} messages behind")
        + (f"; {one.unmatched}" if one.unmatched else "")
        for one in sources
    )

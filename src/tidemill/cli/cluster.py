"""``tidemill cluster``: runs brokers on this machine, and administers any cluster as a whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tidemill.cli import cluster_moves, cluster_status
from tidemill.cli.cluster_options import broker_ids, directory_option, names_of
from tidemill.cli.local_cluster import ZOOKEEPER, LocalCluster, display_name
from tidemill.cli.local_cluster_settings import HOST, SESSION_MS
from tidemill.cli.options import INT_MAX, Target, WholeNumber, pairs
from tidemill.cli.output import (
    counted,
    done,
    json_option,
    on_terminal,
    print_json,
    report_failures,
    require_yes,
    yes_option,
)
from tidemill.cli.setting_options import broker_settings_option
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidemill.client import Admin

SESSION_END_S = 10.0
"""How long after its timeout the session of an ended process may still exist."""
POLL_S = 0.2
BROKERS = 3
BROKERS_MAX = 100
OWN_KEYS = ("node.id", "broker.id", "listeners", "port", "zookeeper.connect", "log.dirs", "log.dir")
"""Keys that must be the same on all brokers, or different on each: the cluster sets them."""

names_argument = click.argument(
    "names", metavar="BROKER...", nargs=-1, required=True, shell_complete=names_of
)


@click.group("cluster")
def command() -> None:
    """Run several brokers on this machine, check the state of a cluster, and move its data.

    \b
    tidemill cluster up --brokers 3     ZooKeeper and three brokers, in the background
    tidemill cluster status             brokers, leaders and in-sync replicas
    tidemill cluster kill 1             simulates a crash; no acknowledged message is lost
    tidemill cluster start 1            starts it again
    tidemill cluster down               stops all processes, keeps the data
    """


@command.command(
    "up",
    epilog="""\b
Examples:
  tidemill cluster up --brokers 3
  tidemill cluster up --brokers 5 -d /tmp/five --port 19092
  tidemill cluster up --zookeeper localhost:2181/trial --set num.partitions=6

The brokers listen on 127.0.0.1 and keep running after the command ends. Their settings are in
DIR/broker-N/server.properties, their logs in DIR/broker-N/broker.log. With --set tidemill.metrics.port=9404
the first broker serves metrics on port 9404, the next on 9405, and so on. The ZooKeeper server comes from the
jars of PySpark and needs Java, unless --zookeeper names a running one.""",
)
@click.option(
    "-n", "--brokers", "count", type=WholeNumber(1, BROKERS_MAX), help="Number of brokers.  [3, or as before]"
)
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    help="Port of the first new broker; 0: any free ports. Existing brokers keep theirs.  [9092, or the port "
    "after the others]",
)
@click.option(
    "-z",
    "--zookeeper",
    metavar="HOST:PORT[/PATH]",
    help="Use a running ZooKeeper.  [path: /tidemill-cluster]",
)
@broker_settings_option
@directory_option
@json_option
def up(
    count: int | None,
    port: int | None,
    zookeeper: str | None,
    sets: tuple[str, ...],
    directory: str,
    as_json: bool,
) -> None:
    """Start ZooKeeper and brokers on this machine.

    They run in the background. Run again, the command starts stopped processes, shows running ones, and
    adds brokers up to the number of --brokers.
    """
    settings = _settings(sets)
    local = LocalCluster.load(directory)
    if local is None:
        local = LocalCluster.new(directory, zookeeper, port == 0)
    elif zookeeper is not None and not local.is_on(zookeeper):
        raise click.ClickException(
            f"the cluster in {directory} is on ZooKeeper at {local.zookeeper_connect}: leave --zookeeper "
            "out, or name another directory with -d"
        )
    missing = (count or len(local.ports) or BROKERS) - len(local.ports)
    if missing < 0:
        raise click.ClickException(
            f"there are {len(local.ports)} brokers in {directory}, more than --brokers {count}: 'tidemill "
            "cluster decommission N' moves all replicas off a broker, and 'cluster remove N' removes it"
        )
    if settings and not missing:
        raise click.ClickException(
            f"--set is for new brokers; edit {directory}/broker-N/server.properties of existing ones"
        )
    if port and not missing and port != min(local.ports.values()):
        raise click.ClickException(
            f"--port is for new brokers; those in {directory} keep theirs ({local.bootstrap}): leave --port "
            f"out, add brokers at that port with --brokers {len(local.ports) + 1}, or name another directory "
            "with -d for a separate cluster"
        )
    local.check([str(number) for number in local.ports])
    with local.locked():
        before = local.running()
        local.add_brokers(missing, local.next_port if port is None else port, settings)
        if as_json:
            local.start_zookeeper()
        else:
            _start_zookeeper(local)
        _start(local, sorted(local.ports), before, as_json)
    if as_json:
        _print_json(local)
    else:
        _hints(local)


def _settings(sets: tuple[str, ...]) -> dict[str, str]:
    """Returns the keys for new brokers. Raises UsageError for unknown keys and for :data:`OWN_KEYS`."""
    from tidemill.model.configs.config_loader import is_known, unknown

    settings = pairs("--set", sets)
    for name in settings:
        if not is_known(name):
            raise click.UsageError(unknown(name, "--set", is_refused=True))
        if name in OWN_KEYS:
            raise click.UsageError(
                f"--set {name}: the cluster sets its own value; 'tidemill serve' starts a broker with another"
            )
    return settings


def _start_zookeeper(local: LocalCluster, quiet: bool = False) -> None:
    """Starts the cluster's ZooKeeper. ``quiet`` prints nothing when it was running already."""
    was_started = local.start_zookeeper()
    if (was_started or not quiet) and local.own_port is not None:
        _print_running(local, ZOOKEEPER, was_started)


def _start(local: LocalCluster, numbers: Sequence[int], before: dict[str, int], quiet: bool = False) -> None:
    for number in numbers:
        if str(number) in before and not quiet:
            _print_running(local, str(number), False)
    for number in local.start_brokers(numbers):
        if not quiet:
            _print_running(local, str(number), True)


def _print_running(local: LocalCluster, name: str, is_new: bool) -> None:
    port = local.own_port if name == ZOOKEEPER else local.ports[int(name)]
    how = "runs on" if is_new else "already runs on"
    done(f"{display_name(name)} {how} 127.0.0.1:{port} (process {local.process(name).pid()})")


def _hints(local: LocalCluster) -> None:
    """Prints commands to try next, on a terminal."""
    if not on_terminal():
        return
    directory = local.option
    click.echo(
        f"""
  Try it. Each of these addresses works while its broker runs; name all to survive a kill:
    export TIDEMILL_BOOTSTRAP={local.bootstrap}
    tidemill topic create hello -p 6
    echo 'good morning' | tidemill produce hello
    tidemill cluster kill 1{directory}
    tidemill consume hello --from-beginning -n 1
    tidemill cluster status{directory}
  The data is in {local.directory}. 'tidemill cluster down{directory}' stops the cluster and keeps the data.
""",
        err=True,
    )


def _print_json(local: LocalCluster) -> None:
    running = local.running()
    print_json(
        {
            "directory": str(local.directory.resolve()),
            "bootstrap": local.bootstrap,
            "zookeeper": {"connect": local.zookeeper_connect, "pid": running.get(ZOOKEEPER)},
            "brokers": [
                {"id": number, "port": port, "pid": running.get(str(number))}
                for number, port in sorted(local.ports.items())
            ],
        }
    )


@command.command("add", epilog="\b\nExamples:\n  tidemill cluster add\n  tidemill cluster rebalance")
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    help="Port of the new broker; 0: any free port.  [the port after the others]",
)
@broker_settings_option
@directory_option
def add(port: int | None, sets: tuple[str, ...], directory: str) -> None:
    """Add a broker to the cluster of this machine, and start it.

    It holds no replicas until a topic is created, or 'tidemill cluster rebalance' moves its share to it.
    """
    settings = _settings(sets)
    local = LocalCluster.existing(directory)
    local.check([])
    with local.locked():
        first_port = local.next_port if port is None else port
        local.add_brokers(1, first_port, settings, is_exact=bool(port))
        _start_zookeeper(local, quiet=True)
        _start(local, [max(local.ports)], {})
    if on_terminal():
        click.echo(
            f"  'tidemill cluster rebalance{local.option}' moves its share of the data to it.", err=True
        )


@command.command("start", epilog="\b\nExamples:\n  tidemill cluster start 1")
@names_argument
@directory_option
def start(names: tuple[str, ...], directory: str) -> None:
    """Start brokers of this machine again. BROKER is an id, or 'zookeeper'."""
    local = _existing(directory, names)
    local.check(names)
    with local.locked():
        before = local.running()
        numbers = sorted({int(name) for name in names if name != ZOOKEEPER})
        _start_zookeeper(local, quiet=ZOOKEEPER not in names)
        _start(local, numbers, before)


@command.command("stop", epilog="\b\nExamples:\n  tidemill cluster stop 3")
@names_argument
@directory_option
def stop(names: tuple[str, ...], directory: str) -> int:
    """Stop brokers of this machine in an orderly way.

    Leaderships move to other brokers first. BROKER is an id, or 'zookeeper'.
    """
    local = _existing(directory, names)
    with local.locked():
        return _stop(local, names)


def _stop(local: LocalCluster, names: Sequence[str]) -> int:
    stopped = []
    for name in names:
        if local.stop(name):
            done(f"stopped {display_name(name)}")
        else:
            stopped.append(f"{display_name(name)} is not running")
    return report_failures(stopped)


@command.command("kill", epilog="\b\nExamples:\n  tidemill cluster kill 1\n  tidemill cluster kill zookeeper")
@names_argument
@directory_option
def kill(names: tuple[str, ...], directory: str) -> int:
    """Kill brokers of this machine, to simulate a crash.

    The signal is SIGKILL. BROKER is an id, or 'zookeeper'.
    """
    local = _existing(directory, names)
    stopped = []
    for name in names:
        pid = local.kill(name)
        if pid is None:
            stopped.append(f"{display_name(name)} is not running")
        else:
            again = f"'tidemill cluster start {name}{local.option}'"
            done(f"killed {display_name(name)} (process {pid}); {again} starts it again")
    return report_failures(stopped)


@command.command(
    "remove", epilog="\b\nExamples:\n  tidemill cluster decommission 4\n  tidemill cluster remove 4"
)
@click.argument("number", metavar="BROKER", type=WholeNumber(0, INT_MAX), shell_complete=broker_ids)
@directory_option
def remove(number: int, directory: str) -> None:
    """Remove an empty broker from the cluster of this machine.

    It must hold no replicas. The broker is stopped, and its directory deleted. 'tidemill cluster
    decommission' moves all replicas off it first. Deletions of topics no longer wait for it.
    """
    local = _existing(directory, [str(number)])
    others = [f"{HOST}:{port}" for broker, port in local.ports.items() if broker != number]
    if not others:
        raise click.ClickException(
            f"broker {number} is the last one: 'tidemill cluster down --delete{local.option}' deletes all"
        )
    if not (set(map(str, local.ports)) - {str(number)}) & local.running().keys():
        raise click.ClickException(
            f"no other broker runs that could list the replicas of broker {number}: 'tidemill cluster "
            f"up{local.option}' starts them"
        )
    held = _replica_count(",".join(others), number)
    if held:
        raise click.ClickException(
            f"broker {number} holds {counted(held, 'partition')}: 'tidemill cluster decommission {number}"
            f"{local.option}' moves all replicas off it"
        )
    with local.locked():
        if str(number) in local.running():
            _stop(local, [str(number)])
        with Target(",".join(others), {}).admin() as admin:
            _unregister(admin, number)
        local.remove(number)
    done(f"removed broker {number}")


def _unregister(admin: Admin, number: int) -> None:
    """Unregisters a stopped broker, once the session of its process has ended."""
    deadline = time.monotonic() + SESSION_MS / 1000 + SESSION_END_S
    while True:
        try:
            admin.unregister_broker(number)
            return
        except ClientError as error:
            if error.code != ErrorCode.INVALID_REQUEST or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


def _replica_count(bootstrap: str, number: int) -> int:
    """Returns the number of partitions that have a replica on a broker, or are about to get one."""
    with Target(bootstrap, {}).admin() as admin:
        topics = admin.describe_topics([topic.name for topic in admin.list_topics(include_internal=True)])
    return sum(number in partition.replicas for topic in topics.values() for partition in topic.partitions)


def _existing(directory: str, names: Sequence[str]) -> LocalCluster:
    local = LocalCluster.existing(directory)
    for name in names:
        if name not in local.names:
            raise click.ClickException(
                f"there is no {name!r} in {directory}; there are: {', '.join(local.names)}"
            )
    return local


@command.command(
    "down", epilog="\b\nExamples:\n  tidemill cluster down\n  tidemill cluster down --delete --yes"
)
@click.option("--delete", is_flag=True, help="Also delete all files of the cluster, including the data.")
@yes_option
@directory_option
def down(delete: bool, yes: bool, directory: str) -> None:
    """Stop the cluster of this machine, and keep its data.

    The brokers shut down one after the other, the controller last, then ZooKeeper. The next 'cluster up' uses
    the data again, unless --delete is given.
    """
    local = LocalCluster.existing(directory)
    if delete:
        require_yes(f"Delete {directory} and all messages in it?", yes)
    with local.locked():
        running = local.running()
        brokers = [name for name in running if name != ZOOKEEPER]
        controller = _controller(local) if len(brokers) > 1 else None
        _stop(local, sorted(brokers, key=lambda name: (name == controller, int(name))))
        if ZOOKEEPER in running:
            _stop(local, [ZOOKEEPER])
        if delete:
            left = local.delete()
            stays = f"; {', '.join(left)} in {directory} kept: not part of the cluster" if left else ""
            done(f"deleted {'the cluster' if left else directory}{stays}")
        elif not running:
            done("nothing was running")


def _controller(local: LocalCluster) -> str | None:
    """Returns the id of the controller; None when no broker reports it."""
    from tidemill.client import Admin

    try:
        with Admin(local.bootstrap, default_api_timeout_ms=5000) as admin:
            return str(admin.describe_cluster().controller_id)
    except ClientError:
        return None


for _one in (
    cluster_status.status,
    cluster_moves.rebalance,
    cluster_moves.decommission,
    cluster_moves.elect_,
):
    command.add_command(_one)

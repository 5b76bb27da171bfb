"""``tidemill cluster``: brokers on this machine for trying out, and what concerns all of any cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tidemill.cli import cluster_moves, cluster_status
from tidemill.cli.cluster_options import broker_ids, directory_option, names_of
from tidemill.cli.local import ZOOKEEPER, LocalCluster, said
from tidemill.cli.local_settings import HOST, SESSION_MS
from tidemill.cli.options import INT_MAX, Target, Whole, broker_settings_option, pairs
from tidemill.cli.output import counted, done, json_option, on_terminal, print_json, require_yes

if TYPE_CHECKING:
    from tidemill.client import Admin

FAILED = 1
SESSION_END_S = 10.0
"""How much later than after its time a session may end that a process has left."""
LOOK_S = 0.2
BROKERS = 3
BROKERS_MAX = 100
OWN_KEYS = ("node.id", "broker.id", "listeners", "port", "zookeeper.connect", "log.dirs", "log.dir")
"""What no two brokers may have in common, or all have to."""

names_argument = click.argument(
    "names", metavar="BROKER...", nargs=-1, required=True, shell_complete=names_of
)


@click.group("cluster")
def command() -> None:
    """Several brokers: start some on this machine, see how a cluster is, move its data.

    \b
    tidemill cluster up --brokers 3     ZooKeeper and three brokers, in the background
    tidemill cluster status             who leads what
    tidemill cluster kill 1             as a crash would; nothing that was acknowledged is lost
    tidemill cluster start 1            brings it back
    tidemill cluster down               ends all, keeps the data
    """


@command.command(
    "up",
    epilog="""\b
Examples:
  tidemill cluster up --brokers 3
  tidemill cluster up --brokers 5 -d /tmp/five --port 19092
  tidemill cluster up --zookeeper localhost:2181/trial --set num.partitions=6

The brokers listen on 127.0.0.1 and go on when the command has ended. Their settings are in
DIR/broker-N/server.properties, their logs in DIR/broker-N/broker.log. With --set tidemill.metrics.port=9404
the first has its metrics there, the next on 9405, and so on. ZooKeeper's server comes from PySpark's
jars and needs Java, unless --zookeeper names one that runs.""",
)
@click.option(
    "-n", "--brokers", "count", type=Whole(1, BROKERS_MAX), help="How many there shall be.  [3, or as before]"
)
@click.option(
    "--port",
    type=Whole(0, 65535),
    help="Of the first broker made; 0: any free ones. Those that are there keep theirs.  [9092, or behind "
    "the others]",
)
@click.option(
    "-z",
    "--zookeeper",
    metavar="HOST:PORT[/PATH]",
    help="One that runs, instead of an own.  [path: /tidemill-cluster]",
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
    """Start ZooKeeper and brokers on this machine, in the background.

    Again, it starts what is down, says what runs, and adds brokers when --brokers asks for more.
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
            f"there are {len(local.ports)} brokers in {directory}, and {count} are asked for: 'tidemill "
            "cluster decommission N' moves everything away from one, and 'cluster remove N' takes it out"
        )
    if settings and not missing:
        raise click.ClickException(
            f"--set is for new brokers; those that are there have {directory}/broker-N/server.properties"
        )
    if port and not missing and port != min(local.ports.values()):
        raise click.ClickException(
            f"--port is for new brokers; those in {directory} keep theirs ({local.bootstrap}): leave --port "
            f"out, add brokers at that port by --brokers {len(local.ports) + 1}, or name another directory "
            "with -d for a cluster of its own"
        )
    local.check([str(number) for number in local.ports])
    with local.alone():
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
    """Keys for new brokers; those are refused that no broker has."""
    from tidemill.model.configs.sources import is_known, unknown

    settings = pairs("--set", sets)
    for name in settings:
        if not is_known(name):
            raise click.UsageError(unknown(name, "--set", is_refused=True))
        if name in OWN_KEYS:
            raise click.UsageError(
                f"--set {name}: the cluster gives each broker its own, and 'tidemill serve' starts any other"
            )
    return settings


def _start_zookeeper(local: LocalCluster, quiet: bool = False) -> None:
    """``quiet`` says nothing of one that runs already."""
    was_started = local.start_zookeeper()
    if (was_started or not quiet) and local.own_port is not None:
        _tell(local, ZOOKEEPER, was_started)


def _start(local: LocalCluster, numbers: Sequence[int], before: dict[str, int], quiet: bool = False) -> None:
    for number in numbers:
        if str(number) in before and not quiet:
            _tell(local, str(number), False)
    for number in local.start_brokers(numbers):
        if not quiet:
            _tell(local, str(number), True)


def _tell(local: LocalCluster, name: str, is_new: bool) -> None:
    port = local.own_port if name == ZOOKEEPER else local.ports[int(name)]
    how = "runs on" if is_new else "runs already on"
    done(f"{said(name)} {how} 127.0.0.1:{port} (process {local.process(name).pid()})")


def _hints(local: LocalCluster) -> None:
    """What to try, on a terminal."""
    if not on_terminal():
        return
    directory = local.option
    click.echo(
        f"""
  Try it; any address of these will do, all of them while brokers are killed:
    export TIDEMILL_BOOTSTRAP={local.bootstrap}
    tidemill topic create hello -p 6
    echo 'good morning' | tidemill produce hello
    tidemill cluster kill 1{directory}
    tidemill consume hello --from-beginning -n 1
    tidemill cluster status{directory}
  The data is in {local.directory}. 'tidemill cluster down{directory}' ends all and keeps it.
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
@click.option("--port", type=Whole(0, 65535), help="Of the new broker; 0: any free one.  [behind the others]")
@broker_settings_option
@directory_option
def add(port: int | None, sets: tuple[str, ...], directory: str) -> None:
    """Add a broker to the cluster of this machine, and start it.

    It holds nothing until a topic is created, or 'tidemill cluster rebalance' gives it its share.
    """
    settings = _settings(sets)
    local = LocalCluster.existing(directory)
    local.check([])
    with local.alone():
        first_port = local.next_port if port is None else port
        local.add_brokers(1, first_port, settings, is_exact=bool(port))
        _start_zookeeper(local, quiet=True)
        _start(local, [max(local.ports)], {})
    if on_terminal():
        click.echo(f"  'tidemill cluster rebalance{local.option}' gives it its share.", err=True)


@command.command("start", epilog="\b\nExamples:\n  tidemill cluster start 1")
@names_argument
@directory_option
def start(names: tuple[str, ...], directory: str) -> None:
    """Start brokers of this machine again. BROKER is an id, or 'zookeeper'."""
    local = _known(directory, names)
    local.check(names)
    with local.alone():
        before = local.running()
        numbers = sorted({int(name) for name in names if name != ZOOKEEPER})
        _start_zookeeper(local, quiet=ZOOKEEPER not in names)
        _start(local, numbers, before)


@command.command("stop", epilog="\b\nExamples:\n  tidemill cluster stop 3")
@names_argument
@directory_option
def stop(names: tuple[str, ...], directory: str) -> int:
    """Stop brokers of this machine in order.

    Others first lead what they led. BROKER is an id, or 'zookeeper'.
    """
    local = _known(directory, names)
    with local.alone():
        return _stop(local, names)


def _stop(local: LocalCluster, names: Sequence[str]) -> int:
    failures = 0
    for name in names:
        if local.stop(name):
            done(f"stopped {said(name)}")
        else:
            failures += 1
            click.echo(f"tidemill: {said(name)} does not run", err=True)
    return FAILED if failures else 0


@command.command("kill", epilog="\b\nExamples:\n  tidemill cluster kill 1\n  tidemill cluster kill zookeeper")
@names_argument
@directory_option
def kill(names: tuple[str, ...], directory: str) -> int:
    """Kill brokers of this machine, as a crash does.

    It is kill -9. BROKER is an id, or 'zookeeper'.
    """
    local = _known(directory, names)
    failures = 0
    for name in names:
        pid = local.kill(name)
        if pid is None:
            failures += 1
            click.echo(f"tidemill: {said(name)} does not run", err=True)
        else:
            again = f"'tidemill cluster start {name}{local.option}'"
            done(f"killed {said(name)} (process {pid}); {again} brings it back")
    return FAILED if failures else 0


@command.command(
    "remove", epilog="\b\nExamples:\n  tidemill cluster decommission 4\n  tidemill cluster remove 4"
)
@click.argument("number", metavar="BROKER", type=Whole(0, INT_MAX), shell_complete=broker_ids)
@directory_option
def remove(number: int, directory: str) -> None:
    """Take a broker that holds nothing any more out of the cluster of this machine, for good.

    It is stopped, and its directory deleted. 'tidemill cluster decommission' moves everything away from it.
    Topics that were deleted while it was down are waited for no more.
    """
    from tidemill.client import Admin

    local = _known(directory, [str(number)])
    others = [f"{HOST}:{port}" for one, port in local.ports.items() if one != number]
    if not others:
        raise click.ClickException(
            f"broker {number} is the last one: 'tidemill cluster down --delete{local.option}' deletes all"
        )
    if not (set(map(str, local.ports)) - {str(number)}) & local.running().keys():
        raise click.ClickException(
            f"no other broker runs, which could say what broker {number} holds: 'tidemill cluster "
            f"up{local.option}' starts them"
        )
    held = _held(",".join(others), number)
    if held:
        raise click.ClickException(
            f"broker {number} holds {counted(held, 'partition')}: 'tidemill cluster decommission {number}"
            f"{local.option}' moves everything away from it"
        )
    with local.alone():
        if str(number) in local.running():
            _stop(local, [str(number)])
        with Admin(",".join(others), Target(",".join(others), {}).config()) as admin:
            _unregister(admin, number)
        local.remove(number)
    done(f"removed broker {number}")


def _unregister(admin: Admin, number: int) -> None:
    """Unregisters a broker that has been stopped, once the session of its process has ended."""
    from tidemill.client import ClientError
    from tidemill.model.errors import ErrorCode

    deadline = time.monotonic() + SESSION_MS / 1000 + SESSION_END_S
    while True:
        try:
            admin.unregister_broker(number)
            return
        except ClientError as error:
            if error.code != ErrorCode.INVALID_REQUEST or time.monotonic() > deadline:
                raise
        time.sleep(LOOK_S)


def _held(bootstrap: str, number: int) -> int:
    """How many partitions a broker has a replica of, or is about to get one of."""
    from tidemill.client import Admin

    with Admin(bootstrap, Target(bootstrap, {}).config()) as admin:
        topics = admin.describe_topics([one.name for one in admin.list_topics(include_internal=True)])
    return sum(number in one.replicas for topic in topics.values() for one in topic.partitions)


def _known(directory: str, names: Sequence[str]) -> LocalCluster:
    local = LocalCluster.existing(directory)
    for name in names:
        if name not in local.names:
            raise click.ClickException(
                f"there is no {name!r} in {directory}, but {', '.join(local.names)}: give one of these"
            )
    return local


@command.command(
    "down", epilog="\b\nExamples:\n  tidemill cluster down\n  tidemill cluster down --delete --yes"
)
@click.option("--delete", is_flag=True, help="Also delete its files, with all data.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@directory_option
def down(delete: bool, yes: bool, directory: str) -> None:
    """Stop the cluster of this machine in order, and keep its data.

    The brokers end one after the other, the controller last, then ZooKeeper. The next 'cluster up' finds
    the data, unless --delete is given.
    """
    local = LocalCluster.existing(directory)
    if delete and not yes and sys.stdin.isatty() and sys.stdout.isatty():
        require_yes(f"Delete {directory} and all messages in it?")
    with local.alone():
        running = local.running()
        brokers = [name for name in running if name != ZOOKEEPER]
        controller = _controller(local) if len(brokers) > 1 else None
        _stop(local, sorted(brokers, key=lambda name: (name == controller, int(name))))
        if ZOOKEEPER in running:
            _stop(local, [ZOOKEEPER])
        if delete:
            left = local.delete()
            stays = f"; {', '.join(left)} in {directory} stays: it is not of the cluster" if left else ""
            done(f"deleted {'the cluster' if left else directory}{stays}")
        elif not running:
            done("nothing ran")


def _controller(local: LocalCluster) -> str | None:
    """The controller's id; None when nobody says it."""
    from tidemill.client import Admin, ClientError

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

"""``tidemill broker``: the brokers of a cluster, and their settings while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidemill.cli import directories, suggest
from tidemill.cli.options import INT_MAX, Target, TextType, Whole, target_options
from tidemill.cli.output import done, json_option, on_terminal, print_json, print_table
from tidemill.cli.settings import changes_of, unset_option

if TYPE_CHECKING:
    from tidemill.client import Admin, ClientError
    from tidemill.client.admin_types import ConfigEntry, ConfigResource

FAILED = 1
DEFAULT = "default"
"""Names the settings that hold for all brokers of a cluster which have no own."""


@click.group("broker")
def command() -> None:
    """List brokers and their data directories, and describe and alter their settings while they run."""


command.add_command(directories.dirs)
command.add_command(directories.move)


class Which(TextType):
    """A broker by its id; ``default`` for all brokers."""

    name = "broker"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text == DEFAULT:
            return text
        if not (text.isascii() and text.isdigit()) or int(text[:20]) > 2**31 - 1:
            self.fail(f"{text!r} is no broker: give the id of one, or {DEFAULT} for all", param, ctx)
        return str(int(text))


def resource_of(which: str) -> ConfigResource:
    """What the protocol calls the broker: its id, or nothing for all."""
    from tidemill.client import ConfigResource, ResourceType

    return ConfigResource(ResourceType.BROKER, "" if which == DEFAULT else which)


def said(which: str) -> str:
    """The broker in words."""
    return "all brokers" if which == DEFAULT else f"broker {which}"


@command.command(
    "list", epilog="\b\nExamples:\n  tidemill broker list\n  tidemill broker list --json | jq '.[].id'"
)
@json_option
@target_options
def list_(as_json: bool, target: Target) -> None:
    """List the brokers that live, and which one is the controller."""
    from tidemill.client import Admin

    with Admin(target.bootstrap, target.config()) as admin:
        cluster = admin.describe_cluster()
    rows = [
        {
            "id": one.broker_id,
            "host": one.host,
            "port": one.port,
            "rack": one.rack,
            "controller": one.broker_id == cluster.controller_id,
        }
        for one in cluster.brokers
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["id", "host", "port", "rack", "controller"],
        [[*list(row.values())[:4], "yes" if row["controller"] else ""] for row in rows],
        right=["id", "port"],
        empty="no brokers",
    )


@command.command(
    "describe",
    epilog="""\b
Examples:
  tidemill broker describe 1                  what is set on broker 1, and by what
  tidemill broker describe default            what is set for all brokers while they run
  tidemill broker describe 1 --configs        every key
  tidemill broker describe 1 --json | jq '.[0].configs."log.retention.ms".value'

A setting of one broker goes before that of all brokers, and that before what it was started with: command
line, environment, file.""",
)
@click.argument(
    "brokers", metavar="BROKER...", nargs=-1, required=True, type=Which(), shell_complete=suggest.brokers
)
@click.option("--configs", "all_configs", is_flag=True, help="Every key, also those at their defaults.")
@json_option
@target_options
def describe(brokers: tuple[str, ...], all_configs: bool, as_json: bool, target: Target) -> int:
    """Show the settings of brokers. BROKER is an id, or 'default': what holds for all of them.

    Exit code 1 when one could not be shown.
    """
    from tidemill.client import Admin, ClientError

    found: dict[str, dict[str, ConfigEntry]] = {}
    missing: list[ClientError] = []
    with Admin(target.bootstrap, target.config()) as admin:
        for which in brokers:
            try:
                found[which] = _described(admin, which, all_configs)
            except ClientError as problem:
                missing.append(problem)
    if as_json:
        print_json([as_object(which, entries) for which, entries in found.items()])
    else:
        _print_settings(found)
    for failure in missing:
        click.echo(f"tidemill: {failure}", err=True)
    return FAILED if missing else 0


def _print_settings(found: dict[str, dict[str, ConfigEntry]]) -> None:
    """A table for each broker on a terminal, one for all of them elsewhere."""
    columns = ["setting", "value", "set by", "changes"]
    rows = {
        which: [
            [key, "(hidden)" if entry.sensitive else entry.value, entry.set_by, _changes(entry)]
            for key, entry in entries.items()
        ]
        for which, entries in found.items()
    }
    if not on_terminal():
        print_table(["broker", *columns], [[which, *row] for which, each in rows.items() for row in each])
        return
    for number, (which, each) in enumerate(rows.items()):
        if len(rows) > 1:
            click.echo("\n" if number else "", nl=False)
            click.secho(said(which), bold=True)
        print_table(columns, each, settings=True, empty="nothing is set: every key has its default")


def _described(admin: Admin, which: str, all_configs: bool) -> dict[str, ConfigEntry]:
    entries = admin.describe_configs(resource_of(which), documentation=True)
    return {key: one for key, one in sorted(entries.items()) if all_configs or not one.is_default}


def _changes(entry: ConfigEntry) -> str:
    return "at a restart" if entry.read_only else "while it runs"


def as_object(which: str, entries: dict[str, ConfigEntry]) -> dict[str, Any]:
    """The settings of a broker as JSON shows them."""
    return {
        "broker": which if which == DEFAULT else int(which),
        "configs": {
            key: {
                "value": entry.value,
                "source": entry.source,
                "set_by": entry.set_by,
                "read_only": entry.read_only,
                "sensitive": entry.sensitive,
                "synonyms": [one._asdict() for one in entry.synonyms],
            }
            for key, entry in entries.items()
        },
    }


@command.command(
    "alter",
    epilog="""\b
Examples:
  tidemill broker alter default --set log.retention.ms=86400000
  tidemill broker alter 1 --set max.connections=500 --unset log.retention.ms
  tidemill broker alter default --set message.max.bytes=5000000 --dry-run

It holds at once and after restarts. 'tidemill config keys' says which keys can change while a broker runs
("per-broker", "cluster-wide"); the others are set in its configuration file.""",
)
@click.argument("broker", metavar="BROKER", type=Which(), shell_complete=suggest.brokers)
@click.option(
    "-s",
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one key; can be repeated.",
    shell_complete=suggest.run_time_settings,
)
@unset_option("what holds without it", suggest.run_time_keys)
@click.option("--dry-run", is_flag=True, help="Check, and change nothing.")
@json_option
@target_options
def alter(
    broker: str,
    settings: tuple[str, ...],
    removed: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    target: Target,
) -> None:
    """Change settings while brokers run. BROKER is an id, or 'default' for all of them."""
    from tidemill.client import Admin
    from tidemill.model.configs.topic import near

    changes = changes_of(settings, removed)
    if not any(changes):
        raise click.UsageError("nothing to change: give --set or --unset")
    resource = resource_of(broker)
    with Admin(target.bootstrap, target.config()) as admin:
        if removed:
            own = "all brokers" if broker == DEFAULT else "broker"
            entries = admin.describe_configs(resource)
            held = {
                key for key, one in entries.items() if own in (one.source, *(s.source for s in one.synonyms))
            }
            for key in removed:
                if key not in held:
                    raise click.ClickException(
                        f"--unset {key}: nothing was set for {said(broker)} while it ran; "
                        f"'tidemill broker describe {broker}' shows what was{near(key, held)}"
                    )
        admin.alter_configs(resource, changes.wanted, remove=removed, validate_only=dry_run)
    if as_json:
        document = {"broker": broker if broker == DEFAULT else int(broker), "set": changes.wanted}
        print_json({**document, "unset": list(removed), "changed": not dry_run})
        return
    done(f"{said(broker)}: {'could have ' if dry_run else ''}{', '.join(changes.told)}")


@command.command(
    "unregister",
    epilog="""\b
Examples:
  tidemill cluster decommission 4             moves everything away from broker 4
  tidemill broker unregister 4                once it has been stopped for good

The deletion of a topic waits for every broker that has a replica, also for dead ones.""",
)
@click.argument("broker", metavar="BROKER", type=Whole(0, INT_MAX))
@target_options
def unregister(broker: int, target: Target) -> None:
    """Have deletions of topics wait no more for a broker that will not return.

    The broker has to be stopped. 'tidemill cluster remove' does this for brokers of 'tidemill cluster up'.
    """
    from tidemill.client import Admin

    with Admin(target.bootstrap, target.config()) as admin:
        admin.unregister_broker(broker)
    done(f"unregistered broker {broker}")

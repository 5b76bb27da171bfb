"""``tidemill broker``: lists the brokers of a cluster, and changes their settings while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidemill.cli import log_dirs, name_completion
from tidemill.cli.options import INT_MAX, Target, TextType, WholeNumber, target_options
from tidemill.cli.output import done, json_option, on_terminal, print_json, print_table, report_failures
from tidemill.cli.setting_options import changes_of, unset_option
from tidemill.client.errors import ClientError

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import ConfigEntry, ConfigResource

DEFAULT = "default"
"""Names the cluster-wide settings, which apply to every broker without a setting of its own."""
NOTHING_SET = "nothing is set: every key has its default; --configs shows all keys"


@click.group("broker")
def command() -> None:
    """List brokers and their data directories, and describe and alter broker settings at run time."""


command.add_command(log_dirs.dirs)
command.add_command(log_dirs.move)


class BrokerOrDefault(TextType):
    """A broker id, or ``default`` for all brokers."""

    name = "broker"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text == DEFAULT:
            return text
        if not (text.isascii() and text.isdigit()) or int(text[:20]) > 2**31 - 1:
            self.fail(f"{text!r} is not a broker: give a broker id, or {DEFAULT} for all brokers", param, ctx)
        return str(int(text))


def resource_of(which: str) -> ConfigResource:
    """Returns the config resource of a broker, or for ``default`` that of all brokers (an empty name)."""
    from tidemill.client import ConfigResource, ResourceType

    return ConfigResource(ResourceType.BROKER, "" if which == DEFAULT else which)


def display_name(which: str) -> str:
    """Returns the name of the broker in messages."""
    return "all brokers" if which == DEFAULT else f"broker {which}"


@command.command(
    "list", epilog="\b\nExamples:\n  tidemill broker list\n  tidemill broker list --json | jq '.[].id'"
)
@json_option
@target_options
def list_(as_json: bool, target: Target) -> None:
    """List the live brokers, and show which of them is the controller."""
    with target.admin() as admin:
        cluster = admin.describe_cluster()
    rows = [
        {
            "id": broker.broker_id,
            "host": broker.host,
            "port": broker.port,
            "rack": broker.rack,
            "controller": broker.broker_id == cluster.controller_id,
        }
        for broker in cluster.brokers
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
  tidemill broker describe 1                  settings of broker 1, and where each was set
  tidemill broker describe default            settings of all brokers, set at run time
  tidemill broker describe 1 --configs        every key
  tidemill broker describe 1 --json | jq '.[0].configs."log.retention.ms".value'

The setting of one broker takes precedence over that of all brokers, which takes precedence over the settings
at start: command line, environment, file.""",
)
@click.argument(
    "brokers",
    metavar="BROKER...",
    nargs=-1,
    required=True,
    type=BrokerOrDefault(),
    shell_complete=name_completion.brokers,
)
@click.option(
    "--configs", "all_configs", is_flag=True, help="Show every key, including those at their defaults."
)
@json_option
@target_options
def describe(brokers: tuple[str, ...], all_configs: bool, as_json: bool, target: Target) -> int:
    """Show the settings of brokers. BROKER is an id, or 'default' for the settings of all brokers.

    Exit code 1 when the settings of a broker could not be read.
    """
    found: dict[str, dict[str, ConfigEntry]] = {}
    missing: list[ClientError] = []
    with target.admin() as admin:
        for which in brokers:
            try:
                found[which] = _described(admin, which, all_configs)
            except ClientError as problem:
                missing.append(problem)
    if as_json:
        print_json([as_object(which, entries) for which, entries in found.items()])
    else:
        _print_settings(found)
    return report_failures(missing)


def _print_settings(found: dict[str, dict[str, ConfigEntry]]) -> None:
    """Prints one table a broker on a terminal, and a single table elsewhere."""
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
        if rows and not any(rows.values()):
            click.echo(NOTHING_SET, err=True)
        return
    for number, (which, each) in enumerate(rows.items()):
        if len(rows) > 1:
            click.echo("\n" if number else "", nl=False)
            click.secho(display_name(which), bold=True)
        print_table(columns, each, settings=True, empty=NOTHING_SET)


def _described(admin: Admin, which: str, all_configs: bool) -> dict[str, ConfigEntry]:
    entries = admin.describe_configs(resource_of(which), documentation=True)
    return {key: entry for key, entry in sorted(entries.items()) if all_configs or not entry.is_default}


def _changes(entry: ConfigEntry) -> str:
    return "at a restart" if entry.read_only else "while it runs"


def as_object(which: str, entries: dict[str, ConfigEntry]) -> dict[str, Any]:
    """Returns the settings of a broker as JSON output shows them."""
    return {
        "broker": which if which == DEFAULT else int(which),
        "configs": {
            key: {
                "value": entry.value,
                "source": entry.source,
                "set_by": entry.set_by,
                "read_only": entry.read_only,
                "sensitive": entry.sensitive,
                "synonyms": [synonym._asdict() for synonym in entry.synonyms],
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

A change takes effect at once and survives restarts. 'tidemill config keys' shows which keys can change while
a broker runs ("per-broker", "cluster-wide"); the others are set in the configuration file of the broker.""",
)
@click.argument("broker", metavar="BROKER", type=BrokerOrDefault(), shell_complete=name_completion.brokers)
@click.option(
    "-s",
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key; can be repeated.",
    shell_complete=name_completion.run_time_settings,
)
@unset_option("the value that applies without this setting", name_completion.run_time_keys)
@click.option("--dry-run", is_flag=True, help="Validate the change, but do not apply it.")
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
    """Change settings while brokers run. BROKER is an id, or 'default' for all brokers."""
    from tidemill.model.similar_names import did_you_mean

    changes = changes_of(settings, removed)
    if not any(changes):
        raise click.UsageError("nothing to change: give --set or --unset")
    resource = resource_of(broker)
    with target.admin() as admin:
        if removed:
            own = "all brokers" if broker == DEFAULT else "broker"
            entries = admin.describe_configs(resource)
            held = {
                key
                for key, entry in entries.items()
                if own in (entry.source, *(s.source for s in entry.synonyms))
            }
            for key in removed:
                if key not in held:
                    raise click.ClickException(
                        f"--unset {key}: {display_name(broker)} has no such setting made at run time; "
                        f"'tidemill broker describe {broker}' shows those it has{did_you_mean(key, held)}"
                    )
        admin.alter_configs(resource, changes.wanted, remove=removed, validate_only=dry_run)
    if as_json:
        document = {"broker": broker if broker == DEFAULT else int(broker), "set": changes.wanted}
        print_json({**document, "unset": list(removed), "changed": not dry_run})
        return
    done(f"{display_name(broker)}: {'would have ' if dry_run else ''}{', '.join(changes.descriptions)}")


@command.command(
    "unregister",
    epilog="""\b
Examples:
  tidemill cluster decommission 4             moves all replicas off broker 4
  tidemill broker unregister 4                after broker 4 was stopped for good

The deletion of a topic waits for every broker with a replica, including brokers that are down.""",
)
@click.argument("broker", metavar="BROKER", type=WholeNumber(0, INT_MAX))
@target_options
def unregister(broker: int, target: Target) -> None:
    """Unregister a broker that will not return.

    Topic deletions no longer wait for it. The broker must be stopped. 'tidemill cluster remove' does the same
    for brokers of 'tidemill cluster up'.
    """
    with target.admin() as admin:
        admin.unregister_broker(broker)
    done(f"unregistered broker {broker}")

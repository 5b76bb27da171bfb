"""``tidemill config``: lists every configuration key, and checks the configuration of a broker."""

from __future__ import annotations

import os
from typing import Any

import click

from tidemill.cli.options import config_file_option, pairs
from tidemill.cli.output import INDENT, console, json_option, on_terminal, print_json, print_table
from tidemill.cli.setting_options import broker_settings_option
from tidemill.cli.table_layout import wrap
from tidemill.model.configs import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS, BrokerConfig, Key
from tidemill.model.configs.config_def import READ_ONLY, TYPE_NAMES
from tidemill.model.similar_names import did_you_mean

SCOPES = {"broker": BROKER_KEYS, "topic": TOPIC_KEYS, "group": GROUP_KEYS}


@click.group("config")
def command() -> None:
    """List every configuration key, and check a configuration."""


@command.command(
    "keys",
    epilog="""\b
Examples:
  tidemill config keys                    broker and topic keys that take effect
  tidemill config keys --all --json       all keys, for programs
  tidemill config keys retention          keys with 'retention' in their names
  tidemill config keys --markdown         the page docs/configuration.md""",
)
@click.argument("part", default="")
@click.option("--scope", type=click.Choice([*SCOPES]), help="List only keys of this scope.")
@click.option("--all", "all_keys", is_flag=True, help="Also list keys without effect, with the reason.")
@click.option("--markdown", is_flag=True, help="Print the documentation page.")
@json_option
def keys(part: str, scope: str | None, all_keys: bool, markdown: bool, as_json: bool) -> None:
    """List configuration keys with PART in their names."""
    if markdown:
        from tidemill.cli.config_page import page

        click.echo(page(), nl=False)
        return
    chosen = [
        key
        for name, table in SCOPES.items()
        if scope in (None, name)
        for key in table.values()
        if part.lower() in key.name and (all_keys or as_json or part or key.takes_effect)
    ]
    if as_json:
        print_json([as_object(key) for key in chosen])
        return
    if on_terminal():
        width = console().width
        for key in chosen:
            _print_key(key, width)
        if not chosen:
            names = [name for table in SCOPES.values() for name in table]
            click.secho(f"no key has {part!r} in its name{did_you_mean(part, names)}", dim=True)
    else:
        columns = ["key", "scope", "type", "default", "allowed", "changes", "effect", "meaning"]
        print_table(columns, [_row(key) for key in chosen])
    hidden = sum(not key.takes_effect for table in SCOPES.values() for key in table.values())
    if on_terminal() and not all_keys and not part:
        click.secho(f"{hidden} known keys have no effect here; --all shows them, with the reason.", dim=True)


def _print_key(key: Key, width: int) -> None:
    """Prints a key for people: its facts on one line, its meaning below."""
    default = key.render(key.default)
    facts = [
        TYPE_NAMES[key.type],
        "no default" if default is None else f"default {default or '(empty)'}",
        *([f"allowed is {key.allowed_text()}"] if key.allowed else []),
        *([f"changes {key.dynamic}"] if key.dynamic != READ_ONLY else []),
    ]
    scope = "" if key.scope == "broker" else f" ({key.scope})"
    head = f"{key.name}{scope}  "
    details = "; ".join(facts)
    lines = wrap(head + details, width)
    if not lines[0].startswith(head):
        lines = [head, details]
    click.echo(click.style(head, bold=True) + click.style(lines[0][len(head) :], dim=True))
    for line in wrap(" ".join(lines[1:]), width - INDENT) if lines[1:] else ():
        click.secho(" " * INDENT + line, dim=True)
    for line in wrap(key.doc, width - INDENT):
        click.echo(" " * INDENT + line)
    if not key.takes_effect:
        for line in wrap(key.effect, width - INDENT):
            click.secho(" " * INDENT + line, fg="yellow")


def _row(key: Key) -> list[str]:
    return [
        key.name,
        key.scope,
        TYPE_NAMES[key.type],
        key.render(key.default) or "",
        key.allowed_text() if key.allowed else "",
        key.dynamic,
        key.effect or "yes",
        key.doc,
    ]


def as_object(key: Key) -> dict[str, Any]:
    """Returns a key as JSON output shows it."""
    return {
        "name": key.name,
        "scope": key.scope,
        "type": TYPE_NAMES[key.type],
        "default": key.render(key.default),
        "former_default": key.former_default or None,
        "allowed": key.allowed_text(),
        "changes": key.dynamic,
        "takes_effect": key.takes_effect,
        "reason": key.effect or None,
        "doc": key.doc,
    }


@command.command("check")
@config_file_option
@broker_settings_option
@json_option
def check(config_file: str | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Check the configuration that 'serve' would use.

    It comes from --config, environment and --set. Shows each set key and its source. A configuration that
    'serve' refuses is refused with the same message. Ports, directories and ZooKeeper are not touched.
    """
    from tidemill.server.process import check_config

    pairs("--set", sets)
    config = BrokerConfig.from_sources(config_file, sets, os.environ)
    check_config(config)
    given = [name for name in BROKER_KEYS if config.is_set(name)]
    if as_json:
        print_json(
            {
                "set": {n: {"value": config.rendered(n), "by": config.provenance(n)} for n in given},
                "listeners": [str(listener) for listener in config.listeners()],
                "advertised_listeners": [str(listener) for listener in config.advertised_listeners()],
                "log_dirs": list(config.log_dirs()),
                "warnings": list(config.warnings),
                "notes": list(config.notes),
            }
        )
        return
    rows = [
        [
            name,
            config.rendered(name) if not BROKER_KEYS[name].sensitive else "(hidden)",
            config.provenance(name),
            BROKER_KEYS[name].effect,
        ]
        for name in given
    ]
    columns = ["key", "value", "set by", "effect"]
    print_table(columns, rows, settings=True, empty="nothing is set: every key has its default")
    for warning in config.warnings:
        click.secho(f"warning: {warning}", fg="yellow", err=True)

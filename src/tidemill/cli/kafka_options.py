"""Options of Apache Kafka's tools, and what they are called here: for who types them by habit."""

from __future__ import annotations

from typing import Final

import click

EQUIVALENTS: Final[dict[str, tuple[str, ...]]] = {
    "--config": ("--set KEY=VALUE", "--command-config FILE"),
    "--add-config": ("--set KEY=VALUE",),
    "--delete-config": ("--unset KEY",),
    "--override": ("--set KEY=VALUE",),
    "--producer-property": ("-X KEY=VALUE",),
    "--consumer-property": ("-X KEY=VALUE",),
    "--command-property": ("-X KEY=VALUE",),
    "--producer.config": ("--command-config FILE",),
    "--consumer.config": ("--command-config FILE",),
    "--producer-props": ("-X KEY=VALUE",),
    "--broker-list": ("--bootstrap-server HOST:PORT",),
    "--zookeeper": ("--bootstrap-server HOST:PORT",),
    "--replica-assignment": ("--replication-factor N",),
    "--num-records": ("--messages N",),
    "--record-size": ("--size BYTES",),
    "--throughput": ("--rate N",),
    "--timeout-ms": ("--timeout TIME",),
    "--include": ("--pattern REGEX",),
    "--whitelist": ("--pattern REGEX",),
    "--isolation-level": ("--read-committed",),
    "--compression-codec": ("--compression CODEC",),
    "--request-required-acks": ("--acks all|1|0",),
    "--to-earliest": ("--to earliest",),
    "--to-latest": ("--to latest",),
}
"""Each option, and what a command may have instead; the first that it has is named."""

ARGUMENTS: Final = ("--topic", "--topics", "--group", "--entity-name", "--broker", "--brokers", "--files")
"""Options of things that are named without an option here."""


def explained(problem: click.UsageError) -> click.UsageError:
    """The problem with what Kafka's option is called here, in the place of options that are written alike."""
    if not isinstance(problem, click.NoSuchOption) or problem.ctx is None:
        return problem
    told = _equivalent(problem.option_name, problem.ctx)
    return (
        click.UsageError(f"No such option {problem.option_name!r}. {told}", problem.ctx) if told else problem
    )


def _equivalent(option: str, context: click.Context) -> str:
    """What the command has instead of an option of Kafka's; empty where nothing is."""
    command = context.command
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for equivalent in EQUIVALENTS.get(option, ()):
        if equivalent.partition(" ")[0] in known:
            return f"Use {equivalent}."
    if option in ARGUMENTS and any(isinstance(parameter, click.Argument) for parameter in command.params):
        usage = " ".join(command.collect_usage_pieces(context)[1:])
        return f"It stands without an option: {context.command_path} {usage}"
    return ""

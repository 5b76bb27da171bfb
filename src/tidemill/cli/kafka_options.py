"""Options of Apache Kafka's tools and their equivalents here."""

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
    "--compression-codec": ("--compression CODEC",),
    "--request-required-acks": ("--acks all|1|0",),
    "--to-earliest": ("--to earliest",),
    "--to-latest": ("--to latest",),
}
"""Maps each option to its equivalents; the first that a command has is suggested."""

ARGUMENTS: Final = ("--topic", "--topics", "--group", "--entity-name", "--broker", "--brokers", "--files")
"""Options of Kafka whose values are plain arguments here."""


def with_equivalent(problem: click.UsageError) -> click.UsageError:
    """Returns the error with the equivalent of Kafka's option, instead of click's similar option names."""
    if not isinstance(problem, click.NoSuchOption) or problem.ctx is None:
        return problem
    hint = _equivalent(problem.option_name, problem.ctx)
    return (
        click.UsageError(f"No such option {problem.option_name!r}. {hint}", problem.ctx) if hint else problem
    )


def _equivalent(option: str, context: click.Context) -> str:
    """Returns a hint at the equivalent of an option of Kafka; empty where the command has none."""
    command = context.command
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for equivalent in EQUIVALENTS.get(option, ()):
        if equivalent.partition(" ")[0] in known:
            return f"Use {equivalent}."
    if option in ARGUMENTS and any(isinstance(parameter, click.Argument) for parameter in command.params):
        usage = " ".join(command.collect_usage_pieces(context)[1:])
        return f"It is a plain argument: {context.command_path} {usage}"
    return ""

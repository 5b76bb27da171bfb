"""The ``tidemill`` command. The module of each subcommand is imported when it runs.

Exit codes: 0 done; 1 failed, with one line on stderr; 2 wrong usage; 128 + its number for a signal (130 for
ctrl-C); 141 the reader of the output has gone.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tidemill import __version__, _build_mode, _interrupts

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FAILED, USAGE, PIPE_BROKEN = 1, 2, 141

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve", "Run a broker."),
    "topic": ("topic", "Create, list, describe, alter and delete topics."),
    "cluster": ("cluster", "Run a cluster on this machine; check and balance any cluster."),
    "reassign": ("reassign", "Move partitions between brokers, with plans in Kafka's JSON format."),
    "broker": ("broker", "List brokers, and describe and alter their settings."),
    "produce": ("produce", "Send messages from standard input or a file."),
    "consume": ("consume", "Print messages of topics."),
    "group": ("group", "List, describe, reset and delete consumer groups."),
    "transaction": ("transaction", "List, describe and abort transactions."),
    "log": ("log", "Inspect, check, recover and exchange data directories."),
    "pipeline": ("pipeline", "Load topics with Spark, and publish files to topics."),
    "perf": ("perf", "Measure producing, consuming and latency."),
    "config": ("config", "List every configuration key, and check a configuration."),
    "completion": ("completion", "Print the completion script for a shell."),
}
"""Maps each command to its module in this package, and its line in the help."""

MISSING_EXTRAS = {
    "pyspark": "pipeline",
    "pandas": "pipeline",
    "matplotlib": "pipeline",
    "pyarrow": "arrow",
    "kazoo": "zookeeper",
}


class OutputClosed(Exception):
    """The reader of the output has gone. (Click would turn a BrokenPipeError into exit code 1.)"""


class LazyGroup(click.Group):
    """A group whose commands are named in COMMANDS, and imported when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"tidemill.cli.{COMMANDS[cmd_name][0]}")
        command = module.command
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__}.command is no command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from tidemill.model.similar_names import most_similar

            found = most_similar(args[0], COMMANDS)
            hint = f" Did you mean {found!r}?" if found else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            outcome = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise OutputClosed from None
        return outcome

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=line)
            for name, (_, line) in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    mode = "compiled data path" if _build_mode.compiled else f"plain Python data path: {_build_mode.reason}"
    python = ".".join(map(str, sys.version_info[:3]))
    click.echo(f"tidemill {__version__} ({mode}; Python {python})")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def command() -> None:
    """Tidemill: a commit log that speaks the Kafka protocol.

    \b
    tidemill serve                                        run a broker on port 9092
    tidemill topic create hello                           in another terminal: create a topic,
    echo 'good morning' | tidemill produce hello          send a message,
    tidemill consume hello --from-beginning               and print it
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and ends the process with its exit code."""
    _open_closed_streams()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _open_closed_streams() -> None:
    """Opens the standard streams that a shell closed (``>&-``), so that no socket or file gets their numbers.

    Reading from such an input and writing to such an output fails with EBADF, as for cat. Messages on such a
    stderr are lost.
    """
    for name, flags, mode in (
        ("stdin", os.O_WRONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),
        ("stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            stream = open(os.open(os.devnull, flags), mode, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)


def run(arguments: Sequence[str]) -> int:
    """Runs one command line. Returns its exit code."""
    try:
        outcome = command.main(list(arguments), prog_name="tidemill", standalone_mode=False)
        return outcome if isinstance(outcome, int) else 0
    except click.exceptions.Exit as problem:
        return problem.exit_code
    except click.UsageError as problem:
        from tidemill.cli.kafka_options import with_equivalent

        with_equivalent(problem).show()
        return USAGE
    except click.ClickException as problem:
        _print_error(_with_notes(problem.format_message(), problem))
        return FAILED
    except (click.Abort, KeyboardInterrupt):
        return _interrupts.exit_code(arguments)
    except OutputClosed:
        # The rest of the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return PIPE_BROKEN
    except ImportError as problem:
        extra = MISSING_EXTRAS.get((problem.name or "").partition(".")[0])
        if extra is None:
            raise
        _print_error(f"this needs {problem.name}, which is not installed: pip install 'tidemill[{extra}]'")
        return FAILED
    except Exception as problem:
        if isinstance(problem, OSError) and (_output_is_lost() or _is_full(problem, arguments)):
            _print_error(f"standard output cannot be written: {problem.strerror}")
            return FAILED
        if os.environ.get("TIDEMILL_TRACEBACK") or not _is_expected(problem):
            raise
        _print_error(_with_notes(_one_line(problem), problem))
        return FAILED


def _is_expected(problem: Exception) -> bool:
    """Returns whether the text of the exception explains the problem to a user."""
    from tidemill.model.errors import TidemillError

    return isinstance(problem, (TidemillError, OSError))


def _is_full(problem: OSError, arguments: Sequence[str]) -> bool:
    """Returns whether there is no space left, in a command that writes to standard output only."""
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and problem.filename is None
    return full and arguments[0] not in ("log", "pipeline")


def _output_is_lost() -> bool:
    """Returns whether standard output cannot be written; its remaining buffer is dropped then."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return True
    return False


def _one_line(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.strerror:
        from tidemill.model.os_error_texts import fault_of

        fault = fault_of(problem)
        return f"{problem.filename} cannot be used: {fault}" if problem.filename else fault
    return " ".join(str(problem).split())


def _with_notes(text: str, problem: Exception) -> str:
    """Returns the text followed by the notes of the exception, such as the progress of the command."""
    notes = "; ".join(getattr(problem, "__notes__", ()))
    return f"{text} ({notes})" if notes else text


def _print_error(text: str) -> None:
    click.echo(f"tidemill: {text}", err=True)

"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from tidemill.cli import suggest
from tidemill.model.errors import ConfigError
from tidemill.model.secrets import HIDDEN, is_secret

if TYPE_CHECKING:
    # Only newer versions of click know what a parameter's type makes.
    FloatType = click.ParamType[float]
    WholeType = click.ParamType[int]
    TextType = click.ParamType[str]
else:
    FloatType = WholeType = TextType = click.ParamType

CONFIG_FILE_VARIABLE = "TIDEMILL_CONFIG"

F = TypeVar("F", bound=Callable[..., Any])

API_TIMEOUT_S = 15
"""How long a command waits for the cluster before it gives up, unless -X says otherwise."""

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
SHORT_MAX = 2**15 - 1
"""What the protocol's numbers can hold."""

DIGITS_MAX = 19
"""No 64-bit number has more."""

CONNECT_TIMEOUT_S = 3
"""How long the first look at a broker takes at most; a slow one is left to the client."""

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Existing(click.Path):
    """A file or a directory that is there. ``what`` says which is meant, for messages."""

    def __init__(self, what: str, *, directory: bool | None = None) -> None:
        super().__init__()
        self.what = what
        self.directory = directory
        """True: only a directory will do; False: only what is none; None: either."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = str(value)
        if not path:
            self.fail(f"the name is empty: name {self.what}", param, ctx)
        if not os.path.exists(path):
            how = "is a link to what is not there" if os.path.islink(path) else "is not there"
            self.fail(f"{path} {how}: name {self.what}", param, ctx)
        if self.directory is not None and os.path.isdir(path) != self.directory:
            how = "is no directory" if self.directory else "is a directory"
            self.fail(f"{path} {how}: name {self.what}", param, ctx)
        if not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)):
            self.fail(f"{path} cannot be read: change its rights, or name {self.what}", param, ctx)
        return path


class JsonFile(Existing):
    """A file, or ``-`` for standard input."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}, or - for standard input", directory=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return "-" if value == "-" else super().convert(value, param, ctx)


class Target:
    """The cluster a command talks to, and the client configuration it uses."""

    def __init__(self, bootstrap: str, config: dict[str, Any]) -> None:
        self.bootstrap = bootstrap
        self._config = config

    def config(self, **defaults: Any) -> dict[str, Any]:
        """The configuration of a client: ``defaults`` (dots as underscores) below what the user gave."""
        timeout = API_TIMEOUT_S * 1000
        merged: dict[str, Any] = {"default.api.timeout.ms": timeout, "client.id": "tidemill-cli"}
        merged.update({name.replace("_", "."): value for name, value in defaults.items()})
        merged.update(self._config)
        return merged

    def check_reachable(self) -> None:
        """Says at once when nobody listens there, where a client would go on trying for a while."""
        from tidemill.client import waits
        from tidemill.client.config import parse_address
        from tidemill.client.waits import Kind

        failures = []
        for text in self.bootstrap.split(","):
            try:
                host, port = parse_address(text.strip())
            except ConfigError as problem:
                raise click.UsageError(f"--bootstrap-server {self.bootstrap}: {problem}") from None
            try:
                with waits.waiting(Kind.CLUSTER, f"{text.strip()} has not taken the connection"):
                    socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            except TimeoutError:
                return
            except OSError as problem:
                failures.append(f"{text.strip()}: {problem.strerror or problem}")
            else:
                return
        raise click.ClickException(
            f"no broker can be reached ({'; '.join(failures)}): start one with 'tidemill serve', or name "
            "another with -b HOST:PORT"
        )


bootstrap_option = click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    envvar="TIDEMILL_BOOTSTRAP",
    default="localhost:9092",
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    help="Brokers to ask first, apart by commas.",
)
"""The same for every command that asks a cluster. ``bootstrap.servers`` of its client keys goes before the
default."""


client_file_option = click.option(
    "--command-config",
    "client_file",
    envvar="TIDEMILL_COMMAND_CONFIG",
    show_envvar=True,
    metavar="FILE",
    type=Existing("a properties file of client keys", directory=False),
    help="Properties file of client keys, as logins.",
)
"""The same for every command that asks a cluster. A file keeps secrets out of the list of processes."""

config_file_option = click.option(
    "-c",
    "--config",
    "config_file",
    envvar=CONFIG_FILE_VARIABLE,
    show_envvar=True,
    metavar="FILE",
    type=Existing("a properties file", directory=False),
    help="Properties file, as Kafka's.",
)
"""The same for what starts a broker and for what checks a start."""

broker_settings_option = click.option(
    "-s",
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one key; can be repeated.",
    shell_complete=suggest.broker_settings,
)

topic_settings_option = click.option(
    "-s",
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one topic key.",
    shell_complete=suggest.topic_settings,
)


def target_options(function: F) -> F:
    """Adds ``--bootstrap-server``, ``--command-config`` and ``-X``; the command gets ``target``."""

    def made(
        *arguments: Any, bootstrap: str, client_file: str | None, client_sets: tuple[str, ...], **rest: Any
    ) -> Any:
        from tidemill.cli.waiting import watching

        settings = client_settings(client_file, client_sets)
        target = Target(brokers_of(click.get_current_context(), bootstrap, settings), settings)
        try:
            with watching():
                target.check_reachable()
                return function(*arguments, target=target, **rest)
        except ConfigError as problem:
            # Of keys that do not go together, which only the client that they are for can tell.
            raise click.UsageError(str(problem)) from None

    made.__name__ = function.__name__
    made.__doc__ = function.__doc__
    # Options that the decorators below this one have collected so far.
    made.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option(
            "-X",
            "client_sets",
            multiple=True,
            metavar="KEY=VALUE",
            help="Set one client key; can be repeated.",
        ),
        client_file_option,
        bootstrap_option,
    ):
        made = option(made)
    return made  # type: ignore[return-value]


def client_settings(config_file: str | None, settings: tuple[str, ...]) -> dict[str, Any]:
    """Client keys of a properties file and of ``KEY=VALUE`` texts, the texts going before the file."""
    found: dict[str, Any] = {}
    if config_file is not None:
        from tidemill.client.config import SERIALIZERS
        from tidemill.model.configs.properties import read_properties

        for line in read_properties(config_file):
            if line.key in SERIALIZERS:
                continue
            _check_client_setting(f"{config_file}:{line.line}", line.key, line.value)
            found[line.key] = line.value
    given = pairs("-X", settings)
    for name, value in given.items():
        _check_client_setting("-X", name, value)
    found.update(given)
    return found


def brokers_of(ctx: click.Context, bootstrap: str, settings: Mapping[str, Any]) -> str:
    """The brokers to ask first: ``bootstrap``, or those of the client keys where nobody has named any."""
    if ctx.get_parameter_source("bootstrap") not in (None, ParameterSource.DEFAULT):
        return bootstrap
    found: str = settings.get("bootstrap.servers") or settings.get("metadata.broker.list") or bootstrap
    return found


def _check_client_setting(where: str, name: str, value: str) -> None:
    from tidemill.client.config import check_setting

    try:
        check_setting(name, value)
    except ConfigError as problem:
        raise click.UsageError(f"{where}: {problem}") from None


def pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """``("a=1", "b=2")`` as a mapping; a usage error for a text without ``=``."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{option} {HIDDEN if is_secret(text) else text}: it must be KEY=VALUE")
        found[key.strip()] = value
    return found


class Whole(click.IntRange):
    """A whole number within bounds. (Click says "integer range" to who gives something else.)"""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is no whole number", param, ctx)
        low, high = self.min, self.max
        if (low is not None and number < low) or (high is not None and number > high):
            bounds = f"{low} to {high}" if high is not None else f"{low} or more"
            self.fail(f"{number} is out of range: allowed is {bounds}", param, ctx)
        return number


class StateFile(click.Path):
    """A regular file or none, in a directory that is there and can be written to."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = str(value)
        folder = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path):
            self.fail(f"{path} is a directory: name a file in it", param, ctx)
        if not os.path.isdir(folder):
            self.fail(f"{folder} is no directory: make it first, or name another file", param, ctx)
        if not os.access(path if os.path.exists(path) else folder, os.W_OK):
            self.fail(f"{path} cannot be written: name another file, or change the rights", param, ctx)
        return path


class Descriptor(Whole):
    """A descriptor that is open for writing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        import fcntl

        try:
            mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        except (OSError, OverflowError):
            self.fail(f"descriptor {number} is not open; a shell opens it with {number}>FILE", param, ctx)
        if mode == os.O_RDONLY:
            self.fail(f"descriptor {number} is open for reading only", param, ctx)
        return number


def parse_duration(text: str) -> float:
    """Seconds of ``500ms``, ``90s``, ``10m``, ``2h``, ``7d``, ``1w``; a bare number is seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?", text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is no duration: use 500ms, 90s, 10m, 2h, 7d or 1w")
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def parse_moment(text: str) -> int:
    """Milliseconds since 1970 of a moment.

    ``2026-03-01``, ``2026-03-01T12:00`` (local time, unless it names a zone), ``10m`` (that long ago), or
    milliseconds as a number of at least 11 digits.
    """
    from datetime import datetime

    text = text.strip()
    if text.isascii() and text.isdigit() and 11 <= len(text) <= DIGITS_MAX:
        return min(int(text), LONG_MAX)
    if text == "now":
        return int(time.time() * 1000)
    try:
        if re.fullmatch(r"\d+(?:\.\d+)?\s*(ms|s|m|h|d|w)", text):
            return max(0, int((time.time() - parse_duration(text)) * 1000))
        # A moment before 1970 would mean something else to a broker.
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is no moment: use 2026-03-01T12:00 (local time, or with a zone as +01:00), "
            "10m for ten minutes ago, or milliseconds since 1970"
        ) from None


class Duration(FloatType):
    """A duration in seconds, for an option."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float | int):
            return float(value)
        try:
            return parse_duration(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)


class Moment(WholeType):
    """A moment in ms since 1970, for an option."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_moment(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)


def unescape(text: str) -> str:
    """``\\t``, ``\\n``, ``\\0``, ``\\xNN`` and ``\\\\`` in a separator, as shells find hard to pass."""
    names = {"t": "\t", "n": "\n", "r": "\r", "0": "\0", "\\": "\\"}

    def replaced(match: re.Match[str]) -> str:
        if match[2]:
            return chr(int(match[2], 16))
        return names[match[1]]

    return re.sub(r"\\(?:([tnr0\\])|x([0-9a-fA-F]{2}))", replaced, text)

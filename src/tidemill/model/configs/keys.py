"""What a configuration key is: its type, what it allows, when it may change, and whether it does anything.

The tables beside this module hold one row a key; :class:`Key` gives a row its meaning. Values are Kafka's:
plain numbers (bytes, milliseconds), ``true`` and ``false``, lists with commas. ``-1`` stands for "no limit"
where a key says so, never by itself.
"""

from __future__ import annotations

from typing import TypeAlias

from tidemill.model.configs.formats import ALLOWED_TEXT, MESSAGE_FORMAT, is_format_version
from tidemill.model.configs.replica_lists import REPLICAS, REPLICAS_TEXT, is_replica_list
from tidemill.model.errors import ConfigError

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None
"""A parsed value. Lists are tuples; None is "not set"."""

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = range(1, 10)
"""Types, with the numbers that DescribeConfigs gives them."""

TYPE_NAMES = ("", "boolean", "string", "int", "short", "long", "double", "list", "class", "password")
INT_MAX, LONG_MAX, DOUBLE_MAX = 2**31 - 1, 2**63 - 1, 1.7976931348623157e308
_BITS = {INT: 31, SHORT: 15, LONG: 63}

READ_ONLY, PER_BROKER, CLUSTER_WIDE = "read-only", "per-broker", "cluster-wide"
"""When a broker's key may change: at a restart, on one broker while it runs, or on all at once."""

MIN_INSYNC = "min.insync.replicas"
"""The key on whose value the brokers of a cluster have to agree (KIP-966)."""

YES = ""
"""The key takes effect. Everything else is a reason why it does not."""

# Features that come with a later version.
_LATER = "comes with a later version: "
BETWEEN_BROKERS = _LATER + "TLS and SASL between brokers; they speak PLAINTEXT"
SECURITY = _LATER + "TLS, SASL and access lists"
KERBEROS = _LATER + "SASL by Kerberos"
OAUTH = _LATER + "SASL by OAuth tokens"
TOKENS = _LATER + "delegation tokens"
QUOTAS = _LATER + "quotas and traffic shares"
TRANSACTIONS = _LATER + "transactions"
CONSUMER_PROTOCOL = _LATER + "the consumer group protocol of KIP-848; the classic one is served"
OLD_CONSUMER = _LATER + "consumers that keep their offsets in ZooKeeper"
PROVIDERS = _LATER + "placeholders in values; they are taken as they stand"
REBOOTSTRAP = _LATER + "beginning anew from bootstrap.servers; known brokers are tried for ever"

# What is not built, because it has no place here.
LOOP = "no effect: one event loop does this work, there are no threads to count"
CLEANERS = "no effect: one process beside the broker compacts, one log after the other"
NEWEST_STATE = "no effect: what a broker has to know is kept by partition, the newest state of each"
ONE_SETUP = "no effect: a connection that fails is tried again at a fixed distance"
SYSTEM_BUFFER = "no effect: the system sizes the buffers of connections between brokers"
SERIAL = "no effect: requests are handled as they are read, none queue between threads"
JAVA = "no effect: it belongs to the Java runtime or names a Java class"
KRAFT = "no effect: metadata is kept in the coordination store, not in a KRaft quorum"
REMOTE = "no effect: there is no tiered storage"
SHARE = "no effect: share groups are not served"
STREAMS = "no effect: streams groups are not served"
TELEMETRY = "no effect: clients are not asked for their metrics"
STABLE = "no effect: versions and keys in the making are not served"
EACH_PIECE = "no effect: the rate of moves is kept with every piece of 1 MB, not over samples"
LAG_TIME = "no effect: a follower's lag is measured in time, by replica.lag.time.max.ms"
PURGE = "no effect: a request that is done waiting is taken out at once"
COUNTERS = "no effect: metrics are plain counters; whoever reads them makes rates of them"
ALL_ACKS = "no effect: an offset commit always waits for every in-sync replica"
PREALLOCATION = "no effect: appends are sequential, and file systems allocate late for them"
UNCOMPRESSED = "no effect: offset commits are stored uncompressed"
OWN_PIECES = "no effect: offsets are loaded in pieces of a fixed size"
WITH_RETENTION = "no effect: producers are looked at with retention, every log.retention.check.interval.ms"
DNS = "no effect: all addresses of a name are tried"
SMALL_METADATA = "no effect: metadata of all topics in use is kept"
BYTES = "no effect: keys and values are bytes here, the caller turns them into objects"
STICKY = "no effect: records without a key go to one partition a batch, whatever the broker's speed"
CHUNKS = "no effect: one fetch a broker is read ahead"
POLL_TIMEOUT = "no effect: poll() takes its timeout as an argument"
ALL_TOPICS = "no effect: compression holds for all topics of a producer"

Row: TypeAlias = tuple[str, int, Value, str, str, str, str]
"""name, type, default, what is allowed, when it may change, effect, description."""


class Key:
    """One configuration key.

    ``allowed`` is a small language. Numbers: ranges and single values, with commas (``1..``, ``0..1``,
    ``-1,1..9``). Texts and list members: choices with bars (``compact|delete``); a ``~`` before them means
    that upper and lower case are the same.
    """

    __slots__ = ("allowed", "default", "doc", "dynamic", "effect", "former_default", "name", "scope", "type")

    def __init__(self, row: Row, scope: str, former_default: str = "") -> None:
        self.name, self.type, self.default, self.allowed, self.dynamic, self.effect, self.doc = row
        self.scope = scope
        self.former_default = former_default

    def __repr__(self) -> str:
        return f"Key({self.scope} {self.name})"

    @property
    def takes_effect(self) -> bool:
        """Whether setting the key changes anything."""
        return self.effect == YES

    @property
    def sensitive(self) -> bool:
        """Whether the value is a secret that is never shown."""
        return self.type == PASSWORD

    def parse(self, text: str) -> Value:
        """The value that ``text`` stands for; ConfigError names key, value and what is allowed."""
        text = text.strip()
        kind = self.type
        if kind in _BITS:
            return self._check_number(text, self._whole(text))
        if kind == DOUBLE:
            try:
                return self._check_number(text, float(text))
            except ValueError:
                raise self._bad(text) from None
        if kind == BOOLEAN:
            lowered = text.lower()
            if lowered not in ("true", "false"):
                raise self._bad(text)
            return lowered == "true"
        if kind == LIST:
            members = tuple(member.strip() for member in text.split(",")) if text else ()
            if self.allowed == REPLICAS:
                members = tuple(filter(None, members))
                if not is_replica_list(members):
                    raise self._bad(text)
                return members
            chosen = tuple(self._check_choice(text, member) for member in members if member)
            # As Kafka since 4.2: what comes twice in a list of choices counts once.
            return tuple(dict.fromkeys(chosen)) if self.allowed else chosen
        return self._check_choice(text, text)

    def render(self, value: Value) -> str | None:
        """``value`` as it would stand in a properties file; None when it is not set."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def allowed_text(self) -> str:
        """What the key allows, for people."""
        if self.type == BOOLEAN:
            return "true or false"
        if self.type in _BITS or self.type == DOUBLE:
            what = "a number" if self.type == DOUBLE else "a whole number"
            return f"{what}, {_ranges_text(self.allowed)}" if self.allowed else what
        if not self.allowed:
            return "a list with commas" if self.type == LIST else "a text"
        if self.allowed == MESSAGE_FORMAT:
            return ALLOWED_TEXT
        if self.allowed == REPLICAS:
            return REPLICAS_TEXT
        choices = self.allowed.lstrip("~").split("|")
        text = ", ".join(choices[:-1]) + " or " + choices[-1] if len(choices) > 1 else choices[0]
        return f"a list of {text}" if self.type == LIST else text

    def _whole(self, text: str) -> int:
        digits = text[1:] if text[:1] in ("+", "-") else text
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 30:
            raise self._bad(text)
        number = int(text)
        limit = 1 << _BITS[self.type]
        if not -limit <= number < limit:
            bound = f"at most {limit - 1}" if number > 0 else f"at least {-limit}"
            raise ConfigError(f"{self._bad(text)}, and {bound} ({_BITS[self.type] + 1} bits)")
        return number

    def _check_number(self, text: str, number: int | float) -> int | float:
        if self.allowed and not any(_holds(part, number) for part in self.allowed.split(",")):
            raise self._bad(text)
        return number

    def _check_choice(self, text: str, member: str) -> str:
        if not self.allowed:
            return member
        if self.allowed.startswith("~"):
            if member.lower() in self.allowed[1:].lower().split("|"):
                return member
        elif self.allowed == MESSAGE_FORMAT:
            if is_format_version(member):
                return member
        elif member in self.allowed.split("|"):
            return member
        raise self._bad(text)

    def _bad(self, text: str) -> ConfigError:
        shown = "(hidden)" if self.sensitive else text
        return ConfigError(f"{self.name}={shown}: allowed is {self.allowed_text()}")


def _holds(part: str, number: int | float) -> bool:
    low, dots, high = part.partition("..")
    if not dots:
        return number == float(low)
    return (not low or number >= float(low)) and (not high or number <= float(high))


def _ranges_text(allowed: str) -> str:
    parts = []
    for part in allowed.split(","):
        low, dots, high = part.partition("..")
        if not dots:
            parts.append(low)
        elif not high:
            parts.append(f"{low} or more")
        else:
            parts.append(f"{low} to {high}")
    return " or ".join(parts)

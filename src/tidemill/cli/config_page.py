"""The page docs/configuration.md, made from the tables of :mod:`tidemill.model.configs`."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.model.configs import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS, Key
from tidemill.model.configs.keys import READ_ONLY, TYPE_NAMES

HEAD = """\
# Configuration

This page is made from the table in `src/tidemill/model/configs/` by `tidemill config keys --markdown`;
change it there.

A broker reads, each going before the next: what was set at run time (`tidemill broker alter`, or what else
sends AlterConfigs; of one broker before that of all), `--set key=value`, the environment
(`TIDEMILL_LOG_DIRS` is `log.dirs`; an empty variable counts as not set), the file of `--config` (Java's
properties syntax; Kafka's `server.properties` works), the default.
`tidemill config check --config FILE` shows what comes of them.

Numbers are plain: bytes, milliseconds. A key that nobody knows is named in a warning with its nearest
neighbour; a value that does not parse, or is out of range, stops the start. One that somebody
wrote to the store, of a topic or of brokers, is told as an error instead: the default holds, and no record is
deleted by it, until the setting is mended. Keys can be set for one listener as `listener.name.NAME.KEY`.

A configuration that asks for access control stops the start, as it is not served yet, and a broker that
passed it over would be open to everybody: `authorizer.class.name`, `super.users`,
`allow.everyone.if.no.acl.found=false`, `security.inter.broker.protocol` other than PLAINTEXT, and listeners
that speak SSL, SASL_PLAINTEXT or SASL_SSL, by their own name or by `listener.security.protocol.map`. The
error names key, value and next step. Keys of TLS and SASL without such a listener (`sasl.enabled.mechanisms`,
`ssl.keystore.location`, ...) have no effect, as in Kafka.

Group keys (of one group: `kafka-configs --entity-type groups`) are checked against the brokers'
`group.*.min.*` and `group.*.max.*`, kept, and told; they take effect with the group protocols that need them.

"Changes" says when a key can change: at a restart (read-only), on one broker while it runs (per-broker), on
all brokers at once (cluster-wide).
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, table in (("Broker", BROKER_KEYS), ("Topic", TOPIC_KEYS)):
        parts.append(f"\n## {title} keys\n\n" + _table(key for key in table.values() if key.takes_effect))
    parts.append(
        "\n## Keys without effect\n\nThey are accepted, so that a file can be taken over as it is.\n"
    )
    idle = [
        key
        for table in (BROKER_KEYS, TOPIC_KEYS, GROUP_KEYS)
        for key in table.values()
        if not key.takes_effect
    ]
    for reason in sorted({key.effect for key in idle}):
        names = ", ".join(
            f"`{key.name}`" + ("" if key.scope == "broker" else f" ({key.scope})")
            for key in idle
            if key.effect == reason
        )
        parts.append(f"\n**{reason[0].upper()}{reason[1:]}.** {names}\n")
    return "".join([*parts, *_clients()])


def _clients() -> Iterable[str]:
    """The clients' keys: the table of :mod:`tidemill.client.config`, other names, what is passed over."""
    from tidemill.client.config import ALIASES, GONE, KEYS, REQUIRED
    from tidemill.model.configs.clients import IDLE_CLIENT_KEYS

    yield "\n## Client keys\n\nOf `tidemill.client`, and of the command line (`-X`, `--command-config`), "
    yield "whose `-b` and TIDEMILL_BOOTSTRAP go before `bootstrap.servers`.\n\n"
    yield "| key | client | default | meaning |\n|---|---|---|---|\n"
    for key in KEYS.values():
        if key.default is REQUIRED:
            default = "(required)"
        elif key.default is None or key.default == "":
            default = ""
        elif isinstance(key.default, tuple):
            default = f"`{','.join(key.default)}`"
        else:
            default = f"`{str(key.default).lower() if isinstance(key.default, bool) else key.default}`"
        yield f"| `{key.name}` | {key.role} | {default} | {key.doc} |\n"
    yield "\nOther names that are understood: "
    yield ", ".join(f"`{old}` (`{new}`)" for old, new in sorted(ALIASES.items())) + ".\n"
    yield "\nNames that are refused, since leaving them out silently would surprise:\n\n"
    yield from (f"- `{name}`: {reason}\n" for name, reason in sorted(GONE.items()))
    yield "\nNames that are known and passed over:\n"
    for reason in sorted(set(IDLE_CLIENT_KEYS.values())):
        names = ", ".join(f"`{name}`" for name, why in IDLE_CLIENT_KEYS.items() if why == reason)
        yield f"\n**{reason[0].upper()}{reason[1:]}.** {names}\n"


def _table(keys: Iterable[Key]) -> str:
    lines = ["| key | type | default | allowed | changes | meaning |", "|---|---|---|---|---|---|"]
    for key in keys:
        default = key.render(key.default)
        shown = "" if default is None else f"`{default}`" if default else "(empty)"
        former = f" ({key.former_default})" if key.former_default else ""
        allowed = key.allowed_text() if key.allowed else ""
        changes = "" if key.dynamic == READ_ONLY else key.dynamic
        lines.append(
            f"| `{key.name}` | {TYPE_NAMES[key.type]} | {shown}{former} | {allowed} | {changes} | {key.doc} |"
        )
    return "\n".join(lines) + "\n"

"""Generates the page docs/configuration.md from the tables of :mod:`tidemill.model.configs`."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.model.configs import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS, Key
from tidemill.model.configs.config_def import READ_ONLY, TYPE_NAMES

HEAD = """\
# Configuration

This page is generated from the tables in `src/tidemill/model/configs/` and
`src/tidemill/client/config_keys.py` by `tidemill config keys --markdown`; change it there.

A broker reads these sources; each takes precedence over the next: settings made at run time (with `tidemill
broker alter`, or another client of AlterConfigs; those of one broker before those of all brokers),
`--set key=value`, the environment (`TIDEMILL_LOG_DIRS` is `log.dirs`; an empty variable counts as not set),
the file of `--config` (Java's properties syntax; Kafka's `server.properties` works), the default.
`tidemill config check --config FILE` shows the resulting values.

Numbers are plain: bytes, milliseconds. A warning names an unknown key and the known key with the most similar
name; a value that does not parse, or is out of range, stops the start. Such a value in the store, of a topic
or of brokers, is reported as an error instead: the default applies, and it deletes no records, until the
setting is corrected. Keys can be set for one listener as `listener.name.NAME.KEY`.

A configuration that asks for access control stops the start, because access control is not served yet, and a
broker that ignored the setting would be open to every client. Such settings are `authorizer.class.name`,
`super.users`, `allow.everyone.if.no.acl.found=false`, `security.inter.broker.protocol` other than PLAINTEXT,
and listeners of SSL, SASL_PLAINTEXT or SASL_SSL, by their own name or by `listener.security.protocol.map`.
The error names key, value and next step. Keys of TLS and SASL without such a listener
(`sasl.enabled.mechanisms`, `ssl.keystore.location`, ...) have no effect, as in Kafka.

Group keys (of one group: `kafka-configs --entity-type groups`) are checked against `group.*.min.*` and
`group.*.max.*` of the brokers, stored, and returned; they take effect with the group protocols that need
them.

"Changes" says when a key can change: at a restart (read-only), on one broker while it runs (per-broker), on
all brokers at once (cluster-wide).
"""


def page() -> str:
    """Returns the whole page."""
    parts = [HEAD]
    for title, table in (("Broker", BROKER_KEYS), ("Topic", TOPIC_KEYS)):
        parts.append(f"\n## {title} keys\n\n" + _table(key for key in table.values() if key.takes_effect))
    parts.append(
        "\n## Keys without effect\n\nThey are accepted, so that a configuration file of Kafka works "
        "unchanged.\n"
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
    """Yields the section of client keys: those that take effect, aliases, refused and ignored keys."""
    from tidemill.client.config_keys import ALIASES, GONE, IDLE_CLIENT_KEYS, KEYS, REQUIRED

    yield "\n## Client keys\n\nKeys of `tidemill.client` and of the command line (`-X`, `--command-config`), "
    yield "whose `-b` and TIDEMILL_BOOTSTRAP take precedence over `bootstrap.servers`.\n\n"
    yield "| key | client | default | meaning |\n|---|---|---|---|\n"
    for key in KEYS.values():
        default = key.render(key.default) or ""
        shown = f"`{default}`" if default not in ("", REQUIRED) else default
        yield f"| `{key.name}` | {key.scope} | {shown} | {key.doc} |\n"
    yield "\nAccepted aliases: "
    yield ", ".join(f"`{old}` (`{new}`)" for old, new in sorted(ALIASES.items())) + ".\n"
    yield "\nKeys that are refused, because a client that ignored them would surprise its user:\n\n"
    yield from (f"- `{name}`: {reason}\n" for name, reason in sorted(GONE.items()))
    yield "\nKnown keys that are ignored:\n"
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

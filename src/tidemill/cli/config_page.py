"""The page docs/configuration.md, made from the tables of :mod:`tidemill.model.configs`."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.model.configs import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS, Key
from tidemill.model.configs.keys import READ_ONLY, TYPE_NAMES

HEAD = """\
# Configuration

This page is made from the table in `src/tidemill/model/configs/` by `tidemill config keys --markdown`;
change it there.

A broker reads, each going before the next: what was set at run time (AlterConfigs), `--set key=value`, the
environment (`TIDEMILL_LOG_DIRS` is `log.dirs`; an empty variable counts as not set), the file of `--config`
(Java's properties syntax; Kafka's `server.properties` works), the default.
`tidemill config check --config FILE` shows what comes of them.

Numbers are plain: bytes, milliseconds. A key that nobody knows is named in a warning with its nearest
neighbour; a value that does not parse, or is out of range, stops the start. Keys can be set for one listener
as `listener.name.NAME.KEY`.

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
    return "".join(parts)


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

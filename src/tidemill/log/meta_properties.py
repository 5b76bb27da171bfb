"""``meta.properties``: the cluster and the broker of a data directory.

A Java properties file, one ``key=value`` a line, ``#`` begins a comment:

================  ==========================================================================
key               notes
================  ==========================================================================
``version``       0 with ``broker.id`` (brokers on ZooKeeper), 1 with ``node.id`` (KRaft)
``cluster.id``    the cluster's id, 22 characters of base64
``broker.id``     the broker's number, in version 0
``node.id``       the same in version 1
``directory.id``  the id of this directory, 22 characters of base64; in Kafka with version 1
================  ==========================================================================

Both are read. Brokers on ZooKeeper write version 0, which Apache Kafka requires there; all others write
version 1. Unknown keys are kept.

Source: Apache Kafka, ``MetaProperties.java``; KIP-858.
"""

from __future__ import annotations

from typing import Final

from tidemill.model.errors import ConfigError
from tidemill.model.ids import encode_id, new_id
from tidemill.model.os_error_texts import fault_of
from tidemill.model.system_interfaces import Files

VERSION: Final = "1"
VERSION_ON_ZOOKEEPER: Final = "0"
NODE_KEYS: Final = {VERSION_ON_ZOOKEEPER: "broker.id", VERSION: "node.id"}
"""The key of the broker id, by version."""
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class MetaProperties:
    """The content of a ``meta.properties`` file. ``node_id`` is -1 if it has none."""

    __slots__ = ("cluster_id", "directory_id", "node_id", "rest", "version")

    def __init__(
        self,
        cluster_id: str,
        node_id: int,
        directory_id: str,
        rest: dict[str, str] | None = None,
        version: str = VERSION,
    ) -> None:
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.directory_id = directory_id
        self.rest = rest or {}
        self.version = version


def parse_properties(text: str) -> dict[str, str]:
    """The pairs of a Java properties file without line continuations."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, _, value = line.partition("=")
        values[_unescape(key.strip())] = _unescape(value.strip())
    return values


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\" or at + 1 == len(text):
            out.append(text[at])
            at += 1
        elif text[at + 1] == "u" and at + 6 <= len(text):
            out.append(chr(int(text[at + 2 : at + 6], 16)))
            at += 6
        else:
            out.append(_ESCAPES.get(text[at + 1], text[at + 1]))
            at += 2
    return "".join(out)


def read_meta(files: Files, path: str) -> MetaProperties | None:
    """Reads the file; None if it does not exist. Raises ConfigError if it is damaged."""
    try:
        data = files.read(path)
    except FileNotFoundError:
        return None
    try:
        values = parse_properties(data.decode())
        version = values.pop("version")
        if version not in NODE_KEYS:
            raise ConfigError(
                f"{path}: version={version} is unknown, expected 0 or 1: was it written by a later version?"
            )
        node = values.pop(NODE_KEYS[version], None)
        return MetaProperties(
            values.pop("cluster.id", ""),
            -1 if node is None else int(node),
            values.pop("directory.id", ""),
            values,
            version,
        )
    except (ValueError, KeyError) as problem:
        raise ConfigError(
            f"{path} is damaged ({fault_of(problem)}): restore it, or start with an empty data directory"
        ) from None


def write_meta(files: Files, path: str, meta: MetaProperties) -> None:
    """Writes the file durably."""
    values = {
        **meta.rest,
        "cluster.id": meta.cluster_id,
        "directory.id": meta.directory_id or encode_id(new_id()),
        NODE_KEYS[meta.version]: str(meta.node_id),
        "version": meta.version,
    }
    lines = ["#", *(f"{key}={_escape(values[key])}" for key in sorted(values)), ""]
    files.replace(path, "\n".join(lines).encode())


def _escape(text: str) -> str:
    return "".join("\\" + letter if letter in "\\=:#!" else letter for letter in text)

"""The class path and Java options of a ZooKeeper server from the jars of PySpark."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
from pathlib import Path

from tidemill.model.errors import TidemillError

JARS = ("zookeeper-*", "slf4j-api-*", "log4j-*", "metrics-core-*", "snappy-java-*", "netty-*", "commons-*")
SERVER = "org.apache.zookeeper.server.ZooKeeperServerMain"
MEMBER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
"""The main classes of a standalone server and of a member of an ensemble."""

JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m")
"""Options for a fast start of a small server."""

ANSWER_S = 5.0


class ZooKeeperMissing(TidemillError):
    """PySpark, its jars of ZooKeeper or Java are missing."""


def class_path() -> str:
    """The class path of a server. Raises ZooKeeperMissing."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ZooKeeperMissing("the ZooKeeper server is part of PySpark: pip install 'tidemill[pipeline]'")
    if shutil.which("java") is None:
        raise ZooKeeperMissing(
            "the ZooKeeper server needs Java, and there is no java on the PATH: install a Java runtime, "
            "version 17 or later"
        )
    jars = Path(spec.submodule_search_locations[0], "jars")
    found = [str(path) for pattern in JARS for path in sorted(jars.glob(f"{pattern}.jar"))]
    if not found:
        raise ZooKeeperMissing(f"{jars} has no jars of ZooKeeper: pip install --force-reinstall pyspark")
    return ":".join(found)


def serves(host: str, port: int) -> bool:
    """Whether a ZooKeeper server responds to ``srvr`` at the address."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1) as one:
        one.settimeout(ANSWER_S)
        one.sendall(b"srvr")
        return b"Mode:" in one.recv(8192)
    return False

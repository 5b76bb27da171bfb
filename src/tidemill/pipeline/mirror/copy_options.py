"""The options of the data source ``tidemill-mirror``, with which the job passes its settings to Spark.

``source.*`` and ``target.*`` are client settings of the two clusters, without the prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidemill.pipeline.mirror.target_names import TargetNames
from tidemill.pipeline.mirror.topic_filter import ALL, TopicFilter

SOURCE, TARGET = "source.", "target."


class CopyOptions(NamedTuple):
    """The settings of a mirror with the same offsets."""

    source: Mapping[str, str]
    target: Mapping[str, str]
    wanted: TopicFilter
    names: TargetNames
    replication_factor: int = -1
    topics_interval_s: float = 10.0
    """How often the topics of the clusters are compared."""
    tasks_max: int = 8

    def to_options(self) -> dict[str, str]:
        """Returns the options of the data source."""
        return {
            **{SOURCE + key: value for key, value in self.source.items()},
            **{TARGET + key: value for key, value in self.target.items()},
            "allow": self.wanted.allow,
            "deny": self.wanted.deny,
            "prefix": self.names.prefix,
            "targetAlias": self.names.target_alias,
            "replicationFactor": str(self.replication_factor),
            "topicsInterval": repr(self.topics_interval_s),
            "tasks": str(self.tasks_max),
        }


def parse_copy_options(options: Mapping[str, str]) -> CopyOptions:
    """Parses :meth:`CopyOptions.to_options`."""
    given = {name.lower(): value for name, value in options.items()}

    def client(prefix: str) -> dict[str, str]:
        return {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}

    return CopyOptions(
        client(SOURCE),
        client(TARGET),
        TopicFilter(given.get("allow", ALL), given.get("deny", "")),
        TargetNames(given.get("prefix", ""), given.get("targetalias", "")),
        int(given.get("replicationfactor", "-1")),
        float(given.get("topicsinterval", "10")),
        int(given.get("tasks", "8")),
    )

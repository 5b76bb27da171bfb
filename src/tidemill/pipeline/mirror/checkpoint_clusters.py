"""The clusters whose positions a checkpoint has, so that those of another cluster are not continued.

The file in the checkpoint of a source::

    {"source": "lkc-1", "target": "lkc-2"}

An id is null if the cluster has none (Apache Kafka before 0.10.1). Topic ids do not suffice: brokers before
2.8 have none, and a topic with another id counts as recreated, and is copied from its start.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import ConfigError

CLUSTERS_FILE: Final = "tidemill-clusters.json"


class ClusterIds(NamedTuple):
    """The ids of a source and of the target; None if unknown."""

    source: str | None
    target: str | None


def refuse_other_clusters(checkpoint: Path, alias: str, ids: ClusterIds) -> None:
    """Notes the clusters of a source's checkpoint. Raises ConfigError if it has those of others."""
    path = checkpoint / CLUSTERS_FILE
    known = _known(path)
    for name, before, now in zip(ids._fields, known, ids, strict=True):
        if None not in (before, now) and before != now:
            raise ConfigError(
                f"the checkpoint {checkpoint} has the positions of the {name} cluster {before}, and the "
                f"{name} of {alias} is the cluster {now} now: records would be lost, or copied again. Set "
                "the addresses and aliases as before (--source ALIAS=HOST:PORT), or another checkpoint"
            )
    merged = ClusterIds(*(now or before for before, now in zip(known, ids, strict=True)))
    if merged != known:
        checkpoint.mkdir(parents=True, exist_ok=True)
        SystemFiles().replace(str(path), json.dumps(merged._asdict()).encode())


def _known(path: Path) -> ClusterIds:
    try:
        table = json.loads(path.read_bytes())
        return ClusterIds(table["source"], table["target"])
    except FileNotFoundError:
        return ClusterIds(None, None)
    except (ValueError, KeyError, TypeError) as problem:
        raise ConfigError(
            f"{path} is damaged ({problem!r}): remove it, if the clusters are the same"
        ) from None

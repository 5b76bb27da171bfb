"""Reading ``min.insync.replicas`` from the store, where somebody else may have written it.

An eligible leader replica has every committed record as long as nothing is committed by a lower minimum than
the one by which it was made eligible. A leader may have read a lower one, and commit without these replicas,
before the controller hears of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.image import ClusterImage
from tidemill.coordination.nodes import DEFAULT_ENTITY, ConfigNode
from tidemill.coordination.port import Store
from tidemill.model.configs import MIN_INSYNC

logger = logging.getLogger(__name__)


async def read_other_min_insync(
    store: Store, image: ClusterImage, topics: Iterable[str]
) -> dict[tuple[str, str], dict[str, str]]:
    """The settings of ``topics`` and the cluster, by kind and name, whose minimum is not that of ``image``.

    Settings that cannot be read do not count, as for the leaders. Raises StoreError.
    """
    known = {("topics", name): image.topics[name].config for name in topics}
    known["brokers", DEFAULT_ENTITY] = image.default_broker_config()
    paths = [ConfigNode.path(*entity) for entity in known]
    found = {}
    for (entity, before), path, node in zip(known.items(), paths, await store.get_many(paths), strict=True):
        try:
            settings = ConfigNode.decode(path, node.data) if node is not None else {}
        except NodeFormatError as problem:
            logger.debug("settings stay as they were: %s", problem)
            continue
        if settings.get(MIN_INSYNC) != before.get(MIN_INSYNC):
            found[entity] = settings
    return found

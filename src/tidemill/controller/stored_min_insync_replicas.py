"""Reads ``min.insync.replicas`` from the store, where another client may have changed it.

An eligible leader replica has every committed record as long as nothing is committed with a lower minimum
than the one by which it became eligible. A leader may apply a lower minimum, and commit without these
replicas, before the controller has read it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.cluster_image_loader import read_settings
from tidemill.coordination.coordination_store import Store
from tidemill.coordination.nodes import DEFAULT_ENTITY, ConfigResource
from tidemill.model.configs import MIN_INSYNC


async def read_stored_min_insync(
    store: Store, image: ClusterImage, topics: Iterable[str]
) -> dict[ConfigResource, dict[str, str]]:
    """The settings of ``topics`` and the cluster whose minimum differs from ``image``.

    Unreadable settings are skipped, as leaders do. Raises StoreError.
    """
    known = {ConfigResource("topics", name): image.topics[name].config for name in topics}
    known[ConfigResource("brokers", DEFAULT_ENTITY)] = image.default_broker_config()
    found = await read_settings(store, known)
    return {
        resource: settings
        for resource, settings in found.items()
        if settings.get(MIN_INSYNC) != known[resource].get(MIN_INSYNC)
    }

"""Reading ``min.insync.replicas`` from the store, where somebody else may have written it.

An eligible leader replica has every committed record as long as nothing is committed by a lower minimum than
the one by which it was made eligible. A leader may have read a lower one, and commit without these replicas,
before the controller knows of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.coordination.image import ClusterImage
from tidemill.coordination.loading import read_settings
from tidemill.coordination.nodes import DEFAULT_ENTITY
from tidemill.coordination.port import Store
from tidemill.model.configs import MIN_INSYNC


async def read_other_min_insync(
    store: Store, image: ClusterImage, topics: Iterable[str]
) -> dict[tuple[str, str], dict[str, str]]:
    """The settings of ``topics`` and the cluster, by kind and name, whose minimum is not that of ``image``.

    Settings that cannot be read do not count, as for the leaders. Raises StoreError.
    """
    known = {("topics", name): image.topics[name].config for name in topics}
    known["brokers", DEFAULT_ENTITY] = image.default_broker_config()
    found = await read_settings(store, known)
    return {
        entity: settings
        for entity, settings in found.items()
        if settings.get(MIN_INSYNC) != known[entity].get(MIN_INSYNC)
    }

"""The states of a topic that is a mirror of a topic of another cluster, in ``tidemill.mirror.state``.

=========  ==========================================  ======================================
state      the topic accepts                           may follow
=========  ==========================================  ======================================
none       messages of producers                       a new topic, promoting
active     batches of its source                       a new topic
promoting  nothing; its leaders end the mirror         active
=========  ==========================================  ======================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemill.model.errors import ConfigError

MIRROR_STATE: Final = "tidemill.mirror.state"
"""The key of the topic setting."""
NO_MIRROR: Final = "none"
ACTIVE: Final = "active"
PROMOTING: Final = "promoting"

_FOLLOWING: Final = {ACTIVE: PROMOTING, PROMOTING: NO_MIRROR}
"""By state the one that may follow. Another order would mix records of two clusters."""


def is_mirror(settings: Mapping[str, str | None]) -> bool:
    """Whether a topic with these settings is a mirror, also while it is promoted."""
    return (settings.get(MIRROR_STATE) or NO_MIRROR) != NO_MIRROR


def check_new_state(name: str, settings: Mapping[str, str | None]) -> None:
    """Raises ConfigError for a state that a new topic cannot have."""
    if settings.get(MIRROR_STATE) == PROMOTING:
        raise ConfigError(
            f"topic {name}: {MIRROR_STATE}={PROMOTING} is not for new topics: {ACTIVE} is, and {PROMOTING}"
            " ends it"
        )


def check_state_change(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raises ConfigError for a state that may not follow the one before."""
    earlier, later = (settings.get(MIRROR_STATE, NO_MIRROR) for settings in (before, after))
    if earlier != later and later != _FOLLOWING.get(earlier):
        raise ConfigError(
            f"topic {name}: {MIRROR_STATE}={later} cannot follow {earlier}: {ACTIVE} is for new topics, then"
            f" come {PROMOTING} and {NO_MIRROR}"
        )

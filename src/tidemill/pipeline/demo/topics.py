"""Creates and deletes the demo's topics."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.client.admin import Admin
from tidemill.client.admin_types import NewTopic
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode

KEEP_FOREVER = {"retention.ms": "-1"}
"""Record times are in 2013: the default retention of 7 days would delete all records at once."""


def make_topics(bootstrap: str, names: Sequence[str], partitions: int) -> None:
    """Creates the topics. Raises ClientError if one cannot be created."""
    wanted = [NewTopic(name, partitions, configs=dict(KEEP_FOREVER)) for name in names]
    with Admin(bootstrap) as admin:
        for outcome in admin.create_topics(wanted).values():
            if isinstance(outcome, ClientError):
                raise outcome


def remove_topics(bootstrap: str, names: Sequence[str]) -> None:
    """Deletes the topics of a run on an existing cluster; a run that failed may not have created them all."""
    with Admin(bootstrap) as admin:
        for outcome in admin.delete_topics(names).values():
            if outcome is not None and outcome.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise outcome
